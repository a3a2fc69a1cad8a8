"""The input of a custom tool in JSON whose quotes a model forgot to escape."""

from __future__ import annotations

import json
from collections.abc import Callable
from time import perf_counter

import pytest

from antiphon.adapters.formats.chat_template.parsing.parser import ChatTemplateParser
from antiphon.application.ports import Step
from antiphon.domain import deltas as d

Read = Callable[..., list[d.Delta]]
Build = Callable[..., ChatTemplateParser]

WRAPPERS = {
    "hermes": '<tool_call>\n{"name": "apply_patch", "arguments": {"input": "%s"}}\n</tool_call>',
    "hermes_id": '<tool_call>{"name": "apply_patch", "arguments": {"input": "%s"}, "id": "x1"}'
    "</tool_call>",
    "hermes_list": '<tool_call>[{"name": "apply_patch", "arguments": {"input": "%s"}}]</tool_call>',
    "hermes_nested": '<tool_call>{"function": {"name": "apply_patch", '
    '"arguments": {"input": "%s"}}}</tool_call>',
    "hermes_brace": '<tool_call>{"name": "apply_patch", "arguments": {"input": "%s"}</tool_call>',
    "hermes_bare": '<tool_call>{"name": "apply_patch", "arguments": "%s"}</tool_call>',
    "hermes_member": '<tool_call>{"name": "apply_patch", '
    '"arguments": {"input": "%s", "timeout": 5}}</tool_call>',
    "mistral": '[TOOL_CALLS]apply_patch[ARGS]{"input": "%s"}',
    "llama3_json": '{"name": "apply_patch", "parameters": {"input": "%s"}}<|eom_id|>',
    "deepseek_v31": "<｜tool▁call▁begin｜>apply_patch<｜tool▁sep｜>"  # noqa: RUF001
    '{"input": "%s"}<｜tool▁call▁end｜>',  # noqa: RUF001
    "deepseek_v3": "<｜tool▁call▁begin｜>function<｜tool▁sep｜>apply_patch\n"  # noqa: RUF001
    '```json\n{"input": "%s"}\n```<｜tool▁call▁end｜>',  # noqa: RUF001
    "apertus": '<|tools_prefix|>[{"apply_patch": {"input": "%s"}}]<|tools_suffix|>',
    "kimi_k2": "<|tool_call_begin|>functions.apply_patch:0<|tool_call_argument_begin|>"
    '{"input": "%s"}<|tool_call_end|>',
}
INPUTS = [
    'print("hello")\nx = 1',
    'print("hello)\nx = 1',
    'cmd = "a", "b"',
    '{"x": 1}',
    'd = {"x": {"y": "1"}}\nprint(d["x"])',
    'd = [{"name": "a"}, {"name": "b"}]',
    'd = {"a": "1", "b": "2"}\n',
    "if (x) { y() }",
    '"""Quoted."""\nx = ""',
    "print('\"}')",
    'say("<tool_call>")',
]


def family_of(wrapper: str) -> str:
    return "hermes" if wrapper.startswith("hermes") else wrapper


def called(text: str) -> list[d.Delta]:
    arguments = [d.ArgumentsDelta(text)] if text else []
    return [d.CallStart("apply_patch", kind="custom"), *arguments, d.ItemEnd()]


@pytest.mark.parametrize("text", INPUTS)
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_a_quote_that_was_not_escaped_is_part_of_the_input(
    read: Read, wrapper: str, text: str
) -> None:
    family = family_of(wrapper)
    written = WRAPPERS[wrapper] % text
    assert read(family, written) == called(text)
    assert read(family, written, cuts=range(1, len(written))) == called(text)


