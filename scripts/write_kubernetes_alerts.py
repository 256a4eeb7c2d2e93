"""Writes the alerts of the Kubernetes overlay from observability/alerts.yml, as a PrometheusRule.

Knows both forms and no alert. Invariant: the rules are those of the source, comments and all; a
test holds the committed file to it.

    .venv/bin/python -m scripts.write_kubernetes_alerts [TARGET]
"""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "observability" / "alerts.yml"
TARGET = ROOT / "k8s" / "overlays" / "observability" / "alerts.yaml"

HEAD = """\
# Written by `make docs` from observability/alerts.yml; change it there.
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata: {name: segue}
spec:
"""


def main(arguments: Sequence[str]) -> int:
    target = Path(arguments[0]) if arguments else TARGET
    target.write_text(HEAD + textwrap.indent(SOURCE.read_text(), "  "))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
