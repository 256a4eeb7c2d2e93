"""How `--policy` finds a class, and that docs/policies.md names every parameter."""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from fnmatch import fnmatchcase
from pathlib import Path

import pytest

from scheduler_svc.config import SchedulerServiceConfig
from scheduler_svc.core.scheduler_config import SchedulerConfig
from scheduler_svc.core.three_queue.config import ThreeQueueConfig
from scheduler_svc.core.unified.scheduler import UnifiedScheduler
from scheduler_svc.policies import UnknownPolicy, load_policy

PAGE = Path(__file__).parents[3] / "docs" / "policies.md"
EXAMPLE = Path(__file__).parents[3] / "examples" / "shortest_job_first.py"


def test_an_entry_point_is_found_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "their_policy.py").write_text(
        "from scheduler_svc.core.unified.scheduler import UnifiedScheduler\n"
        "class Theirs(UnifiedScheduler): ...\n"
    )
    info = tmp_path / "their_policy-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their-policy\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[segue.policies]\ntheirs = their_policy:Theirs\n")
    monkeypatch.syspath_prepend(tmp_path)
    found = load_policy("theirs")
    assert isinstance(found, type)
    assert issubclass(found, UnifiedScheduler)
    assert found.__name__ == "Theirs"


@pytest.mark.parametrize("name", ["nobody", "no_module:X", "segue.types:Nothing", "os:PathLike"])
def test_what_is_no_policy_is_refused_by_name(name: str) -> None:
    with pytest.raises(UnknownPolicy, match=re.escape(name)):
        load_policy(name)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("class X(:", "SyntaxError: invalid syntax (theirs.py, line 1)"),
        ("x = 1\nx = undefined", "NameError: name 'undefined' is not defined (*theirs.py:2)"),
        ("raise RuntimeError('a\\nb')", "RuntimeError: a b (*theirs.py:1)"),
        (
            "from scheduler_svc.core.policy import SchedulingPolicy\n"
            "class X(SchedulingPolicy): ...",
            "X has no add_request, *",
        ),
    ],
)
def test_a_module_with_a_mistake_is_refused_in_a_line_that_says_where(
    text: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "theirs.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "theirs", raising=False)
    with pytest.raises(UnknownPolicy) as refused:
        load_policy("theirs:X")
    assert fnmatchcase(str(refused.value), f"--policy theirs:X: {expected}")


@pytest.mark.parametrize("config", [SchedulerConfig, ThreeQueueConfig])
def test_the_page_has_every_parameter_with_its_default(
    config: type[SchedulerConfig | ThreeQueueConfig],
) -> None:
    rows = re.findall(r"^\| `(\w+)`[^|]*\| (\S+) ", PAGE.read_text(), re.MULTILINE)
    defaults = dict(rows)
    common = {field.name: field.default for field in fields(SchedulerConfig)}
    for field in fields(config):
        expected = common.get(field.name, field.default)
        assert defaults.get(field.name) == str(expected), field.name


def test_no_row_of_the_page_is_of_something_that_is_gone() -> None:
    rows = re.findall(r"^\| `(\w+)`", parameter_tables(), re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert set(rows) == {field.name for field in fields(ThreeQueueConfig)}


def test_the_page_has_every_flag_that_a_policy_is_made_with_and_no_other() -> None:
    """A flag is the policy's if its value arrives in the policy's configuration."""
    names = {field.name for field in fields(SchedulerServiceConfig)}
    shaping = names & {field.name for field in fields(ThreeQueueConfig)} - {"policy"}
    shaping |= {"scheduling_policy", "priority_aging_s", "num_speculative_tokens"}
    named = set(re.findall(r"`(--[a-z-]+)`", parameter_tables()))
    assert named == {"--" + name.replace("_", "-") for name in shaping}


def parameter_tables() -> str:
    return PAGE.read_text().split("## All parameters")[1].split("\n## ")[0]


def test_the_page_shows_the_example_as_it_is() -> None:
    shown = PAGE.read_text().split("```python\n")[1].split("```")[0]
    assert shown.strip() in EXAMPLE.read_text()


@pytest.mark.parametrize("field", ["preempt_for_admission", "priority_aging_s"])
def test_three_queue_does_not_take_what_it_does_not_do(field: str) -> None:
    fields_given = {field: 1, "policy": "three_queue", "scheduling_policy": "priority"}
    with pytest.raises(ValueError, match="three_queue"):
        SchedulerServiceConfig(**fields_given)  # pyright: ignore[reportArgumentType]


def test_the_flags_reach_the_policy() -> None:
    service = SchedulerServiceConfig(
        scheduling_policy="priority", preempt_for_admission=True, priority_aging_s=1.5
    )
    config = service.engine_config().scheduler
    assert config.preempt_for_admission
    assert config.priority_aging_ms == 1500