@pytest.mark.parametrize("text", ["", *INPUTS, '"}}\n</tool_call>', '"}', '"', "\\", 'a", "b": 1'])
@pytest.mark.parametrize("wrapper", WRAPPERS)
def test_an_input_that_was_escaped_is_read_as_json(read: Read, wrapper: str, text: str) -> None:
    family = family_of(wrapper)
    written = WRAPPERS[wrapper] % json.dumps(text)[1:-1]
    assert read(family, written) == called(text)
    assert read(family, written, cuts=range(1, len(written))) == called(text)


CALL = '<tool_call>{"name": "apply_patch", "arguments": {"input": "%s"}}</tool_call>'


@pytest.mark.parametrize("text", INPUTS)
def test_a_call_after_broken_input_is_a_call(read: Read, text: str) -> None:
    written = "\n".join([CALL % text] * 3)
    assert read("hermes", written) == called(text) * 3
    assert read("hermes", written, cuts=range(1, len(written))) == called(text) * 3


@pytest.mark.parametrize("text", ['print("a")', 'd = [{"name": "a"}, {"name": "b"}]'])
@pytest.mark.parametrize("separator", [", ", ";", "\n", ""])
def test_a_call_in_a_list_ends_before_the_next_one(read: Read, text: str, separator: str) -> None:
    call = CALL[len("<tool_call>") : -len("</tool_call>")] % text
    written = f"<tool_call>[{call}{separator}{call}]</tool_call>"
    assert read("hermes", written) == called(text) * 2


def test_a_key_that_names_a_tool_ends_the_input_before_it(read: Read) -> None:
    written = '<|tools_prefix|>[{"apply_patch": {"input": "a("b")"}, "get_weather": {}}]'
    weather = [d.CallStart("get_weather"), d.ArgumentsDelta("{}"), d.ItemEnd()]
    assert read("apertus", written) == [*called('a("b")'), *weather]


def test_prose_after_an_escaped_input_is_prose(read: Read) -> None:
    call = r'{"name": "apply_patch", "parameters": {"input": "a(\"b\")"}}'
    assert read("llama3_json", f"{call}\nDone.") == [*called('a("b")'), d.TextDelta("Done.")]


@pytest.mark.parametrize("closing", ["}}\n", "}\n", '"}}\n', '"}', '"'])
@pytest.mark.parametrize("text", ["print(1)", 'print("a)', "x = {};", "</tool_call>\n"])
def test_a_call_that_is_not_closed_does_not_swallow_the_next(
    read: Read, text: str, closing: str
) -> None:
    call = CALL[: CALL.index("%s") + 2] % text + closing + "</tool_call>\n"
    assert read("hermes", call * 2) == called(text) * 2
    assert read("hermes", call * 2, cuts=range(1, 2 * len(call))) == called(text) * 2


@pytest.mark.parametrize("text", ["a}}\n</tool_call> b", "{}\n</tool_call>\n."])
def test_an_end_of_a_call_in_an_input_is_text_if_the_input_goes_on(read: Read, text: str) -> None:
    assert read("hermes", CALL % text) == called(text)
    assert read("hermes", CALL % text, cuts=range(1, len(CALL % text))) == called(text)


def test_the_input_is_held_back_only_from_a_quote_that_may_end_it(parser_of: Build) -> None:
    parser = parser_of("hermes")
    parser.feed(Step(text='<tool_call>{"name": "apply_patch", "arguments": {"input": "'))
    steps = ["print(", '"', '"}', "x", '")', '"}}', "</tool_call>"]
    texts = [
        "".join(delta.text for delta in parser.feed(Step(text=step)) if hasattr(delta, "text"))
        for step in steps
    ]
    assert texts == ["print(", "", '"', '"}x', '")', "", ""]


@pytest.mark.parametrize("part", ['"a", ', '"}', '"}}', '"a": "b", ', '", "b": {', '"\n'])
def test_many_quotes_are_read_in_a_short_time(read: Read, part: str) -> None:
    start = perf_counter()
    read("hermes", CALL % ("x" + part * 5_000))
    assert perf_counter() - start < 5
