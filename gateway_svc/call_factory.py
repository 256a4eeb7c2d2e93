"""Completes what a client sent: from a request body to a call that can be submitted, and again.

Knows the model's tokenizer, template, limits and defaults; no session. Invariant (H22): after this
nothing is left to be drawn or defaulted: id, seed and arrival are in the submission, so that
submitting it twice, to whichever scheduler, means the same.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from gateway_svc.api_error import invalid, not_found, too_long, unsupported
from gateway_svc.call import ID_PREFIXES, Call, CallKind, CallShape, request_id_of
from gateway_svc.chat_template import ChatTemplate, ChatTemplateError
from gateway_svc.openai_api import (
    MAX_CHOICES,
    ChatCompletionRequest,
    ChatMessage,
    CompletionRequest,
    SamplingFields,
)
from gateway_svc.tokenizer import Tokenizer
from segue.grpc_server import MAX_MESSAGE_BYTES
from segue.model_files.model_directory import ModelDirectory
from segue.types import SamplingParams, Submission

DEFAULT_COMPLETION_TOKENS = 16
SEED_BITS = 63
SEED_MASK = 2**64 - 1
ID_BYTES = 16
TOKEN_ID_DIGITS = 10  # as many as an id has at most
# A call is one message and one commit, with its prompt, biases and stops again for each choice.
MAX_CALL_BYTES = MAX_MESSAGE_BYTES // 4
BYTES_OF_TOKEN_ID = 3
BYTES_OF_BIAS = 12


@dataclass(slots=True, frozen=True)
class Prompt:
    token_ids: tuple[int, ...]
    param: str  # the field that it came in, for errors


@dataclass(slots=True, frozen=True)
class OutputLimits:
    """What the two bodies name differently. None: not said; no logprobs."""

    max_tokens: int | None
    num_logprobs: int | None


@dataclass(slots=True, frozen=True)
class Caller:
    """What the HTTP headers say."""

    traceparent: str = ""


class CallFactory:
    """`max_model_len` may be lowered by what the executors say; it is asked at each call."""

    def __init__(
        self,
        model: ModelDirectory,
        tokenizer: Tokenizer,
        model_names: tuple[str, ...],
        max_model_len: Callable[[], int],
    ) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self._template = ChatTemplate(model)
        self._model_names = model_names
        self._max_model_len = max_model_len

    def completion(self, request: CompletionRequest, caller: Caller) -> Call:
        name = self._served_name(request.model)
        for param in ("echo", "suffix"):
            if getattr(request, param):
                raise unsupported(param)
        if request.best_of not in (None, request.n or 1):
            raise unsupported("best_of")
        prompts = self._completion_prompts(request)
        shape = self._shape(CallKind.COMPLETION, name, request, len(prompts))
        limits = OutputLimits(request.max_tokens or DEFAULT_COMPLETION_TOKENS, request.logprobs)
        return self._call(shape, prompts, request, caller, limits)

    def chat(self, request: ChatCompletionRequest, caller: Caller) -> Call:
        name = self._served_name(request.model)
        _refuse_unsupported_chat(request)
        prompt = self._chat_prompt(request)
        shape = self._shape(CallKind.CHAT, name, request, 1)
        # Where both are given the newer name wins, as at OpenAI.
        max_tokens = request.max_completion_tokens or request.max_tokens
        num_logprobs = (request.top_logprobs or 0) if request.logprobs else None
        if request.top_logprobs and not request.logprobs:
            raise invalid("top_logprobs needs logprobs to be true", "top_logprobs")
        limits = OutputLimits(max_tokens, num_logprobs)
        return self._call(shape, [prompt], request, caller, limits)

    def _call(
        self,
        shape: CallShape,
        prompts: Sequence[Prompt],
        request: SamplingFields,
        caller: Caller,
        limits: OutputLimits,
    ) -> Call:
        call_id = f"{ID_PREFIXES[shape.kind]}-{secrets.token_hex(ID_BYTES)}"
        seed = secrets.randbits(SEED_BITS) if request.seed is None else request.seed & SEED_MASK
        arrival_unix_ms = time.time_ns() // 1_000_000
        context = shape.to_context()
        n = request.n or 1
        submissions: list[Submission] = []
        for prompt in prompts:
            params = self._params(request, prompt, limits, seed)
            _check_size(prompt, params, context, shape.num_choices)
            for choice in range(n):
                submissions.append(
                    Submission(
                        request_id=request_id_of(call_id, len(submissions)),
                        prompt_token_ids=prompt.token_ids,
                        sampling_params=params,
                        arrival_unix_ms=arrival_unix_ms,
                        choice=choice,
                        group_id=call_id,
                        group_size=shape.num_choices,
                        priority=request.priority or 0,
                        cache_salt=request.cache_salt or "",
                        traceparent=caller.traceparent,
                        client_context=context,
                        is_resumable=shape.is_stream,
                    )
                )
        return Call(call_id, shape, tuple(submissions))

    def _shape(
        self, kind: CallKind, model: str, request: SamplingFields, num_prompts: int
    ) -> CallShape:
        for param in ("kv_transfer_params", "lora_request", "mm_processor_kwargs"):
            if getattr(request, param) is not None:
                raise unsupported(param)
        num_choices = num_prompts * (request.n or 1)
        if num_choices > MAX_CHOICES:
            raise invalid(f"{num_choices} choices in one call; at most {MAX_CHOICES}", "n")
        options = request.stream_options
        if options is not None and not request.stream:
            raise invalid("stream_options needs stream to be true", "stream_options")
        return CallShape(
            kind=kind,
            model=model,
            created=int(time.time()),
            num_choices=num_choices,
            is_stream=bool(request.stream),
            stops=request.stops,
            include_stop=request.include_stop_str_in_output,
            skip_special_tokens=request.skip_special_tokens,
            include_usage=options is not None and options.include_usage,
            continuous_usage=options is not None and options.continuous_usage_stats,
            return_token_ids=bool(request.return_token_ids),
        )

    def _served_name(self, model: str | None) -> str:
        if model is None:
            return self._model_names[0]
        if model not in self._model_names:
            known = ", ".join(self._model_names)
            message = f"the model {model!r} is not served here (there is: {known})"
            raise not_found(message, "model_not_found", "model")
        return model

    def _completion_prompts(self, request: CompletionRequest) -> list[Prompt]:
        given = request.prompt
        items: list[Any]
        if isinstance(given, str) or (given and isinstance(given[0], int)):
            items = [given]
        else:
            items = list(given)
        if not items:
            raise invalid("prompt is empty", "prompt")
        return [self._completion_prompt(item, request) for item in items]

    def _completion_prompt(self, item: str | list[int], request: CompletionRequest) -> Prompt:
        if isinstance(item, str):
            ids = self._encode(item, "prompt", add_special_tokens=request.add_special_tokens)
        else:
            ids = item
            self._check_token_ids(ids, "prompt")
        if not ids:
            raise invalid("prompt is empty", "prompt")
        return Prompt(tuple(ids), "prompt")

    def _chat_prompt(self, request: ChatCompletionRequest) -> Prompt:
        messages = [_as_template_message(message) for message in request.messages]
        try:
            text = self._template.render(
                messages,
                add_generation_prompt=request.add_generation_prompt,
                options=request.chat_template_kwargs,
            )
        except ChatTemplateError as error:
            raise invalid(str(error), "messages") from error
        ids = self._encode(text, "messages", add_special_tokens=request.add_special_tokens)
        if not ids:
            raise invalid("the messages make an empty prompt", "messages")
        return Prompt(tuple(ids), "messages")

    def _encode(self, text: str, param: str, *, add_special_tokens: bool) -> list[int]:
        """What cannot be served, however it is cut into tokens, is not cut: that takes long."""
        limit, least = self._max_model_len(), self._tokenizer.least_tokens(text)
        if least >= limit:
            raise too_long(
                f"this model's maximum context length is {limit} tokens; "
                f"the prompt, of {len(text)} characters, has more than {least}",
                param,
            )
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens)

    def _params(
        self,
        request: SamplingFields,
        prompt: Prompt,
        limits: OutputLimits,
        seed: int,
    ) -> SamplingParams:
        max_tokens = self._max_tokens(prompt, limits.max_tokens)
        min_tokens = request.min_tokens or 0
        if min_tokens > max_tokens:
            raise invalid(f"min_tokens {min_tokens} is above {max_tokens}", "min_tokens")
        stop_token_ids = list(request.stop_token_ids or [])
        self._check_token_ids(stop_token_ids, "stop_token_ids")
        if not request.ignore_eos:
            stop_token_ids += self._model.stop_token_ids
        return SamplingParams(
            seed=seed,
            max_tokens=max_tokens,
            min_tokens=min_tokens,
            temperature=self._default(request.temperature, "temperature", 1.0),
            top_k=max(0, int(self._default(request.top_k, "top_k", 0))),
            top_p=self._default(request.top_p, "top_p", 1.0),
            min_p=self._default(request.min_p, "min_p", 0.0),
            presence_penalty=request.presence_penalty or 0.0,
            frequency_penalty=request.frequency_penalty or 0.0,
            repetition_penalty=self._default(request.repetition_penalty, "repetition_penalty", 1.0),
            logit_bias=self._logit_bias(request),
            eos_token_id=None if request.ignore_eos else self._model.eos_token_id,
            stop_token_ids=tuple(dict.fromkeys(stop_token_ids)),
            num_logprobs=limits.num_logprobs,
        )

    def _default(self, given: float | None, name: str, neutral: float) -> float:
        """The client's, else the model's own (generation_config.json), else one without effect."""
        if given is not None:
            return float(given)
        return float(self._model.default_sampling.get(name, neutral))

    def _max_tokens(self, prompt: Prompt, asked: int | None) -> int:
        limit = self._max_model_len()
        room = limit - len(prompt.token_ids)
        if room <= 0 or (asked is not None and asked > room):
            wanted = "" if asked is None else f" and {asked} of output were asked for"
            raise too_long(
                f"this model's maximum context length is {limit} tokens; "
                f"the prompt has {len(prompt.token_ids)}{wanted}",
                prompt.param,
            )
        return room if asked is None else asked

    def _logit_bias(self, request: SamplingFields) -> tuple[tuple[int, float], ...]:
        bias: dict[int, float] = {}
        for key, value in (request.logit_bias or {}).items():
            if not (key.isascii() and key.isdigit() and len(key) <= TOKEN_ID_DIGITS):
                raise invalid(f"logit_bias: {key[:50]!r} is not a token id", "logit_bias")
            bias[int(key)] = value
        self._check_token_ids(list(bias), "logit_bias")
        return tuple(sorted(bias.items()))

    def _check_token_ids(self, token_ids: Sequence[int], param: str) -> None:
        limit = self._tokenizer.vocab_size
        wrong = next((i for i in token_ids if not 0 <= i < limit), None)
        if wrong is not None:
            raise invalid(f"{param}: token id {wrong} is not below {limit}", param, "invalid_value")


def _check_size(prompt: Prompt, params: SamplingParams, context: str, num_choices: int) -> None:
    """What no session could carry would end the session, and with it everybody's streams."""
    num_ids = len(prompt.token_ids) + len(params.stop_token_ids)
    size = num_ids * BYTES_OF_TOKEN_ID + len(params.logit_bias) * BYTES_OF_BIAS + len(context)
    if size * num_choices > MAX_CALL_BYTES:
        raise invalid(f"{num_choices} choices of {size} bytes each are too much for one call", "n")


def _refuse_unsupported_chat(request: ChatCompletionRequest) -> None:
    if request.tools and request.tool_choice != "none":
        raise unsupported("tools")
    if request.functions:
        raise unsupported("functions")
    if request.response_format is not None and request.response_format.type != "text":
        raise unsupported("response_format")
    if request.audio is not None or (request.modalities or ["text"]) != ["text"]:
        raise unsupported("modalities")


def _as_template_message(message: ChatMessage) -> dict[str, Any]:
    """Text parts are joined: templates of text models expect one string."""
    fields = message.model_dump(exclude_none=True)
    if isinstance(message.content, list):
        for part in message.content:
            if part.type not in ("text", "input_text") or part.text is None:
                raise invalid(f"content of type {part.type!r} is not supported", "messages")
        fields["content"] = "".join(part.text or "" for part in message.content)
    else:
        fields["content"] = message.content or ""
    return fields
