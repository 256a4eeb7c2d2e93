"""Writes docs/configuration.md from the configuration of `segue serve` and of each service.

Knows the four dataclasses and Markdown. Invariant: the same fields give the same page; a test holds
the committed one to it.

    .venv/bin/python -m scripts.write_configuration_page [TARGET]
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, get_type_hints

from executor_svc.config import ExecutorServiceConfig
from gateway_svc.config import GatewayConfig
from scheduler_svc.config import SchedulerServiceConfig
from scheduler_svc.live_settings import LIVE
from segue.config import flag, metavar, shown, variable
from segue.serve_config import ServeConfig

ROOT = Path(__file__).resolve().parent.parent
WIDTH = 96
TARGET = ROOT / "docs" / "configuration.md"
SECTIONS: tuple[tuple[str, type[Any]], ...] = (
    ("segue serve", ServeConfig),
    ("python -m scheduler_svc", SchedulerServiceConfig),
    ("python -m gateway_svc", GatewayConfig),
    ("python -m executor_svc", ExecutorServiceConfig),
)
HEAD = """\
# Configuration

Written by `make docs` from the dataclass of each service (`config.py` in its folder,
`segue/serve_config.py`); change it there. `--help` of each prints the same.

Each setting is a flag, an environment variable, and a key of a YAML file. **A flag beats the
variable, the variable beats the file, the file beats the default.** A flag or a key that nobody
knows is refused by name, with exit code 2, before anything is started; so is a value of another
kind. A variable `SEGUE_…` that nobody knows is passed over, with a line on stderr that names the
nearest one: services share an environment, and other programs may use the prefix.

```yaml
# segue serve --config segue.yaml; keys are flags without the two dashes
model: /models/llama
num-executors: 2
max-num-seqs: 64         # one of those that `segue serve` passes on to the scheduler
enable-prefix-caching: true
```

- A switch is `--x` or `--no-x`, in the environment `1` or `0`, in the file `true` or `false`. A
  list is `A,B` as a flag and variable, and a list in the file.
- A file is for the one program that is given it: `segue serve` passes what it says to the
  services as flags. `--config` has no variable, since services on one machine share those.

## Changing a running deployment

The leader takes these without a restart, with `segue ctl set KEY=VALUE…`, between two steps:
{live}.
`segue ctl config` shows them, `segue ctl unset KEY…` lets the flags say it again. They are stored
with the state, so a successor goes on with them, for as long as it is started with the flags that
they replaced; the first five only under `--policy unified`. A refusal says why.

Everything else is read once, at start. To change it, stop the scheduler with SIGTERM and start it
with the new settings, as an upgrade does: executors and gateways keep running, streams pause and
go on, and no token is lost or repeated. `config_digest` in Redis (`state.md`) tells the new
leader whether the settings that shape a lane's state are the same: then it goes on where the old
one stood; else (policy, block size, prefix caching and the like) it keeps every request with its
output, and computes their KV again. Why so: `decisions/configuration-while-running.md`.
"""


def page() -> str:
    live = textwrap.fill(", ".join(f"`{name}`" for name in LIVE), WIDTH)
    return HEAD.replace("{live}", live) + "".join(
        f"\n{line}\n" if line else "\n" for line in _sections()
    )


def _sections() -> Iterator[str]:
    for command, cls in SECTIONS:
        hints = get_type_hints(cls)
        rows = "\n".join(_row(one, hints[one.name]) for one in fields(cls))
        yield f"## `{command}`"
        yield f"| flag | value | default | variable | |\n|---|---|---|---|---|\n{rows}"


def _row(one: Field[Any], hint: Any) -> str:
    names = f"`{flag(one.name)}`", f"`{variable(one.name)}`"
    help_text = str(one.metadata.get("help", "")).replace("|", "\\|")
    value = "" if hint is bool else metavar(hint).replace("|", "\\|")
    return f"| {names[0]} | {value} | {_default(one)} | {names[1]} | {help_text} |"


def _default(one: Field[Any]) -> str:
    if one.default is MISSING:
        return "must be given"
    if isinstance(one.default, bool):
        return "on" if one.default else "off"
    if one.default in (None, "", ()):
        return ""
    return f"`{shown(one.default)}`"


def main(arguments: Sequence[str]) -> int:
    target = Path(arguments[0]) if arguments else TARGET
    target.write_text(page(), encoding="utf-8")
    print(target)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
