"""Output of gpt-oss, well-formed or malformed, becomes the right deltas."""

from __future__ import annotations

import pytest
from openai_harmony import Role, StreamableParser

from antiphon.adapters.formats.harmony import HarmonyParser
from antiphon.adapters.formats.harmony.encoding import Encoding
from antiphon.adapters.formats.harmony.parser import MAX_STRAY_TOKENS
from antiphon.application.ports import Step
from antiphon.domain import deltas as d
from antiphon.domain.content import Logprob
from antiphon.domain.tools import ToolChoice
from antiphon.domain.vocabulary.repairs import REPAIRS

from .conftest import Parse, a_turn, feed, joined

FINAL = "final_answer"
COMMENTARY = "commentary"
END = d.ItemEnd()


def text(said: str, phase: str = FINAL) -> d.Delta:
    return d.TextDelta(said, phase=phase)


CALL = [d.CallStart("get_weather"), d.ArgumentsDelta('{"city": "Paris"}'), END]

WELL_FORMED: dict[str, tuple[str, list[d.Delta]]] = {
    "reasoning, then the answer": (
        "<|channel|>analysis<|message|>Hm.<|end|>"
        "<|start|>assistant<|channel|>final<|message|>Hello!<|return|>",
        [d.ReasoningDelta("Hm."), END, text("Hello!"), END],
    ),
    "reasoning in two messages": (
        "<|channel|>analysis<|message|>One.<|end|>"
        "<|start|>assistant<|channel|>analysis<|message|>Two.<|end|>",
        [d.ReasoningDelta("One."), END, d.ReasoningDelta("Two."), END],
    ),
    "preamble, then a call": (
        "<|channel|>commentary<|message|>Let me look.<|end|><|start|>assistant<|channel|>"
        'commentary to=functions.get_weather <|constrain|>json<|message|>{"city": "Paris"}<|call|>',
        [text("Let me look.", COMMENTARY), END, *CALL],
    ),
    "a function of a namespace": (
        "<|channel|>commentary to=functions.crm__find <|constrain|>json<|message|>{}<|call|>",
        [d.CallStart("find", namespace="crm"), d.ArgumentsDelta("{}"), END],
    ),
    "a custom tool": (
        "<|channel|>commentary to=functions.note <|constrain|>json<|message|>"
        '{"input": "a \\"b\\"\\n\\ud83d\\ude00"}<|call|>',
        [d.CallStart("note", kind="custom"), d.ArgumentsDelta('a "b"\n😀'), END],
    ),
    "a refusal": (
        "<|channel|>final <|constrain|>refusal<|message|>I won't.<|return|>",
        [d.RefusalDelta("I won't."), END],
    ),
    "an answer in JSON": (
        '<|channel|>final <|constrain|>json<|message|>{"a": 1}<|return|>',
        [text('{"a": 1}'), END],
    ),
    "an answer that is cut": (
        "<|channel|>final<|message|>Once upon",
        [text("Once upon")],
    ),
    "two calls": (
        "<|channel|>commentary to=functions.get_weather json<|message|>"
        '{"city": "Paris"}<|call|><|start|>assistant<|channel|>commentary '
        "to=functions.crm__find json<|message|>{}<|call|>",
        [*CALL, d.CallStart("find", namespace="crm"), d.ArgumentsDelta("{}"), END],
    ),
}


@pytest.mark.parametrize(("markup", "deltas"), WELL_FORMED.values(), ids=WELL_FORMED)
def test_well_formed_output_gives_exactly_these_deltas(
    parse: Parse, parser: HarmonyParser, markup: str, deltas: list[d.Delta]
) -> None:
    assert parse(markup) == deltas
    assert (parser.repair_count, parser.repairs) == (0, set())


ARGUMENTS = '<|message|>{"city": "Paris"}'
TO = "to=functions.get_weather"
CALL_HEADERS = {
    "the library's": f"<|channel|>commentary {TO} <|constrain|>json",
    "in analysis": f"<|channel|>analysis {TO} code",
    "in final": f"<|channel|>final {TO} json",
    "recipient with the role": f" {TO}<|channel|>commentary json",
    "recipient twice": f" {TO}<|channel|>commentary {TO} json",
    "recipient after the type": f"<|channel|>commentary json {TO}",
    "recipient after constrain": f"<|channel|>commentary <|constrain|>json {TO}",
    "no type at all": f"<|channel|>commentary {TO}",
    "no space before constrain": f"<|channel|>commentary {TO}<|constrain|>json",
    "type glued to the name": f"<|channel|>commentary {TO}json",
    "a channel after the name": f" {TO}<|channel|>commentary<|channel|>commentary",
    "no functions. in front": "<|channel|>commentary to=get_weather json",
    "no channel": f" {TO} json",
    "role repeated": f"assistant<|channel|>commentary {TO} json",
    "two starts": f"<|start|>assistant<|start|>assistant<|channel|>commentary {TO}",
}
CALL_ENDS = ["<|call|>", "<|return|>", "<|end|>", "<|endoftext|>", "<|start|>", "<|channel|>"]


