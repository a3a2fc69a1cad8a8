"""How calls in Python are read where they are not quite Python."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from antiphon.application.ports import Step
from antiphon.domain import deltas as d

Read = Callable[..., list[d.Delta]]

JSON_CALL = '{"name": "get_weather", "arguments": {"city": "[a]"}}'
CALLS: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "a list": ("[f(city='a', days=2), f(city='b')]", [{"city": "a", "days": 2}, {"city": "b"}]),
    "lines": ("f(city='a')\nf(city='b')", [{"city": "a"}, {"city": "b"}]),
    "blank lines": ("\n\nf(city='a')\n\n\nf(city='b')\n", [{"city": "a"}, {"city": "b"}]),
    "several lines": ('f(\n city="a",\n x=[\n  "b",\n ],\n)', [{"city": "a", "x": ["b"]}]),
    "no arguments": ("[f()]", [{}]),
    "JSON": (f"[{JSON_CALL}, {JSON_CALL}]", [{"city": "[a]"}, {"city": "[a]"}]),
    "JSON without a list": (JSON_CALL, [{"city": "[a]"}]),
    "JSON's names": ("[f(a=true, b={'c': null})]", [{"a": True, "b": {"c": None}}]),
    "prefixes of texts": (r"[f(city=f'a', x=b'', y=r'\d')]", [{"city": "a", "x": "", "y": r"\d"}]),
    "a text like a prefix": ("[f(city=f', days=2)]", [{"city": "f", "days": 2}]),
    "a word that begins as a prefix": ("[f(city='a', x=rest)]", [{"city": "a", "x": "rest"}]),
    "a dictionary of arguments": ("[f(**{'city': 'a'}, x=1)]", [{"city": "a", "x": 1}]),
    "arguments in a dictionary": ("[f({'city': 'a', 'x': [None]})]", [{"city": "a", "x": [None]}]),
    "a keyword of Python": ("[f(class=1, from='x')]", [{"class": 1, "from": "x"}]),
    "escapes": (r"""[f(city="\n\t\"\\\x41\u00e9\U0001F600\/\q")]""", [{"city": '\n\t"\\Aé😀/\\q'}]),
    "an apostrophe": ("[f(city='it's', days=2)]", [{"city": "it's", "days": 2}]),
    "quotes": ('[f(city="say "yes", then go")]', [{"city": 'say "yes", then go'}]),
    "a call in a text": ('[f(city="print("x") or y")]', [{"city": 'print("x") or y'}]),
    "long quotes": ('[f(city="""a\n"b"\n""")]', [{"city": 'a\n"b"\n'}]),
    "an empty text": ("[f(city='', units=\"\")]", [{"city": "", "units": ""}]),
    "a missing quote": ('[f(city="a)]', [{"city": "a"}]),
    "a missing bracket": ('[f(city="a"]', [{"city": "a"}]),
    "a missing bracket after a number": ("[f(days=2", [{"days": 2}]),
}  # fmt: skip
MARKERS = {
    "lfm2": ("<|tool_call_start|>", "<|tool_call_end|>"),
    "olmo3": ("<function_calls>", "</function_calls>"),
}


@pytest.mark.parametrize("family", MARKERS)
@pytest.mark.parametrize(("written", "expected"), CALLS.values(), ids=CALLS)
def test_calls_are_read_generously(
    read: Read, family: str, written: str, expected: list[dict[str, Any]]
) -> None:
    begin, end = MARKERS[family]
    text = f"{begin}{written.replace('f(', 'get_weather(')}{end}Done."
    for cuts in ((), range(1, len(text))):
        *calls, last = read(family, text, cuts=cuts)
        assert last == d.TextDelta("Done.")
        arguments = [call.text for call in calls if isinstance(call, d.ArgumentsDelta)]
        assert [json.loads(each) for each in arguments] == expected


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ("input='a', note='b', n=3, more=['c']", "a\nb\n['c']"),
        ("'a'", "a"),
        ("input='print('a')\\nx = 1'", "print('a')\nx = 1"),
        ('input="""a\nb"""', "a\nb"),
    ],
)
def test_the_input_of_a_custom_tool_is_its_text(read: Read, written: str, text: str) -> None:
    deltas = read("lfm2", f"<|tool_call_start|>[apply_patch({written})]<|tool_call_end|>")
    assert deltas == [
        d.CallStart("apply_patch", kind="custom"),
        d.ArgumentsDelta(text),
        d.ItemEnd(),
    ]


def test_a_text_in_python_is_streamed(parser_of: Callable[..., Any]) -> None:
    parser = parser_of("lfm2")
    parser.feed(Step(text="<|tool_call_start|>[get_weather(city='x"))
    assert parser.feed(Step(text="a\\nb\\")) == [d.ArgumentsDelta("a\\nb")]
    assert parser.feed(Step(text="'c")) == [d.ArgumentsDelta("'c")]


def test_a_call_that_was_cut_stays_open(read: Read) -> None:
    assert read("lfm2", "<|tool_call_start|>[get_weather(city='Pa") == [
        d.CallStart("get_weather"),
        d.ArgumentsDelta('{"city": "Pa'),
    ]


def test_a_value_that_is_no_literal_is_kept(read: Read) -> None:
    text = "<|tool_call_start|>[get_weather(days=1, city=open('x').read())]<|tool_call_end|>"
    assert read("lfm2", text)[1] == d.ArgumentsDelta("""{"days": 1, "city": "open('x').read()"}""")
