"""Ports that stay, flags that reach every service that they concern."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from segue.child import ChildSpec
from segue.config import parse_config, to_flags
from segue.serve_config import EXECUTOR_FLAGS, SCHEDULER_FLAGS, ServeConfig
from segue.serve_plan import PortTaken, ServePlan, make_plan


def plan(*argv: str) -> ServePlan:
    config = parse_config(ServeConfig, ("--port", "0", *argv), {})
    return make_plan(config, Path("/models/tiny model"))


def flag(spec: ChildSpec, name: str) -> str:
    return spec.command[spec.command.index(name) + 1]


def test_all_ports_differ() -> None:
    one = plan("--num-executors", "3", "--num-schedulers", "2", "--num-gateways", "2")
    ports = [
        *(one.redis_port, *one.scheduler_ports, *one.executor_ports),
        *(*one.metrics_ports, *one.gateway_ports),
    ]
    assert len(ports) == 1 + 2 + 3 + 5 + 2
    assert len(set(ports)) == len(ports)


def test_workers_share_their_gateways_port_and_have_one_each() -> None:
    one = plan("--num-gateways", "2", "--gateway-workers", "3")
    first, second = one.gateways()
    assert [flag(spec, "--workers") for spec in (first, second)] == ["3", "3"]
    ports = [port for spec in (first, second) for port in flag(spec, "--metrics-ports").split(",")]
    assert len(set(ports) | {flag(first, "--port"), flag(second, "--port")}) == 8


def test_everyone_is_told_where_the_schedulers_are() -> None:
    one = plan("--num-schedulers", "2")
    (executor,), (gateway,) = one.executors(), one.gateways()
    listening = [flag(spec, "--listen") for spec in one.schedulers([])]
    assert flag(executor, "--schedulers").split(",") == listening
    assert flag(gateway, "--schedulers").split(",") == listening


def test_identities_are_stable_and_differ() -> None:
    specs = plan("--num-schedulers", "2").schedulers([])
    assert [flag(spec, "--scheduler-id") for spec in specs] == ["s0", "s1"]


def test_a_shared_flag_reaches_every_service_that_has_it() -> None:
    one = plan("--lease-ttl-s", "1", "--block-size", "32", "--max-model-len", "64")
    (scheduler,), (executor,), (gateway,) = one.schedulers([]), one.executors(), one.gateways()
    assert [flag(s, "--lease-ttl-s") for s in (scheduler, gateway)] == ["1.0", "1.0"]
    assert [flag(s, "--block-size") for s in (scheduler, executor)] == ["32", "32"]
    assert [flag(s, "--max-model-len") for s in (scheduler, executor, gateway)] == ["64"] * 3


def test_what_is_not_given_is_left_to_the_service() -> None:
    one = plan()
    for spec in (*one.schedulers([]), *one.executors(), *one.gateways()):
        assert "--lease-ttl-s" not in spec.command
        assert "--dtype" not in spec.command


def test_any_other_flag_is_the_scheduler_s() -> None:
    (scheduler,) = plan().schedulers(["--max-num-seqs", "7"])
    assert flag(scheduler, "--max-num-seqs") == "7"


def test_a_command_line_names_its_service() -> None:
    """What `ps` shows is what a person kills."""
    one = plan()
    modules = [s.command[1:3] for s in (*one.schedulers([]), *one.executors(), *one.gateways())]
    assert modules == [("-m", "scheduler_svc"), ("-m", "executor_svc"), ("-m", "gateway_svc")]


def test_gateways_take_the_ports_that_follow() -> None:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port = one.getsockname()[1]
    config = parse_config(ServeConfig, ("--port", str(port)), {})
    assert make_plan(config, Path("m")).gateway_ports == (port,)


def test_a_taken_port_is_refused_before_anything_starts() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        config = parse_config(ServeConfig, ("--port", str(port)), {})
        with pytest.raises(PortTaken, match=f"port {port} of 127.0.0.1 is taken"):
            make_plan(config, Path("m"))


def test_a_deployment_name_fits_into_a_redis_key() -> None:
    assert plan().deployment == "tiny-model"
    assert plan("--deployment", "mine").deployment == "mine"


def test_a_host_for_all_is_reached_on_loopback() -> None:
    one = plan("--host", "0.0.0.0")
    assert one.url == f"http://127.0.0.1:{one.gateway_ports[0]}"


@pytest.mark.parametrize("argv", [("--port", "70000"), ("--num-executors", "0")])
def test_nonsense_is_refused(argv: tuple[str, str]) -> None:
    with pytest.raises(SystemExit):
        parse_config(ServeConfig, argv, {})


@pytest.mark.parametrize(("given", "prefix"), [("", "segue"), ("chat", "chat")])
def test_each_service_has_a_name_of_its_own_in_traces(
    given: str, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the user names the whole, since a variable is passed to every service."""
    monkeypatch.setenv("OTEL_SERVICE_NAME", given)
    one = plan()
    specs = (*one.schedulers([]), *one.executors(), *one.gateways())
    names = [spec.environ["OTEL_SERVICE_NAME"] for spec in specs]
    assert names == [f"{prefix}-{part}" for part in ("scheduler", "executor", "gateway")]


def test_how_steps_are_traced_is_told_to_who_decides_it() -> None:
    one = plan("--trace-step-ratio", "0.1", "--trace-slow-step-ms", "50")
    (scheduler,), (executor,) = one.schedulers([]), one.executors()
    assert flag(scheduler, "--trace-step-ratio") == "0.1"
    assert flag(scheduler, "--trace-slow-step-ms") == flag(executor, "--trace-slow-step-ms") == "50"


def test_drafts_and_swap_space_reach_whom_they_are_for() -> None:
    """The scheduler leaves room for drafts, the executor makes them: one flag without the other
    would cost room, or do nothing."""
    config = ServeConfig(
        speculative_method="draft_model",
        num_speculative_tokens=3,
        draft_model=Path("small"),
        swap_space_bytes=100,
    )
    executor = " ".join(to_flags(config, EXECUTOR_FLAGS))
    assert "--num-speculative-tokens 3" in " ".join(to_flags(config, SCHEDULER_FLAGS))
    assert "--speculative-method draft_model --draft-model small" in executor
    assert "--swap-space-bytes 100" in executor
    with pytest.raises(ValueError, match="need each other"):
        ServeConfig(speculative_method="ngram")
