"""The parser turns what models write into deltas."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from time import perf_counter

import pytest

from antiphon.adapters.formats.chat_template.families import FAMILIES
from antiphon.adapters.formats.chat_template.families.end_tokens import END_TOKENS
from antiphon.adapters.formats.chat_template.parsing.parser import ChatTemplateParser
from antiphon.adapters.formats.chat_template.word_tokenizer import WordTokenizer
from antiphon.application.ports import Step, Turn
from antiphon.domain import deltas as d
from antiphon.domain.offers.client_tools import item_fields_of
from antiphon.domain.offers.offer import ToolDefinition, make_offer
from antiphon.domain.responses.response import TextConfig
from antiphon.domain.tools import ApplyPatch, ToolChoice, ToolSpec

Read = Callable[..., list[d.Delta]]
Build = Callable[..., ChatTemplateParser]

PARIS = '{"name": "get_weather", "arguments": {"city": "Paris"}}'
CALLED_PARIS = [
    d.CallStart("get_weather"),
    d.ArgumentsDelta('{"city": "Paris"}'),
    d.ItemEnd(),
]


def call(payload: str) -> str:
    return f"<tool_call>\n{payload}\n</tool_call>"


def test_whitespace_around_blocks_is_markup(read: Read) -> None:
    text = (
        f"<think>\nHm.\n\nWell.\n</think>\n\nLet me look.\n{call(PARIS)}\n{call(PARIS)}<|im_end|>"
    )
    assert read("hermes", text) == [
        d.ReasoningDelta("Hm.\n\nWell."),
        d.ItemEnd(),
        d.TextDelta("Let me look."),
        d.ItemEnd(),
        *CALLED_PARIS,
        *CALLED_PARIS,
    ]


def test_whitespace_of_a_message_is_kept(read: Read) -> None:
    assert read("hermes", "  a\n\n\tb \n") == [d.TextDelta("  a\n\n\tb \n")]


@pytest.mark.parametrize("text", ["", " \n", "<think>\n\n</think>\n\n", "\n<|im_end|>\n"])
def test_whitespace_alone_is_no_message(read: Read, text: str) -> None:
    assert read("hermes", text) == []


def test_reasoning_that_the_prompt_opened_is_continued(read: Read) -> None:
    assert read("deepseek_r1", "\nHm.\n</think>\n\nYes.", starts_in_reasoning=True) == [
        d.ReasoningDelta("Hm."),
        d.ItemEnd(),
        d.TextDelta("Yes."),
    ]


def test_text_before_reasoning_is_a_message(read: Read) -> None:
    assert read("think", "First.\n<think>Hm.</think>Then.") == [
        d.TextDelta("First."),
        d.ItemEnd(),
        d.ReasoningDelta("Hm."),
        d.ItemEnd(),
        d.TextDelta("Then."),
    ]


def test_text_that_begins_like_a_marker_is_text(read: Read) -> None:
    text = "if a <b and c < <tool_caller> then"
    assert read("hermes", text, cuts=range(1, len(text))) == [d.TextDelta(text)]


def test_reasoning_that_is_cut_is_complete(read: Read) -> None:
    assert read("think", "<think>\nIt could be <thi") == [d.ReasoningDelta("It could be <thi")]


# --- calls ----------------------------------------------------------------------------------------


def test_a_call_starts_before_its_arguments_are_complete(parser_of: Build) -> None:
    parser = parser_of("hermes")
    assert parser.feed(Step(text='<tool_call>\n{"name": "get_weather", "arguments": ')) == []
    assert parser.feed(Step(text='{"ci')) == [
        d.CallStart("get_weather"),
        d.ArgumentsDelta('{"ci'),
    ]
    assert parser.feed(Step(text='ty": "}</tool_call>')) == [
        d.ArgumentsDelta('ty": "}</tool_call>')
    ]
    assert parser.feed(Step(text='"} }\n')) == [d.ArgumentsDelta('"}'), d.ItemEnd()]
    assert parser.feed(Step(text="</tool_call>")) == []
    assert parser.end() == []


def test_two_calls_in_one_step_are_two_calls(parser_of: Build) -> None:
    parser = parser_of("hermes")
    assert parser.feed(Step(text=call(PARIS) + call(PARIS))) == [*CALLED_PARIS, *CALLED_PARIS]


def test_arguments_are_passed_on_unchanged(read: Read) -> None:
    arguments = r'{ "city":"Par\"is\\", "places" : ["}", "]"],"days":1e2 }'
    deltas = read("hermes", call(f'{{"name": "get_weather", "arguments": {arguments}}}'))
    assert deltas[1] == d.ArgumentsDelta(arguments)


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"name": "get_weather"}', "{}"),
        ('{"name": "get_weather", "arguments": null}', "{}"),
        (r'{"name": "get_weather", "arguments": "{\"city\": \"Oslo\"}"}', '{"city": "Oslo"}'),
        ('{"arguments": {"city": "Oslo"}, "name": "get_weather"}', '{"city": "Oslo"}'),
        ('{"type": "function", "name": "get_weather", "parameters": {}}', "{}"),
        ('{"name": "get_weather", "arguments": {"city": "Oslo"}, "index": 1}', '{"city": "Oslo"}'),
        ('{"name": "get_weather", "arguments": {"city": "Oslo"}}}', '{"city": "Oslo"}'),
        ('{"name": "get_weather", "arguments": {"city": "Oslo"}', '{"city": "Oslo"}'),
        ('[{"name": "get_weather", "arguments": {"city": "Oslo"}}]', '{"city": "Oslo"}'),
    ],
)
def test_a_call_may_be_spelled_in_many_ways(read: Read, written: str, arguments: str) -> None:
    assert read("hermes", call(written)) == [
        d.CallStart("get_weather"),
        d.ArgumentsDelta(arguments),
        d.ItemEnd(),
    ]


def test_a_custom_tool_gets_its_input_unescaped(read: Read) -> None:
    text = call(r'{"name": "apply_patch", "arguments": {"input": "a\n\"b\" é \u00e9\ud83d\ude00"}}')
    expected = [
        d.CallStart("apply_patch", kind="custom"),
        d.ArgumentsDelta('a\n"b" é é😀'),
        d.ItemEnd(),
    ]
    assert read("hermes", text) == expected
    assert read("hermes", text, cuts=range(1, len(text))) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ('"raw"', "raw"),
        ('{"text": "raw"}', '{"text": "raw"}'),
        (r'{"input": "\ud83d \udc00 \x"}', "\ufffd \ufffd \\x"),
        ('{"input": "a", "input": "b"}', 'a\n{"input": "b"}'),
        ('{"input": "a", "n": 1, "m": null, "list": ["b"]}', 'a\n{"list": ["b"]}'),
    ],
)
def test_a_custom_tool_gets_unwrapped_input_as_it_is(
    read: Read, arguments: str, expected: str
) -> None:
    text = call(f'{{"name": "apply_patch", "arguments": {arguments}}}')
    assert read("hermes", text)[1] == d.ArgumentsDelta(expected)


@pytest.mark.parametrize(
    ("family", "text"),
    [
        ("hermes", "<tool_call><tool_call>one two"),
        ("kimi_k2", "<|tool_call_begin|><|tool_call_begin|>one"),
        ("kimi_k3", '<|open|>call<|open|>call tool="get_wea'),
        ("granite", "<|tool_call|><|tool_call|>one"),
    ],
)
def test_two_markers_without_a_call_are_text(read: Read, family: str, text: str) -> None:
    for cuts in ((), range(1, len(text))):
        assert read(family, text, cuts=cuts) == [d.TextDelta(text)]


def test_an_input_before_the_name_of_its_tool_is_unwrapped_as_well(read: Read) -> None:
    text = call('{"arguments": {"input": "a", "n": 1, "note": "b"}, "name": "apply_patch"}')
    assert read("hermes", text)[1] == d.ArgumentsDelta('a\n{"note": "b"}')


def test_a_namespaced_call_has_the_name_that_the_client_knows(read: Read) -> None:
    text = call('{"name": "crm__find", "arguments": {}}')
    assert read("hermes", text)[0] == d.CallStart("find", None, "crm")


def test_a_call_with_an_unknown_name_is_text_with_its_markup(read: Read) -> None:
    payload = '{"name": "launch", "arguments": {"a": 1}}'
    text = f"Now: {call(payload)} Done."
    assert read("hermes", text) == [d.TextDelta(text)]
    assert read("hermes", text, cuts=range(1, len(text))) == [d.TextDelta(text)]


@pytest.mark.parametrize(
    "choice", [ToolChoice(mode="none"), ToolChoice(names=frozenset({"apply_patch"}))]
)
def test_a_tool_that_may_not_be_called_is_not_called(read: Read, choice: ToolChoice) -> None:
    assert read("hermes", call(PARIS), choice=choice) == [d.TextDelta(call(PARIS))]


@pytest.mark.parametrize(
    "payload", ["nonsense", "{name: get_weather}", '{"name": 3}', '{"city": "Paris"}', "{", "[1, 2"]
)
def test_a_payload_that_is_no_call_is_text(read: Read, payload: str) -> None:
    text = f"<tool_call>{payload}</tool_call>"
    assert read("hermes", text) == [d.TextDelta(text)]


def test_a_call_after_malformed_markup_is_a_call(read: Read) -> None:
    deltas = read("hermes", f"<tool_call>oops</tool_call>\n{call(PARIS)}")
    assert deltas == [
        d.TextDelta("<tool_call>oops</tool_call>"),
        d.ItemEnd(),
        *CALLED_PARIS,
    ]


def test_a_marker_that_closes_nothing_is_no_text(read: Read) -> None:
    text = f"<tool_call>oops</tool_call> </tool_call>Well. </tool_call>\n{call(PARIS)}</tool_call>"
    message = d.TextDelta("<tool_call>oops</tool_call> Well.")
    assert read("hermes", text) == [message, d.ItemEnd(), *CALLED_PARIS]
    assert read("hermes", text, cuts=range(1, len(text))) == read("hermes", text)


def test_markup_that_is_not_closed_ends_with_a_call(read: Read) -> None:
    text = f"<tool_call>oops\n{call(PARIS)}\n</tool_call>"
    assert read("hermes", text) == [d.TextDelta("<tool_call>oops"), d.ItemEnd(), *CALLED_PARIS]


@pytest.mark.parametrize(
    ("written", "deltas"),
    [
        ('<tool_call>\n{"name": "get_wea', [d.TextDelta('<tool_call>\n{"name": "get_wea')]),
        ('<tool_call>\n{"name": "get_weather"', [d.CallStart("get_weather")]),
        ('<tool_call>\n{"name": "get_weather", "argum', [d.CallStart("get_weather")]),
        (
            '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Pa',
            [d.CallStart("get_weather"), d.ArgumentsDelta('{"city": "Pa')],
        ),
        (
            '<tool_call>\n{"name": "apply_patch", "arguments": {"input": "a\\',
            [d.CallStart("apply_patch", kind="custom"), d.ArgumentsDelta("a\\")],
        ),
        ("Hi <tool_c", [d.TextDelta("Hi <tool_c")]),
        ("Hi <tool_call>", [d.TextDelta("Hi ")]),
        ("Hi <tool_call> \n", [d.TextDelta("Hi  \n")]),
    ],
)
def test_a_cut_call_stays_open(read: Read, written: str, deltas: list[d.Delta]) -> None:
    assert read("hermes", written) == deltas


def test_without_parallel_calls_only_the_first_is_made(read: Read) -> None:
    text = f"{call(PARIS)}\n{call(PARIS)}\nDone."
    assert read("hermes", text, parallel_tool_calls=False) == [*CALLED_PARIS, d.TextDelta("Done.")]


def test_a_call_ends_reasoning_that_was_not_closed(read: Read) -> None:
    assert read("hermes", f"<think>\nI must ask.\n{call(PARIS)}") == [
        d.ReasoningDelta("I must ask."),
        d.ItemEnd(),
        *CALLED_PARIS,
    ]


def test_reasoning_about_markup_is_reasoning(read: Read) -> None:
    assert read("hermes", "<think>I write <tool_call> first.</think>Yes.") == [
        d.ReasoningDelta("I write <tool_call> first."),
        d.ItemEnd(),
        d.TextDelta("Yes."),
    ]
    thought = "I write <tool_call>oops</tool_call> first."
    assert read("hermes", f"<think>{thought}</think>Yes.</tool_call>") == [
        d.ReasoningDelta(thought),
        d.ItemEnd(),
        d.TextDelta("Yes."),
    ]


def test_a_call_without_a_marker_must_start_the_message(read: Read) -> None:
    payload = '{"name": "get_weather", "parameters": {"city": "Paris"}}'
    assert read("llama3_json", f" {payload}") == CALLED_PARIS
    assert read("llama3_json", f"So: {payload}") == [d.TextDelta(f"So: {payload}")]


def test_a_call_without_a_marker_may_follow_another_and_an_end_marker(read: Read) -> None:
    payload = '{"name": "get_weather", "parameters": {"city": "Paris"}}'
    text = f"{payload}<|eom_id|>{payload}"
    assert read("llama3_json", text) == [*CALLED_PARIS, *CALLED_PARIS]
    assert read("llama3_json", text, cuts=range(1, len(text))) == [*CALLED_PARIS, *CALLED_PARIS]


def test_calls_without_markers_need_no_separator(read: Read) -> None:
    text = "[get_weather(city='Paris')][get_weather(city='Paris')]"
    assert read("pythonic", text) == [*CALLED_PARIS, *CALLED_PARIS]
    assert read("pythonic", text, cuts=range(1, len(text))) == [*CALLED_PARIS, *CALLED_PARIS]


def test_json_that_is_no_call_is_a_message(read: Read) -> None:
    assert read("llama3_json", '{"name": "Bob", "age": 3}') == [
        d.TextDelta('{"name": "Bob", "age": 3}')
    ]


def test_types_of_xml_arguments_come_from_the_schema(read: Read) -> None:
    def parameter(name: str, value: str) -> str:
        return f"<parameter={name}>\n{value}\n</parameter>\n"

    written = (
        parameter("city", '12 "a"\n\n<b>')
        + parameter("days", "3")
        + parameter("units", "None")
        + parameter("places", '["a", "b"]')
        + parameter("other", "4")
    )
    text = f"<tool_call>\n<function=get_weather>\n{written}</function>\n</tool_call>"
    expected = (
        r'{"city": "12 \"a\"\n\n<b>", "days": 3, "units": null, "places": ["a", "b"], "other": "4"}'
    )
    assert read("qwen3_coder", text)[1] == d.ArgumentsDelta(expected)


def test_python_beyond_literals_is_text(read: Read) -> None:
    text = "[get_weather(city=open('x').read())]"
    assert read("pythonic", text) == [d.TextDelta(text)]


def test_a_mistral_call_may_have_its_own_id(read: Read) -> None:
    text = '[TOOL_CALLS]get_weather[CALL_ID]a1b2c3d4e[ARGS]{"city": "Paris"}'
    assert read("mistral", text)[0] == d.CallStart("get_weather", "a1b2c3d4e")


def test_a_refusal_is_a_refusal(read: Read) -> None:
    assert read("scripted", "Sorry.\n\n<|refusal|>I will not.<|/refusal|>") == [
        d.TextDelta("Sorry."),
        d.RefusalDelta("I will not."),
    ]


def test_markers_inside_a_json_answer_are_its_text(read: Read) -> None:
    answer = '{"a": "<think>b</think>", "c": "<tool_call>"}'
    asked = TextConfig(format={"type": "json_object"})
    text = f"<think>Hm.</think>\n\n{answer}<|im_end|>"
    assert read("hermes", text, text=asked)[-1] == d.TextDelta(answer)


# --- markers of other families ------------------------------------------------------------------


@pytest.mark.parametrize("marker", END_TOKENS)
@pytest.mark.parametrize("family", ["hermes", "mistral", "llama3_json", "minimax_m3", "plain"])
def test_no_end_of_a_turn_is_text(read: Read, family: str, marker: str) -> None:
    for text in (f"Hi.{marker}", f"Hi.{marker}\n", f"Hi.{marker}{marker}<|im_end|> {marker}"):
        [message] = read(family, text)
        assert isinstance(message, d.TextDelta)
        assert message.text.rstrip() == "Hi."
        assert read(family, text, cuts=range(1, len(text))) == read(family, text)


@pytest.mark.parametrize("marker", ["<|eot_id|>", "<end_of_turn>", "<|return|>"])
def test_the_end_of_a_turn_of_another_family_may_be_named(read: Read, marker: str) -> None:
    for text in (f"It is `{marker}`.", f"{marker} {marker}\n\nis it", f"A {marker}\n{marker}s"):
        assert read("hermes", text) == [d.TextDelta(text)]
        assert read("hermes", text, cuts=range(1, len(text))) == [d.TextDelta(text)]
    text = f"A {marker}<|im_end|> b"
    assert read("hermes", text) == [d.TextDelta(f"A {marker} b")]


def test_an_end_of_another_family_is_dropped_after_reasoning_calls_and_json(read: Read) -> None:
    assert read("hermes", "<think>Hm.<|eot_id|>\n") == [d.ReasoningDelta("Hm.")]
    assert read("hermes", f"{call(PARIS)}\n<|eot_id|>") == CALLED_PARIS
    asked = TextConfig(format={"type": "json_object"})
    assert read("hermes", '{"a": "<|eot_id|>"}<|eot_id|>', text=asked) == [
        d.TextDelta('{"a": "<|eot_id|>"}')
    ]


@pytest.mark.parametrize("text", ["<s>no</s>", "a b <eos>", "[EOS]"])
def test_what_may_well_be_a_text_is_text(read: Read, text: str) -> None:
    assert read("hermes", text) == [d.TextDelta(text)]


def test_many_ends_of_another_family_are_read_in_linear_time(read: Read) -> None:
    text = "<|eot_id|>" * 20_000 + "."
    start = perf_counter()
    assert read("hermes", text) == [d.TextDelta(text)]
    assert perf_counter() - start < 5


# --- tokens of reasoning --------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 100])
def test_reasoning_tokens_are_those_between_the_markers(parser_of: Build, size: int) -> None:
    parser = parser_of("think")
    text = "<think>Let me think twice.</think>Two words."
    ids = parser._tokenizer.encode(text, special=True)
    for start in range(0, len(ids), size):
        step = ids[start : start + size]
        parser.feed(Step(text=parser._tokenizer.decode(step), token_ids=step))
    parser.end()
    assert parser.reasoning_tokens == len(
        parser._tokenizer.encode("Let me think twice.", special=False)
    )


def test_reasoning_is_encoded_to_count_its_tokens_if_its_markers_are_no_tokens() -> None:
    class Letters:
        def encode(self, text: str, *, special: bool) -> list[int]:
            return [ord(letter) for letter in text]

        def decode(self, token_ids: object) -> str:
            return ""

        def token_id(self, text: str) -> int | None:
            return None

    parser = ChatTemplateParser(FAMILIES["think"], Letters(), turn=Turn(model="m", items=()))
    for letter in "<think>\nabc de\n</think>\n\nxyz":
        parser.feed(Step(text=letter))
    parser.end()
    assert parser.reasoning_tokens == len("abc de")


@pytest.mark.parametrize("markers", [("[THINK]", "[/THINK]"), ("<think>", "</think>")])
@pytest.mark.parametrize("starts_in_reasoning", [True, False])
def test_reasoning_may_be_between_other_markers(
    read: Read, markers: tuple[str, str], starts_in_reasoning: bool
) -> None:
    begin, end = markers
    text = f"{'' if starts_in_reasoning else begin}\nLet me think.\n{end}\n\nHello."
    for cuts in ((), range(1, len(text))):
        assert read("mistral", text, cuts=cuts, starts_in_reasoning=starts_in_reasoning) == [
            d.ReasoningDelta("Let me think."),
            d.ItemEnd(),
            d.TextDelta("Hello."),
        ]


@pytest.mark.parametrize("tokens", [("[THINK]", "[/THINK]"), ("<think>", "</think>"), ()])
@pytest.mark.parametrize("starts_in_reasoning", [True, False])
@pytest.mark.parametrize("markers", [("[THINK]", "[/THINK]"), ("<think>", "</think>")])
def test_reasoning_tokens_are_counted_whichever_markers_are_tokens(
    markers: tuple[str, str], starts_in_reasoning: bool, tokens: tuple[str, ...]
) -> None:
    tokenizer = WordTokenizer(tokens)
    parser = ChatTemplateParser(
        FAMILIES["mistral"],
        tokenizer,
        turn=Turn(model="m", items=()),
        starts_in_reasoning=starts_in_reasoning,
    )
    begin, end = markers
    text = f"{'' if starts_in_reasoning else begin}Let me think twice.{end}Two words."
    for token in tokenizer.encode(text, special=True):
        parser.feed(Step(text=tokenizer.decode([token]), token_ids=[token]))
    parser.end()
    assert parser.reasoning_tokens == len(tokenizer.encode("Let me think twice.", special=False))


# --- steps ----------------------------------------------------------------------------------------


def test_a_whole_turn_in_one_step_gives_few_deltas(parser_of: Build) -> None:
    parser = parser_of("hermes")
    text = "a < b\n\nc <d> \n" * 1000
    assert parser.feed(Step(text=text)) == [d.TextDelta(text.rstrip())]
    assert parser.end() == [d.TextDelta(" \n")]


def test_a_step_without_text_gives_nothing(parser_of: Build) -> None:
    assert parser_of("hermes").feed(Step(token_ids=(5,))) == []


def test_an_invalid_schema_does_not_break_the_parser(read: Read) -> None:
    odd = ToolSpec(name="odd", parameters={"properties": {"a": {"type": 3, "anyOf": 4, "enum": 5}}})
    text = "<function=odd>\n<parameter=a>\n1\n</parameter>\n</function>"
    assert read("qwen3_coder", text, tools=[odd])[1] == d.ArgumentsDelta('{"a": "1"}')


DELETE = '{"type": "delete_file", "path": "a.txt"}'
TYPED_CALLS = {
    "hermes": '<tool_call>\n{"name": "apply_patch", "arguments": {"operation": %s}}\n</tool_call>',
    "qwen3_coder": "<tool_call>\n<function=apply_patch>\n<parameter=operation>\n%s\n</parameter>\n"
    "</function>\n</tool_call>",
    "pythonic": "[apply_patch(operation=%s)]",
}


@pytest.mark.parametrize("family", TYPED_CALLS)
def test_a_call_of_a_typed_tool_has_its_kind_and_valid_arguments(read: Read, family: str) -> None:
    (tool,) = make_offer([ToolDefinition(tool=ApplyPatch(), path="tools[0]")], None).specs
    start, arguments, *_ = read(family, TYPED_CALLS[family] % DELETE, tools=(tool,))
    assert start == d.CallStart("apply_patch", kind="apply_patch")
    assert isinstance(arguments, d.ArgumentsDelta)
    assert item_fields_of("apply_patch", arguments.text) == {
        "operation": {"type": "delete_file", "path": "a.txt"}
    }


@pytest.mark.parametrize("is_whole", [True, False])
def test_a_parser_needs_no_garbage_collector(parser_of: Build, is_whole: bool) -> None:
    gc.disable()  # it would hide a cycle if it came just now
    try:
        parser = parser_of("hermes")
        parser.feed(Step(text=f"<think>Hm.</think>Hi.{call(PARIS)} And"))
        if is_whole:
            parser.end()
        left = weakref.ref(parser)
        del parser
        assert left() is None
    finally:
        gc.enable()
