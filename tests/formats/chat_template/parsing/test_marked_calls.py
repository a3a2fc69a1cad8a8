"""Calls whose parts stand between markers: what may be missing, and that no word is lost."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from antiphon.domain import deltas as d

Read = Callable[..., list[d.Delta]]

PARIS = '{"city": "Paris"}'
CALLED = [d.CallStart("get_weather"), d.ArgumentsDelta(PARIS), d.ItemEnd()]


def solar(head: str, arguments: str = PARIS) -> str:
    return f"<|tool_calls|><|tool_call:begin|>{head}{arguments}<|tool_call:end|><|calls|>"


@pytest.mark.parametrize(
    "head",
    [
        "a1b2c3d4e5<|tool_call:name|>get_weather<|tool_call:args|>",
        "functions.get_weather:0<|tool_call:name|>get_weather<|tool_call:args|>",
        "<|tool_call:name|>get_weather<|tool_call:args|>",
        "get_weather<|tool_call:args|>",
        "x\n<|tool_call:name|>\nget_weather\n<|tool_call:args|>\n",
        "x<|tool_call:name|>get_weather",
    ],
)
def test_a_call_may_lack_its_id_and_a_marker(read: Read, head: str) -> None:
    text = solar(head)
    for cuts in ((), range(1, len(text))):
        assert read("solar", text, cuts=cuts) == CALLED


def test_a_call_without_arguments_is_a_call(read: Read) -> None:
    text = solar("x<|tool_call:name|>crm__find<|tool_call:args|>", "")
    assert read("solar", text) == [
        d.CallStart("find", namespace="crm"),
        d.ArgumentsDelta("{}"),
        d.ItemEnd(),
    ]


@pytest.mark.parametrize(
    "head",
    [
        "x<|tool_call:name|>launch<|tool_call:args|>",
        "some words<|tool_call:name|>get_weather<|tool_call:args|>",
        "x<|tool_call:name|>get_weather<|tool_call:args|>some words",
        "x<|tool_call:name|>get_weather<|tool_call: some words :args|>",
    ],
)
def test_a_call_among_words_is_text(read: Read, head: str) -> None:
    text = solar(head)
    for cuts in ((), range(1, len(text))):
        assert read("solar", text, cuts=cuts) == [d.TextDelta(text.removesuffix("<|calls|>"))]
