"""A damaged header is read as what it can only mean, and none of its words is the user's."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from antiphon.adapters.formats.harmony import HarmonyParser
from antiphon.adapters.formats.harmony.encoding import load_encoding
from antiphon.application.ports import Step
from antiphon.domain import deltas as d

from .conftest import a_turn, feed, joined

ENCODING = load_encoding()
END = d.ItemEnd()
HI = "Hi there."
BEFORE = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
"""A sound message, and the start of another; the prompt ends with such a start, too."""

FINAL = [d.TextDelta(HI, phase="final_answer"), END]
PREAMBLE = [d.TextDelta(HI, phase="commentary"), END]
REASONING = [d.ReasoningDelta(HI), END]
CALL = [d.CallStart("get_weather"), d.ArgumentsDelta('{"city": "Paris"}'), END]
TO = "to=functions.get_weather"

HEADERS: Mapping[str, tuple[Sequence[str], Sequence[d.Delta]]] = {
    "an answer": (
        [
            "assistant<|channel|>final", "assistant assistant<|channel|>final",
            "<|start|>assistant<|channel|>final", "<|start|><|channel|>final",
            "<|start|><|start|>assistant<|channel|>final",
            "<|start|>assistantassistant<|channel|>final", "<|start|>asistant<|channel|>final",
            "<|start|>Assistant<|channel|>final", "<|start|>user<|channel|>final",
            "<|start|>asistant<|start|>assistant<|channel|>final",
            "asistant<|channel|>final", "final", " final", "<|channel|><|channel|>final",
            "<|channel|>final<|channel|>final", "<|channel|>finalfinal", "<|channel|>final final",
            "<|channel|>fnal", "<|channel|>Final", "assistantfnal", "<|channel|>finale",
            "<|channel|>finally", "<|channel|>fin", "<|channel|>final<|channel|>",
            "<|channel|>final<|start|>",
            "<|channel|>final<|start|>assistant", "<|channel|>assistant final",
            "<|channel|>analysis<|start|>assistant<|channel|>final", "<|channel|>final to=user",
            "<|channel|>comment<|channel|>final", "<|channel|>final json", "<|channel|>finaljson",
            "<|channel|>final<|constrain|>json", "",
        ],
        FINAL,
    ),
    "reasoning": (
        [
            "assistant<|channel|>analysis", "<|start|>assistantanalysis", "analysis",
            "<|channel|>anlysis", "<|channel|>Analysis", "<|channel|>analysisanalysis",
            "<|channel|>analysis<|start|>", "<|channel|>analysis<|start|>assistant",
            "<|start|>system<|channel|>analysis",
        ],
        REASONING,
    ),
    "a preamble": (
        [
            "<|channel|>comentary", "<|channel|>commentary commentary", "<|channel|>comment",
            "<|channel|>Commentary:", "assistantcommentary", "<|channel|>commentary<|start|>",
        ],
        PREAMBLE,
    ),
    "a call": (
        [
            f"assistantcommentary {TO} json", f"<|channel|>comentary {TO} json",
            f"<|channel|>commentary<|channel|>commentary {TO}", f"<|channel|>{TO} commentary",
            f"<|channel|>commentary{TO} code", f"<|start|>{TO}<|channel|>commentary json",
            f"<|start|>{TO} assistant<|channel|>commentary",
            f"<|channel|>commentary json json {TO}",
            f"<|channel|>commentary <|constrain|>json<|constrain|>{TO}",
            f"<|channel|>commentary {TO}<|start|> json",
            f"<|start|>asistant {TO}<|channel|>commentary",
            f" {TO}<|start|><|channel|>commentary json", f"<|channel|>commentary {TO} {TO}",
            f" {TO}<|channel|>get_weather<|channel|>commentary json", "<|channel|>get_weather",
            "<|channel|>commentary functions.get_weather", f"assistant{TO}<|channel|>commentary",
            "<|channel|>commentary to:functions.get_weather json", f"commentary {TO}", TO,
            f"<|channel|>commentary {TO}<|start|>assistant",
        ],
        CALL,
    ),
}  # fmt: skip
ROWS = [(header, deltas) for headers, deltas in HEADERS.values() for header in headers]


def body_of(deltas: Sequence[d.Delta]) -> str:
    return '{"city": "Paris"}' if deltas is CALL else HI


def parse(markup: str, *, size: int) -> list[d.Delta]:
    return joined(
        feed(HarmonyParser(ENCODING, a_turn()), ENCODING.encode_markup(markup), size=size)
    )


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize("before", ["", BEFORE], ids=["at the start", "after reasoning"])
@pytest.mark.parametrize(("header", "deltas"), ROWS, ids=[header for header, _ in ROWS])
def test_it_is_read_as_what_it_can_only_mean(
    header: str, deltas: Sequence[d.Delta], before: str, size: int
) -> None:
    reasoning = [d.ReasoningDelta("Hm."), END] if before else []
    turn = f"{before}{header}<|message|>{body_of(deltas)}<|end|>"
    assert parse(turn, size=size) == [*reasoning, *deltas]


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(
    "header",
    [
        "well<|channel|>final", " assistant well<|channel|>final", "<|channel|>final well",
        "<|start|>well<|channel|>final", "<|start|>assistant well<|channel|>final",
        "<|channel|>well", "well", "<|channel|>well<|channel|>final",
    ],
)  # fmt: skip
def test_other_words_in_it_are_reasoning(header: str, size: int) -> None:
    turn = f"{header}<|message|>{HI}<|return|>"
    assert parse(turn, size=size) == [d.ReasoningDelta("well"), END, *FINAL]


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(
    ("markup", "deltas"),
    [
        (f"<|channel|>final{HI}", FINAL),
        (f"<|channel|>finalfinal{HI}", FINAL),
        (f"<|start|>assistant<|channel|>final{HI}", FINAL),
        (f"<|start|>assistant{HI}", FINAL),
        (f"<|channel|>analysis{HI}", REASONING),
        (f"<|channel|>commentary{HI}", PREAMBLE),
        (f'<|channel|>comentary {TO} json{{"city": "Paris"}}', CALL),
        (f'<|channel|>commentary {TO}{{"city": "Paris"}}', CALL),
    ],
)
def test_one_without_a_message_token_leaves_the_text_whole(
    markup: str, deltas: Sequence[d.Delta], size: int
) -> None:
    assert parse(f"{markup}<|end|>", size=size) == deltas


@pytest.mark.parametrize(
    "markup",
    ["<|channel|>fnal", "<|start|>asistan", "<|channel|>comentary to=functions.get_weather"],
)
def test_one_that_is_cut_short_is_no_text(markup: str) -> None:
    assert parse(markup, size=1) == []


@pytest.mark.parametrize(
    ("channel", "deltas"), [("fnal", FINAL), ("anlysis", REASONING), ("comentary", PREAMBLE)]
)
def test_a_misspelled_channel_before_a_text_is_no_text(
    channel: str, deltas: Sequence[d.Delta]
) -> None:
    sound = "final" if deltas is FINAL else "analysis" if deltas is REASONING else "commentary"
    misspelled = parse(f"<|channel|>{channel} {HI}<|end|>", size=1)
    assert misspelled == parse(f"<|channel|>{sound} {HI}<|end|>", size=1)


@pytest.mark.timeout(20)
@pytest.mark.parametrize(
    "words", ["", "assistant", f" {TO}", "<|channel|>final", f"assistant<|channel|>commentary {TO}"]
)
def test_endless_starts_cost_as_much_as_there_are(words: str) -> None:
    starts = f"<|start|>{words}" * 10_000
    shown = parse(f"{starts}<|start|>assistant<|channel|>final<|message|>{HI}<|end|>", size=1)
    assert shown[-2:] == FINAL


def test_a_word_of_the_text_is_no_channel() -> None:
    said = parse("<|channel|>finally it works<|return|>", size=1)
    assert said == [d.TextDelta("finally it works", phase="final_answer"), END]


# --- mutations of sound headers -------------------------------------------------------------------

SOUND: Sequence[tuple[Sequence[str], Sequence[d.Delta]]] = [
    (["<|start|>", "assistant", "<|channel|>", "final"], FINAL),
    (["<|channel|>", "final"], FINAL),
    (["<|start|>", "assistant", "<|channel|>", "final", " ", "<|constrain|>", "json"], FINAL),
    (["<|start|>", "assistant", "<|channel|>", "commentary", f" {TO}", " json"], CALL),
    (["<|start|>", "assistant", f" {TO}", "<|channel|>", "commentary", " json"], CALL),
]
WELL = " well "
Mutation = Callable[[Sequence[str], int], Sequence[str]]


def _doubled(parts: Sequence[str], place: int) -> Sequence[str]:
    return [*parts[:place], parts[place], parts[place], *parts[place + 1 :]]


def _left_out(parts: Sequence[str], place: int) -> Sequence[str]:
    # Without its channel, an answer is still one; without its recipient, a call is none.
    kept = parts[place] == f" {TO}"
    return parts if kept else [*parts[:place], *parts[place + 1 :]]


def _misspelled(parts: Sequence[str], place: int) -> Sequence[str]:
    word = parts[place]
    is_word = word.isalpha() and len(word) > 4
    return [*parts[:place], word[:2] + word[3:] if is_word else word, *parts[place + 1 :]]


def _in_capitals(parts: Sequence[str], place: int) -> Sequence[str]:
    word = parts[place]
    return [*parts[:place], word.title() if word.isalpha() else word, *parts[place + 1 :]]


def _with(word: str) -> Mutation:
    return lambda parts, place: [*parts[:place], word, *parts[place:]]


MUTATIONS: Sequence[Mutation] = [
    _doubled, _left_out, _misspelled, _in_capitals, _with("<|start|>"), _with("assistant"),
    _with(WELL), _with("<|channel|>"),
]  # fmt: skip


@settings(max_examples=300)
@given(
    st.sampled_from(SOUND),
    st.lists(st.tuples(st.sampled_from(MUTATIONS), st.integers(0, 6)), min_size=1, max_size=2),
    st.lists(st.integers(1, 40)),
)
def test_a_mutation_of_a_sound_header_loses_no_body_and_shows_no_header(
    sound: tuple[Sequence[str], Sequence[d.Delta]],
    mutations: Sequence[tuple[Mutation, int]],
    cuts: Sequence[int],
) -> None:
    parts, deltas = sound
    for mutate, place in mutations:
        parts = mutate(parts, place % len(parts))
    header = "".join(parts)
    assume("<|start|>" not in header.partition(WELL)[2])  # that is a text between messages
    body = body_of(deltas)
    ids = ENCODING.encode_markup(f"{header}<|message|>{body}<|return|>")
    parser = HarmonyParser(ENCODING, a_turn())
    places = [0, *sorted({min(cut, len(ids)) for cut in cuts}), len(ids)]
    steps = [ids[start:end] for start, end in pairwise(places)]
    read = [delta for step in steps for delta in parser.feed(Step(token_ids=step))] + parser.end()
    shown = [delta for delta in joined(read) if not isinstance(delta, d.ReasoningDelta | d.ItemEnd)]
    assert shown == [delta for delta in deltas if delta != END]
