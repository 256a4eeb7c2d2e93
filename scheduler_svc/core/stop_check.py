"""When a request's own tokens end it (specification 13.5).

Knows nothing about stop strings (the gateway finds those and aborts). Invariant: checked after each
token, in this order: EOS, stop ids, length; EOS on the last allowed token is a stop.
"""

from __future__ import annotations

from scheduler_svc.core.request import Request
from segue.types import Finish, FinishReason, Usage


def check_stop(request: Request, max_model_len: int) -> Finish | None:
    """The end that the last token brings, or None."""
    num_output = request.num_output_tokens
    if num_output == 0:
        return None
    params = request.submission.sampling_params
    (last,) = request.last_token_ids(1)
    if last == params.eos_token_id:
        return make_finish(request, FinishReason.STOP)
    if last in params.stop_token_ids:
        return make_finish(request, FinishReason.STOP, last)
    if request.num_tokens >= max_model_len or num_output >= params.max_tokens:
        return make_finish(request, FinishReason.LENGTH)
    return None


def make_finish(
    request: Request, reason: FinishReason, stop_reason: int | None = None, message: str = ""
) -> Finish:
    """The end of a request as it is now."""
    usage = Usage(
        request.num_prompt_tokens, request.num_output_tokens, request.num_cached_tokens or 0
    )
    return Finish(reason, usage, stop_reason, message)
