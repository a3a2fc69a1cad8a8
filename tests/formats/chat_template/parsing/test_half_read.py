"""Outputs that are damaged or cut off where it is plain all the same what they mean."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from antiphon.domain import deltas as d
from antiphon.domain.tools import ToolSpec

Read = Callable[..., list[d.Delta]]

TRIP = ToolSpec(
    name="book_trip",
    parameters={
        "type": "object",
        "properties": {
            "town": {"type": "string"},
            "month": {"type": "integer"},
            "tags": {"type": "array", "items": {"type": "string"}},
        },
    },
)
BAR = "\uff5c"
MARK = f"{BAR}DSML{BAR}"
DSML = f'<{MARK}tool_calls><{MARK}invoke name="book_trip">{{}}</{MARK}invoke></{MARK}tool_calls>'
WRAPPED = f'<{MARK}parameter name="{{}}" string="false">{{}}</{MARK}parameter>'
LFM2 = "<|tool_call_start|>[book_trip({})]<|tool_call_end|>"

READ: dict[str, tuple[str, str, dict[str, Any]]] = {
    "a set": ("lfm2", LFM2.format("tags={'sea'}"), {"tags": ["sea"]}),
    "a leading zero": ("lfm2", LFM2.format("month=07"), {"month": 7}),
    "a negative number with a zero": ("lfm2", LFM2.format("month=-07"), {"month": -7}),
    "zero": ("lfm2", LFM2.format("month=0"), {"month": 0}),
    "tags without a space": (
        "minicpm5",
        '<functionname="book_trip"><paramname="town">Kiel</param></function>',
        {"town": "Kiel"},
    ),
    "a dictionary of Python": (
        "minicpm5",
        '<function name="book_trip"><param name="properties">'
        "{'town': 'Kiel'}</param></function>",
        {"town": "Kiel"},
    ),
    "all in the input": (
        "deepseek_v4",
        DSML.format(WRAPPED.format("input", '{"town": "Kiel"}')),
        {"town": "Kiel"},
    ),
    "no wrapper, but a name of its own": (
        "deepseek_v4",
        DSML.format(WRAPPED.format("input", '{"x": 1}')),
        {"input": {"x": 1}},
    ),
    "a quoted name": (
        "gemma4",
        '<|tool_call>call:book_trip{town:<|"|>Kiel<|"|>,<|"|>my note<|"|>:<|"|>x<|"|>}<tool_call|>',
        {"town": "Kiel", "my note": "x"},
    ),
}


@pytest.mark.parametrize(("family", "text", "arguments"), READ.values(), ids=READ)
def test_arguments_are_read(read: Read, family: str, text: str, arguments: dict[str, Any]) -> None:
    deltas = read(family, text, tools=(TRIP,))
    assert read(family, text, tools=(TRIP,), cuts=range(1, len(text))) == deltas
    assert [type(delta) for delta in deltas] == [d.CallStart, d.ArgumentsDelta, d.ItemEnd]
    assert json.loads(deltas[1].text) == arguments  # type: ignore[union-attr]  # its type is known


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("plamo3", "<|plamo:begin_think:plamo|>Hm.<|plamo:end_think:plamo|>It is."),
        ("granite32", "Here's my thought process: Hm. Here's my response: It is."),
        ("granite32", "Here is my thought process: Hm. Here is my response: It is."),
        ("gemma4", "thought\nHm.<channel|>It is."),
        ("gemma4", "<|channel>thought\nHm.<channel|>It is."),
    ],
)
def test_reasoning_is_found(read: Read, family: str, text: str) -> None:
    expected = [d.ReasoningDelta("Hm."), d.ItemEnd(), d.TextDelta("It is.")]
    assert read(family, text) == expected
    assert read(family, text, cuts=range(1, len(text))) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("It is <co>Kiel</co: 0:[1,2],1:[3]> now.", "It is Kiel now."),
        ("<co>Kiel</co: 0:[1]>", "Kiel"),
        ("It is <co>Kiel</co:0>.", "It is Kiel."),
        ("The firm </co: it > is.", "The firm </co: it > is."),
        ("It is Kiel</co: 0:[1", "It is Kiel</co: 0:[1"),
    ],
)
def test_the_marks_of_a_citation_are_no_text(read: Read, text: str, expected: str) -> None:
    assert read("cohere", text) == [d.TextDelta(expected)]
    assert read("cohere", text, cuts=range(1, len(text))) == [d.TextDelta(expected)]


@pytest.mark.parametrize("text", ["thoughtful people", "thought", "I thought\nof it."])
def test_a_word_like_a_label_is_text(read: Read, text: str) -> None:
    assert read("gemma4", text) == [d.TextDelta(text)]


@pytest.mark.parametrize(
    ("family", "marker"),
    [
        ("plamo3", "<|plamo:begin_tool_requests:plamo|>"),
        ("kimi_k2", "<|tool_calls_section_begin|>"),
        ("deepseek_v4", f"<{MARK}tool_calls>"),
        ("minimax_m3", "]<]minimax[>[<tool_call>"),
    ],
)
def test_the_beginning_of_a_marker_at_the_end_is_no_text(
    read: Read, family: str, marker: str
) -> None:
    for size in range(5, len(marker)):
        assert read(family, f"It is.{marker[:size]}") == [d.TextDelta("It is.")]


@pytest.mark.parametrize("end", ["<", "<|", "</", "a < b", "x <|> y", "</thi", "[TOOL"])
@pytest.mark.parametrize("family", ["hermes", "plamo3", "mistral_array"])
def test_what_may_be_a_word_at_the_end_is_text(read: Read, family: str, end: str) -> None:
    assert read(family, f"It is {end}") == [d.TextDelta(f"It is {end}")]


@pytest.mark.parametrize("rest", ["", "<", "<|plamo:end_tool_n", "<|plamo:end_tool_name:plamo|>"])
def test_a_call_that_is_cut_after_its_name_is_left_open(read: Read, rest: str) -> None:
    text = f"<|plamo:begin_tool_request:plamo|><|plamo:begin_tool_name:plamo|>get_weather{rest}"
    assert read("plamo3", text) == [d.CallStart("get_weather")]
