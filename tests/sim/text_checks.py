"""Whether a client got the right text: complete, and in repeatable worlds the very one.

Knows nothing about how it came. Invariant: a check changes nothing.
"""

from __future__ import annotations

from segue.types import Finish, FinishReason, Submission
from tests.sim.gateway import Client
from tests.sim.settings import Settings
from tests.sim.token_kv_executor import extend_chain, repeatable_token
from tests.sim.world import Violation


def check_text(client: Client, finish: Finish, settings: Settings, model_lens: list[int]) -> None:
    """I8: the end is where the tokens say; the text is that of an undisturbed run."""
    submission, seen = client.submission, client.seen
    params = submission.sampling_params
    limits = {limit - len(submission.prompt_token_ids) for limit in model_lens}
    if len(seen) != finish.usage.num_output_tokens:
        raise Violation(f"I8: {client.request_id} saw {len(seen)} of {finish.usage}")
    ends = {params.eos_token_id, *params.stop_token_ids}
    if any(token in ends for token in seen[:-1]):
        raise Violation(f"I8: {client.request_id} went on behind its end")
    if finish.reason is FinishReason.STOP and seen[-1] not in ends:
        raise Violation(f"I8: {client.request_id} stopped at {seen[-1]}")
    # Where limits differ, a request may move to a lower one with more tokens than that.
    is_full = min(limits) <= len(seen) if len(limits) > 1 else len(seen) in limits
    is_complete = len(seen) == params.max_tokens or is_full
    if finish.reason is FinishReason.LENGTH and not is_complete:
        raise Violation(f"I8: {client.request_id} ended after {len(seen)} tokens")
    if settings.is_sampling_repeatable and seen != oracle(submission, len(seen), settings):
        raise Violation(f"I8: {client.request_id} has another text than an undisturbed run")


def oracle(submission: Submission, count: int, settings: Settings) -> list[int]:
    tokens = list(submission.prompt_token_ids)
    chain: list[int] = []
    for index in range(count):
        extend_chain(chain, tokens, len(tokens))
        tokens.append(
            repeatable_token(
                chain[-1],
                submission.sampling_params,
                submission.choice,
                index,
                settings.vocab_size,
            )
        )
    return tokens[len(submission.prompt_token_ids) :]
