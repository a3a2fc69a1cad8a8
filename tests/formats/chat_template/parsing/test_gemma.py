"""How calls and reasoning of Gemma are read where they are not as its templates write them."""

# ruff: noqa: E501 - one case a line

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from antiphon.adapters.formats.chat_template.gemma_style import QUOTE, gemma_tag
from antiphon.application.ports import Step
from antiphon.domain import deltas as d
from antiphon.domain.json import Json
from antiphon.domain.tools import ToolSpec

Read = Callable[..., list[d.Delta]]

REPORT = ToolSpec(
    name="report",
    parameters={
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"type": "integer"},
            "units": {"anyOf": [{"type": "string"}, {"type": "null"}]},
            "places": {"type": "array", "items": {"type": "string"}},
        },
    },
)

ARGUMENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "spaces": ("{ city : @Rome@ , days : 2 }", {"city": "Rome", "days": 2}),
    "a text without quotes": ("{city:New York,days:2}", {"city": "New York", "days": 2}),
    "JSON": ('{"city":"a \\"b\\"","days":2}', {"city": 'a "b"', "days": 2}),
    "a number that is a text": ("{city:8080}", {"city": "8080"}),
    "a text that is a number": ("{city:@8080@,days:@3@}", {"city": "8080", "days": 3}),
    "a quoted list": ("{city:@a@,places:@['b', 'c']@}", {"city": "a", "places": ["b", "c"]}),
    "null": ("{city:@a@,units:null}", {"city": "a", "units": None}),
    "no value": ("{city:,days:2}", {"city": "", "days": 2}),
    "quoted keys": ("{@city@:@a@,x:{@y:z@:1}}", {"city": "a", "x": {"y:z": 1}}),
    "nested": ("{city:@a@,x:[[{}],{y:[]}]}", {"city": "a", "x": [[{}], {"y": []}]}),
    "parentheses": ("(city:@a@, days:2)", {"city": "a", "days": 2}),
    "parentheses and brackets": ("({city:@a@})", {"city": "a"}),
    "a missing bracket": ("{city:@a@,places:[@b@}", {"city": "a", "places": ["b"]}),
    "a missing quote": ("{city:@a}", {"city": "a"}),
    "missing quote and bracket": ("{city:@a@,places:[@b}", {"city": "a", "places": ["b"]}),
    "surplus brackets": ("{city:@a@}}}", {"city": "a"}),
    "surplus commas": ("{,city:@a@,,days:1,}", {"city": "a", "days": 1}),
    "none": ("", {}),
}