@pytest.mark.parametrize("header", CALL_HEADERS.values(), ids=CALL_HEADERS)
def test_every_way_to_write_a_call_is_the_same_call(parse: Parse, header: str) -> None:
    assert parse(f"{header}{ARGUMENTS}<|call|>") == CALL


@pytest.mark.parametrize("end", CALL_ENDS)
def test_a_call_may_end_with_any_of_these_tokens(parse: Parse, end: str) -> None:
    assert parse(f"<|channel|>commentary {TO} json{ARGUMENTS}{end}") == CALL


def test_arguments_may_stand_in_the_header(parse: Parse) -> None:
    start, arguments, end = parse(f'<|channel|>commentary {TO} json{{"city": "Paris"}}<|call|>')
    assert [start, d.ArgumentsDelta(arguments.text.strip()), end] == CALL  # type: ignore[attr-defined]


TOLERATED: dict[str, tuple[str, list[d.Delta]]] = {
    "a message without a start": (
        "<|channel|>analysis<|message|>a<|end|><|channel|>final<|message|>b<|return|>",
        [d.ReasoningDelta("a"), END, text("b"), END],
    ),
    "a custom tool's text without its wrapping": (
        "<|channel|>commentary to=functions.note code<|message|>{ plain<|call|>",
        [d.CallStart("note", kind="custom"), d.ArgumentsDelta("{ plain"), END],
    ),
}


@pytest.mark.parametrize(("markup", "deltas"), TOLERATED.values(), ids=TOLERATED)
def test_deviations_without_stray_text_are_not_counted(
    parse: Parse, parser: HarmonyParser, markup: str, deltas: list[d.Delta]
) -> None:
    assert parse(markup) == deltas
    assert parser.repair_count == 0


MALFORMED: dict[str, tuple[str, list[d.Delta]]] = {
    "no markup at all": ("Hello there.", [text("Hello there.")]),
    "text that begins like a header": ("assistant is my role", [text("assistant is my role")]),
    "a refusal without a channel": (
        "<|message|>I can't help with that.<|end|>",
        [text("I can't help with that."), END],
    ),
    "no message token": (
        "<|channel|>final Hello there<|return|>",
        [text(" Hello there"), END],
    ),
    "reasoning without a message token": (
        "<|channel|>analysis We think<|end|>",
        [d.ReasoningDelta(" We think"), END],
    ),
    "words in a header": (
        "<|channel|>final well now<|message|>Hi<|return|>",
        [d.ReasoningDelta("well now"), END, text("Hi"), END],
    ),
    "words in the header of reasoning": (
        "<|channel|>analysis well<|message|>hm<|end|>",
        [d.ReasoningDelta("well\nhm"), END],
    ),
    "words in the header of a call": (
        "<|channel|>commentary to=functions.crm__find and so<|message|>{}<|call|>",
        [
            d.ReasoningDelta("and so"),
            END,
            d.CallStart("find", namespace="crm"),
            d.ArgumentsDelta("{}"),
            END,
        ],
    ),
    "an unknown channel": (
        "<|channel|>musing<|message|>Hi<|end|>",
        [d.ReasoningDelta("musing"), END, text("Hi"), END],
    ),
    "text between messages": (
        "<|channel|>analysis<|message|>a<|end|>stray<|start|>assistant"
        "<|channel|>final<|message|>b<|return|>",
        [d.ReasoningDelta("a"), END, text("stray"), END, text("b"), END],
    ),
    "a message without an end": (
        "<|channel|>analysis<|message|>a<|start|>assistant<|channel|>final<|message|>b<|return|>",
        [d.ReasoningDelta("a"), END, text("b"), END],
    ),
    "neither end nor start": (
        "<|channel|>analysis<|message|>a<|channel|>final<|message|>b<|return|>",
        [d.ReasoningDelta("a"), END, text("b"), END],
    ),
    "a stray special token": (
        "<|channel|>final<|message|>a<|constrain|>b<|message|>c<|return|>",
        [text("abc"), END],
    ),
    "an unknown tool": (
        "<|channel|>commentary to=functions.get_weath json<|message|>{}<|call|>",
        [text("to=functions.get_weath {}", COMMENTARY), END],
    ),
    "a server's tool that is not there": (
        "<|channel|>analysis to=browser.search code<|message|>{}<|call|>",
        [text("to=browser.search {}", COMMENTARY), END],
    ),
    "a tool's output, made up": (
        "<|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>22<|end|>",
        [d.ReasoningDelta("functions.get_weather"), END, text("22", COMMENTARY), END],
    ),
    "words after arguments": (
        '<|channel|>commentary to=functions.crm__find json<|message|>{"a": "}"}\n] Done.<|call|>',
        [
            d.CallStart("find", namespace="crm"),
            d.ArgumentsDelta('{"a": "}"}'),
            END,
            text("Done.", COMMENTARY),
            END,
        ],
    ),
    "text after a custom tool's text": (
        '<|channel|>commentary to=functions.note json<|message|>{"input": "a"} more<|call|>',
        [
            d.CallStart("note", kind="custom"),
            d.ArgumentsDelta("a"),
            END,
            text("} more", COMMENTARY),
            END,
        ],
    ),
}


