"""`segue doctor`: whether this machine can serve, in one line for each thing that matters.

Knows which checks there are and how to print them. Invariant: exit code 1 exactly when a check
fails; a warning is no failure.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING

from segue.commands.running_serve import NothingServed, running_serve
from segue.doctor.finding import Finding, Level
from segue.doctor.machine import (
    check_clock,
    check_disk,
    check_model,
    check_ports,
    check_python,
    check_redis_program,
)
from segue.doctor.services import check_executor, check_redis_server
from segue.embedded_redis import without_password
from segue.state_directory import default_state_directory

if TYPE_CHECKING:
    from argparse import _SubParsersAction  # pyright: ignore[reportPrivateUsage]


DURABILITIES = ("everysec", "always", "replicated")


def register(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("doctor", help="whether this machine can serve")
    parser.add_argument("--model", type=Path, metavar="PATH", help="what is to be served")
    parser.add_argument("--redis-url", metavar="URL", help="check this Redis instead of a program")
    parser.add_argument("--durability", default="everysec", choices=DURABILITIES)
    parser.add_argument("--host", default="127.0.0.1", help="address to serve HTTP on")
    parser.add_argument("--port", type=int, default=8000, help="port to serve HTTP on")
    parser.add_argument("--num-gateways", type=int, default=1, help="on --port and those after it")
    parser.add_argument("--state-dir", type=Path, metavar="PATH", help="state directory")
    parser.add_argument("--json", action="store_true", help="for a program")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    findings = examine(args)
    if args.json:
        print(json.dumps([as_json(finding) for finding in findings], indent=2))
    else:
        for finding in findings:
            print(finding)
    return int(any(finding.level is Level.FAIL for finding in findings))


def examine(args: argparse.Namespace) -> list[Finding]:
    redis_now_s = None
    if args.redis_url:
        redis, redis_now_s = check_redis_server(args.redis_url, args.durability)
        redis = [_shown(finding, args.redis_url) for finding in redis]
    else:
        redis = [check_redis_program()]
    return [
        check_python(),
        *check_executor(),
        *redis,
        check_ports(args.host, args.port, args.num_gateways, _serving(args.state_dir)),
        check_model(args.model, _demo_model()),
        check_disk(args.state_dir or default_state_directory("")),
        check_clock(redis_now_s),
    ]


def as_json(finding: Finding) -> dict[str, str]:
    return {
        "name": finding.name,
        "level": finding.level.value,
        "text": finding.text,
        "advice": finding.advice,
    }


def _shown(finding: Finding, url: str) -> Finding:
    text = f"{without_password(url)}: {finding.text}"
    return Finding(finding.name, finding.level, text, finding.advice)


def _serving(state_dir: Path | None) -> str | None:
    try:
        return running_serve(state_dir)[1].url
    except NothingServed:
        return None


def _demo_model() -> Path:
    from segue.model_files.demo_model import SMOLLM2_135M, cache_dir  # gguf is slow to import

    return cache_dir() / "models" / SMOLLM2_135M.name
