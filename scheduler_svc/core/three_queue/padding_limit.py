"""Early V0's limit on padding: its prompts were computed as a rectangle (`max_paddings`).

Knows nothing about queues. Invariant: batch size times longest prompt, less the tokens, stays
within the limit.
"""

from __future__ import annotations


class PaddingLimit:
    """Of one step's batch of prompts. None: no limit."""

    def __init__(self, max_paddings: int | None) -> None:
        self._max_paddings = max_paddings
        self._num_prompts = 0
        self._num_tokens = 0
        self._longest = 0

    def has_room(self, num_tokens: int) -> bool:
        """Whether the batch may take a prompt of this length as well; if not, it is closed."""
        if self._max_paddings is None:
            return True
        longest = max(self._longest, num_tokens)
        num_slots = (self._num_prompts + 1) * longest
        return num_slots - self._num_tokens - num_tokens <= self._max_paddings

    def add(self, num_tokens: int) -> None:
        self._num_prompts += 1
        self._num_tokens += num_tokens
        self._longest = max(self._longest, num_tokens)
