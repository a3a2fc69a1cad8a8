"""Calls as tags: what a model may write otherwise than its template shows, and how it streams."""

# ruff: noqa: E501, RUF001 - one case a line; DeepSeek's markers contain a full-width bar

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from antiphon.adapters.formats.chat_template.argument_styles import STYLES
from antiphon.adapters.formats.chat_template.call_writer import write_calls
from antiphon.adapters.formats.chat_template.families import FAMILIES
from antiphon.adapters.formats.chat_template.parsing.parser import ChatTemplateParser
from antiphon.adapters.formats.structural_tag import structural_tag_constraint
from antiphon.application.ports import Step
from antiphon.domain import deltas as d
from antiphon.domain.tools import ToolSpec

Read = Callable[..., list[d.Delta]]

TOOLS = (
    ToolSpec(
        name="edit",
        parameters={
            "type": "object",
            "properties": {
                "path": {"type": "string"},
                "line": {"type": "integer"},
                "note": {"type": ["string", "null"]},
                "author": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "size": {"anyOf": [{"type": "string"}, {"type": "integer"}]},
                "tags": {"type": "array", "items": {"type": "string"}},
                "place": {"$ref": "#/$defs/place"},
            },
            "$defs": {"place": {"type": "object", "properties": {"zip": {"type": "string"}}}},
        },
    ),
    ToolSpec(name="patch", kind="custom"),
    ToolSpec(name="stop"),
)


def glm(*arguments: tuple[str, str], name: str = "edit") -> str:
    tags = "".join(
        f"<arg_key>{key}</arg_key><arg_value>{value}</arg_value>" for key, value in arguments
    )
    return f"<tool_call>{name}{tags}</tool_call>"


def dsml(arguments: str, name: str = "edit") -> str:
    return f'<｜DSML｜invoke name="{name}">{arguments}</｜DSML｜invoke>'


def parameter(key: str, value: str, attributes: str = "") -> str:
    return f'<｜DSML｜parameter name="{key}"{attributes}>{value}</｜DSML｜parameter>'


def m3(markup: str) -> str:
    """Write M3's tags: `{` and `}` stand for those of a tag, each with its namespace."""
    tags = markup.replace("{", "]<]minimax[>[<").replace("}", ">")
    return f']<]minimax[>[<invoke name="edit">{tags}]<]minimax[>[</invoke>'


