"""Drafts: who proposes tokens ahead of the model, and how many of them are what it draws itself.

Knows tokens, no tensor of a model. Invariant (DESIGN.md section 3): a draft is accepted exactly if
it is the token that would have been sampled at its index, so what is proposed changes how many
tokens a step gives, and never which.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt

from executor_svc.request_table import RequestTable
from segue.types import SchedulerOutput

Int32Array = npt.NDArray[np.int32]
UNKNOWN = -1  # in a plan: a draft that only the executor can make
# A suffix of so many tokens is looked for earlier in the text, the longest first.
LONGEST_SUFFIX, SHORTEST_SUFFIX = 4, 2

Drafts = dict[str, list[int]]  # by request id


class DraftProposer(Protocol):
    """Sees every step, after the table has taken the plan in, and before the model runs."""

    def propose(self, plan: SchedulerOutput, table: RequestTable) -> Drafts:
        """At most as many tokens for a request as the plan has room for."""
        ...

    def move_blocks(self, plan: SchedulerOutput) -> None:
        """What the plan says about blocks holds for the proposer's own cache too."""
        ...

    def clear_non_finite(self, block_ids: list[int]) -> None: ...

    def reset(self) -> None:
        """A new generation: nothing is held."""
        ...


class NoProposer:
    """Drafts that the plan has room for are not made; those that it names are verified."""

    def propose(self, plan: SchedulerOutput, table: RequestTable) -> Drafts:
        del plan, table
        return {}

    def move_blocks(self, plan: SchedulerOutput) -> None:
        del plan

    def clear_non_finite(self, block_ids: list[int]) -> None:
        del block_ids

    def reset(self) -> None:
        pass


class NgramProposer(NoProposer):
    """Prompt look-up: what came after the text's last tokens when they stood there before."""

    def propose(self, plan: SchedulerOutput, table: RequestTable) -> Drafts:
        drafts: Drafts = {}
        for request_id, planned in plan.draft_token_ids.items():
            row = table.row_of[request_id]
            known = table.token_ids[row, : table.num_tokens[row]]
            proposed = look_up(known, len(planned))
            if proposed:
                drafts[request_id] = proposed
        return drafts


def look_up(token_ids: Int32Array, max_tokens: int) -> list[int]:
    """The tokens behind the latest earlier place of the longest known suffix; [] without one."""
    for length in range(LONGEST_SUFFIX, SHORTEST_SUFFIX - 1, -1):
        num_places = len(token_ids) - length
        if num_places < 1:
            continue
        is_place = np.ones(num_places, dtype=bool)
        for offset in range(length):
            wanted = token_ids[num_places + offset]
            is_place &= token_ids[offset : offset + num_places] == wanted
        places = np.flatnonzero(is_place)
        if len(places):
            # Near the end there may be fewer tokens than are wanted; an earlier place has more.
            is_long = places + length + max_tokens <= len(token_ids)
            place = int(places[is_long][-1] if is_long.any() else places[0])
            return token_ids[place + length : place + length + max_tokens].tolist()
    return []


def chosen_drafts(plan: SchedulerOutput, proposed: Drafts) -> Drafts:
    """What is verified: the drafts that the plan names, else what was proposed in their place."""
    drafts: Drafts = {}
    for request_id, planned in plan.draft_token_ids.items():
        known = [token_id for token_id in planned if token_id != UNKNOWN]
        drafts[request_id] = known or proposed.get(request_id, [])[: len(planned)]
    return drafts


@dataclass(slots=True, frozen=True)
class Verified:
    """Per request that sampled, in the batch's order."""

    first_sample: Int32Array  # its first row among the samples
    num_accepted: Int32Array  # its drafts that are what was sampled
    num_rejected: Int32Array  # those that are not, and those that the plan had room for


def verify(sampled: Int32Array, draft_behind: Int32Array, num_planned: Int32Array) -> Verified:
    """`draft_behind[i]` is the draft that was computed behind sample i; UNKNOWN: the last one.

    A request's samples stand side by side, so each ends with the one that has no draft behind it.
    """
    is_last = draft_behind == UNKNOWN
    ends = np.flatnonzero(is_last)
    first = np.concatenate([[0], ends[:-1] + 1]).astype(np.int32)
    # The first sample that is not the draft behind it, which the last one never is.
    differs = np.flatnonzero(is_last | (sampled != draft_behind))
    stop = differs[np.searchsorted(differs, first)]
    num_accepted = (stop - first).astype(np.int32)
    return Verified(first, num_accepted, num_planned - num_accepted)
