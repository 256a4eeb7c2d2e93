"""A client that reads one streaming completion in the background.

Knows HTTP and SSE only. Invariant: `text` is what the client has seen, in order.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import httpx


class StreamingClient:
    """One streaming completion, read in the background."""

    def __init__(self, http: httpx.AsyncClient, **fields: Any) -> None:
        self.text = ""
        self.errors: list[str] = []
        self._grown = asyncio.Condition()
        body = {"prompt": "p", "stream": True, "max_tokens": 500, **fields}
        self._task = asyncio.create_task(self._read(http, body))

    async def _read(self, http: httpx.AsyncClient, body: dict[str, Any]) -> None:
        async with http.stream("POST", "/v1/completions", json=body) as response:
            assert response.status_code == 200
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                data = json.loads(line.removeprefix("data: "))
                async with self._grown:
                    if "error" in data:
                        self.errors.append(data["error"]["code"])
                    else:
                        self.text += data["choices"][0]["text"]
                    self._grown.notify_all()

    async def until(self, num_chars: int) -> None:
        async with self._grown:
            await self._grown.wait_for(lambda: len(self.text) >= num_chars)

    async def leave(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def end(self) -> str:
        await self._task
        return self.text
