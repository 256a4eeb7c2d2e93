"""Validates objects against the schemas of Kubernetes, and of the other people's kinds we use.

Knows JSON schemas; knows no rule of ours. Invariant: a kind without a schema is an offence, and so
is a field that the schema does not know.

Kubernetes' own come with the package kubernetes-validate. The custom ones are in
`custom_kinds.yaml`, written by hand: of each only what the manifests use.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import yaml
from kubernetes_validate import utils
from referencing import Registry, Resource

from tests.kubernetes.rendered import Manifest, title

# The oldest that has all we use (preStop sleep), and the newest that the schemas know.
VERSIONS = ("1.30", "1.37")
CUSTOM_KINDS = Path(__file__).parent / "custom_kinds.yaml"

Validator = jsonschema.Draft202012Validator


def schema_offences(manifest: Manifest, version: str) -> Iterator[str]:
    kind, api_version = manifest["kind"], manifest["apiVersion"]
    validator = _custom().get(f"{api_version}/{kind}") or _kubernetes(kind, api_version, version)
    if validator is None:
        yield f"{title(manifest)}: no schema for {api_version} {kind} in Kubernetes {version}"
        return
    for error in validator.iter_errors(manifest):
        path = ".".join(str(part) for part in error.path)
        yield f"{title(manifest)}: {path}: {error.message[:200]}"


@cache
def _custom() -> dict[str, Validator]:
    content = yaml.safe_load(CUSTOM_KINDS.read_text())
    return {
        name: Validator({**schema, "$defs": content["$defs"]})
        for name, schema in content["kinds"].items()
    }


@cache
def _kubernetes(kind: str, api_version: str, version: str) -> Validator | None:
    """As `kubernetes_validate.validate` does it, with what it reads kept."""
    group, _, name = api_version.rpartition("/")
    prefix = f"{group.partition('.')[0]}-{name}" if group else name
    try:
        schema = _read(f"{kind.lower()}-{prefix}.json", version)
    except FileNotFoundError:
        return None
    registry: Any = Resource.from_contents(schema) @ _definitions(version)
    return Validator(schema, registry=registry)


@cache
def _definitions(version: str) -> Registry[Any]:
    return Resource.from_contents(_read("_definitions.json", version)) @ Registry()


def _read(name: str, version: str) -> Any:
    full = next(each for each in utils.all_versions() if utils.major_minor(each) == version)
    return utils.schema_contents(f"kubernetes-json-schema/v{full}-local-strict/{name}", version)
