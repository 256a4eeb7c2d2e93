"""`segue serve` asks the scheduler's own module whether it would take what it is to be given."""

from __future__ import annotations

import pytest

from scheduler_svc.config import DURABILITIES
from scheduler_svc.store.server_check import Durability
from segue.commands import doctor
from segue.config import parse_config
from segue.passed_on_flags import FlagRefused, check_scheduler_flags
from segue.serve_config import ServeConfig


@pytest.mark.parametrize(
    ("policy", "arguments", "message"),
    [
        ("three_queue", ["--max-num-seqs", "many"], "--max-num-seqs (SEGUE_MAX_NUM_SEQS): 'many'"),
        ("three_queue", ["--preemption-mode", "swop"], "preemption mode 'swop'"),
        ("unified", ["--max-paddings", "5"], "swap, --delay-factor and --max-paddings are three_"),
        ("nosuch:Policy", [], "--policy nosuch:Policy: No module named 'nosuch'"),
        ("unified", ["stray"], "unknown argument stray"),
        ("unified", ["--max-num-seqs", "0"], "--max-num-seqs: 0 is below 1"),
        ("unified", ["--durability", "x"], "--durability: 'x' is not one of everysec, always"),
    ],
)
def test_the_scheduler_says_what_it_would_not_take(
    policy: str, arguments: list[str], message: str
) -> None:
    config = parse_config(ServeConfig, ["--policy", policy], {})
    with pytest.raises(FlagRefused) as refused:
        check_scheduler_flags(config, arguments)
    assert str(refused.value).startswith(message)
    assert "\n" not in str(refused.value)


def test_flags_that_the_scheduler_takes_pass() -> None:
    config = parse_config(ServeConfig, ["--policy", "three_queue", "--block-size", "32"], {})
    check_scheduler_flags(config, ["--preemption-mode", "swap", "--max-paddings", "512"])


def test_the_durabilities_are_the_store_s() -> None:
    assert tuple(level.value for level in Durability) == DURABILITIES == doctor.DURABILITIES
