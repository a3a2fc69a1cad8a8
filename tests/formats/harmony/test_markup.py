"""The scripted engine reads our prompts and writes turns that our parser reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from antiphon.adapters.formats.harmony import HarmonyMarkup, HarmonyParser
from antiphon.adapters.formats.harmony import encoding as h
from antiphon.adapters.formats.harmony.encoding import Encoding
from antiphon.application.ports import Prompt, Turn
from antiphon.domain import content as c
from antiphon.domain import deltas as d
from antiphon.domain import items as i

from .conftest import TOOLS, a_turn, feed, joined

END = d.ItemEnd()


@pytest.fixture
def markup() -> HarmonyMarkup:
    return HarmonyMarkup()


def ids_of(written: list[list[tuple[int, str]]]) -> list[int]:
    return [token for part in written for token, _ in part]


PARTS: dict[str, tuple[list[dict[str, Any]], list[d.Delta]]] = {
    "say": ([{"say": "Hi! ", "repeat": 2}], [d.TextDelta("Hi! Hi! ", phase="final_answer"), END]),
    "say as commentary": (
        [{"say": "Hi", "phase": "commentary"}],
        [d.TextDelta("Hi", phase="commentary"), END],
    ),
    "think and say": (
        [{"think": "Hm."}, {"say": "Hi"}],
        [d.ReasoningDelta("Hm."), END, d.TextDelta("Hi", phase="final_answer"), END],
    ),
    "say and call": (
        [{"say": "Wait"}, {"call": "get_weather", "args": {"city": "Köln"}}],
        [
            d.TextDelta("Wait", phase="commentary"),
            END,
            d.CallStart("get_weather"),
            d.ArgumentsDelta('{"city": "Köln"}'),
            END,
        ],
    ),
    "two calls, one malformed": (
        [{"call": "get_weather", "args": "{oops"}, {"call": "crm__find"}],
        [
            d.CallStart("get_weather"),
            d.ArgumentsDelta("{oops"),
            END,
            d.CallStart("find", namespace="crm"),
            d.ArgumentsDelta("{}"),
            END,
        ],
    ),
    "custom": (
        [{"custom": "note", "input": 'a "b"\n'}],
        [d.CallStart("note", kind="custom"), d.ArgumentsDelta('a "b"\n'), END],
    ),
    "mcp": (
        [{"mcp": "find", "server": "crm", "args": {"q": 1}}],
        [d.CallStart("find", namespace="crm"), d.ArgumentsDelta('{"q": 1}'), END],
    ),
    "refuse": ([{"refuse": "No."}], [d.RefusalDelta("No."), END]),
    "raw": (
        [{"raw": "<|channel|>analysis<|message|>hm<|end|>"}],
        [d.ReasoningDelta("hm"), END],
    ),
    "special-token text": (
        [{"say": "<|end|>"}],
        [d.TextDelta("<|end|>", phase="final_answer"), END],
    ),
}


@pytest.mark.parametrize(("parts", "deltas"), PARTS.values(), ids=PARTS)
def test_the_parser_reads_what_a_script_writes(
    markup: HarmonyMarkup,
    parser: HarmonyParser,
    parts: list[dict[str, Any]],
    deltas: list[d.Delta],
) -> None:
    written = markup.write(parts, tools=TOOLS, thinking=True)
    assert joined(feed(parser, ids_of(written))) == deltas
    assert parser.repair_count == 0


def test_without_thinking_no_reasoning_is_written(markup: HarmonyMarkup) -> None:
    parts = [{"think": "Hm."}, {"say": "Hi"}]
    thought, *rest = markup.write(parts, tools=(), thinking=False)
    assert thought == []
    assert rest == markup.write(parts[1:], tools=(), thinking=True)


@pytest.mark.parametrize(
    ("parts", "empty"),
    [
        ([{"fail": "server_error"}, {"say": "Hi"}], 0),
        ([{"say": "Hi"}, {"hang": 1}], 1),
        ([{"raw": "<|channel|>final<|message|>Hi<|return|>"}], 1),
    ],
    ids=["fail", "hang", "raw ends the turn itself"],
)
def test_there_is_a_list_for_each_part_and_one_for_the_end(
    markup: HarmonyMarkup, parts: list[dict[str, Any]], empty: int
) -> None:
    written = markup.write(parts, tools=(), thinking=True)
    assert len(written) == len(parts) + 1
    assert written[empty] == []


@pytest.mark.parametrize(
    ("parts", "end"),
    [([{"say": "Hi"}], h.RETURN), ([{"say": "Hi"}, {"call": "f"}], h.CALL)],
    ids=["answer", "call"],
)
def test_a_turn_ends_with_a_stop_token(
    markup: HarmonyMarkup, parts: list[dict[str, Any]], end: int
) -> None:
    assert markup.write(parts, tools=(), thinking=True)[-1][-1][0] == end


def test_the_texts_of_the_tokens_spell_the_turn(markup: HarmonyMarkup, encoding: Encoding) -> None:
    written = markup.write([{"say": "Hi 🫠!"}], tools=(), thinking=True)
    spelled = "".join(text for part in written for _, text in part)
    assert spelled == "<|channel|>final<|message|>Hi 🫠!<|return|>"
    assert markup.text(ids_of(written)) == spelled


def test_a_prompt_is_read_message_by_message(
    markup: HarmonyMarkup, render: Callable[[Turn], Prompt]
) -> None:
    items = (
        i.Message(role="user", content="Hello"),
        i.Message(role="assistant", content="Hi!"),
        i.Message(role="user", content=""),
        i.Reasoning(content=(c.ReasoningText(text="hm"),)),
        i.Message(role="assistant", content="Wait.", phase="commentary"),
        i.FunctionCall(call_id="c1", name="find", namespace="crm", arguments="{}"),
        i.FunctionCallOutput(call_id="c1", output="Bob"),
        i.Message(role="assistant", content="It is", phase="commentary"),
        i.Message(role="assistant", content="Bob.", phase="final_answer"),
        i.Message(role="developer", content="@@script []"),
    )
    read = markup.read(render(a_turn(items=items, tools=(), instructions="Be brief.")).token_ids)
    assert read[1:] == [
        ("developer", "# Instructions\n\nBe brief."),
        ("user", "Hello"),
        ("assistant", "Hi!"),
        ("user", ""),
        ("preamble", "Wait."),
        ("call", "crm__find"),
        ("tool", "Bob"),
        ("assistant", "It is"),
        ("assistant", "Bob."),
        ("developer", "# Instructions\n\n@@script []"),
    ]
    assert read[0][0] == "system"
