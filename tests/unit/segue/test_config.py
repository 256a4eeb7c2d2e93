"""Flags, variables and defaults become one frozen value, or one readable line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path

import pytest

from segue.config import MAX_PORT, parse_config, parse_known_config, to_flags


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(slots=True, frozen=True)
class Example:
    """An example of a service."""

    model: str
    port: int = field(default=8000, metadata={"help": "port to listen on"})
    lease_ttl_s: float = field(default=3.0, metadata={"help": "100% of a lease, in seconds"})
    colour: Colour = Colour.RED
    limit: int | None = None
    schedulers: tuple[str, ...] = ()
    log_steps: bool = False
    is_cached: bool = True

    def __post_init__(self) -> None:
        if self.port > 65535:
            raise ValueError(f"--port: {self.port} is above 65535")


def parse(*argv: str, **environ: str) -> Example:
    return parse_config(Example, argv, environ)


def test_defaults_stand_where_nothing_is_said() -> None:
    assert parse("--model", "m") == Example("m")


def test_every_type_is_read_from_flags() -> None:
    config = parse(
        *("--model", "m", "--port", "1", "--lease-ttl-s", "0.5", "--colour", "blue"),
        *("--limit", "7", "--schedulers", "a:1, b:2", "--log-steps", "--no-is-cached"),
    )
    assert config == Example("m", 1, 0.5, Colour.BLUE, 7, ("a:1", "b:2"), True, False)


def test_every_type_is_read_from_the_environment() -> None:
    config = parse(
        SEGUE_MODEL="m",
        SEGUE_PORT="1",
        SEGUE_COLOUR="blue",
        SEGUE_LIMIT="7",
        SEGUE_SCHEDULERS="a:1,b:2",
        SEGUE_LOG_STEPS="1",
        SEGUE_IS_CACHED="no",
    )
    assert config == Example("m", 1, 3.0, Colour.BLUE, 7, ("a:1", "b:2"), True, False)


def test_a_flag_beats_its_variable() -> None:
    assert parse("--model", "m", "--no-log-steps", SEGUE_LOG_STEPS="1").log_steps is False


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        ([], "--model (or SEGUE_MODEL) must be given"),
        (["--model", "m", "--port", "x"], "--port (SEGUE_PORT): 'x' is not N"),
        (["--model", "m", "--colour", "x"], "--colour (SEGUE_COLOUR): 'x' is not red|blue"),
        (["--model", "m", "--port", "70000"], "--port: 70000 is above 65535"),
        (["--model", "m", "--mod", "x"], "unknown argument --mod"),
    ],
)
def test_a_bad_value_is_one_line_and_exit_code_2(
    argv: Sequence[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse(*argv)
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert line in printed
    assert printed.count("\n") == 1


def test_a_bad_variable_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse(SEGUE_MODEL="m", SEGUE_IS_CACHED="maybe")
    assert "SEGUE_IS_CACHED" in capsys.readouterr().err


def test_help_says_default_unit_and_variable(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse("--help")
    text = " ".join(capsys.readouterr().out.split())
    assert "100% of a lease, in seconds (default 3.0, SEGUE_LEASE_TTL_S)" in text


@dataclass(slots=True, frozen=True)
class Limited:
    """Numbers that may not be just any."""

    num_seqs: int = field(default=1, metadata={"help": "", "least": 1})
    metrics_port: int = field(default=0, metadata={"help": "", "most": MAX_PORT})
    ttl_s: float = 0.5
    limit: int | None = None


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["--num-seqs", "0"], "--num-seqs: 0 is below 1"),
        (["--metrics-port", "70000"], "--metrics-port: 70000 is above 65535"),
        (["--ttl-s", "-1"], "--ttl-s: -1.0 is below 0"),
        (["--ttl-s", "nan"], "--ttl-s: nan is no finite number"),
        (["--limit", "-2"], "--limit: -2 is below 0"),
    ],
)
def test_a_number_out_of_range_is_one_line_and_exit_code_2(
    argv: Sequence[str], line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_config(Limited, argv, {})
    assert ended.value.code == 2
    printed = capsys.readouterr().err
    assert line in printed
    assert printed.count("\n") == 1


def test_unknown_arguments_are_handed_back_in_order() -> None:
    argv = ["--max-num-seqs", "4", "--model", "m", "--verbose"]
    _, unknown = parse_known_config(Example, argv, {})
    assert unknown == ["--max-num-seqs", "4", "--verbose"]


def test_flags_written_are_read_back() -> None:
    config = Example("m", 1, 0.5, Colour.BLUE, None, ("a", "b"), True, False)
    names = ["model", "port", "lease_ttl_s", "colour", "limit", "schedulers", "log_steps"]
    assert parse(*to_flags(config, [*names, "is_cached"])) == config


def config_file(tmp_path: Path, text: str) -> tuple[str, str]:
    path = tmp_path / "segue.yaml"
    path.write_text(text)
    return "--config", str(path)


@dataclass(frozen=True, slots=True)
class Stored:
    """Of one kind each."""

    num_blocks: int = 1
    ratio: float = 0.5
    fast: bool = False
    name: str = "a"
    peers: tuple[str, ...] = ()


def test_a_file_beats_the_default(tmp_path: Path) -> None:
    text = "num-blocks: 7\nratio: 2\nfast: true\nname: 12\npeers: [x, y]\n"
    read = parse_config(Stored, config_file(tmp_path, text), {})
    assert read == Stored(7, 2.0, True, "12", ("x", "y"))


def test_a_variable_beats_the_file_and_a_flag_beats_both(tmp_path: Path) -> None:
    flags = config_file(tmp_path, "num_blocks: 7\nratio: 2.5\nname: f\n")
    environ = {"SEGUE_NUM_BLOCKS": "8", "SEGUE_NAME": "v"}
    read = parse_config(Stored, (*flags, "--name", "flag"), environ)
    assert (read.num_blocks, read.ratio, read.name) == (8, 2.5, "flag")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("num-block: 7", "unknown key num-block; did you mean num-blocks?"),
        ("zzz: 7", "unknown key zzz"),
        ("num-blocks: many", "--num-blocks (SEGUE_NUM_BLOCKS): 'many' is not N"),
        ("name: true", "True is not TEXT"),
        ("num-blocks:", "num-blocks has no value"),
        ("num-blocks: {a: 1}", "num-blocks has no value"),
        ("num-blocks: 1\nnum_blocks: 2", "num_blocks is there twice"),
        ("num-blocks: 1\nnum-blocks: 2", "num-blocks is there twice"),
        ("- a", "one `name: value` a line is wanted"),
        ("a: [", "it is no YAML"),
    ],
)
def test_what_a_file_may_not_say_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    with pytest.raises(SystemExit) as ended:
        parse_config(Stored, config_file(tmp_path, text), {})
    assert ended.value.code == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1


def test_a_file_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_config(Stored, ("--config", "/nowhere.yaml"), {})
    assert "--config /nowhere.yaml: No such file" in capsys.readouterr().err
