"""Answers in OpenAI's shapes: whole, and in chunks; completions, and chat.

Knows the API, not the transport. Invariant: the chunks of a stream, put together, are the whole
answer: text, logprobs, token ids, one finish reason for each choice, and usage.
"""

from __future__ import annotations

from typing import Any

from gateway_svc.call import CallKind
from gateway_svc.choice import Choice, ChoiceEnd
from gateway_svc.cursor import ChoiceCursor, ChoiceDelta
from gateway_svc.live_call import LiveCall
from gateway_svc.logprob_shapes import chat_logprobs, completion_logprobs
from gateway_svc.tokenizer import Tokenizer

JsonObject = dict[str, Any]


class Answer:
    """Of one call. Its methods read the call's state and change nothing."""

    def __init__(self, live: LiveCall, tokenizer: Tokenizer) -> None:
        self._live = live
        self._shape = live.call.shape
        self._tokenizer = tokenizer
        self._is_chat = self._shape.kind is CallKind.CHAT

    def whole(self) -> JsonObject:
        """All choices, when all have ended."""
        choices = [self._whole_choice(i, choice) for i, choice in enumerate(self._live.choices)]
        name = "chat.completion" if self._is_chat else "text_completion"
        body = self._envelope(name, choices) | {"usage": self.usage()}
        if self._shape.return_token_ids and self._is_chat:
            body["prompt_token_ids"] = list(self._live.choices[0].submission.prompt_token_ids)
        return body

    def opening(self, index: int) -> JsonObject | None:
        """The chunk before the first token, where the API has one."""
        if not self._is_chat:
            return None
        delta = {"role": "assistant", "content": ""}
        chunk = self._chunk(self._choice_of_chunk(index, {"delta": delta}, None, None))
        if self._shape.return_token_ids:
            chunk["prompt_token_ids"] = list(self._live.choices[index].submission.prompt_token_ids)
        return chunk

    def next(self, delta: ChoiceDelta) -> JsonObject | None:
        """The chunk for what is new in a choice; None if a client would see nothing in it."""
        choice = self._live.choices[delta.index]
        logprobs = self._logprobs(choice, delta.first_token, delta.num_tokens)
        has_tokens = self._shape.return_token_ids and delta.num_tokens > 0
        if not (delta.text or logprobs or delta.end or has_tokens):
            return None
        if self._is_chat:
            content = {"delta": {"content": delta.text} if delta.text or not delta.end else {}}
        else:
            content = {"text": delta.text}
        item = self._choice_of_chunk(delta.index, content, logprobs, delta.end)
        if self._shape.return_token_ids:
            end = delta.first_token + delta.num_tokens
            item["token_ids"] = choice.token_ids[delta.first_token : end]
            if delta.first_token == 0 and not self._is_chat:
                item["prompt_token_ids"] = list(choice.submission.prompt_token_ids)
        return self._chunk(item)

    def empty_chunk(self, index: int) -> JsonObject:
        """A chunk of a choice with no text, logprobs or end."""
        content: JsonObject = {"delta": {"content": ""}} if self._is_chat else {"text": ""}
        return self._chunk(self._choice_of_chunk(index, content, None, None))

    def usage_chunk(self) -> JsonObject:
        name = "chat.completion.chunk" if self._is_chat else "text_completion"
        return self._envelope(name, []) | {"usage": self.usage()}

    def usage(self) -> JsonObject:
        num_prompt = self._live.call.num_prompt_tokens
        num_output = sum(choice.num_answer_tokens for choice in self._live.choices)
        num_cached = sum(c.num_cached_tokens for c in self._live.choices if not c.submission.choice)
        return {
            "prompt_tokens": num_prompt,
            "completion_tokens": num_output,
            "total_tokens": num_prompt + num_output,
            "prompt_tokens_details": {"cached_tokens": num_cached},
        }

    def _whole_choice(self, index: int, choice: Choice) -> JsonObject:
        delta = ChoiceCursor(index, choice).take()
        assert delta is not None
        assert delta.end is not None
        logprobs = self._logprobs(choice, 0, delta.num_tokens)
        if self._is_chat:
            content = {"message": {"role": "assistant", "content": delta.text, "refusal": None}}
        else:
            content = {"text": delta.text}
        item = self._choice_of_chunk(index, content, logprobs, delta.end)
        if self._shape.return_token_ids:
            item["token_ids"] = choice.token_ids[: delta.num_tokens]
            if not self._is_chat:
                item["prompt_token_ids"] = list(choice.submission.prompt_token_ids)
        return item

    def _choice_of_chunk(
        self,
        index: int,
        content: JsonObject,
        logprobs: JsonObject | None,
        end: ChoiceEnd | None,
    ) -> JsonObject:
        item = {"index": index, **content, "logprobs": logprobs}
        item["finish_reason"] = None if end is None else end.reason.value
        if end is not None:
            item["stop_reason"] = end.stop_reason
        return item

    def _chunk(self, choice: JsonObject) -> JsonObject:
        name = "chat.completion.chunk" if self._is_chat else "text_completion"
        chunk = self._envelope(name, [choice])
        if self._shape.continuous_usage:
            chunk["usage"] = self.usage()
        elif self._shape.include_usage:
            chunk["usage"] = None
        return chunk

    def _envelope(self, name: str, choices: list[JsonObject]) -> JsonObject:
        return {
            "id": self._live.call_id,
            "object": name,
            "created": self._shape.created,
            "model": self._shape.model,
            "choices": choices,
        }

    def _logprobs(self, choice: Choice, first: int, num: int) -> JsonObject | None:
        if choice.submission.sampling_params.num_logprobs is None or num == 0:
            return None
        if len(choice.logprobs) < first + num:  # an executor that cannot tell them
            return None
        make = chat_logprobs if self._is_chat else completion_logprobs
        return make(choice, range(first, first + num), self._tokenizer)