EDITS: dict[str, tuple[str, str, Any]] = {
    "a text like a number": ("glm", glm(("path", "8080")), {"path": "8080"}),
    "spaces around a text": ("glm", glm(("path", " a\n")), {"path": " a\n"}),
    "spaces around a number": ("glm", glm(("line", "\n3 ")), {"line": 3}),
    "an unknown key": ("glm", glm(("column", "3")), {"column": "3"}),
    "an optional text": ("glm", glm(("note", "8080"), ("author", "true")), {"note": "8080", "author": "true"}),
    "null": ("glm", glm(("note", "null"), ("author", "null")), {"note": None, "author": None}),
    "a text that starts like null": ("glm", glm(("note", "nul"), ("author", "nullable")), {"note": "nul", "author": "nullable"}),
    "an empty optional text": ("glm", glm(("note", "")), {"note": ""}),
    "a text or a number": ("glm", glm(("size", "3")), {"size": 3}),
    "a list of Python": ("glm", glm(("tags", "['a', \"b\"]")), {"tags": ["a", "b"]}),
    "no valid number": ("glm", glm(("line", "three")), {"line": "three"}),
    "an unclosed key": ("glm", "<tool_call>edit<arg_key>path<arg_value>a</arg_value></tool_call>", {"path": "a"}),
    "a misspelled key's end": ("glm", "<tool_call>edit\n<arg_key>path</arg_kye>\n<arg_value>a</arg_value></tool_call>", {"path": "a"}),
    "an unclosed value before a key": ("glm", "<tool_call>edit<arg_key>path</arg_key><arg_value>a\n<arg_key>line</arg_key><arg_value>3</arg_value></tool_call>", {"path": "a", "line": 3}),
    "an unclosed value at the end": ("glm", "<tool_call>edit<arg_key>path</arg_key><arg_value>a\n</tool_call>", {"path": "a"}),
    "markup of a call in a text": ("glm", glm(("path", "a </tool_call> b"), ("line", "3")), {"path": "a </tool_call> b", "line": 3}),
    "markup of an unknown argument in a text": ("glm", glm(("path", "<arg_key>k</arg_key><arg_value>v")), {"path": "<arg_key>k</arg_key><arg_value>v"}),
    "JSON in the call": ("glm", '<tool_call>edit\n{"path": "a"}\n</tool_call>', {"path": "a"}),
    "JSON as all arguments": ("deepseek_v4", dsml(parameter("arguments", '{"path": "a", "line": 3}')), {"path": "a", "line": 3}),
    "an empty wrapper": ("deepseek_v4", dsml(parameter("arguments", "{}")), {}),
    "a text by its tag": ("deepseek_v4", dsml(parameter("size", "3", ' string="true"')), {"size": "3"}),
    "a text by its tag, a number by its schema": ("deepseek_v4", dsml(parameter("line", "3", ' string="true"')), {"line": 3}),
    "JSON by its tag": ("deepseek_v4", dsml(parameter("k", "[1]", ' string="false"')), {"k": [1]}),
    "JSON by its tag, a text by its schema": ("deepseek_v4", dsml(parameter("path", "[1]", ' string="false"')), {"path": "[1]"}),
    "a quoted text by its tag": ("deepseek_v4", dsml(parameter("path", '"a"', ' string="false"')), {"path": "a"}),
    "null by its tag": ("deepseek_v4", dsml(parameter("note", "null", ' string="false"')), {"note": None}),
    "the word null by its tag": ("deepseek_v4", dsml(parameter("note", "null", ' string="true"')), {"note": "null"}),
    "no sign after an attribute": ("deepseek_v4", dsml('<｜DSML｜parameter name"path" string"true">a</｜DSML｜parameter>'), {"path": "a"}),
    "other quotes": ("minimax_m2", "<invoke name='edit'><parameter  name = path >a</parameter></invoke>", {"path": "a"}),
    "spaces around an attribute's value": ("minimax_m2", '<invoke name= "edit" ><parameter name="path">a</parameter></invoke>', {"path": "a"}),
    "a list in tags": ("minimax_m3", m3("{tags}{item}a{/item}{item}{/item}{/tags}"), {"tags": ["a", ""]}),
    "items of another name": ("minimax_m3", m3("{tags}{tag}a{/tag}{tag}b{/tag}{/tags}"), {"tags": ["a", "b"]}),
    "items of different names": ("minimax_m3", m3("{tags}{item}a{/item}{tag}b{/tag}{/tags}"), {"tags": ["a", {"tag": "b"}]}),
    "a comma between arguments": ("glm", "<tool_call>edit<arg_key>path</arg_key><arg_value>a</arg_value>, <arg_key>line</arg_key><arg_value>3</arg_value></tool_call>", {"path": "a", "line": 3}),
    "a bracket before an argument": ("deepseek_v4", dsml(f">{parameter('path', 'a')}"), {"path": "a"}),
    "text in the tag of an item": ("minimax_m3", m3("{tags}{item and more}a{/tags}"), {"tags": [{"item and more": "a"}]}),
    "an empty list in tags": ("minimax_m3", m3("{tags}{/tags}"), {"tags": []}),
    "an object in tags": ("minimax_m3", m3("{place}{zip}08080{/zip}{/place}"), {"place": {"zip": "08080"}}),
    "an unknown object in tags": ("minimax_m3", m3("{x}{a}1{/a}{a}2{/a} and{/x}"), {"x": {"a": ["1", "2"], "$text": " and"}}),
    "JSON in tags in tags": ("minimax_m3", m3('{tags}["a"]{/tags}'), {"tags": ["a"]}),
    "an unclosed value in tags in tags": ("minimax_m3", m3("{path}a{line}3{/line}"), {"path": "a", "line": 3}),
    "escapes of XML": ("minicpm5", '<function name="edit"><param name="path">a &lt;<![CDATA[&lt;]]></param></function>', {"path": "a <&lt;"}),
    "properties named as markers": ("minimax_m3", m3("{place}{tool_call}a{/tool_call}{invoke}b{/invoke}{/place}{line}3{/line}"), {"place": {"tool_call": "a", "invoke": "b"}, "line": 3}),
    "no bracket after the name": ("qwen3_coder", "<tool_call>\n<function=edit\n<parameter=path>\na\n</parameter>\n</function>\n</tool_call>", {"path": "a"}),
    "no bracket after a name in quotes": ("deepseek_v4", f'<｜DSML｜invoke name="edit"{parameter("path", "a")}</｜DSML｜invoke>', {"path": "a"}),
    "no bracket after a name without arguments": ("seed_oss", "<seed:tool_call>\n<function=edit</function>\n</seed:tool_call>", {}),
    "a space as the vocabulary has it": ("minicpm5", '<functionĠname="edit"><paramĠname="path">a</param></function>', {"path": "a"}),
    "no space before an attribute": ("minicpm5", '<function name="edit"><paramname="path">a</param></function>', {"path": "a"}),
}  # fmt: skip


