"""`segue serve`: Redis, schedulers, executors and gateways on this machine, kept running.

Knows the order in which things are checked and started; what a service does is its own. Invariant:
what can not work is one readable line and an exit code before anything has been changed, and when
this command ends, nothing that it started runs.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import textwrap
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from segue import embedded_redis
from segue.config import add_config_flag, add_flags, config_from, field_names, stored_values
from segue.console import Console
from segue.embedded_redis import RedisUnusable
from segue.executor_extra import ExecutorNotInstalled, require_executor
from segue.model_files.model_directory import ModelDirectory, ModelDirectoryError
from segue.passed_on_flags import (
    FlagRefused,
    check_passed_on,
    check_scheduler_flags,
    flags_in_file,
    passed_on_flags,
)
from segue.process_identity import ProcessIdentity
from segue.restart_report import RestartReport
from segue.serve_config import PASSED_ON_FLAGS, ServeConfig
from segue.serve_plan import PortTaken, ServePlan, make_plan
from segue.serve_summary import summary_lines
from segue.state_directory import (
    ServeRecord,
    StateDirectory,
    StateDirectoryError,
    default_state_directory,
)
from segue.state_identity import (
    StateIdentity,
    StateMismatch,
    claim_state,
    forget_state,
    require_sole_state,
)
from segue.supervisor import ChildFailed, StopRequested, Supervisor
from segue.version import STATE_SCHEMA_VERSION

if TYPE_CHECKING:
    from argparse import _SubParsersAction  # pyright: ignore[reportPrivateUsage]

LEFTOVER_GRACE_S = 3.0
HELP_WIDTH = 78

_READABLE = (
    ExecutorNotInstalled,
    ModelDirectoryError,
    StateDirectoryError,
    RedisUnusable,
    PortTaken,
    StateMismatch,
    ChildFailed,
)


def register(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "serve",
        help="serve a model on this machine",
        allow_abbrev=False,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=_epilog(),
    )
    add_config_flag(parser)
    add_flags(parser, ServeConfig)
    parser.set_defaults(func=run, takes_unknown=True)


def _epilog() -> str:
    """Wrapped here: argparse would break flags at their dashes."""
    text = (
        f"These flags are passed on to the schedulers: {', '.join(passed_on_flags())}. "
        "What they do: python -m scheduler_svc --help, and docs/policies.md."
    )
    return textwrap.fill(text, HELP_WIDTH, break_on_hyphens=False, break_long_words=False)


def run(args: argparse.Namespace) -> int:
    stored = stored_values(args, [*field_names(ServeConfig), *PASSED_ON_FLAGS])
    config = config_from(ServeConfig, args, stored=stored)
    args.unknown = [*flags_in_file(stored), *args.unknown]
    try:
        require_executor()
        check_passed_on(args.unknown)
        check_scheduler_flags(config, args.unknown)
        return asyncio.run(serve(config, args.unknown, Console()))
    except FlagRefused as error:
        print(f"segue serve: error: {error}", file=sys.stderr)
        return 2
    except _READABLE as error:
        print(f"segue serve: {error}", file=sys.stderr)
        return 1


async def serve(config: ServeConfig, unknown: Sequence[str], console: Console) -> int:
    """Until Ctrl-C or SIGTERM; raises one of `_READABLE` where it can not serve."""
    started_at = time.monotonic()
    model = ModelDirectory.load(_model_path(config, console))
    if config.draft_model is not None:
        draft_model = model_directory(config.draft_model.resolve(), console)
        config = replace(config, draft_model=draft_model)
    fingerprint = model.fingerprint()
    binary = None if config.redis_url else embedded_redis.find_redis()
    model_name = (*config.served_model_name, model.path.name)[0]
    path = config.state_dir or default_state_directory(model_name)
    directory = StateDirectory.open(path.resolve())
    try:
        for leftover in directory.end_leftovers(LEFTOVER_GRACE_S):
            console.say(f"ended what an earlier serve had left: {leftover}")
        plan = make_plan(config, model.path)
        if config.fresh:
            await _forget(plan, directory)
        report = RestartReport(plan.admin())
        record = _record(plan, model)
        async with Supervisor(directory, console, record, report.describe) as supervisor:
            try:
                if binary is not None:
                    await supervisor.start(plan.redis(binary, directory.redis_path))
                    await supervisor.wait_ready("redis")
                    await require_sole_state(plan.redis_url, plan.deployment)
                else:
                    await embedded_redis.require(plan.redis_url)
                identity = StateIdentity(
                    fingerprint, config.block_size, STATE_SCHEMA_VERSION, config.quantization
                )
                await claim_state(plan.redis_url, plan.deployment, identity)
                await _start_services(supervisor, plan, unknown)
                await report.note()
                console.say(f"ready in {time.monotonic() - started_at:.1f} s")
                for line in summary_lines(supervisor.record, directory.path):
                    console.say(line)
                await supervisor.run_until_stopped()
            except StopRequested:
                return 0
    finally:
        directory.close()
    return 0


async def _start_services(supervisor: Supervisor, plan: ServePlan, unknown: Sequence[str]) -> None:
    """All at once: each finds its peers when they are there."""
    specs = [*plan.schedulers(unknown), *plan.executors(), *plan.gateways()]
    for spec in specs:
        await supervisor.start(spec)
    await supervisor.wait_ready(*(spec.name for spec in specs))


async def _forget(plan: ServePlan, directory: StateDirectory) -> None:
    directory.forget_redis()
    if plan.config.redis_url:
        await forget_state(plan.redis_url, plan.deployment)


def _model_path(config: ServeConfig, console: Console) -> Path:
    if config.model is not None:
        return model_directory(config.model.resolve(), console)
    from segue.model_files.demo_model import ensure_demo_model  # gguf is slow to import

    return ensure_demo_model(say=console.say)


def model_directory(path: Path, console: Console) -> Path:
    if path.suffix.lower() != ".gguf" or path.is_dir():
        return path
    from segue.model_files.gguf_model import ensure_gguf_model  # gguf is slow to import

    return ensure_gguf_model(path, say=console.say)


def _record(plan: ServePlan, model: ModelDirectory) -> ServeRecord:
    supervisor = ProcessIdentity.of(os.getpid())
    assert supervisor is not None
    return ServeRecord(
        supervisor=supervisor,
        url=plan.url,
        redis_url=plan.redis_url,
        deployment=plan.deployment,
        schedulers=plan.scheduler_addresses,
        model=plan.model_names[0],
        has_chat_template=model.chat_template is not None,
    )
