"""The lines that say what runs, where, and what to try; printed by `serve` and again by `ps`.

Knows serve.json's record; asks nobody. Invariant: everything to copy stands on one line of its own.
"""

from __future__ import annotations

import json
from pathlib import Path

from segue.state_directory import ServeRecord


def summary_lines(record: ServeRecord, path: Path) -> list[str]:
    pids = [f"{one.name} {one.identity.pid}" for one in record.processes]
    lines = [
        f"url     {record.url}/v1   model {record.model}",
        f"state   {path}",
        f"pids    serve {record.supervisor.pid} · {' · '.join(pids)}",
        f"try     {curl_line(record)}",
    ]
    schedulers = [one for one in record.processes if one.name.startswith("scheduler")]
    if schedulers:
        lines.append(f"kill    kill -9 {schedulers[0].identity.pid}")
    return lines


def curl_line(record: ServeRecord) -> str:
    if record.has_chat_template:
        path = "/v1/chat/completions"
        question = {"role": "user", "content": "Tell me a story."}
        body = {"model": record.model, "messages": [question], "temperature": 0.2, "stream": True}
    else:
        path = "/v1/completions"
        body = {"model": record.model, "prompt": "Once upon a time", "stream": True}
    header = "-H 'Content-Type: application/json'"
    return f"curl -N {record.url}{path} {header} -d '{json.dumps(body)}'"