def assert_one_call(read: Read, family: str, text: str, expected: dict[str, Any]) -> None:
    """The text is one call with these arguments, in one piece and letter by letter."""
    deltas = read(family, text, tools=TOOLS)
    assert [type(delta) for delta in deltas] == [d.CallStart, d.ArgumentsDelta, d.ItemEnd]
    assert json.loads(deltas[1].text) == expected  # type: ignore[attr-defined]
    assert read(family, text, tools=TOOLS, cuts=range(1, len(text))) == deltas


@pytest.mark.parametrize(("family", "text", "expected"), EDITS.values(), ids=EDITS)
def test_arguments_are_read_generously(
    read: Read, family: str, text: str, expected: dict[str, Any]
) -> None:
    assert_one_call(read, family, text, expected)


def function(arguments: str, name: str = "edit") -> str:
    return f"<tool_call>\n<function={name}>\n{arguments}\n</function>\n</tool_call>"


def setting(key: str, value: str) -> str:
    return f"<parameter={key}>\n{value}\n</parameter>\n"


MARKUP = "<function=run>\n<parameter=k>\nv\n</parameter>, and more </function>"
UNCLOSED: dict[str, tuple[str, str, Any]] = {
    "before an argument": ("qwen3_coder", function("<parameter=path>\na\n<parameter=line>\n3\n</parameter>"), {"path": "a", "line": 3}),
    "before an argument, no text": ("qwen3_coder", function("<parameter=line>\n3\n<parameter=path>\na\n</parameter>"), {"path": "a", "line": 3}),
    "at the end": ("qwen3_coder", function("<parameter=path>\na"), {"path": "a"}),
    "at the end, no text": ("qwen3_coder", function("<parameter=line>\n3"), {"line": 3}),
    "everywhere": ("qwen3_coder", function("<parameter=path>\na\n<parameter=line>\n3\n<parameter=note>\nb"), {"path": "a", "line": 3, "note": "b"}),
    "without the end of the call": ("qwen3_coder", "<tool_call>\n<function=edit>\n<parameter=path>\na\n</parameter>\n</tool_call>", {"path": "a"}),
    "markup in a text": ("qwen3_coder", function(setting("path", MARKUP) + setting("line", "3")), {"path": MARKUP, "line": 3}),
    "the end of a call in a text": ("qwen3_coder", function(setting("path", "a </function> b")), {"path": "a </function> b"}),
    "the end of a call and more in a text": ("qwen3_coder", function(setting("path", "a\n</function>\n</tool_call> b")), {"path": "a\n</function>\n</tool_call> b"}),
    "an unknown argument in a text": ("qwen3_coder", function(setting("path", "a\n<parameter=k>")), {"path": "a\n<parameter=k>"}),
    "an argument again in a text": ("qwen3_coder", function(setting("path", "a\n<parameter=path>b")), {"path": "a\n<parameter=path>b"}),
    "the end of a value in a text": ("qwen3_coder", function(setting("path", "a</parameter> b") + setting("line", "3")), {"path": "a</parameter> b", "line": 3}),
    "in Seed's": ("seed_oss", "<seed:tool_call>\n<function=edit>\n<parameter=path>a\n<parameter=line>3\n</function>\n</seed:tool_call>", {"path": "a", "line": 3}),
    "in GLM's": ("glm", "<tool_call>edit\n<arg_key>path</arg_key>\n<arg_value>a\n<arg_key>line</arg_key>\n<arg_value>3\n</tool_call>", {"path": "a", "line": 3}),
    "in GLM's, an end in a text": ("glm", glm(("path", "a</arg_value> b"), ("line", "3")), {"path": "a</arg_value> b", "line": 3}),
    "in DeepSeek's": ("deepseek_v4", '<｜DSML｜invoke name="edit"><｜DSML｜parameter name="path" string="true">a\n<｜DSML｜parameter name="line" string="false">3\n</｜DSML｜invoke>', {"path": "a", "line": 3}),
    "in MiniMax's": ("minimax_m2", '<minimax:tool_call>\n<invoke name="edit">\n<parameter name="path">a\n<parameter name="line">3\n</invoke>\n</minimax:tool_call>', {"path": "a", "line": 3}),
    "in Step's": ("step3", '<steptml:invoke name="edit"><steptml:parameter name="path">a\n<steptml:parameter name="line">3\n</steptml:invoke>', {"path": "a", "line": 3}),
}  # fmt: skip


