"""Flags of `segue serve` that are the scheduler's: named completely, refused in one line."""

from __future__ import annotations

from dataclasses import fields

import pytest

from scheduler_svc.config import SchedulerServiceConfig
from segue.passed_on_flags import FlagRefused, check_passed_on, flags_in_file
from segue.serve_config import PASSED_ON_FLAGS, SCHEDULER_FLAGS, ServeConfig

NOT_FOR_A_USER_OF_SERVE = {
    *("listen", "advertise", "redis_url", "deployment", "scheduler_id", "has_peers"),
    *("executors", "metrics_port", "served_model_name"),
    *("tls_cert", "tls_key", "tls_ca", "health_listen"),  # all is on one machine
}


def test_each_flag_of_the_scheduler_is_shared_passed_on_or_set_by_serve() -> None:
    """A new one has to be named in serve_config.py, or `segue serve` would refuse it."""
    names = {one.name for one in fields(SchedulerServiceConfig)}
    assert names == {*PASSED_ON_FLAGS, *SCHEDULER_FLAGS, *NOT_FOR_A_USER_OF_SERVE}
    assert not {*PASSED_ON_FLAGS} & {one.name for one in fields(ServeConfig)}


def test_what_is_passed_on_may_be_said_in_any_form() -> None:
    check_passed_on(["--max-num-seqs", "7", "--delay-factor=0.5", "--no-async-scheduling"])


@pytest.mark.parametrize(
    ("argument", "advice"),
    [
        ("--max-num-seq", "did you mean --max-num-seqs?"),
        ("--num-executer=2", "did you mean --num-executors?"),
        ("--no-such-flag", "--help lists all"),
        ("--scheduler-id", ""),
    ],
)
def test_a_name_that_is_not_known_is_refused_with_advice(argument: str, advice: str) -> None:
    with pytest.raises(FlagRefused) as refused:
        check_passed_on(["--max-num-seqs", "7", argument])
    name = argument.partition("=")[0]
    assert str(refused.value).startswith(f"unknown argument {name}; {advice}")


def test_a_file_says_what_is_passed_on_and_a_variable_beats_it() -> None:
    stored = {"max_num_seqs": "4", "enable_prefix_caching": False, "watermark": "0.1", "port": "1"}
    flags = flags_in_file(stored, {"SEGUE_WATERMARK": "0.2"})
    assert sorted(flags) == ["--max-num-seqs=4", "--no-enable-prefix-caching"]
    check_passed_on(flags)
