"""Calls whose name comes first, with arguments that are missing, broken or come late."""

# ruff: noqa: RUF001 - DeepSeek's markers contain a full-width bar

from __future__ import annotations

from collections.abc import Callable

import pytest

from antiphon.adapters.formats.chat_template.parsing.parser import ChatTemplateParser
from antiphon.application.ports import Step
from antiphon.domain import deltas as d
from antiphon.domain.tools import ToolSpec

Read = Callable[..., list[d.Delta]]
Build = Callable[..., ChatTemplateParser]

NO_ARGUMENTS = [d.CallStart("get_weather"), d.ArgumentsDelta("{}"), d.ItemEnd()]
BONN = [d.CallStart("get_weather"), d.ArgumentsDelta('{"city": "Bonn"}'), d.ItemEnd()]


def deepseek(call: str) -> str:
    return (
        f"<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>{call}<｜tool▁call▁end｜><｜tool▁calls▁end｜>"
    )


def read_both_ways(read: Read, family: str, text: str, **turn: object) -> list[d.Delta]:
    deltas = read(family, text, **turn)
    assert read(family, text, cuts=range(1, len(text)), **turn) == deltas
    return deltas


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("mistral", "[TOOL_CALLS]get_weather"),
        ("mistral", "[TOOL_CALLS] get_weather\n"),
        ("mistral", "[TOOL_CALLS]get_weather</s>"),
        ("mistral", "[TOOL_CALLS]get_weather[ARGS]</s>"),
        ("mistral", "[TOOL_CALLS]get_weather[CALL_ID]1</s>"),
        ("deepseek_v31", deepseek("get_weather<｜tool▁sep｜>")),
        ("deepseek_v31", deepseek("get_weather<｜tool▁sep｜>\n")),
        ("deepseek_v3", deepseek("function<｜tool▁sep｜>get_weather")),
        ("deepseek_v3", deepseek("function<｜tool▁sep｜>get_weather\n")),
        ("deepseek_v3", deepseek("function<｜tool▁sep｜>get_weather\n```json\n```")),
        ("deepseek_v3", deepseek("get_weather<｜tool▁sep｜>")),
        (
            "kimi_k2",
            "<|tool_call_begin|>get_weather:0<|tool_call_argument_begin|><|tool_call_end|>",
        ),
        ("functionary", "<function=get_weather></function>"),
    ],
)
def test_a_call_without_arguments_is_a_call(read: Read, family: str, text: str) -> None:
    assert read_both_ways(read, family, text) == NO_ARGUMENTS


@pytest.mark.parametrize("first", ["", "[ARGS]"])
def test_a_call_without_arguments_may_come_before_another(read: Read, first: str) -> None:
    text = f'[TOOL_CALLS]get_weather{first}[TOOL_CALLS]get_weather[ARGS]{{"city": "Bonn"}}'
    assert read_both_ways(read, "mistral", text) == [*NO_ARGUMENTS, *BONN]


@pytest.mark.parametrize("name", ["launch", "get_weather now", "get_weather_2"])
def test_a_name_that_is_no_tool_is_no_call(read: Read, name: str) -> None:
    [message] = read_both_ways(read, "mistral", f"[TOOL_CALLS]{name}")
    assert isinstance(message, d.TextDelta)
    assert message.text.endswith(name)


@pytest.mark.parametrize(
    "call",
    [
        'get_weather<｜tool▁sep｜>Here you go: {"city": "Bonn"}',
        'get_weather<｜tool▁sep｜>Here you go:\n```json\n{"city": "Bonn"}\n```',
        'function<｜tool▁sep｜>get_weather\nHere you go:\n```json\n{"city": "Bonn"}\n```',
    ],
)
@pytest.mark.parametrize("family", ["deepseek_v3", "deepseek_v31"])
def test_text_between_name_and_arguments_is_text_before_the_call(
    read: Read, family: str, call: str
) -> None:
    expected = [d.TextDelta("Here you go:"), d.ItemEnd(), *BONN]
    assert read_both_ways(read, family, deepseek(call)) == expected
    with_prose = f"Now.\n{deepseek(call)}"
    expected[0] = d.TextDelta("Now.\nHere you go:")
    assert read_both_ways(read, family, with_prose) == expected


FENCES = [
    "\n```json\n{}\n```",
    "```json\n{}\n```",
    "\n```\n{}```",
    "\n```json{}```",
    "\n{}\n```",
    "\n{}",
]


@pytest.mark.parametrize("arguments", ['{"city": }', '{"city": "Bonn"', '{"city": ["Bonn"}', "{"])
@pytest.mark.parametrize("fence", FENCES)
def test_a_fence_is_no_part_of_broken_arguments(read: Read, fence: str, arguments: str) -> None:
    call = f"function<｜tool▁sep｜>get_weather{fence.replace('{}', arguments)}"
    expected = [d.CallStart("get_weather"), d.ArgumentsDelta(arguments), d.ItemEnd()]
    text = deepseek(call) * 2
    assert read_both_ways(read, "deepseek_v3", text) == expected * 2


