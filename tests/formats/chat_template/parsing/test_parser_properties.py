"""Properties of the parser that hold for every text, however it is cut."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from antiphon.adapters.formats.chat_template.call_writer import write_calls
from antiphon.adapters.formats.chat_template.families import FAMILIES, Family
from antiphon.adapters.formats.chat_template.families.end_tokens import END_TOKENS
from antiphon.adapters.formats.chat_template.parsing.text_buffer import MarkerFinder
from antiphon.domain import deltas as d

Read = Callable[..., list[d.Delta]]

PAYLOADS = [
    '{"name": "get_weather", "arguments": {"city": "P\\"a}ris", "days": [1, {}]}}',
    '{"name": "apply_patch", "arguments": {"input": "a\\n\\u00e9\\ud83d\\ude00 </tool_call>"}}',
    '{"name": "apply_patch", "arguments": {"input": "a("b", "c") {"d": "e"}\n"}}',
    '{"name": "apply_patch", "arguments": {"input": "a("b)',
    '{"arguments": {"city": "Oslo"}, "name": "get_weather"}',
    '{"name": "launch", "arguments": {}}',
    "\n<function=get_weather>\n<parameter=city>\n\nOslo\n\n</parameter>\n<parameter=days>3",
    "</parameter>\n</function>\n",
    "function<｜tool▁sep｜>get_weather\n```json\n{}\n```",  # noqa: RUF001
    "get_weather<｜tool▁sep｜>so: {",  # noqa: RUF001
    'get_weather[ARGS]{"city": "x"}',
    'get_weather[TOOL_CALLS]{"city": "x"}',
    '[THINK]x[TOOL_CALLS]get_weather[ARGS]{"city": "x"}[/THINK][TOOL_CALLS]',
    "[get_weather(city='O(s\\'lo', days=-1), apply_patch(input=\"x\")]",
    "get_weather\n<arg_key>city</arg_key>\n<arg_value>Ulm<arg_key>days</arg_key><arg_value>3",
    "</arg_value>",
    '"get_weather">\n<parameter name="city">Oslo</parameter><parameter name=\'days\'>3',
    "</parameter></invoke>",
    "]<]minimax[>[<places>]<]minimax[>[<item>x]<]minimax[>[</item>]<]minimax[>[</places>",
    '{"name": "get_weather"',
    "get_weather",
    "[",
    "{",
    '"',
    "\\",
    "}",
    "]",
    ";",
    ",",
    " ",
    "\n",
    "\n\n",
    "word",
    " Ünïcödé 😀",
    "<",
]


def markers(family: Family) -> list[str]:
    kinds = (
        family.think_markers,
        family.refusal or (),
        family.text or (),
        family.calls,
        family.hidden_markers,
        family.end_markers,
        END_TOKENS,
    )
    return list(dict.fromkeys(marker for kind in kinds for marker in kind))


ARGUMENTS: dict[str, list[dict[str, Any]]] = {
    "get_weather": [{"city": 'O"s}lo<b>\n\n', "days": 3}, {}],
    "apply_patch": [{"input": "a\n\U0001f600 'q' </tool_call>"}],
    "launch": [{"at": "noon"}, {}],
}


def calls(family: Family) -> list[str]:
    form = family.call_form
    if form is None:
        return []
    return [
        write_calls(form, [(name, arguments)])
        for name, values in ARGUMENTS.items()
        for arguments in values
    ]


def texts(family: str) -> st.SearchStrategy[str]:
    whole = markers(FAMILIES[family])
    parts = [*PAYLOADS, *whole, *(marker[:-1] for marker in whole), *calls(FAMILIES[family])]
    return st.lists(st.sampled_from(parts) | st.text(max_size=5), max_size=12).map("".join)


family_and_text = st.sampled_from(sorted(FAMILIES)).flatmap(
    lambda family: st.tuples(st.just(family), texts(family))
)
# A marker that ends a turn is no text, not even before a call.
FORMS = sorted(
    name
    for name, row in FAMILIES.items()
    if row.call_form
    and not row.call_form.begin.startswith(row.end_markers)
    and row.header is None  # each call is a message of its own, whose end is no text
)


@pytest.mark.parametrize("family", FORMS)
@pytest.mark.parametrize("before", ["", "Now:\n"])
@pytest.mark.parametrize("count", [1, 2])
def test_a_call_that_is_none_is_text_as_it_was_written(
    read: Read, family: str, before: str, count: int
) -> None:
    row = FAMILIES[family]
    assert row.call_form
    text = before + write_calls(row.call_form, [("launch", {"at": "noon", "n": 3})] * count)
    end = row.end_markers[0]
    shown_text = text
    for marker in row.end_markers:
        shown_text = shown_text.removesuffix(marker)
    shown = [d.TextDelta(shown_text.strip())]
    assert stripped(read(family, text)) == shown
    assert stripped(read(family, text + end)) == shown
    assert read(family, text, cuts=range(1, len(text))) == read(family, text)


def stripped(deltas: list[d.Delta]) -> list[d.Delta]:
    return [d.TextDelta(delta.text.strip()) for delta in deltas if isinstance(delta, d.TextDelta)]


quick = settings(
    max_examples=150,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@quick
@given(written=family_and_text, positions=st.lists(st.integers(0, 400), max_size=20))
def test_steps_make_no_difference(
    read: Read, written: tuple[str, str], positions: Sequence[int]
) -> None:
    family, text = written
    whole = read(family, text)
    assert read(family, text, cuts=[p for p in positions if p < len(text)]) == whole
    assert read(family, text, cuts=range(1, len(text))) == whole


@quick
@given(text=st.text(max_size=200), family=st.sampled_from(sorted(FAMILIES)))
def test_any_text_without_markers_is_a_message(read: Read, text: str, family: str) -> None:
    all_markers = markers(FAMILIES[family])
    if any(marker in text for marker in all_markers) or not text.strip():
        return
    deltas = read(family, text)
    assert deltas == [d.TextDelta(text)]


@quick
@given(written=family_and_text)
def test_no_text_is_lost(read: Read, written: tuple[str, str]) -> None:
    """Without tools nothing is a call, so all text except markers and whitespace is shown.

    The markers of what is no call are shown, too.
    """
    family, text = written
    shown_text = "".join(
        delta.text
        for delta in read(family, text, tools=())
        if isinstance(delta, d.TextDelta | d.ReasoningDelta | d.RefusalDelta)
    )
    row = FAMILIES[family]
    longest_first = sorted(markers(row), key=len, reverse=True)
    any_marker = re.compile("|".join(map(re.escape, longest_first)))
    bare, shown_text = any_marker.sub("", text), any_marker.sub("", shown_text)
    bare = bare[: MarkerFinder(longest_first).find_cut(bare, 0)]
    if any(marker in bare for marker in markers(row)):
        return  # removing one marker has made another
    assert "".join(shown_text.split()) == "".join(bare.split())


@quick
@given(
    family=st.sampled_from(["hermes", "deepseek_r1", "mistral", "llama3_json"]),
    arguments=st.dictionaries(
        st.text(max_size=5),
        st.text(max_size=9) | st.integers() | st.lists(st.text(max_size=5)),
        max_size=4,
    ),
    patch=st.text(max_size=30),
)
def test_arguments_are_read_as_they_were_written(
    read: Read, family: str, arguments: dict[str, object], patch: str
) -> None:
    form = FAMILIES[family].call_form
    assert form
    calls = [("get_weather", arguments), ("apply_patch", {"input": patch})]
    deltas = read(family, write_calls(form, calls))
    expected = [
        d.CallStart("get_weather"),
        d.ArgumentsDelta(json.dumps(arguments, ensure_ascii=False)),
        d.ItemEnd(),
        d.CallStart("apply_patch", kind="custom"),
        *([d.ArgumentsDelta(patch)] if patch else []),
        d.ItemEnd(),
    ]
    assert deltas == expected


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_no_marker_stands_inside_another(family: str) -> None:
    row = FAMILIES[family]
    whole = markers(row)
    # A header that stands for itself is found as a whole.
    header = (row.header or "").strip() or "none"
    pairs = [(a, b) for a in whole for b in whole if a != b and not a.startswith(header)]
    assert [(a, b) for a, b in pairs if b in a] == []