@pytest.mark.parametrize(("family", "text", "expected"), UNCLOSED.values(), ids=UNCLOSED)
def test_a_value_ends_where_its_call_goes_on(
    read: Read, family: str, text: str, expected: dict[str, Any]
) -> None:
    assert_one_call(read, family, text, expected)


BROKEN: dict[str, tuple[str, str]] = {
    "a value": ("deepseek_v4", '<｜DSML｜invoke name="edit"><｜DSML｜parameter name="path" string="true">a\n</｜DSML｜invoke>\n'),
    "a value and its call": ("deepseek_v4", '<｜DSML｜invoke name="edit"><｜DSML｜parameter name="path" string="true">a\n'),
    "V3.2's": ("deepseek_v32", '<｜DSML｜invoke name="edit">\n<｜DSML｜parameter name="path" string="true">a\n'),
    "V4.1's": ("deepseek_v41", '<｜DSML｜ invoke name="edit">\n<｜DSML｜ parameter name="path" string="true">a\n'),
    "MiniMax's": ("minimax_m2", '<minimax:tool_call>\n<invoke name="edit">\n<parameter name="path">a\n'),
    "GLM's": ("glm47", "<tool_call>edit<arg_key>path</arg_key><arg_value>a\n"),
    "Qwen's": ("qwen3_coder", "<tool_call>\n<function=edit>\n<parameter=path>\na\n"),
    "Seed's": ("seed_oss", "<seed:tool_call>\n<function=edit>\n<parameter=path>a\n"),
    "Step's": ("step3", '<steptml:invoke name="edit"><steptml:parameter name="path">a\n'),
}  # fmt: skip
NEXT = [("edit", {"path": "b", "line": 3}), ("stop", {})]


@pytest.mark.parametrize(("family", "broken"), BROKEN.values(), ids=BROKEN)
def test_what_is_not_closed_does_not_swallow_the_next_call(
    read: Read, family: str, broken: str
) -> None:
    form = FAMILIES[family].call_form
    assert form
    whole = write_calls(form, NEXT)
    for text in (broken + whole, broken + whole.removeprefix(form.open)):
        deltas = read(family, text, tools=TOOLS)
        assert read(family, text, tools=TOOLS, cuts=range(1, len(text))) == deltas
        names = [x.name for x in deltas if isinstance(x, d.CallStart)]
        written = [json.loads(x.text) for x in deltas if isinstance(x, d.ArgumentsDelta)]
        assert names == ["edit", "edit", "stop"]
        assert written[0]["path"].strip() == "a"
        assert written[1:] == [NEXT[0][1], {}]


def test_the_call_after_an_unclosed_value_is_read(read: Read) -> None:
    text = function("<parameter=path>\na") + "\n" + function(setting("line", "3"))
    for cuts in ((), range(1, len(text))):
        assert read("qwen3_coder", text, tools=TOOLS, cuts=cuts) == [
            d.CallStart("edit"),
            d.ArgumentsDelta('{"path": "a"}'),
            d.ItemEnd(),
            d.CallStart("edit"),
            d.ArgumentsDelta('{"line": 3}'),
            d.ItemEnd(),
        ]


