"""What a step may hold: tokens and sequences, and who has taken what.

Knows nothing about requests but their ids. Invariant: a request counts once, however often it is
added; tokens that were cached are counted apart, and limit nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True)
class SchedulingBudget:
    token_budget: int
    max_num_seqs: int
    num_cached_tokens: int = 0
    num_batched_tokens: int = 0
    _tokens: dict[str, int] = field(default_factory=dict[str, int])
    _seqs: set[str] = field(default_factory=set[str])

    @property
    def num_seqs(self) -> int:
        return len(self._seqs)

    @property
    def num_tokens_left(self) -> int:
        return self.token_budget - self.num_batched_tokens

    def can_schedule(self, num_tokens: int) -> bool:
        """Room for so many tokens of one more sequence."""
        return num_tokens <= self.num_tokens_left and len(self._seqs) < self.max_num_seqs

    def add_seq(self, request_id: str) -> None:
        self._seqs.add(request_id)

    def add_decodes(self, request_ids: list[str], *, counts_seqs: bool) -> None:
        """One token each, of requests that were not added before and are not removed again."""
        self.num_batched_tokens += len(request_ids)
        if counts_seqs:
            self._seqs.update(request_ids)

    def add_tokens(self, request_id: str, num_tokens: int, num_cached: int = 0) -> None:
        if request_id in self._tokens:
            return
        self._tokens[request_id] = num_tokens
        self.num_batched_tokens += num_tokens
        self.num_cached_tokens += num_cached

    def remove(self, request_id: str) -> None:
        """The request is not in this step."""
        self._seqs.discard(request_id)
        self.num_batched_tokens -= self._tokens.pop(request_id, 0)
