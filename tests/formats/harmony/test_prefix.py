"""The next prompt continues this prompt and its output, token by token (prefix caching)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from antiphon.adapters.formats.harmony import HarmonyFormat, HarmonyMarkup
from antiphon.adapters.formats.harmony.encoding import Encoding, load_encoding
from antiphon.application.ports import Prompt, Step, Turn
from antiphon.domain import content as c
from antiphon.domain import deltas as d
from antiphon.domain import items as i
from antiphon.domain.kinds import CALL_KINDS
from antiphon.domain.offers.client_tools import item_fields_of
from antiphon.domain.tools import ToolSpec

from .conftest import TOOLS, a_turn, joined

Render = Callable[[Turn], Prompt]
HELLO = i.Message(role="user", content="Hello, what is the weather?")


def items_of(deltas: list[d.Delta]) -> list[i.Item]:
    """Fold deltas into items, as the sequencer does."""
    items: list[i.Item] = []
    call: d.Delta | None = None
    for delta in joined(deltas):
        match delta:
            case d.ReasoningDelta(text):
                items.append(i.Reasoning(content=(c.ReasoningText(text=text),)))
            case d.TextDelta():
                content = (c.OutputText(text=delta.text),)
                phase: Any = delta.phase
                items.append(i.Message(role="assistant", content=content, phase=phase))
            case d.CallStart():
                call = delta
            case d.ArgumentsDelta(text):
                call_id = f"call_{len(items)}"
                if isinstance(call, d.CallStart) and call.kind == "custom":
                    items.append(i.CustomToolCall(call_id=call_id, name=call.name, input=text))
                elif isinstance(call, d.CallStart):
                    items.append(
                        i.FunctionCall(
                            call_id=call_id,
                            name=call.name,
                            namespace=call.namespace,
                            arguments=text,
                        )
                    )
    return items


def answers_to(items: list[i.Item]) -> list[i.Item]:
    answers: list[i.Item] = []
    for item in items:
        if isinstance(item, i.FunctionCall):
            answers.append(i.FunctionCallOutput(call_id=item.call_id, output="Sunny"))
        if isinstance(item, i.CustomToolCall):
            answers.append(i.CustomToolCallOutput(call_id=item.call_id, output="done"))
    return answers


def play(harmony: HarmonyFormat, render: Render, turn: Turn, generated: list[int]) -> Turn:
    """Parse what was generated for the turn and return the turn after it."""
    prompt = render(turn)
    parser = harmony.make_parser(turn, prompt)
    items = items_of(parser.feed(Step(token_ids=generated)) + parser.end())
    harmony.remember(turn, prompt, token_ids=generated, parser=parser, items=items)
    return a_turn(items=(*turn.items, *items, *answers_to(items)), cache_salt=turn.cache_salt)


def test_a_scripted_turn_is_continued_exactly(harmony: HarmonyFormat, render: Render) -> None:
    markup = HarmonyMarkup()
    turn = a_turn(items=(HELLO,))
    parts = [
        {"think": "Let me think.\n\nWell."},
        {"say": "I'll look."},
        {"call": "get_weather", "args": {"city": "Paris"}},
    ]
    for _ in range(3):
        before = list(render(turn).token_ids)
        written = markup.write(parts, tools=TOOLS, thinking=True)
        generated = [token for part in written for token, _ in part]
        turn = play(harmony, render, turn, generated)
        after = list(render(turn).token_ids)
        assert after[: len(before) + len(generated)] == before + generated


WEATHER = "to=functions.get_weather"
UNUSUAL_SPELLINGS = {
    "recipient with the role": f' {WEATHER}<|channel|>commentary json<|message|>{{"a":1}}<|call|>',
    "in analysis": f'<|channel|>analysis {WEATHER} code<|message|>{{"a": 1}}<|call|>',
    "no arguments": f"<|channel|>commentary {WEATHER} json<|message|><|call|>",
    "a custom tool, spaced": "<|channel|>commentary to=functions.note json<|message|>"
    '{ "input" : "\\u0041" }<|call|>',
    "after a thought": "<|channel|>analysis<|message|>hm<|end|><|start|>assistant "
    "to=functions.crm__find<|channel|>commentary<|constrain|>json<|message|>{}<|call|>",
}


@pytest.mark.parametrize("written", UNUSUAL_SPELLINGS.values(), ids=UNUSUAL_SPELLINGS)
def test_unusual_spellings_of_the_model_are_continued_exactly(
    harmony: HarmonyFormat, render: Render, encoding: Encoding, written: str
) -> None:
    turn = a_turn(items=(HELLO,))
    before, generated = list(render(turn).token_ids), encoding.encode_markup(written)
    after = list(render(play(harmony, render, turn, generated)).token_ids)
    assert after[: len(before) + len(generated)] == before + generated


TYPED = {
    "apply_patch": '{"operation":{"diff":"+\\u0041","path":"a","type":"create_file"}}',
    "shell": '{ "timeout_ms": null, "commands": ["ls"] }',
    "computer": '{"actions":[{"y":1,"x":2,"type":"click","button":"left","keys":null}]}',
    "local_shell": '{"env":{},"command":["ls"]}',
    "tool_search": '{"query":"x"}',
}


@pytest.mark.parametrize("kind", TYPED)
def test_a_call_of_a_typed_tool_is_continued_exactly(
    harmony: HarmonyFormat, render: Render, encoding: Encoding, kind: Any
) -> None:
    tool = ToolSpec(name=f"{kind}_tool", kind=kind)
    turn = a_turn(items=(HELLO,), tools=(tool,))
    markup = f"<|channel|>commentary to=functions.{tool.name} json<|message|>{TYPED[kind]}<|call|>"
    before, generated = list(render(turn).token_ids), encoding.encode_markup(markup)
    parser = harmony.make_parser(turn, render(turn))
    deltas = parser.feed(Step(token_ids=generated)) + parser.end()
    assert deltas[0] == d.CallStart(tool.name, kind=kind)
    fields = item_fields_of(kind, TYPED[kind])
    assert fields is not None
    call = CALL_KINDS[kind].item(call_id="call_1", **fields)
    harmony.remember(turn, render(turn), token_ids=generated, parser=parser, items=[call])
    after = list(render(a_turn(items=(HELLO, call), tools=(tool,))).token_ids)
    assert after[: len(before) + len(generated)] == before + generated


@pytest.mark.parametrize("kind", ["mcp", "mcp_approval"])
def test_a_call_of_an_mcp_tool_is_continued_exactly(
    harmony: HarmonyFormat, render: Render, encoding: Encoding, kind: Any
) -> None:
    tool = ToolSpec(name="my_docs__read_1", kind=kind, namespace="my docs", original_name="read")
    turn = a_turn(items=(HELLO,), tools=(tool,))
    arguments = '{ "q":"\\u0041" }'
    markup = f"<|channel|>commentary to=functions.{tool.name} json<|message|>{arguments}<|call|>"
    before, generated = list(render(turn).token_ids), encoding.encode_markup(markup)
    parser = harmony.make_parser(turn, render(turn))
    deltas = parser.feed(Step(token_ids=generated)) + parser.end()
    assert deltas[0] == d.CallStart("read", namespace="my docs", kind=kind)
    call = i.McpCall(server_label="my docs", name="read", arguments=arguments, output="A")
    written: i.Item = call
    if kind == "mcp_approval":
        written = i.McpApprovalRequest(server_label="my docs", name="read", arguments=arguments)
    harmony.remember(turn, render(turn), token_ids=generated, parser=parser, items=[written])
    after = list(render(a_turn(items=(HELLO, call), tools=(tool,))).token_ids)
    assert after[: len(before) + len(generated)] == before + generated


def test_words_in_unusual_tokens_are_continued_exactly(
    harmony: HarmonyFormat, render: Render, encoding: Encoding
) -> None:
    turn = a_turn(items=(HELLO,))
    letters = [token for letter in "thinking" for token in encoding.encode(letter)]
    assert letters != encoding.encode("thinking")
    generated = [
        *encoding.encode_markup("<|channel|>analysis<|message|>"),
        *letters,
        *encoding.encode_markup("<|end|><|start|>assistant<|channel|>commentary "),
        *encoding.encode_markup("to=functions.get_weather <|constrain|>json<|message|>{}<|call|>"),
    ]
    before = list(render(turn).token_ids)
    after = list(render(play(harmony, render, turn, generated)).token_ids)
    assert after[: len(before) + len(generated)] == before + generated


def test_an_answer_ends_with_end_instead_of_return_in_the_next_prompt(
    harmony: HarmonyFormat, render: Render, encoding: Encoding
) -> None:
    turn = a_turn(items=(HELLO,))
    generated = encoding.encode_markup("<|channel|>final<|message|>Sunny.<|return|>")
    before = list(render(turn).token_ids)
    after = list(render(play(harmony, render, turn, generated)).token_ids)
    assert after[: len(before) + len(generated) - 1] == before + generated[:-1]
    assert encoding.text(after[len(before) + len(generated) - 1 :]) == "<|end|><|start|>assistant"


def test_tenants_do_not_share_cached_turns(
    harmony: HarmonyFormat, render: Render, encoding: Encoding
) -> None:
    generated = encoding.encode_markup(UNUSUAL_SPELLINGS["recipient with the role"])
    theirs = play(harmony, render, a_turn(items=(HELLO,), cache_salt="a"), generated)
    ours = a_turn(items=theirs.items, cache_salt="b")
    assert " to=functions.get_weather<|channel|>" in encoding.text(render(theirs).token_ids)
    assert " to=functions.get_weather<|channel|>" not in encoding.text(render(ours).token_ids)


def test_malformed_messages_are_not_repeated_to_the_model(
    harmony: HarmonyFormat, render: Render, encoding: Encoding
) -> None:
    generated = encoding.encode_markup(
        "<|channel|>commentary to=functions.get_weather and so<|message|>{}<|call|>"
    )
    after = play(harmony, render, a_turn(items=(HELLO,)), generated)
    assert "get_weather and so" not in encoding.text(render(after).token_ids)


def test_the_vocabulary_is_loaded_once() -> None:
    assert load_encoding() is load_encoding()