def test_words_before_the_first_argument_are_text_before_the_call(read: Read) -> None:
    text = function(f"Let me see.\n{setting('line', '3')}")
    for cuts in ((), range(1, len(text))):
        assert read("qwen3_coder", text, tools=TOOLS, cuts=cuts) == [
            d.TextDelta("Let me see."),
            d.ItemEnd(),
            d.CallStart("edit"),
            d.ArgumentsDelta('{"line": 3}'),
            d.ItemEnd(),
        ]


def test_a_custom_tool_with_an_unclosed_text_does_not_swallow_the_next_call(read: Read) -> None:
    begin = "]<]minimax[>[<"
    text = f'{begin}invoke name="patch">{begin}input>a{begin}invoke name="stop">{begin}/invoke>'
    for cuts in ((), range(1, len(text))):
        assert read("minimax_m3", text, tools=TOOLS, cuts=cuts) == [
            d.CallStart("patch", kind="custom"),
            d.ArgumentsDelta("a"),
            d.ItemEnd(),
            d.CallStart("stop"),
            d.ArgumentsDelta("{}"),
            d.ItemEnd(),
        ]


def test_markup_in_the_text_of_a_custom_tool_stays_in_it(read: Read) -> None:
    text = function(setting("input", MARKUP), name="patch")
    for cuts in ((), range(1, len(text))):
        assert read("qwen3_coder", text, tools=TOOLS, cuts=cuts)[1] == d.ArgumentsDelta(MARKUP)


VALUES = [
    name
    for name, row in FAMILIES.items()
    if any(region.tags and region.tags.value for region in row.calls.values())
]
MISTAKES: dict[str, tuple[str, str]] = {
    "no tag of a value": ("PATH</key><value>", "PATH</key>"),
    "no tag of a value at the end": ("LINE</key><value>", "LINE</key>"),
    "no tag of a key": ("</value><key>LINE", "</value>LINE"),
    "the tag of a call for that of a key": ("<key>LINE", "<call>LINE"),
    "the tag of a call for that of the first key": ("<key>PATH", "<call>PATH"),
    "a closing tag after the name": ("edit", "edit</value>"),
    "a closing tag after a value": ("</value><key>LINE", "</value></key><key>LINE"),
    "a closing tag at the end": ("3</value>", "3</value></key>"),
    "the closing tag of a key for that of a value": ("one two</value>", "one two</key>"),
    "a closing tag without its bracket": ("one two</value>", "one two</value"),
    "a closing tag without its bracket at the end": ("3</value>", "3</value"),
    "a doubled tag of a value": ("<value>one", "<value><value>one"),
    "a doubled closing tag": ("one two</value>", "one two</value></value>"),
    "no closing tag": ("one two</value>", "one two"),
}  # fmt: skip


@pytest.mark.parametrize(("old", "new"), MISTAKES.values(), ids=MISTAKES)
@pytest.mark.parametrize("family", VALUES)
def test_arguments_are_whole_where_a_tag_is_missing_or_another(
    read: Read, family: str, old: str, new: str
) -> None:
    form = FAMILIES[family].call_form
    assert form
    tags = next(region.tags for region in FAMILIES[family].calls.values() if region.tags)
    text = write_calls(form, [("edit", {"path": "one two", "line": 3})])
    spelled = text.replace(">\n<", "><")
    for part, tag in (("<key>", tags.key), ("</key>", tags.key_end), ("<value>", tags.value),
                      ("</value", tags.value_end[:-1]), ("<call>", tags.call),
                      ("PATH", "path"), ("LINE", "line")):  # fmt: skip
        old, new = old.replace(part, tag), new.replace(part, tag)
    if tags.value_type:
        spelled = re.sub(
            re.escape(tags.value_type[0]) + ".*?" + re.escape(tags.value_type[1]), "", spelled
        )
    mistaken = spelled.replace(old, new, 1)
    assert mistaken != spelled
    assert_one_call(read, family, mistaken, {"path": "one two", "line": 3})


