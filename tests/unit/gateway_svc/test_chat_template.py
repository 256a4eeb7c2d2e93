"""Templates are code from a directory: they run with the names they expect, in a sandbox."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway_svc.chat_template import ChatTemplate, ChatTemplateError
from segue.model_files.hand import write_hand_model
from segue.model_files.model_directory import ModelDirectory, ModelDirectoryError

MESSAGES = [{"role": "user", "content": "a<b"}]


def _render(directory: Path, source: str | None, **options: Any) -> str:
    write_hand_model(directory)
    if source is None:
        (directory / "tokenizer_config.json").unlink()
    else:
        (directory / "chat_template.jinja").write_text(source)
    return ChatTemplate(ModelDirectory.load(directory)).render(MESSAGES, **options)


@pytest.mark.parametrize(
    "source, text",
    [
        ("{{ messages[0].content }}", "a<b"),
        ("{{ bos_token }}{{ eos_token }}", "<bos><eos>"),
        ("{{ messages | tojson }}", '[{"role": "user", "content": "a<b"}]'),
        ("{% for m in messages %}{% break %}x{% endfor %}y", "y"),
        ("  {% if add_generation_prompt %}\n  go\n{% endif %}", "  go\n"),
        ("{{ strftime_now('%%') }}", "%"),
        ("{{ thinking }}", "on"),
    ],
)
def test_what_templates_expect(tmp_path: Path, source: str, text: str) -> None:
    assert _render(tmp_path, source, options={"thinking": "on"}) == text


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no') }}",
        "{{ messages.append(1) }}",
        "{{ ''.__class__.__mro__ }}",
        "{{ messages[0].content + 1 }}",
    ],
)
def test_what_a_template_may_not_do_is_an_error_of_the_call(tmp_path: Path, source: str) -> None:
    with pytest.raises(ChatTemplateError):
        _render(tmp_path, source)


def test_a_model_without_a_template_says_so(tmp_path: Path) -> None:
    with pytest.raises(ChatTemplateError, match="no chat template"):
        _render(tmp_path, None)


def test_a_broken_template_is_found_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(ModelDirectoryError, match="chat template"):
        _render(tmp_path, "{% if %}")
