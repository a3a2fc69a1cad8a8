"""The shapes in which models write calls as JSON."""

# ruff: noqa: E501 - one case a line

from __future__ import annotations

from collections.abc import Callable

import pytest

from antiphon.domain import deltas as d
from antiphon.domain.responses.response import TextConfig

Read = Callable[..., list[d.Delta]]

BONN: list[d.Delta] = [
    d.CallStart("get_weather"),
    d.ArgumentsDelta('{"city": "Bonn"}'),
    d.ItemEnd(),
]


def text_of(deltas: list[d.Delta]) -> str:
    """Return the text of a turn that has nothing else."""
    [message] = deltas
    assert isinstance(message, d.TextDelta)
    return message.text


@pytest.mark.parametrize(
    "payload",
    [
        '{"name": "get_weather", "arguments": {"city": "Bonn"}}',
        '{"tool_name": "get_weather", "parameters": {"city": "Bonn"}}',
        '{"tool_call_id": "0", "tool_name": "get_weather", "parameters": {"city": "Bonn"}}',
        '{"parameters": {"city": "Bonn"}, "tool_name": "get_weather", "tool_call_id": "0"}',
        '{"function": "get_weather", "arguments": {"city": "Bonn"}}',
        '{"function": {"name": "get_weather", "arguments": {"city": "Bonn"}}}',
        '{"type": "function", "function": {"name": "get_weather", "arguments": {"city": "Bonn"}}}',
        '{"index": 0, "function": {"arguments": {"city": "Bonn"}, "name": "get_weather"}, "id": 1}',
        '{"function": {"name": "get_weather", "arguments": "{\\"city\\": \\"Bonn\\"}"}}',
    ],
)
def test_a_call_may_have_other_keys(read: Read, payload: str) -> None:
    for text in (payload, f"[{payload}]"):
        written = f"<tool_call>{text}</tool_call>"
        assert read("hermes", written) == BONN
        assert read("hermes", written, cuts=range(1, len(written))) == BONN
    assert read("hermes", f"<tool_call>[{payload}, {payload}]</tool_call>") == [*BONN, *BONN]


def test_objects_nested_more_deeply_are_no_calls(read: Read) -> None:
    payload = '{"function": ' * 9_000 + '{"name": "get_weather"}' + "}" * 9_000
    assert payload in text_of(read("hermes", f"<tool_call>{payload}</tool_call>"))


@pytest.mark.parametrize(
    "call_id", ["functions.get_weather:0", " get_weather:12 ", "get_weather", "tools.get_weather:3"]
)
@pytest.mark.parametrize("section", ["", "<|tool_calls_section_begin|>"])
@pytest.mark.parametrize("end", ["", "<|tool_call_end|>", "<|tool_call_end|>\n<|im_end|>"])
def test_a_counted_call_is_known_by_the_name_in_its_id(
    read: Read, call_id: str, section: str, end: str
) -> None:
    separator = "<|tool_call_argument_begin|>"
    text = f'{section}<|tool_call_begin|>{call_id}{separator}{{"city": "Bonn"}}{end}'
    assert read("kimi_k2", text) == BONN


@pytest.mark.parametrize("separator", [", ", ";", "\n", "", ",\n    "])
@pytest.mark.parametrize("brackets", ["", "[]", "[ ]"])
def test_the_comma_between_calls_may_be_missing(read: Read, separator: str, brackets: str) -> None:
    call = '{"name": "get_weather", "arguments": {"city": "Bonn"}}'
    text = f"{brackets[:-1]}{call}{separator}{call}{brackets[-1:]}"
    assert read("hermes", f"<tool_call>{text}</tool_call>") == [*BONN, *BONN]


@pytest.mark.parametrize(
    "payload",
    [
        '[{"get_weather": {"city": "Bonn"}}]',
        '{"get_weather": {"city": "Bonn"}}',
        '[{"get_weather": "{\\"city\\": \\"Bonn\\"}"}',
        '[ { "get_weather" : {"city": "Bonn"} } ]]',
    ],
)
def test_a_key_may_name_the_tool(read: Read, payload: str) -> None:
    text = f"<|tools_prefix|>{payload}<|tools_suffix|>"
    assert read("apertus", text) == BONN
    assert read("apertus", text, cuts=range(1, len(text))) == BONN
    assert payload in text_of(read("hermes", f"<tool_call>{payload}</tool_call>"))


def test_a_key_that_names_no_tool_stays_text(read: Read) -> None:
    text = '<|tools_prefix|>[{"get_weather": {"city": "Bonn"}, "launch": {"at": "noon"}}]'
    assert read("apertus", text) == [*BONN, d.TextDelta(', "launch": {"at": "noon"}}]')]


