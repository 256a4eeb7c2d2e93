"""`segue ctl`: tells the scheduler that leads to pause, to drain a lane, to take other settings.

Knows the unary RPCs; finds the scheduler in serve.json or is told where it is. Invariant: prints
what the scheduler answered, and exits with 1 where it did not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING

from google.protobuf.json_format import MessageToDict

from segue.admin_client import AdminClient, AdminError
from segue.commands.running_serve import NothingServed, add_state_dir_flag, running_serve
from segue.commands.text_table import text_table
from segue.config import add_flags, config_from
from segue.grpc_tls import TlsConfig
from segue.lane_status import takes_requests

if TYPE_CHECKING:
    from argparse import _SubParsersAction  # pyright: ignore[reportPrivateUsage]

    from segue.v1.scheduler_pb2 import GetStatusResponse, SettingState

LANE_COLUMNS = (
    *("executor_id", "status", "connected", "generation", "next_step", "in_flight"),
    *("running", "waiting", "swapped", "free_blocks", "usable_blocks"),
)


def register(subparsers: _SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser("ctl", help="pause, resume, drain, config, set, … of what runs")
    commands = parser.add_subparsers(dest="ctl_command", required=True, metavar="ACTION")
    status = commands.add_parser("status", help="who leads, and how each lane stands")
    status.add_argument("--json", action="store_true", help="as the scheduler says it")
    pause = commands.add_parser("pause", help="admit no new requests")
    pause.add_argument("--running", action="store_true", help="schedule nothing at all")
    commands.add_parser("resume", help="end a pause")
    reset = commands.add_parser("reset-cache", help="forget all cached prefixes")
    reset.add_argument("--running", action="store_true", help="preempt what runs first")
    drain = commands.add_parser("drain", help="move an executor's requests elsewhere")
    drain.add_argument("executor_id")
    drain.add_argument("--force", action="store_true", help="even if no other could take them")
    shown = commands.add_parser("config", help="settings that a leader takes, and what they are")
    shown.add_argument("--all", action="store_true", help="also those that need a restart")
    setting = commands.add_parser("set", help="change settings without a restart")
    setting.add_argument("settings", nargs="+", metavar="KEY=VALUE")
    unset = commands.add_parser("unset", help="let the flags say it again")
    unset.add_argument("settings", nargs="+", metavar="KEY")
    for command in commands.choices.values():
        add_state_dir_flag(command)
        command.add_argument(
            "--scheduler", metavar="HOST:PORT,…", help="ask these instead of a local serve's"
        )
        add_flags(command, TlsConfig)
        command.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    try:
        addresses = (
            args.scheduler.split(",")
            if args.scheduler
            else running_serve(args.state_dir)[1].schedulers
        )
        admin = AdminClient(addresses, tls=config_from(TlsConfig, args).tls)
        said = asyncio.run(_act(admin, args))
    except (AdminError, NothingServed, OSError) as error:
        print(f"segue ctl: {error}", file=sys.stderr)
        return 1
    print(said)
    return 0


async def _act(admin: AdminClient, args: argparse.Namespace) -> str:
    match args.ctl_command:
        case "pause":
            return await admin.pause(pause_running=args.running)
        case "resume":
            return await admin.resume()
        case "reset-cache":
            is_reset = await admin.reset_prefix_cache(reset_running_requests=args.running)
            if not is_reset:
                raise AdminError("not reset: requests run; add --running to preempt them")
            return "the prefix cache is empty"
        case "drain":
            return await _drain(admin, args.executor_id, is_forced=args.force)
        case "config":
            return _settings_text(await admin.get_configuration(), shows_fixed=args.all)
        case "set":
            return _settings_text(await admin.change_configuration(_pairs(args.settings)))
        case "unset":
            return _settings_text(await admin.change_configuration({}, args.settings))
        case _:
            status = await admin.get_status()
            return _as_json(status) if args.json else status_text(status)


async def _drain(admin: AdminClient, executor_id: str, *, is_forced: bool) -> str:
    lanes = {lane.executor_id: lane for lane in (await admin.get_status()).lanes}
    others = [lane for i, lane in lanes.items() if i != executor_id]
    can_move = any(map(takes_requests, others))
    if executor_id in lanes and not (can_move or is_forced):
        raise AdminError(
            f"no executor but {executor_id} is active: requests would wait until it is started "
            "again; add --force to drain it all the same"
        )
    num_moved = await admin.drain(executor_id)
    return f"{num_moved} requests moved from {executor_id}, which takes no more until started again"


def _pairs(settings: Sequence[str]) -> dict[str, str]:
    pairs = [setting.partition("=") for setting in settings]
    if wrong := [name for name, sign, _ in pairs if not (name and sign)]:
        raise AdminError(f"{wrong[0]!r} is not KEY=VALUE")
    return {name: value for name, _, value in pairs}


def _settings_text(settings: Sequence[SettingState], *, shows_fixed: bool = False) -> str:
    rows = [
        (one.name, one.value, "" if one.value == one.flag_value else one.flag_value)
        for one in settings
        if not one.fixed_reason
    ]
    lines = list(text_table(("setting", "value", "instead_of"), rows))
    if shows_fixed:
        fixed = [(one.name, one.value, one.fixed_reason) for one in settings if one.fixed_reason]
        lines += ["", *text_table(("setting", "value", "needs_a_restart_since"), fixed)]
    return "\n".join(lines)


def status_text(status: GetStatusResponse) -> str:
    numbers = {
        "epoch": status.leader.epoch,
        "leader": status.leader.leader_id,
        "policy": status.policy,
        "pause state": status.pause_state,
        "steps finished": status.num_steps_finished,
        "requests unplaced": status.num_requests_unplaced,
        "requests finished": status.num_requests_finished,
        "streams resumed": status.num_streams_resumed,
        "tokens recomputed": status.num_tokens_recomputed,
    }
    lines = [f"{name:<18} {value}" for name, value in numbers.items()]
    lanes = [
        (
            *(lane.executor_id, lane.status, "yes" if lane.is_connected else "no"),
            *(f"{lane.generation.epoch}.{lane.generation.number}", lane.next_step_id),
            *(lane.num_steps_in_flight, lane.num_running, lane.num_waiting, lane.num_swapped),
            *(lane.num_free_blocks, lane.num_usable_blocks),
        )
        for lane in status.lanes
    ]
    return "\n".join([*lines, "", *text_table(LANE_COLUMNS, lanes)])


def _as_json(status: GetStatusResponse) -> str:
    content = MessageToDict(
        status, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    return json.dumps(content, indent=2)
