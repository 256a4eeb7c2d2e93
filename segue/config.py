"""Reads a frozen dataclass from command-line flags, the environment and a file (--config).

Knows no service and no flag of its own. Invariant: a flag beats SEGUE_<FLAG>, which beats the file,
which beats the default; what cannot be read is one line on stderr and exit code 2, before anything
has started. A variable that nobody reads is one line too, and no more.

A field `kv_cache_bytes: int = field(default=0, metadata={"help": "…"})` is the flag
`--kv-cache-bytes` and the variable `SEGUE_KV_CACHE_BYTES`. A bool is `--x` and `--no-x`; a
tuple of str is comma separated; a field without a default must be given. A number is finite, not
below `least` of its metadata (default 0) and not above `most`.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, Field, fields
from enum import Enum
from pathlib import Path
from typing import Any, NoReturn, TypeVar, Union, get_args, get_origin, get_type_hints

from segue.config_file import BadConfigFile, Scalar, read_config_file
from segue.unknown_variables import warn_of_unknown

ConfigT = TypeVar("ConfigT")
Reader = Callable[[str], Any]

MAX_PORT = 65535
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"0", "false", "no", "off", ""})


def parse_config(
    cls: type[ConfigT],
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> ConfigT:
    """The config that `argv` (default: the process's own) and the environment ask for."""
    config, unknown = parse_known_config(cls, argv, environ)
    if unknown:
        _fail(_program(), f"unknown argument {unknown[0]}; --help lists all")
    return config


def parse_known_config(
    cls: type[ConfigT],
    argv: Sequence[str] | None = None,
    environ: Mapping[str, str] | None = None,
) -> tuple[ConfigT, list[str]]:
    """As `parse_config`; arguments that are no flag of `cls` are handed back in their order."""
    parser = argparse.ArgumentParser(
        prog=_program(), description=_first_line(cls), allow_abbrev=False
    )
    add_config_flag(parser)
    add_flags(parser, cls)
    known, unknown = parser.parse_known_args(argv)
    stored = stored_values(known, field_names(cls))
    return config_from(cls, known, environ, stored), unknown


def field_names(cls: type[Any]) -> list[str]:
    return [one.name for one in fields(cls)]


def add_config_flag(parser: argparse.ArgumentParser) -> None:
    """`--config FILE`, for `stored_values`. No variable: services of one machine share those."""
    text = "YAML file with a line `flag: value` for each; flags and variables beat it"
    parser.add_argument("--config", type=Path, metavar="FILE", help=text)


def stored_values(namespace: argparse.Namespace, names: Sequence[str]) -> dict[str, Scalar]:
    """What the file of --config says, empty without one. `names`: what it may say."""
    if namespace.config is None:
        return {}
    try:
        return read_config_file(namespace.config, names)
    except BadConfigFile as error:
        _fail(_program(), str(error))


def add_flags(parser: argparse.ArgumentParser, cls: type[Any]) -> None:
    """Adds a flag for each field of `cls`. What is not given is absent from the namespace."""
    hints = get_type_hints(cls)
    for one in fields(cls):
        text = f"{one.metadata.get('help', '')} ({_default_text(one)}{variable(one.name)})"
        options: dict[str, Any] = {
            "dest": one.name,
            "default": argparse.SUPPRESS,
            "help": text.replace("%", "%%"),
        }
        if hints[one.name] is bool:
            options["action"] = argparse.BooleanOptionalAction
        else:
            options["metavar"] = metavar(hints[one.name])
        parser.add_argument(flag(one.name), **options)


def config_from(
    cls: type[ConfigT],
    namespace: argparse.Namespace,
    environ: Mapping[str, str] | None = None,
    stored: Mapping[str, Scalar] | None = None,
) -> ConfigT:
    """The config of a namespace that `add_flags` filled, completed from the environment and from
    what a file said."""
    environ = os.environ if environ is None else environ
    warn_of_unknown(_program(), environ, [variable(name) for name in field_names(cls)])
    hints = get_type_hints(cls)
    values: dict[str, Any] = {}
    for one in fields(cls):  # pyright: ignore[reportArgumentType]
        in_file = (stored or {}).get(one.name)
        given = getattr(namespace, one.name, environ.get(variable(one.name), in_file))
        if given is not None:
            values[one.name] = _read(one.name, hints[one.name], given)
            _require_in_range(one, values[one.name])
        elif one.default is MISSING and one.default_factory is MISSING:
            _fail(_program(), f"{flag(one.name)} (or {variable(one.name)}) must be given")
    try:
        return cls(**values)
    except ValueError as error:
        _fail(_program(), str(error))


def to_flags(config: Any, names: Sequence[str]) -> list[str]:
    """Flags that make another process read the same values of these fields."""
    flags: list[str] = []
    for name in names:
        value = getattr(config, name)
        if isinstance(value, bool):
            flags.append(flag(name) if value else flag(f"no_{name}"))
        elif value is not None:
            flags += [flag(name), shown(value)]
    return flags


def _read(name: str, hint: Any, given: Any) -> Any:
    if isinstance(given, bool) and hint is bool:
        return given
    try:
        if isinstance(given, bool):
            raise ValueError(given)
        return _reader(hint)(given)
    except ValueError:
        _fail(_program(), f"{flag(name)} ({variable(name)}): {given!r} is not {metavar(hint)}")


def _require_in_range(one: Field[Any], value: Any) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return
    least, most = one.metadata.get("least", 0), one.metadata.get("most", math.inf)
    if not math.isfinite(value):
        _fail(_program(), f"{flag(one.name)}: {value} is no finite number")
    if not least <= value <= most:
        limit = f"below {least}" if value < least else f"above {most}"
        _fail(_program(), f"{flag(one.name)}: {value} is {limit}")


def read_text(hint: Any, text: str) -> Any:
    """A value of this type as a flag would read it; raises ValueError where it is none."""
    return _reader(hint)(text)


def _reader(hint: Any) -> Reader:
    hint = _without_none(hint)
    if hint is bool:
        return _read_bool
    if get_origin(hint) is tuple:
        return _read_tuple
    if hint in (str, int, float, Path):
        return hint
    if isinstance(hint, type) and issubclass(hint, Enum):
        return hint
    raise TypeError(f"no flag can hold a {hint}")


def _read_bool(text: str) -> bool:
    if text.lower() in _TRUE:
        return True
    if text.lower() in _FALSE:
        return False
    raise ValueError(text)


def _read_tuple(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _without_none(hint: Any) -> Any:
    if get_origin(hint) in (Union, types.UnionType):
        (hint,) = (part for part in get_args(hint) if part is not type(None))
    return hint


def metavar(hint: Any) -> str:
    hint = _without_none(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return "|".join(str(member.value) for member in hint)
    names: dict[Any, str] = {int: "N", float: "NUMBER", bool: "BOOL", Path: "PATH", str: "TEXT"}
    return names.get(hint, "A,B,…")


def _default_text(one: Field[Any]) -> str:
    if one.default is MISSING:
        return "required, " if one.default_factory is MISSING else ""
    return "" if one.default in (None, "", ()) else f"default {shown(one.default)}, "


def shown(value: Any) -> str:
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, tuple):
        return ",".join(str(part) for part in value)  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
    return str(value)


def flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def variable(name: str) -> str:
    return "SEGUE_" + name.upper()


def _first_line(cls: type[Any]) -> str:
    return (cls.__doc__ or "").strip().partition("\n")[0]


def _program() -> str:
    """What the user typed: the module's name under `python -m`, else the script's."""
    path = Path(sys.argv[0])
    return path.parent.name if path.name == "__main__.py" else path.name


def _fail(program: str, message: str) -> NoReturn:
    print(f"{program}: error: {message}", file=sys.stderr)
    raise SystemExit(2)