def test_a_fence_that_closes_calls_is_no_text(read: Read) -> None:
    call = '[{"name": "get_weather", "arguments": {"city": "Bonn"}}]'
    text = f"```json\n{call}\n```\n\nFor example:\n```\nx\n```"
    assert read("xlam", text) == [*BONN, d.TextDelta("For example:\n```\nx\n```")]


@pytest.mark.parametrize(
    ("payload", "rest"),
    [
        ('{"name": "get_weather", "arguments": {"city": "Bonn"}, "more": [1]}', ', "more": [1]}'),
        ('{"name": "get_weather", "arguments": {"city": "Bonn"}}, "days": 3}', ', "days": 3}'),
        ('{"name": "get_weather", "arguments": {"city": "Bonn"}, "id": {"a": 1}}', ', "id": {"a": 1}}'),
        ('{"name": "get_weather", "arguments": {"city": "Bonn"}, "id": 1 day}', "day}"),
        ('{"name": "get_weather", "arguments": {"city": "Bonn"}, "id": "1", "da', ', "da'),
        ('{"function": {"name": "get_weather", "arguments": {"city": "Bonn"}}, "a": 1}', ', "a": 1}'),
        ('{"name": "get_weather", "arguments": {"city": "Bonn"}, days', ", days"),
    ],
)  # fmt: skip
def test_what_follows_the_arguments_stays_text(read: Read, payload: str, rest: str) -> None:
    written = f"<tool_call>{payload}"
    for cuts in ((), range(1, len(written))):
        assert read("hermes", written, cuts=cuts) == [*BONN, d.TextDelta(rest)]


@pytest.mark.parametrize(
    "payload",
    [
        '{"name": "get_weather", "argu to Bonn',
        '{"name": "get_weather", "arguments to Bonn',
        '{"name": "get_weather", "id": ["Bonn"]}',
        '{"arguments": {"city": "Ulm"}, "arguments": {"city": "Bonn"}, "name": "get_weather"}',
    ],
)
def test_a_call_that_breaks_before_its_arguments_stays_text(read: Read, payload: str) -> None:
    written = f"<tool_call>{payload}"
    for cuts in ((), range(1, len(written))):
        assert text_of(read("hermes", written, cuts=cuts)) == written


@pytest.mark.parametrize("rest", ["", ",", ', "', ', "argum', ', "arguments"', ', "arguments":'])
def test_a_call_that_was_cut_before_its_arguments_stays_open(read: Read, rest: str) -> None:
    written = f'<tool_call>{{"name": "get_weather"{rest}'
    for cuts in ((), range(1, len(written))):
        assert read("hermes", written, cuts=cuts) == [d.CallStart("get_weather")]


ANSWERS = {
    "granite": "<think>Hm.</think><response>Yes.</response>\n",
    "granite32": "Here is my thought process:\nHm.\nHere is my response: Yes.",
    "hunyuan_a13b": "<think>\nHm.\n</think>\n<answer>\nYes.\n</answer><|eos|>",
    "apriel": "Here are my reasoning steps:\nHm.\n"
    "[BEGIN FINAL RESPONSE]\nYes.\n[END FINAL RESPONSE]\n",
    "cohere": "<|START_THINKING|>Hm.<|END_THINKING|><|START_RESPONSE|>Yes.<|END_RESPONSE|>",
}


@pytest.mark.parametrize("family", ANSWERS)
def test_the_wrapper_of_an_answer_is_no_text(read: Read, family: str) -> None:
    text = ANSWERS[family]
    answer = [d.ReasoningDelta("Hm."), d.ItemEnd(), d.TextDelta("Yes.")]
    assert read(family, text)[:3] == answer
    assert read(family, text)[3:] in ([], [d.ItemEnd()])
    assert read(family, text, cuts=range(1, len(text))) == read(family, text)


@pytest.mark.parametrize("start", ["<|START_RESPONSE|>", "<|START_TEXT|>"])
def test_a_marker_of_an_answer_ends_unclosed_reasoning(read: Read, start: str) -> None:
    text = f"Hm.\n{start}Yes."
    answer = [d.ReasoningDelta("Hm."), d.ItemEnd(), d.TextDelta("Yes.")]
    assert read("cohere", text, starts_in_reasoning=True) == answer


def test_an_answer_in_json_ends_with_its_wrapper(read: Read) -> None:
    answer = '{"city": "<|START_TEXT|> in Bonn"}'
    text = f"<|START_TEXT|>{answer}<|END_TEXT|><|END_OF_TURN_TOKEN|>"
    json_format = TextConfig(format={"type": "json_object"})
    assert read("cohere", text, text=json_format)[0] == d.TextDelta(answer)