@pytest.mark.parametrize("value", ["\na\n", "a\n", "\na", "a"])
def test_newlines_around_a_value_of_qwen_are_markup(read: Read, value: str) -> None:
    text = f"<tool_call>\n<function=edit>\n<parameter=path>{value}</parameter>\n</function>"
    for cuts in ((), range(1, len(text))):
        arguments = read("qwen3_coder", text, tools=TOOLS, cuts=cuts)[1]
        assert arguments == d.ArgumentsDelta('{"path": "a"}')


@pytest.mark.parametrize("value", ["a", "\na\n", " a ", "\n", ""])
def test_values_of_mimo_keep_their_newlines(read: Read, value: str) -> None:
    text = f"<tool_call><function=edit><parameter=path>{value}</parameter></function></tool_call>"
    for cuts in ((), range(1, len(text))):
        arguments = read("mimo", text, tools=TOOLS, cuts=cuts)[1]
        assert json.loads(arguments.text) == {"path": value}  # type: ignore[attr-defined]


PATCHES = {
    "the key": (glm(("input", "a\nb"), name="patch"), "a\nb"),
    "another key": (glm(("diff", "a\nb"), name="patch"), "a\nb"),
    "no key": ("<tool_call>patch\na </arg_value> b\n</tool_call>", "a </arg_value> b\n"),
    "JSON": ('<tool_call>patch{"input": "a\\nb"}</tool_call>', "a\nb"),
    "two keys": (glm(("path", "x"), ("input", "a"), name="patch"), "x\na"),
    "a number": (glm(("input", "3"), name="patch"), "3"),
    "a key that is none": (glm(("in: put", "a"), name="patch"), "in: puta"),
}


@pytest.mark.parametrize(("text", "expected"), PATCHES.values(), ids=PATCHES)
def test_the_text_of_a_custom_tool_is_never_lost(read: Read, text: str, expected: str) -> None:
    deltas = read("glm47", text, tools=TOOLS)
    assert deltas == [d.CallStart("patch", kind="custom"), d.ArgumentsDelta(expected), d.ItemEnd()]
    assert read("glm47", text, tools=TOOLS, cuts=range(1, len(text))) == deltas


def arguments_by_step(parser: ChatTemplateParser, steps: Sequence[str]) -> list[str]:
    written = []
    for text in steps:
        deltas = parser.feed(Step(text=text))
        written.append("".join(x.text for x in deltas if isinstance(x, d.ArgumentsDelta)))
    return written


def test_a_text_streams_as_it_arrives(parser_of: Callable[..., ChatTemplateParser]) -> None:
    steps = ["<tool_call>edit<arg_key>", "path</arg_key><arg_value>one", " two", ' "three"', "\n"]
    parser = parser_of("glm47", tools=TOOLS)
    assert arguments_by_step(parser, [*steps, "four</arg_", "value>\n", "</to", "ol_call>"]) == [
        "",
        '{"path": "one',
        " two",
        ' \\"three\\"',
        "",
        "\\nfour",
        "",  # what follows a closing tag says whether it is a part of the text
        "",
        '"}',
    ]


def test_an_optional_text_streams_once_it_is_not_null(
    parser_of: Callable[..., ChatTemplateParser],
) -> None:
    steps = ["<tool_call>edit<arg_key>note</arg_key><arg_value>", "nu", "mber", " one"]
    parser = parser_of("glm47", tools=TOOLS)
    assert arguments_by_step(parser, steps) == ['{"note": ', "", '"number', " one"]


CUTS = {
    "in a text": ("<arg_key>path</arg_key><arg_value>a", '{"path": "a'),
    "in a key": ("<arg_key>path</arg_key><arg_value>a</arg_value><arg_key>li", '{"path": "a"}'),
    "in a key's end": (
        "<arg_key>path</arg_key><arg_value>a</arg_value><arg_key>x</ar",
        '{"path": "a"}',
    ),
    "in a tag": ("<arg_key>path</arg_key><arg_value>a</arg_value></tool", '{"path": "a"}'),
    "after a value": ("<arg_key>path</arg_key><arg_value>a</arg_value>", '{"path": "a"}'),
    "before a value": ("<arg_key>path</arg_key>", "{}"),
    "before a key": ("\n", "{}"),
}