@pytest.mark.parametrize(("written", "expected"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_are_read_generously(read: Read, written: str, expected: dict[str, Any]) -> None:
    text = f"<|tool_call>call:get_weather{written.replace('@', QUOTE)}<tool_call|>"
    for cuts in ((), range(1, len(text))):
        start, arguments, end = read("gemma4", text, cuts=cuts)
        assert (start, end) == (d.CallStart("get_weather"), d.ItemEnd())
        assert isinstance(arguments, d.ArgumentsDelta)
        assert json.loads(arguments.text) == expected


DELIMITERS = {
    "no opening one": ("{city:Paris, France@,days:5}", {"city": "Paris, France", "days": 5}),
    "no opening one at the end": ("{days:5,city:Paris, France@}", {"days": 5, "city": "Paris, France"}),
    "no closing one": ("{city:@Paris, France,days:5}", {"city": "Paris, France", "days": 5}),
    "no closing one before a text": ("{city:@Paris,units:@km@}", {"city": "Paris", "units": "km"}),
    "no closing one before a list": ("{city:@Paris, places:[@a@]}", {"city": "Paris", "places": ["a"]}),
    "no closing one and no bracket": ("{city:@Paris", {"city": "Paris"}),
    "none": ("{city:Paris, France,days:5}", {"city": "Paris, France", "days": 5}),
    "none in a list": ("{places:[a@,@b@,c]}", {"places": ["a", "b", "c"]}),
    "a bracket in a text without one": ("{city:a[0], b@,days:5}", {"city": "a[0], b", "days": 5}),
    "a doubled opening one": ("{city:@@Paris@,days:5}", {"city": "Paris", "days": 5}),
    "a doubled closing one": ("{city:@Paris@@,days:5}", {"city": "Paris", "days": 5}),
    "two doubled ones": ("{city:@@Paris@@,days:5}", {"city": "Paris", "days": 5}),
    "quotes in a text": ("{city:@say @hi@ to@,days:5}", {"city": 'say "hi" to', "days": 5}),
    "quotes at the end of a text": ("{city:@say @hi@@,days:5}", {"city": 'say "hi"', "days": 5}),
    "quotes at the start of a text": ("{city:@@a@ and b@,days:5}", {"city": '"a" and b', "days": 5}),
    "triple quotes": ("{city:@f(@@@ a, b @@@)@,days:5}", {"city": 'f(""" a, b """)', "days": 5}),
    "JSON in a text": ("{city:@{@a@:@b@}@,days:5}", {"city": '{"a":"b"}', "days": 5}),
    "single quotes": ("{city:'New York, NY',days:5}", {"city": "New York, NY", "days": 5}),
    "a doubled bracket": ("{{city:@a@,days:5}", {"city": "a", "days": 5}),
    "single quotes in a list": ("{places:['a, b', 'c']}", {"places": ["a, b", "c"]}),
    "words after a text": ("{city:@a@ b,days:5}", {"city": 'a" b', "days": 5}),
    "words after a number": ("{days:5, or so,city:@a@}", {"days": "5, or so", "city": "a"}),
    "an argument in a text": ("{city:@a,days:5@}", {"city": "a,days:5"}),
    "an argument in a text before another": ("{city:@a, days:5 b@,days:5}", {"city": "a, days:5 b", "days": 5}),
    "the end of a call in a text": ("{city:@a <tool_call|> b@}", {"city": "a <tool_call|> b"}),
}  # fmt: skip


@pytest.mark.parametrize(("written", "expected"), DELIMITERS.values(), ids=DELIMITERS)
def test_a_text_is_whole_where_a_delimiter_is_missing_or_surplus(
    read: Read, written: str, expected: dict[str, Any]
) -> None:
    text = f"<|tool_call>call:report{written.replace('@', QUOTE)}<tool_call|>"
    for cuts in ((), range(1, len(text))):
        start, arguments, end = read("gemma4", text, cuts=cuts, tools=(REPORT,))
        assert (start, end) == (d.CallStart("report"), d.ItemEnd())
        assert isinstance(arguments, d.ArgumentsDelta)
        assert json.loads(arguments.text) == expected


@pytest.mark.parametrize("first", ["city:@Oslo", "city:@Oslo}", "city:Oslo@", "city:Oslo"])
def test_a_text_without_its_end_leaves_the_next_call_alone(read: Read, first: str) -> None:
    calls = (f"{{{first}", "{city:@Ulm@}")
    text = "".join(f"<|tool_call>call:report{x}<tool_call|>" for x in calls).replace("@", QUOTE)
    for cuts in ((), range(1, len(text))):
        deltas = read("gemma4", text, cuts=cuts, tools=(REPORT,))
        written = [json.loads(x.text) for x in deltas if isinstance(x, d.ArgumentsDelta)]
        assert written == [{"city": "Oslo"}, {"city": "Ulm"}]


@pytest.mark.parametrize("written", ["{Paris, France}", "{@Paris@}", "{the city is: Paris}"])
def test_arguments_without_a_key_are_text(read: Read, written: str) -> None:
    text = f"<|tool_call>call:report{written.replace('@', QUOTE)}<tool_call|>"
    for cuts in ((), range(1, len(text))):
        assert read("gemma4", text, cuts=cuts, tools=(REPORT,)) == [d.TextDelta(text)]


@pytest.mark.parametrize("head", ["call:", ":", "", " call:"])
def test_the_word_before_a_name_may_be_missing(read: Read, head: str) -> None:
    text = f"<|tool_call>{head}crm__find{{}}<tool_call|>"
    assert read("gemma4", text) == [
        d.CallStart("find", namespace="crm"),
        d.ArgumentsDelta("{}"),
        d.ItemEnd(),
    ]


def test_a_text_is_streamed(parser_of: Callable[..., Any]) -> None:
    parser = parser_of("gemma4")
    parser.feed(Step(text=f"<|tool_call>call:get_weather{{city:{QUOTE}"))
    assert parser.feed(Step(text='one "t')) == [d.ArgumentsDelta('one \\"t')]
    assert parser.feed(Step(text="wo<|")) == [d.ArgumentsDelta("wo")]
    assert parser.feed(Step(text='"|>')) == []  # what follows a delimiter says whether it is one
    assert parser.feed(Step(text="}<t")) == [d.ArgumentsDelta('"}'), d.ItemEnd()]


@pytest.mark.parametrize(
    ("written", "text"),
    [
        ('<|"|>a<|"|>}', "a"),
        ('<|"|>a<|"|> , )', "a"),
        ('<|"|>a<|"|>', "a"),
        ('<|"|>a<|"|>,note:<|"|>b<|"|>}', 'a\n{"note": "b"}'),
        ('<|"|>a<|"|>b c}', 'a\n{"b c": ""}'),
    ],
)
def test_the_input_of_a_custom_tool_is_all_that_was_written(
    read: Read, written: str, text: str
) -> None:
    markup = f"<|tool_call>call:apply_patch{{input:{written}<tool_call|>Done."
    for cuts in ((), range(1, len(markup))):
        assert read("gemma4", markup, cuts=cuts) == [
            d.CallStart("apply_patch", kind="custom"),
            d.ArgumentsDelta(text),
            d.ItemEnd(),
            d.TextDelta("Done."),
        ]


@pytest.mark.parametrize(
    ("text", "reasoning"),
    [
        ("<|channel>thought\nHm.<channel|>Hi", ["Hm."]),
        ("<|channel>thoughtful.<channel|>Hi", ["thoughtful."]),
        ("<|channel>Hm.<channel|>Hi", ["Hm."]),
        ("<|channel>thought\n<channel|>Hi", []),
        ("<|channel>thought<channel|>Hi", []),
        ("<|channel><|channel>thought\n<channel|>Hi<channel|>", []),
    ],
)
def test_the_label_of_reasoning_is_markup(read: Read, text: str, reasoning: list[str]) -> None:
    for cuts in ((), range(1, len(text))):
        deltas = read("gemma4", text, cuts=cuts)
        assert [x.text for x in deltas if isinstance(x, d.ReasoningDelta)] == reasoning
        assert deltas[-1] == d.TextDelta("Hi")


SCHEMA: Json = {
    "type": "object",
    "properties": {
        "text": {"type": "string"},
        "n": {"type": ["integer", "null"]},
        "o": {
            "type": "object",
            "properties": {
                "kind": {"enum": ["p", 3]},
                "list": {"type": "array", "items": {"type": "number"}},
            },
            "required": ["list"],
        },
        "any": {},
    },
    "required": ["o", "text"],
}
ALLOWED = [
    "o:{list:[1,2.5]},text:@x@",
    "any:{k:[@a@,{b:null}]},n:3,o:{kind:@p@,list:[]},text:@@",
    'n:null,o:{kind:3,list:[]},text:@<|<|"<|"|\n@',
]
REFUSED = [
    "text:@x@",
    "o:{list:[]}",
    "o:{},text:@x@",
    "o:{list:[@z@]},text:@x@",
    "o:{kind:@z@,list:[]},text:@x@",
    "o:{list:[]},text:3",
    "n:01,o:{list:[]},text:@x@",
    "o:{list:[]},text:@x@,other:1",
    "o:{list:[]},text:x",
]


@pytest.mark.vllm
@pytest.mark.filterwarnings("default")  # torch emits warnings that we cannot fix
def test_arguments_are_bound_to_their_schema() -> None:
    import xgrammar  # comes with vLLM, which is not installed everywhere

    letters = [bytes([byte]) for byte in range(256)]
    info = xgrammar.TokenizerInfo(
        [*letters, b"<end>"], vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[256]
    )
    tag = {"type": "structural_tag", "format": gemma_tag(QUOTE, SCHEMA)}
    grammar = xgrammar.GrammarCompiler(info).compile_structural_tag(json.dumps(tag))

    def accepts(text: str) -> bool:
        matcher = xgrammar.GrammarMatcher(grammar)
        written = text.replace("@", QUOTE)
        return bool(matcher.accept_string(written) and matcher.accept_token(256))

    assert [text for text in ALLOWED if not accepts(text)] == []
    assert [text for text in REFUSED if accepts(text)] == []