@pytest.mark.parametrize(("markup", "deltas"), MALFORMED.values(), ids=MALFORMED)
def test_malformed_output_loses_no_text_and_is_counted(
    parse: Parse, parser: HarmonyParser, markup: str, deltas: list[d.Delta]
) -> None:
    assert parse(markup) == deltas
    assert 1 <= parser.repair_count <= 2  # two if a message started before the last one ended
    assert parser.repairs
    assert parser.repairs <= REPAIRS.keys()


@pytest.mark.parametrize(
    "markup",
    [
        "<|channel|>",
        "<|channel|>comment",
        "<|channel|>analysis",
        "<|start|>assis",
        "<|channel|>final to",
    ],
)
def test_a_header_that_is_cut_short_is_no_text(parse: Parse, markup: str) -> None:
    assert parse(markup) == []


def test_a_call_without_arguments_gets_an_empty_object(parse: Parse) -> None:
    deltas = parse("<|channel|>commentary to=functions.get_weather json<|message|><|call|>")
    assert deltas == [d.CallStart("get_weather"), d.ArgumentsDelta("{}"), END]


def test_a_call_without_a_message_token_gets_an_empty_object(parse: Parse) -> None:
    deltas = parse("<|channel|>commentary to=functions.get_weather<|call|>")
    assert deltas == [d.CallStart("get_weather"), d.ArgumentsDelta("{}"), END]


@pytest.mark.parametrize("surplus", ["]", "}", "}]", "\n]\n", ")"])
@pytest.mark.parametrize(
    ("name", "written", "arguments"),
    [
        ("get_weather", '{"city": "a\\\\"}', '{"city": "a\\\\"}'),
        ("get_weather", '{"c": [{"d": "\\"}"}]}', '{"c": [{"d": "\\"}"}]}'),
        ("note", '{"input": "a"}', "a"),
    ],
)
def test_surplus_brackets_after_arguments_are_no_text(
    parse: Parse, name: str, written: str, arguments: str, surplus: str
) -> None:
    markup = f"<|channel|>commentary to=functions.{name} json<|message|>{written}{surplus}<|call|>"
    assert parse(markup)[1:] == [d.ArgumentsDelta(arguments), END]


def test_a_call_that_is_cut_stays_open(parse: Parse) -> None:
    deltas = parse('<|channel|>commentary to=functions.get_weather json<|message|>{"ci')
    assert deltas == [d.CallStart("get_weather"), d.ArgumentsDelta('{"ci')]


def test_without_parallel_calls_only_the_first_call_is_made(encoding: Encoding) -> None:
    parser = HarmonyParser(encoding, a_turn(parallel_tool_calls=False))
    markup, _ = WELL_FORMED["two calls"]
    assert joined(feed(parser, encoding.encode_markup(markup))) == CALL


@pytest.mark.parametrize(
    "choice",
    [ToolChoice(mode="none"), ToolChoice(names=frozenset({"note"}))],
    ids=["none", "others"],
)
def test_a_tool_that_may_not_be_called_is_not_called(
    encoding: Encoding, choice: ToolChoice
) -> None:
    parser = HarmonyParser(encoding, a_turn(choice=choice))
    ids = encoding.encode_markup(f"<|channel|>commentary {TO} json{ARGUMENTS}<|call|>")
    assert joined(feed(parser, ids)) == [
        text('to=functions.get_weather {"city": "Paris"}', COMMENTARY),
        END,
    ]