@pytest.mark.parametrize(("text", "arguments"), CUTS.values(), ids=CUTS)
def test_a_call_that_was_cut_stays_open(read: Read, text: str, arguments: str) -> None:
    whole = f"<tool_call>edit{text}"
    deltas = read("glm", whole, tools=TOOLS)
    assert deltas == [d.CallStart("edit"), d.ArgumentsDelta(arguments)]
    assert read("glm", whole, tools=TOOLS, cuts=range(1, len(whole))) == deltas


def test_text_in_a_call_ends_it(read: Read) -> None:
    text = "<tool_call>edit<arg_key>path</arg_key><arg_value>a</arg_value> Well.</tool_call> So."
    assert read("glm", text, tools=TOOLS) == [
        d.CallStart("edit"),
        d.ArgumentsDelta('{"path": "a"}'),
        d.ItemEnd(),
        d.TextDelta("Well. So."),
    ]


@pytest.mark.parametrize(
    ("family", "tag"),
    [
        ("glm47", "<arg_key>path</arg in: Bonn_key><arg_value>b</arg_value>"),
        ("deepseek_v4", '<｜DSML｜parameter name="path": {"in": "Bonn"'),
        ("dots", "<parameter name=path and more"),
    ],
)
def test_a_call_with_text_in_its_first_tag_is_text(read: Read, family: str, tag: str) -> None:
    begin = {"glm47": "<tool_call>edit", "deepseek_v4": '<｜DSML｜invoke name="edit">'}
    text = begin.get(family, '<invoke name="edit">') + tag
    for cuts in ((), range(1, len(text))):
        assert read(family, text, tools=TOOLS, cuts=cuts) == [d.TextDelta(text)]


@pytest.mark.parametrize("inner", [400, 9000])
def test_a_quoted_end_of_a_call_holds_back_little_text(read: Read, inner: int) -> None:
    value = f"a </tool_call> {'b ' * inner}"
    text = glm(("path", value))
    deltas = read("glm", text, tools=TOOLS, cuts=range(1, len(text), 50))
    assert json.loads(deltas[1].text) == {"path": value}  # type: ignore[attr-defined]


@pytest.fixture(scope="module")
def accepts() -> Callable[[str, str], bool]:
    import xgrammar  # comes with vLLM, which is not installed everywhere

    letters = [bytes([byte]) for byte in range(256)]
    info = xgrammar.TokenizerInfo(
        [*letters, b"<end>"], vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[256]
    )
    compiler = xgrammar.GrammarCompiler(info)

    def run(style: str, text: str) -> bool:
        tool = ToolSpec(name="edit", parameters=BOUND)
        value = structural_tag_constraint(STYLES[style].tag(tool)).value
        matcher = xgrammar.GrammarMatcher(compiler.compile_structural_tag(json.dumps(value)))
        return bool(matcher.accept_string(text) and matcher.accept_token(256))

    return run


BOUND = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "description": "Where."},
        "mode": {"enum": ["read", "write"]},
        "note": {"type": ["string", "null"]},
        "size": {"type": "integer"},
        "place": {"$ref": "#/$defs/place"},
        "more": {"description": "Anything."},
    },
    "required": ["path", "size"],
    "$defs": {
        "place": {
            "type": "object",
            "properties": {"zip": {"type": "string"}},
            "required": ["zip"],
            "additionalProperties": False,
        }
    },
}
TAG_STYLES = sorted(style for style in STYLES if style.endswith(("_xml", "_lines")))


@pytest.mark.vllm
@pytest.mark.filterwarnings("default")  # torch emits warnings that we cannot fix
@pytest.mark.parametrize("style", TAG_STYLES)
def test_arguments_are_bound_by_the_schema(accepts: Callable[[str, str], bool], style: str) -> None:
    def allows(**arguments: Any) -> bool:
        return accepts(style, STYLES[style].write(arguments))

    place = {"zip": "08080"}
    assert allows(path="a", size=3)
    assert allows(path="a b\nc <d> & e", mode="read", size=3)
    assert allows(path="", note="n", size=3, place=place, more="m")
    assert not allows(path="a")
    assert not allows(size=3)
    assert not allows(path="a", size="three")
    assert not allows(path="a", mode="delete", size=3)
    assert not allows(path="a", size=3, place={"zap": "1"})
    assert not allows(path="a", size=3, unknown="b")
