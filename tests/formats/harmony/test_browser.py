"""Harmony's own browser: described as gpt-oss knows it, called by its own recipients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from antiphon.adapters.formats.harmony import HarmonyFormat
from antiphon.adapters.formats.harmony.encoding import Encoding
from antiphon.application.ports import Prompt, Turn
from antiphon.domain import deltas as d
from antiphon.domain import items as i
from antiphon.domain.kinds.code_interpreter import PYTHON_SPEC
from antiphon.domain.kinds.web_search import SPECS
from antiphon.domain.tools import ToolChoice, ToolSpec

from .conftest import NO_PROMPT, a_turn, parsed

Render = Callable[[Turn], Prompt]
HELLO = i.Message(role="user", content="How is the weather?")
BROWSER = tuple(SPECS.values())
ARGUMENTS = '{"query": "bonn",  "topn": 3}'

SPELLINGS = {
    "while thinking": "<|channel|>analysis to=browser.search code<|message|>{}<|call|>",
    "with a type": "<|channel|>analysis to=browser.search <|constrain|>json<|message|>{}<|call|>",
    "without a type": "<|channel|>analysis to=browser.search<|message|>{}<|call|>",
    "in the open": "<|channel|>commentary to=browser.search code<|message|>{}<|call|>",
    "recipient with the role": " to=browser.search<|channel|>analysis code<|message|>{}<|call|>",
    "as a function": "<|channel|>commentary to=functions.browser.search<|message|>{}<|call|>",
}
KINDS = {
    "browser.search": ("web_search", "search"),
    "browser.open": ("open_page", "open_page"),
    "browser.find": ("find_in_page", "find_in_page"),
}


@pytest.mark.parametrize("spelling", SPELLINGS.values(), ids=SPELLINGS)
def test_a_call_is_read_in_any_spelling_and_continued_exactly(
    harmony: HarmonyFormat, render: Render, encoding: Encoding, spelling: str
) -> None:
    turn = a_turn(items=(HELLO,), tools=BROWSER)
    before, generated = (
        list(render(turn).token_ids),
        encoding.encode_markup(spelling.format(ARGUMENTS)),
    )
    call = i.WebSearchCall(
        action={"type": "search", "query": "bonn"},
        results=({"arguments": ARGUMENTS, "text": "[0] bonn"},),
    )
    assert parsed(harmony, render, turn, generated, call) == [
        d.CallStart("web_search", kind="web_search"),
        d.ArgumentsDelta(ARGUMENTS),
        d.ItemEnd(),
    ]
    prompt = list(render(a_turn(items=(HELLO, call), tools=BROWSER)).token_ids)
    assert prompt[: len(before) + len(generated)] == before + generated
    shown = "<|start|>browser.search to=assistant<|channel|>analysis<|message|>[0] bonn<|end|>"
    assert encoding.text(prompt[len(before) + len(generated) :]) == shown + "<|start|>assistant"


@pytest.mark.parametrize(("recipient", "kinds"), KINDS.items(), ids=KINDS)
def test_each_recipient_has_a_kind_and_an_action(
    harmony: HarmonyFormat,
    render: Render,
    encoding: Encoding,
    prompt_text: Any,
    recipient: str,
    kinds: tuple[str, str],
) -> None:
    turn = a_turn(items=(HELLO,), tools=BROWSER)
    markup = f"<|channel|>analysis to={recipient} code<|message|>{{}}<|call|>"
    [start, *_] = parsed(harmony, render, turn, encoding.encode_markup(markup))
    assert start == d.CallStart(kinds[0], kind=kinds[0])
    call = i.WebSearchCall(action={"type": kinds[1]})
    assert f"analysis to={recipient} code" in prompt_text(a_turn(items=(HELLO, call), tools=()))


def test_the_prompt_describes_it_as_in_training(prompt_text: Callable[[Turn], str]) -> None:
    prompt = prompt_text(a_turn(items=(HELLO,), tools=(PYTHON_SPEC, *BROWSER)))
    system, _, rest = prompt.partition("<|end|>")
    assert "\n\n# Tools\n\n## browser\n\n// Tool for browsing.\n// The `cursor` appears" in system
    assert "} // namespace browser\n\n## python\n\nUse this tool to execute" in system
    assert system.index("# Tools") < system.index("# Valid channels")
    assert "functions" not in prompt
    assert "web_search" not in rest


def test_it_can_be_offered_beside_a_function_of_its_name(
    harmony: HarmonyFormat, render: Render, encoding: Encoding, prompt_text: Any
) -> None:
    function = ToolSpec(name="web_search")
    ours = ToolSpec(name="web_search_tool", kind="web_search")
    turn = a_turn(items=(HELLO,), tools=(function, ours))
    assert "type web_search = () => any;" in prompt_text(turn)
    assert "web_search_tool" not in prompt_text(turn)
    to_function = "<|channel|>commentary to=functions.web_search json<|message|>{}<|call|>"
    [start, *_] = parsed(harmony, render, turn, encoding.encode_markup(to_function))
    assert start == d.CallStart("web_search")


def test_a_call_of_a_browser_that_is_not_offered_is_text(
    harmony: HarmonyFormat, render: Render, encoding: Encoding
) -> None:
    markup = SPELLINGS["while thinking"].format(ARGUMENTS)
    turn = a_turn(items=(HELLO,), tools=(PYTHON_SPEC,))
    deltas = parsed(harmony, render, turn, encoding.encode_markup(markup))
    assert deltas[0] == d.TextDelta(f"to=browser.search {ARGUMENTS}", phase="commentary")


def test_tool_choice_none_leaves_it_out_of_the_prompt(prompt_text: Callable[[Turn], str]) -> None:
    turn = a_turn(items=(HELLO,), tools=BROWSER, choice=ToolChoice(mode="none"))
    assert "browser" not in prompt_text(turn)


def test_a_forced_call_must_have_valid_arguments(harmony: HarmonyFormat) -> None:
    names = frozenset({"web_search"})
    turn = a_turn(items=(HELLO,), tools=BROWSER, choice=ToolChoice(mode="required", names=names))
    constraint = harmony.constraint(turn, NO_PROMPT)
    assert constraint is not None
    assert "analysis to=browser.search code" in str(constraint.value)
    assert "'required': ['query']" in str(constraint.value)
    assert "browser.open" not in str(constraint.value)
    assert harmony.constraint(a_turn(items=(HELLO,), tools=BROWSER), NO_PROMPT) is None
