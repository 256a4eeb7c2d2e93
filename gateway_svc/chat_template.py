"""A conversation as the text that the model was trained on, by its own Jinja template.

Knows nothing about HTTP. Invariant: a template is code from a model directory, so it runs in
Jinja's sandbox, with the names that transformers gives it and no others.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError
from jinja2.sandbox import ImmutableSandboxedEnvironment

from segue.model_files.model_directory import ModelDirectory, ModelDirectoryError


class ChatTemplateError(ValueError):
    """The template refuses this conversation, or there is no template."""


class ChatTemplate:
    def __init__(self, model: ModelDirectory) -> None:
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _raise
        environment.globals["strftime_now"] = _now
        self._special_tokens = model.special_tokens
        try:
            source = model.chat_template
            self._template = None if source is None else environment.from_string(source)
        except TemplateError as error:
            raise ModelDirectoryError(f"{model.path}: chat template: {error}") from error

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        add_generation_prompt: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        if self._template is None:
            raise ChatTemplateError("the model has no chat template; use /v1/completions")
        names = {**self._special_tokens, **(options or {})}
        names |= {"messages": messages, "add_generation_prompt": add_generation_prompt}
        try:
            return self._template.render(names)
        except (TemplateError, TypeError, ValueError, KeyError, AttributeError) as error:
            raise ChatTemplateError(f"the chat template refuses these messages: {error}") from error


def _to_json(value: Any, indent: int | None = None) -> str:
    """Unlike Jinja's own filter it does not escape for HTML."""
    return json.dumps(value, ensure_ascii=False, indent=indent)


def _raise(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(fmt: str) -> str:
    return datetime.now().astimezone().strftime(fmt)
