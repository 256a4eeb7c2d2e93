"""How many tokens a request wants, and how many of these are cached (specification 4.1 and 10).

Knows nothing about queues. Invariant: it changes nothing but the block tables' memory of hits.
"""

from __future__ import annotations

from scheduler_svc.core.request import Request
from scheduler_svc.core.three_queue.block_tables import BlockTables
from scheduler_svc.core.three_queue.budget import SchedulingBudget


class TokenCount:
    def __init__(self, tables: BlockTables) -> None:
        self._tables = tables
        self._caches = tables.config.enable_prefix_caching
        self._block_size = tables.config.block_size

    def of_waiting(
        self, request: Request, budget: SchedulingBudget, *, chunks: bool
    ) -> tuple[int, int]:
        """(to be computed, cached). Of a prompt that is all cached, one token is computed."""
        cached = self._tables.num_cached_tokens(request)
        uncached = request.num_tokens - cached
        if uncached == 0:
            uncached, cached = 1, cached - 1
        return (self._chunk(uncached, budget) if chunks else uncached), cached

    def of_started(self, request: Request, budget: SchedulingBudget, *, chunks: bool) -> int:
        """One of a decode, the rest of a prompt; 0: no budget is left."""
        num_tokens = 1
        if request.is_prefill_chunk:
            num_tokens = request.num_tokens - request.num_computed_tokens
        return self._chunk(num_tokens, budget) if chunks else num_tokens

    def max_decodes(self, budget: SchedulingBudget, *, chunks: bool) -> int:
        """How many decodes in a row find budget for their token."""
        if not chunks:
            return budget.max_num_seqs
        return budget.num_tokens_left - (self._block_size - 1 if self._caches else 0)

    def _chunk(self, num_tokens: int, budget: SchedulingBudget) -> int:
        """With prefix caching, V0 hands out whole blocks of what is left, to decodes as well."""
        left = budget.num_tokens_left
        if self._caches:
            left -= left % self._block_size
        return min(num_tokens, left)
