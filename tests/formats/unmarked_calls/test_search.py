"""The search for calls in deltas: cuts, whitespace, log probabilities, and what is held back."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.formats.unmarked_calls.searches import TOOLS, read, said, turn_of
from tests.formats.unmarked_calls.test_shapes import (
    ARGUMENTS,
    CALL,
    NO_CALLS,
    NOW,
    NOW_CALL,
    OSLO,
    SHAPES,
)

from antiphon.adapters.formats.unmarked_calls import UnmarkedCalls
from antiphon.domain import deltas as d
from antiphon.domain.content import Logprob

FRAGMENTS = st.sampled_from(
    [
        *("```", "```json\n", "\n", " ", "`", "{", "}", "[", "]", ",", '"', "\\", "<tools>"),
        *("</tools>", "<", "Hi", "ä", ":", CALL, NOW_CALL, '{"name": "get_', '{"name":', "\n\n"),
        *('"arguments": {', "```python\n", "[TOOL_CALLS]", ">"),
    ]
)
TEXTS = st.one_of(
    st.lists(FRAGMENTS, max_size=12).map("".join),
    st.sampled_from([*(text for text, _ in SHAPES.values()), *NO_CALLS.values()]),
)


def cut(text: str, places: list[int]) -> list[str]:
    edges = [0, *sorted(place for place in places if place < len(text)), len(text)]
    return [text[start:end] for start, end in pairwise(edges)]


@given(TEXTS, st.lists(st.integers(0, 200), max_size=12))
def test_how_the_text_is_cut_makes_no_difference(text: str, places: list[int]) -> None:
    assert read(cut(text, places)) == read(text) == read(list(text))


@given(TEXTS)
def test_no_word_is_lost(text: str) -> None:
    result = read(text)
    if all(isinstance(each, str) for each in result):
        assert "".join(result) == text
    rest = "".join(each for each in result if isinstance(each, str))
    position = 0
    for char in rest:  # what stays is in the text, in its order
        position = text.index(char, position) + 1
    calls = [each for each in result if not isinstance(each, str)]
    assert len(calls) == 0 or all(name in text for name, _ in calls)


@given(st.text(alphabet="ab .\n"), st.lists(st.integers(0, 60), max_size=6))
def test_plain_text_is_passed_on_at_once_but_for_whitespace(text: str, places: list[int]) -> None:
    search = UnmarkedCalls(turn_of())
    fed = passed = ""
    for piece in cut(text, places):
        fed += piece
        passed += "".join(each.text for each in search.feed([d.TextDelta(piece)]))  # type: ignore[attr-defined]
        assert passed == fed.rstrip()


@pytest.mark.parametrize(
    ("text", "released"),
    [
        ("```json\nx", "```json\nx"),
        ("```python\n", "```python"),
        ("```json\n{x", "```json\n{x"),
        ('{"a"', '{"a"'),
        ('{"name": "get_time"', '{"name": "get_time"'),
        ('{"name": "get_weather", "b"', '{"name": "get_weather", "b"'),
        ('{"name": "get_weather", "arguments": 3', '{"name": "get_weather", "arguments": 3'),
        ("[1", "[1"),
        ("<b", "<b"),
        ("<tools>x", "<tools>x"),
        ("`x", "`x"),
        (f"{CALL} x", f"{CALL} x"),
        (f"Look: {CALL}", f"Look: {CALL}"),
        (f'{{"name": "get_weather", "arguments": {ARGUMENTS}', ""),
        ("```json\n{", ""),
    ],
)
def test_text_is_held_back_no_longer_than_it_may_become_a_call(text: str, released: str) -> None:
    search = UnmarkedCalls(turn_of())
    deltas = [each for char in text for each in search.feed([d.TextDelta(char)])]
    assert "".join(said(deltas)) == released


def test_a_call_in_a_fence_is_there_when_the_fence_ends() -> None:
    search = UnmarkedCalls(turn_of())
    assert said(search.feed([d.TextDelta(f"```json\n{CALL}\n```")])) == [OSLO]


def test_the_message_ends_before_the_calls() -> None:
    search = UnmarkedCalls(turn_of())
    deltas = search.feed([d.TextDelta(f"Look.\n```\n{CALL}\n```"), d.ItemEnd()])
    assert deltas == [
        d.TextDelta("Look."),
        d.ItemEnd(),
        d.CallStart("get_weather"),
        d.ArgumentsDelta(ARGUMENTS),
        d.ItemEnd(),
    ]


def test_each_message_is_searched_by_itself() -> None:
    search = UnmarkedCalls(turn_of())
    deltas = [
        d.TextDelta("```json\n"),
        d.ReasoningDelta("Hm."),
        d.TextDelta(CALL, phase="commentary"),
        d.TextDelta(NOW_CALL, phase="final_answer"),
    ]
    assert said([*search.feed(deltas), *search.end()]) == ["```json\n", OSLO, NOW]


def test_reasoning_and_refusals_are_not_searched() -> None:
    search = UnmarkedCalls(turn_of())
    deltas = [d.ReasoningDelta(CALL), d.SummaryDelta(CALL), d.RefusalDelta(CALL)]
    assert search.feed(deltas) == deltas


def test_without_parallel_calls_only_the_first_one_counts() -> None:
    search = UnmarkedCalls(turn_of(parallel_tool_calls=False))
    deltas = search.feed([d.TextDelta(f"{CALL}\n{NOW_CALL}\n"), d.ItemEnd()])
    assert (said(deltas), search.count, search.has_dropped_calls) == ([OSLO], 1, True)
    search = UnmarkedCalls(turn_of(parallel_tool_calls=False))
    start = [d.CallStart("now"), d.ArgumentsDelta("{}"), d.ItemEnd()]
    deltas = [*search.feed([*start, d.TextDelta(CALL)]), *search.end()]
    assert (said(deltas), search.count, search.has_dropped_calls) == ([NOW], 0, True)


@pytest.mark.parametrize("pieces", [['{"city":"Oslo"}'], list('{"city":"Oslo"}')])
def test_a_call_that_comes_again_with_its_markers_is_one_call(pieces: list[str]) -> None:
    search = UnmarkedCalls(turn_of())
    again = [d.CallStart("get_weather"), *map(d.ArgumentsDelta, pieces), d.ItemEnd()]
    deltas = [*search.feed([d.TextDelta(CALL), d.ItemEnd(), *again, *again]), *search.end()]
    assert said(deltas) == [OSLO, ("get_weather", '{"city":"Oslo"}')]
    assert search.has_dropped_calls


def test_another_call_of_the_same_tool_is_passed_on() -> None:
    search = UnmarkedCalls(turn_of())
    other = [d.CallStart("get_weather"), d.ArgumentsDelta('{"city": "Rome"}'), d.ItemEnd()]
    assert search.feed([d.TextDelta(CALL), d.ItemEnd(), *other])[-3:] == other
    cut_off = [d.CallStart("get_weather"), d.ArgumentsDelta('{"ci')]
    assert [*search.feed(cut_off), *search.end()] == cut_off


@given(TEXTS, st.integers(1, 9), st.lists(st.integers(0, 200), max_size=6))
def test_log_probabilities_spell_the_text_that_is_left(
    text: str, size: int, places: list[int]
) -> None:
    def deltas_of(piece: str) -> d.TextDelta:
        tokens = [piece[at : at + size] for at in range(0, len(piece), size)]
        logprobs = [
            Logprob(token=token, logprob=-1.0, bytes=tuple(token.encode()), top_logprobs=())
            for token in tokens
        ]
        return d.TextDelta(piece, tuple(logprobs))

    search = UnmarkedCalls(turn_of())
    deltas: list[Any] = []
    for piece in cut(text, places):
        deltas += search.feed([deltas_of(piece)])
    for delta in [*deltas, *search.end()]:
        if isinstance(delta, d.TextDelta):
            spelled = bytes(byte for logprob in delta.logprobs for byte in logprob.bytes)
            assert spelled == delta.text.encode()


def test_a_long_answer_is_searched_in_one_go() -> None:
    lines = "\n".join(['{"name": "get_weather", "x": 1}', "[1, 2]", "`a`", "words"] * 20_000)
    assert read(lines) == [lines]


def test_a_turn_with_many_calls_is_read_whole() -> None:
    text = "\n\n".join(f"Then {n}:\n```json\n{CALL}\n```" for n in range(2_000))
    result = read(text)
    assert result.count(OSLO) == 2_000


def test_no_arguments_are_searched_for_calls() -> None:
    note = json.dumps({"name": "note", "arguments": {"input": CALL}})
    assert read(note, tools=TOOLS) == [("note", CALL)]