@pytest.mark.parametrize("end", ["\n```", "```", "\n``", "\n`", "\n", ""])
def test_a_fence_that_the_end_of_the_text_cuts_is_no_text(read: Read, end: str) -> None:
    start = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather\n```json\n"
    assert read_both_ways(read, "deepseek_v3", f'{start}{{"city": "Bonn"}}{end}') == BONN


@pytest.mark.parametrize("end", ["", "\n", "\n```", "\n```js", "\n```json\n"])
def test_a_call_that_is_cut_before_its_arguments_stays_open(read: Read, end: str) -> None:
    text = f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_weather{end}"
    assert read_both_ways(read, "deepseek_v3", text) == [d.CallStart("get_weather")]


NAME_FIRST = [
    'get_weather[TOOL_CALLS]{"city": "Bonn"}',
    ' get_weather [TOOL_CALLS] {"city": "Bonn"}</s>',
    '[THINK]Hm.[/THINK]get_weather[TOOL_CALLS]{"city": "Bonn"}',
    '[TOOL_CALLS]get_weather[ARGS]{"city": "Bonn"}get_weather[TOOL_CALLS]{"city": "Bonn"}',
]


@pytest.mark.parametrize("text", NAME_FIRST)
def test_a_name_before_the_marker_names_the_call(read: Read, text: str) -> None:
    count = text.count("TOOL_CALLS")
    assert read_both_ways(read, "mistral", text)[-3 * count :] == BONN * count


@pytest.mark.parametrize(
    "text",
    [
        "get_weather",
        "get_weather is a tool.",
        "get_weather {}",
        "get_wea",
        'launch[TOOL_CALLS]{"city": "Bonn"}',
        'get_weathers[TOOL_CALLS]{"city": "Bonn"}',
        'I get_weather[TOOL_CALLS]{"city": "Bonn"}',
    ],
)
def test_a_name_alone_is_text(read: Read, text: str) -> None:
    assert read_both_ways(read, "mistral", text) == [d.TextDelta(text)]


@pytest.mark.parametrize(
    "call",
    [
        '[TOOL_CALLS]get_weather[ARGS]{"city": "Bonn"}',
        '[TOOL_CALLS]{"name": "get_weather", "arguments": {"city": "Bonn"}}',
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Bonn"}}]',
    ],
)
def test_a_name_before_a_call_that_has_one_is_text(read: Read, call: str) -> None:
    expected = [d.TextDelta("get_weather"), d.ItemEnd(), *BONN]
    assert read_both_ways(read, "mistral", f"get_weather{call}") == expected


def test_text_that_cannot_be_a_name_is_not_held_back(parser_of: Build) -> None:
    parser = parser_of("mistral")
    assert parser.feed(Step(text="get")) == []
    assert parser.feed(Step(text=" it")) == [d.TextDelta("get it")]
    assert parser.feed(Step(text=" get_weather")) == [d.TextDelta(" get_weather")]


@pytest.mark.parametrize(
    ("family", "start", "call"),
    [
        (
            "deepseek_v3",
            "<｜tool▁call▁begin｜>",
            "function<｜tool▁sep｜>get_weather\n```json\n%s\n```",
        ),
        ("kimi_k2", "<|tool_call_begin|>", "get_weather:0<|tool_call_argument_begin|>%s"),
    ],
)
def test_words_before_a_call_are_never_lost(read: Read, family: str, start: str, call: str) -> None:
    written = call % '{"city": "Bonn"}'
    text = f"{start}one {start}{written}"
    expected = [d.TextDelta(f"{start}one"), d.ItemEnd(), *BONN]
    assert read_both_ways(read, family, text) == expected
    text = f"{start}one {written}"
    assert read_both_ways(read, family, text) == [d.TextDelta(text)]


PATH = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
DROP, WIPE = (ToolSpec(name=name, parameters=PATH) for name in ("drop", "wipe"))
COUNT = ToolSpec(name="count", parameters={"properties": {"number": {"type": "integer"}}})


@pytest.mark.parametrize(
    ("call_id", "arguments", "others", "name"),
    [
        ("3", '{"path": "/x"}', (), "drop"),
        ("call_3", '{"path": "/x"}', (), "drop"),
        ("call_7hQx", '{"number": 1}', (WIPE,), "count"),
        ("call_3", '{"path": "/x"}', (WIPE,), None),  # which one?
        ("call_3", '{"path": 5}', (), None),
        ("call_3", '{"path": "/x", "more": 1}', (), None),
        ("call_3", '{"path": "/x', (), None),
        ("call_3", "{}", (), None),
        ("call_wipe", '{"path": "/x"}', (), None),  # the name of a tool that is not offered
    ],
)
def test_an_id_without_a_name_calls_the_only_tool_that_its_arguments_fit(
    read: Read, call_id: str, arguments: str, others: tuple[ToolSpec, ...], name: str | None
) -> None:
    begin = f"<|tool_call_begin|>{call_id}<|tool_call_argument_begin|>"
    text = f"Now.{begin}{arguments}<|tool_call_end|>Done."
    tools = (DROP, COUNT, *others)
    deltas = read("kimi_k2", text, tools=tools)
    calls = [x.text for x in deltas if isinstance(x, d.ArgumentsDelta)]
    assert [x.name for x in deltas if isinstance(x, d.CallStart)] == ([name] if name else [])
    assert calls == ([arguments] if name else [])
    assert name or deltas == [d.TextDelta(text)]
    assert read("kimi_k2", text, cuts=range(1, len(text)), tools=tools) == deltas
