"""Harmony's own Python tool: described as gpt-oss knows it, called with plain code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from openai_harmony import Message, Role, SystemContent

from antiphon.adapters.formats.harmony import HarmonyFormat
from antiphon.adapters.formats.harmony.encoding import Encoding
from antiphon.application.ports import Prompt, Turn
from antiphon.domain import deltas as d
from antiphon.domain import items as i
from antiphon.domain.kinds.code_interpreter import PYTHON_SPEC
from antiphon.domain.tools import ToolChoice, ToolSpec

from .conftest import NO_PROMPT, a_turn, parsed

Render = Callable[[Turn], Prompt]
HELLO = i.Message(role="user", content="What is 6 times 7?")
CODE = 'x = "a\\n"\nprint({"b": x})'

SPELLINGS = {
    "while thinking": "<|channel|>analysis to=python code<|message|>{}<|call|>",
    "in the open": "<|channel|>commentary to=python code<|message|>{}<|call|>",
    "recipient with the role": " to=python<|channel|>analysis code<|message|>{}<|call|>",
    "as a function": "<|channel|>commentary to=functions.python<|message|>{}<|call|>",
}


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
def test_code_is_read_unchanged_and_continued_exactly(
    harmony: HarmonyFormat, render: Render, encoding: Encoding, spelling: str
) -> None:
    turn = a_turn(items=(HELLO,), tools=(PYTHON_SPEC,))
    before, generated = list(render(turn).token_ids), encoding.encode_markup(spelling.format(CODE))
    call = i.CodeInterpreterCall(
        container_id="c", code=CODE, outputs=({"type": "logs", "logs": "42"},)
    )
    deltas = parsed(harmony, render, turn, generated, call)
    assert deltas[:2] == [d.CallStart("python", kind="python"), d.ArgumentsDelta(CODE)]
    prompt = list(render(a_turn(items=(HELLO, call), tools=(PYTHON_SPEC,))).token_ids)
    assert prompt[: len(before) + len(generated)] == before + generated


def test_code_wrapped_in_json_is_unwrapped(
    harmony: HarmonyFormat, render: Render, encoding: Encoding
) -> None:
    turn = a_turn(items=(HELLO,), tools=(PYTHON_SPEC,))
    written = '<|channel|>analysis to=python json<|message|>{"code": "1\\n2"}<|call|>'
    deltas = parsed(harmony, render, turn, encoding.encode_markup(written))
    assert deltas[1] == d.ArgumentsDelta("1\n2")


def test_the_prompt_describes_it_as_in_training(
    render: Render, encoding: Encoding, prompt_text: Callable[[Turn], str]
) -> None:
    system = Message.from_role_and_content(Role.SYSTEM, SystemContent.new().with_python_tool())
    description = system.content[0].tools["python"].description
    prompt = prompt_text(a_turn(items=(HELLO,), tools=(PYTHON_SPEC,)))
    section = f"# Tools\n\n## python\n\n{description}\n\n# Valid channels"
    assert section in prompt
    assert "'functions'" not in prompt
    assert "namespace functions" not in prompt


def test_it_can_be_offered_beside_functions(prompt_text: Callable[[Turn], str]) -> None:
    function = ToolSpec(name="look")
    prompt = prompt_text(a_turn(items=(HELLO,), tools=(PYTHON_SPEC, function)))
    assert "## python" in prompt
    assert "commentary channel: 'functions'" in prompt
    assert "type look = () => any;" in prompt
    assert "type python" not in prompt


def test_tool_choice_none_leaves_it_out_of_the_prompt(prompt_text: Callable[[Turn], str]) -> None:
    turn = a_turn(items=(HELLO,), tools=(PYTHON_SPEC,), choice=ToolChoice(mode="none"))
    assert "python" not in prompt_text(turn)


def test_under_another_name_it_is_a_function(
    harmony: HarmonyFormat, render: Render, encoding: Encoding, prompt_text: Any
) -> None:
    tool = ToolSpec(name="python_tool", kind="python", parameters=PYTHON_SPEC.parameters)
    turn = a_turn(items=(HELLO,), tools=(tool,))
    assert "type python_tool" in prompt_text(turn)
    markup = '<|channel|>commentary to=functions.python_tool json<|message|>{"code": "1"}<|call|>'
    before, generated = list(render(turn).token_ids), encoding.encode_markup(markup)
    call = i.CodeInterpreterCall(container_id="c", code="1")
    assert parsed(harmony, render, turn, generated, call)[1] == d.ArgumentsDelta("1")
    prompt = list(render(a_turn(items=(HELLO, call), tools=(tool,))).token_ids)
    assert prompt[: len(before) + len(generated)] == before + generated


def test_a_forced_call_may_contain_any_code(harmony: HarmonyFormat) -> None:
    turn = a_turn(items=(HELLO,), tools=(PYTHON_SPEC,), choice=ToolChoice(mode="required"))
    assert harmony.constraint(turn, NO_PROMPT) is not None
    assert harmony.constraint(a_turn(items=(HELLO,), tools=(PYTHON_SPEC,)), NO_PROMPT) is None
