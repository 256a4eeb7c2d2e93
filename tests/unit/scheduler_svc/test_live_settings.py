"""Which settings are taken while a scheduler leads, and what is said of the rest."""

from __future__ import annotations

from dataclasses import fields

import pytest

from scheduler_svc.config import SchedulerServiceConfig
from scheduler_svc.core.events import Setting
from scheduler_svc.core.scheduler_config import CHANGEABLE
from scheduler_svc.live_settings import BUDGETS, FixedSetting, LiveConfiguration, NoSuchSetting

FLAGS = SchedulerServiceConfig(redis_url="redis://:secret@127.0.0.1:1/0")


def test_a_name_may_be_written_as_the_flag_is() -> None:
    changes = LiveConfiguration(FLAGS).changes({"--max-num-seqs": "3"}, ["log-steps"])
    assert changes == {"max_num_seqs": Setting("3", "128"), "log_steps": None}


@pytest.mark.parametrize(
    "name,text,reason",
    [
        ("max_seqs", "3", "no setting"),
        ("max_num_seqs", "many", "is not N"),
        ("max_num_seqs", "0", "less than 1"),
        ("watermark", "nan", "no finite number"),
        ("orphan_timeout_s", "-1", "less than 0"),
        ("log_steps", "perhaps", "is not BOOL"),
    ],
)
def test_a_mistake_is_told_in_one_line(name: str, text: str, reason: str) -> None:
    with pytest.raises(NoSuchSetting, match=reason) as refused:
        LiveConfiguration(FLAGS).changes({name: text}, [])
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["block_size", "policy", "max_model_len", "lease_ttl_s", "listen"])
def test_what_is_fixed_says_why_and_what_to_do(name: str) -> None:
    with pytest.raises(FixedSetting, match="start the schedulers with another --"):
        LiveConfiguration(FLAGS).changes({name: "1"}, [])


def test_a_policy_that_can_not_is_not_asked() -> None:
    three_queue = LiveConfiguration(SchedulerServiceConfig(policy="three_queue"))
    with pytest.raises(FixedSetting, match="three_queue"):
        three_queue.changes({"max_num_seqs": "3"}, [])
    assert three_queue.changes({"finished_ttl_s": "3"}, []) == {
        "finished_ttl_s": Setting("3.0", "300.0")
    }


def test_budgets_are_what_the_policy_may_change() -> None:
    """The service has ageing in seconds, the core in milliseconds."""
    assert {name.replace("_s", "_ms") if "aging" in name else name for name in BUDGETS} == (
        CHANGEABLE
    )


def test_the_table_has_each_setting_but_those_with_a_password() -> None:
    table = LiveConfiguration(FLAGS).table({"max_num_seqs": Setting("3", "128")})
    assert {name for name, *_ in table} == {
        one.name for one in fields(SchedulerServiceConfig) if one.name != "redis_url"
    }
    assert ("max_num_seqs", "3", "128", "") in table
    assert "secret" not in str(table)
