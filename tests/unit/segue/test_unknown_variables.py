"""A misspelt variable is told of; one that somebody reads is not."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from segue.config import parse_config


@dataclass(slots=True, frozen=True)
class Example:
    """An example of a service."""

    own_setting: int = 0


def said(capsys: pytest.CaptureFixture[str], **environ: str) -> str:
    """On stderr, by a service with this environment, which starts all the same."""
    parse_config(Example, (), environ)
    return capsys.readouterr().err.partition("warning: ")[2]


def test_a_misspelt_variable_is_told_with_the_nearest_name(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert said(capsys, SEGUE_MAX_NUM_SEQZ="8") == (
        "SEGUE_MAX_NUM_SEQZ is no setting of Segue; did you mean SEGUE_MAX_NUM_SEQS?\n"
    )


def test_its_own_settings_are_near_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean SEGUE_OWN_SETTING?" in said(capsys, SEGUE_OWN_SETING="8")


def test_what_is_like_nothing_gets_no_advice(capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, SEGUE_XYZZY="8") == "SEGUE_XYZZY is no setting of Segue\n"


def test_each_is_a_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    parse_config(Example, (), {"SEGUE_B_TYPO": "1", "SEGUE_A_TYPO": "1"})
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[2] for line in lines] == ["SEGUE_A_TYPO", "SEGUE_B_TYPO"]


@pytest.mark.parametrize(
    "name",
    [
        "SEGUE_OWN_SETTING",  # this service's
        "SEGUE_KV_CACHE_BYTES",  # another's
        "SEGUE_TLS_CA",  # everybody's
        "SEGUE_NUM_EXECUTORS",  # segue serve's
        "SEGUE_CACHE",  # no setting
        "PATH",  # not ours
    ],
)
def test_what_somebody_reads_is_not_told(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, **{name: "1"}) == ""
