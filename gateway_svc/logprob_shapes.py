"""Logprobs as the two APIs show them.

Knows nothing about chunks. Invariant: what a run of tokens shows depends on those tokens alone, so
a stream's pieces put together are the whole.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gateway_svc.choice import Choice
from gateway_svc.tokenizer import Tokenizer
from segue.types import TokenLogprobs

LOWEST_LOGPROB = -9999.0  # JSON has no infinity; vLLM's number for it


def chat_logprobs(choice: Choice, tokens: Iterable[int], tokenizer: Tokenizer) -> dict[str, Any]:
    def entry(token_id: int, logprob: float) -> dict[str, Any]:
        return {
            "token": tokenizer.token_text(token_id),
            "logprob": max(logprob, LOWEST_LOGPROB),
            "bytes": list(tokenizer.token_bytes(token_id)),
        }

    content: list[dict[str, Any]] = []
    for i in tokens:
        row = choice.logprobs[i]
        top = [entry(token, value) for token, value in _top(row)]
        content.append(entry(choice.token_ids[i], row.logprob) | {"top_logprobs": top})
    return {"content": content, "refusal": None}


def completion_logprobs(
    choice: Choice, tokens: Iterable[int], tokenizer: Tokenizer
) -> dict[str, Any]:
    """The sampled token stands among the best, whether it is one of them or not."""
    shown: dict[str, Any] = {
        "text_offset": [],
        "token_logprobs": [],
        "tokens": [],
        "top_logprobs": [],
    }
    for i in tokens:
        row = choice.logprobs[i]
        text = tokenizer.token_text(choice.token_ids[i])
        logprob = max(row.logprob, LOWEST_LOGPROB)
        top = {tokenizer.token_text(t): max(v, LOWEST_LOGPROB) for t, v in _top(row)}
        shown["text_offset"].append(choice.text_offsets[i])
        shown["token_logprobs"].append(logprob)
        shown["tokens"].append(text)
        shown["top_logprobs"].append({text: logprob, **top})
    return shown


def _top(row: TokenLogprobs) -> Iterable[tuple[int, float]]:
    return zip(row.top_token_ids, row.top_logprobs, strict=True)
