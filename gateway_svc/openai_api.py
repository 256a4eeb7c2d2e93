"""What a client may send: the bodies of /v1/completions and /v1/chat/completions.

Knows shapes and ranges; nothing about the model (see `call_factory.py`). Invariant: what passes is
well-formed, and what does not is told with the name of the field. Unknown fields are ignored, as
OpenAI's clients expect; known ones that we do not serve are refused, never ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gateway_svc.api_error import ApiError, invalid

MAX_STOPS = 4
MAX_STOP_CHARS = 1024  # looked for at each token, in each choice
MAX_SALT_CHARS = 1024
MAX_CHOICES = 128
MAX_LOGPROBS = 20

# Of a field with several forms pydantic names only those that it tried.
FORMS = {
    "prompt": "a string, a list of strings, a list of token ids, or a list of such lists",
    "stop": f"a string, or a list of at most {MAX_STOPS}, each of 1 to {MAX_STOP_CHARS} characters",
}

TokenId = Annotated[int, Field(ge=0, lt=2**32)]
StopString = Annotated[str, Field(min_length=1, max_length=MAX_STOP_CHARS)]
Finite = Annotated[float, Field(allow_inf_nan=False)]
Penalty = Annotated[float, Field(ge=-2, le=2)]
Count = Annotated[int, Field(ge=1, lt=2**31)]


class StreamOptions(BaseModel):
    include_usage: bool = False
    continuous_usage_stats: bool = False


class SamplingFields(BaseModel):
    """What both bodies share. None, or absent, is the default of the model or of the API."""

    model_config = ConfigDict(strict=True, extra="ignore")

    model: str | None = None
    max_tokens: Count | None = None
    min_tokens: Annotated[int, Field(ge=0, lt=2**31)] | None = None
    temperature: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = None
    min_p: Annotated[float, Field(ge=0, le=1)] | None = None
    seed: Annotated[int, Field(ge=-(2**63), lt=2**64)] | None = None
    stop: StopString | Annotated[list[StopString], Field(max_length=MAX_STOPS)] | None = None
    stop_token_ids: list[TokenId] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    n: Annotated[int, Field(ge=1, le=MAX_CHOICES)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    repetition_penalty: Annotated[float, Field(gt=0, le=10)] | None = None
    logit_bias: dict[str, Annotated[float, Field(ge=-100, le=100)]] | None = None
    priority: Annotated[int, Field(ge=-(2**31), lt=2**31)] | None = None
    cache_salt: Annotated[str, Field(max_length=MAX_SALT_CHARS)] | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    return_token_ids: bool | None = None
    # vLLM's: known here so that they are refused, and not passed over in silence.
    kv_transfer_params: object = None
    lora_request: object = None
    mm_processor_kwargs: object = None

    @property
    def stops(self) -> tuple[str, ...]:
        if self.stop is None:
            return ()
        return (self.stop,) if isinstance(self.stop, str) else tuple(self.stop)


class CompletionRequest(SamplingFields):
    prompt: str | list[str] | list[TokenId] | list[list[TokenId]]
    logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    echo: bool | None = None
    suffix: str | None = None
    best_of: int | None = None
    add_special_tokens: bool = True


class TextPart(BaseModel):
    type: str
    text: str | None = None


class ChatMessage(BaseModel):
    """Fields that a template may want (`name`, `tool_calls`, …) are kept as they came."""

    model_config = ConfigDict(extra="allow")

    role: Annotated[str, Field(min_length=1)]
    content: str | list[TextPart] | None = None


class ResponseFormat(BaseModel):
    type: str


class ChatCompletionRequest(SamplingFields):
    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Field(ge=0, le=MAX_LOGPROBS)] | None = None
    response_format: ResponseFormat | None = None
    tools: list[Any] | None = None
    tool_choice: Literal["none", "auto", "required"] | dict[str, Any] | None = None
    functions: list[Any] | None = None
    modalities: list[str] | None = None
    audio: Any = None
    add_generation_prompt: bool = True
    add_special_tokens: bool = False
    chat_template_kwargs: dict[str, Any] | None = None


RequestT = TypeVar("RequestT", CompletionRequest, ChatCompletionRequest)


def parse(cls: type[RequestT], body: bytes) -> RequestT:
    """The request in this body; ApiError names the first field that is wrong."""
    try:
        return cls.model_validate_json(body)
    except ValidationError as error:
        raise _as_api_error(error) from None


def _as_api_error(error: ValidationError) -> ApiError:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        return invalid(f"the body is not JSON: {first['msg']}")
    location = [str(part) for part in first["loc"]]
    if not location:
        return invalid("the body is not a JSON object")
    if first["type"] == "missing":
        name = ".".join(location)
        return invalid(f"{name} is missing", location[0], "missing_required_parameter")
    if location[0] in FORMS:
        return invalid(f"{location[0]} must be {FORMS[location[0]]}", location[0], "invalid_value")
    return invalid(f"{'.'.join(location)}: {first['msg']}", location[0], "invalid_value")
