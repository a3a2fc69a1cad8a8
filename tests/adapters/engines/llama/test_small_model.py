"""The small model's format and template, without its weights."""

from __future__ import annotations

from pathlib import Path

import pytest

from antiphon.adapters.engines.llama.small_model import FORMAT, TEMPLATE
from antiphon.adapters.formats.chat_template.families import Family
from antiphon.adapters.formats.chat_template.families.own import read_family
from antiphon.adapters.formats.chat_template.template import ChatTemplate
from antiphon.testing.family import FamilyContract

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'


class TestSmallModelFamily(FamilyContract):
    @pytest.fixture
    def family(self) -> Family:
        return read_family(FORMAT)


def render(*messages: dict[str, object], tools: bool = False) -> str:
    template = ChatTemplate({"default": Path(TEMPLATE).read_text()}, {})
    return template.render(messages, [{"name": "f"}] if tools else [], {})


def test_a_question_has_no_system_message_that_nobody_wrote() -> None:
    assert render({"role": "user", "content": "Hi"}) == (
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_tools_calls_and_their_results_are_in_the_prompt() -> None:
    call = {"function": {"name": "f", "arguments": {"a": 1}}}
    prompt = render(
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "done"},
        tools=True,
    )
    for text in ("Be brief.", '{"name": "f"}', CALL, "<tool_response>\ndone\n</tool_response>"):
        assert text in prompt
    assert prompt.count("<|im_start|>system") == 1
