"""Holding prompts back, so that more of them come together (specification 8, `delay_factor`).

Knows nothing about clocks: time is handed in. Invariant: while nothing runs, nothing is held back.
"""

from __future__ import annotations

from collections.abc import Iterable

from scheduler_svc.core.request import Request


class PromptDelay:
    def __init__(self, delay_factor: float) -> None:
        self._delay_factor = delay_factor
        self._last_reading_ms = 0
        self._had_prompt = False
        self._last_latency_ms = 0

    def has_passed(self, now_ms: int, waiting: Iterable[Request], *, runs_nothing: bool) -> bool:
        """Reads the clock; the time since the last reading is a prompt step's, if there was one."""
        if self._delay_factor == 0:
            return True
        if self._had_prompt:
            self._last_latency_ms = now_ms - self._last_reading_ms
        self._last_reading_ms, self._had_prompt = now_ms, False
        if runs_nothing:
            return True
        earliest = min((r.submission.arrival_unix_ms for r in waiting), default=None)
        if earliest is None:
            return True
        return now_ms - earliest > self._delay_factor * self._last_latency_ms

    def note_prompts(self) -> None:
        """Prompts are in the step that is being planned."""
        self._had_prompt = self._delay_factor > 0

    def state(self) -> list[int]:
        return [self._last_reading_ms, int(self._had_prompt), self._last_latency_ms]

    def restore(self, state: list[int]) -> None:
        self._last_reading_ms, had_prompt, self._last_latency_ms = state
        self._had_prompt = bool(had_prompt)