def test_only_words_of_reasoning_count_as_reasoning(
    parser: HarmonyParser, encoding: Encoding
) -> None:
    feed(
        parser,
        encoding.encode_markup(
            "<|channel|>analysis<|message|>one two three<|end|><|start|>assistant<|channel|>"
            "commentary<|message|>not this<|end|><|start|>assistant<|channel|>commentary "
            "to=functions.get_weather json<|message|>{}<|call|>"
        ),
    )
    assert parser.reasoning_tokens == 3


def test_a_character_of_several_tokens_is_returned_whole(
    parser: HarmonyParser, encoding: Encoding
) -> None:
    said = encoding.encode("🫠")
    assert len(said) > 1
    ids = [*encoding.encode_markup("<|channel|>final<|message|>"), *said]
    deltas = [delta for token in ids for delta in parser.feed(Step(token_ids=[token]))]
    assert deltas == [text("🫠")]


def test_an_unfinished_character_becomes_a_replacement_character(
    parser: HarmonyParser, encoding: Encoding
) -> None:
    ids = [*encoding.encode_markup("<|channel|>final<|message|>"), encoding.encode("🫠")[0]]
    assert joined(feed(parser, ids)) == [text("\ufffd")]


def test_the_bytes_of_the_logprobs_spell_the_text(
    parser: HarmonyParser, encoding: Encoding
) -> None:
    ids = encoding.encode_markup("<|channel|>final<|message|>Hi 🫠!<|return|>")
    deltas: list[d.Delta] = []
    for start in range(0, len(ids), 2):
        part = ids[start : start + 2]
        logprobs = tuple(
            Logprob(token="?", logprob=-1.0, bytes=tuple(encoding.decode_bytes((token,))))
            for token in part
        )
        deltas += parser.feed(Step(token_ids=part, logprobs=logprobs))
    said = next(each for each in joined(deltas) if isinstance(each, d.TextDelta))
    spelled = b"".join(bytes(logprob.bytes) for logprob in said.logprobs)
    assert spelled.decode() == said.text == "Hi 🫠!"


def test_a_long_text_without_markup_is_not_held_back(
    parser: HarmonyParser, encoding: Encoding
) -> None:
    deltas = [
        delta
        for token in encoding.encode("Well" + " then" * MAX_STRAY_TOKENS)
        for delta in parser.feed(Step(token_ids=[token]))
    ]
    assert joined(deltas) == [text("Well" + " then" * MAX_STRAY_TOKENS)]


def test_an_endless_header_is_text(parser: HarmonyParser, encoding: Encoding) -> None:
    ids = encoding.encode_markup("<|channel|>final" + " and" * 300)
    deltas = [delta for token in ids for delta in parser.feed(Step(token_ids=[token]))]
    assert joined(deltas) == [text(" and" * 300)]


@pytest.mark.parametrize("token", [-1, 199_998, 200_013, 201_088, 2**40])
def test_tokens_without_a_meaning_are_dropped(
    parser: HarmonyParser, encoding: Encoding, token: int
) -> None:
    ids = encoding.encode_markup("<|channel|>final<|message|>a")
    assert joined(feed(parser, [token, *ids, token, *encoding.encode("b")])) == [text("ab")]


@pytest.mark.parametrize(
    "key",
    [key for key in WELL_FORMED if key not in ("a refusal", "a custom tool", "an answer in JSON")],
)
def test_it_agrees_with_the_library_on_well_formed_output(
    parse: Parse, encoding: Encoding, key: str
) -> None:
    markup, _ = WELL_FORMED[key]
    library = StreamableParser(encoding._library, Role.ASSISTANT)
    for token in encoding.encode_markup(markup):
        library.process(token)
    if not markup.endswith("|>"):
        library.process_eos()
    theirs = [(m.channel, m.recipient, m.content[0].text) for m in library.messages]
    ours: list[tuple[str, str | None, str]] = []
    for delta in parse(markup):
        match delta:
            case d.ReasoningDelta():
                ours.append(("analysis", None, delta.text))
            case d.TextDelta():
                channel = "final" if delta.phase == FINAL else "commentary"
                ours.append((channel, None, delta.text))
            case d.CallStart():
                name = f"{delta.namespace}__{delta.name}" if delta.namespace else delta.name
                ours.append(("commentary", f"functions.{name}", ""))
            case d.ArgumentsDelta():
                ours[-1] = (*ours[-1][:2], delta.text)
    assert ours == theirs


def test_one_step_of_a_long_output_is_cheap(parser: HarmonyParser, encoding: Encoding) -> None:
    ids = encoding.encode_markup("<|channel|>final<|message|>" + "word " * 20_000)
    assert len(parser.feed(Step(token_ids=ids))) == 1
