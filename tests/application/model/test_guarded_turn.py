"""What a model writes, as guards let it pass: for any deltas in any portions, window and word."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Collection, Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.domain.delta_strategies import running

from antiphon.application.model.guards.ask_guards import Guards, GuardTerms, NamedGuard
from antiphon.application.model.guards.guarded_turn import GuardedTurn
from antiphon.application.ports import Guard, Json, ModelTurn
from antiphon.application.telemetry.recorder import RunRecorder
from antiphon.domain import deltas as d
from antiphon.domain import events as e
from antiphon.domain.access.callers import ANYBODY
from antiphon.domain.content import Logprob, TopLogprob, UrlCitation
from antiphon.domain.responses.guards import (
    PLACES,
    GuardPlace,
    GuardQuestion,
    Pass,
    Refuse,
    Replace,
    Stop,
    Verdict,
)
from antiphon.domain.responses.usage import TurnUsage

WORD = "abba"
MESSAGE = "No."
END = d.TurnEnd("stop", TurnUsage(input=3, output=2))


class Words(Guard):
    """Knows one word; `asked` are the questions."""

    def __init__(self, verdict: str = "refuse", places: Collection[GuardPlace] = PLACES) -> None:
        self._verdict = verdict
        self._places = places
        self.asked: list[GuardQuestion] = []

    @property
    def places(self) -> Collection[GuardPlace]:
        return self._places

    async def check(self, asked: GuardQuestion) -> Verdict:
        self.asked.append(asked)
        if WORD not in asked.text and WORD not in asked.tool:
            return Pass()
        if self._verdict == "mask":
            return Replace(asked.text.replace(WORD, "****"))
        return Refuse(MESSAGE) if self._verdict == "refuse" else Stop()


class Written(ModelTurn):
    """A turn that writes these batches."""

    def __init__(self, batches: Sequence[Sequence[d.Delta]]) -> None:
        self._batches = batches
        self.was_closed = False
        self.recorded: list[Any] = []

    async def __aiter__(self) -> AsyncGenerator[list[d.Delta]]:
        try:
            for batch in self._batches:
                yield [*batch]
        finally:
            self.was_closed = True

    async def aclose(self) -> None:
        pass

    def record_items(self, items: Sequence[Any]) -> None:
        self.recorded += items

    def messages(self) -> tuple[list[Json], list[Json]]:
        return [{"read": "x"}], [{"written": "y"}]

    def tokens_used(self) -> Sequence[TurnUsage]:
        return [TurnUsage(input=3, output=1)]


def guarded(
    guard: Guard, batches: Sequence[Sequence[d.Delta]], *, window: int = 0, runs_here: bool = False
) -> tuple[GuardedTurn, Written]:
    guards = Guards([NamedGuard(name="words", guard=guard)], GuardTerms(window=window))
    asked = guards.open(ANYBODY, response_id="resp_1", model="m", recorder=RunRecorder())
    assert asked is not None
    written = Written(batches)
    return GuardedTurn(written, asked, lambda _: runs_here), written


def read(turn: ModelTurn) -> list[list[d.Delta]]:
    async def collect() -> list[list[d.Delta]]:
        return [batch async for batch in aiter(turn)]

    return asyncio.run(collect())


def joined(batches: Sequence[Sequence[d.Delta]]) -> list[d.Delta]:
    return [delta for batch in batches for delta in batch]


def events_of(deltas: Sequence[d.Delta]) -> list[e.Event]:
    seq = running()
    return [event for delta in deltas for event in seq.feed(delta)]


def shown_in(deltas: Sequence[d.Delta]) -> str:
    """Return all that a reader of the events sees, and what clients join of it."""
    events = events_of(deltas)
    lines = [msgspec.json.encode(event).decode() for event in events]
    texts = "".join(
        event.delta
        for event in events
        if isinstance(event, e.TextDelta | e.RefusalDelta | e.ReasoningDelta | e.SummaryDelta)
    )
    return "\n".join([*lines, texts])


LETTERS = st.text(alphabet="ab ", min_size=1, max_size=5)
CITATION = d.AnnotationDelta(
    UrlCitation(start_index=0, end_index=1, url="https://a.example/", title="an abba site")
)
DELTAS = st.one_of(
    st.builds(d.TextDelta, LETTERS),
    st.builds(d.TextDelta, LETTERS, phase=st.just("commentary")),
    st.builds(d.ReasoningDelta, LETTERS),
    st.builds(d.SummaryDelta, LETTERS),
    st.builds(d.RefusalDelta, LETTERS),
    st.builds(d.ArgumentsDelta, LETTERS),
    st.just(d.CallStart("f")),
    st.just(d.ItemEnd()),
    st.just(CITATION),
)
TURNS = st.lists(st.lists(DELTAS, max_size=3), max_size=12)


@given(TURNS, st.integers(0, 12), st.sampled_from(["refuse", "stop", "mask"]), st.booleans())
def test_a_word_is_never_shown_however_it_is_split(
    batches: list[list[d.Delta]], window: int, verdict: str, runs_here: bool
) -> None:
    turn, written = guarded(Words(verdict), [*batches, [END]], window=window, runs_here=runs_here)
    deltas = joined(read(turn))
    assert WORD not in shown_in(deltas)
    assert isinstance(deltas[-1], d.TurnEnd)
    assert written.was_closed


@given(TURNS, st.integers(0, 12))
def test_what_guards_pass_is_what_the_model_wrote(
    batches: list[list[d.Delta]], window: int
) -> None:
    class Passing(Words):
        async def check(self, asked: GuardQuestion) -> Verdict:
            return Pass()

    deltas = [*joined(batches), END]
    turn, _ = guarded(Passing(), [*batches, [END]], window=window)
    assert joined(read(turn)) == deltas
    assert [msgspec.json.encode(each) for each in events_of(joined(read(turn)))] == [
        msgspec.json.encode(each) for each in events_of(deltas)
    ]


@given(st.lists(LETTERS, max_size=12), st.integers(4, 12))
def test_a_word_becomes_stars_wherever_it_is_if_the_window_is_as_long(
    pieces: list[str], window: int
) -> None:
    batches = [[d.TextDelta(piece)] for piece in pieces]
    turn, _ = guarded(Words("mask"), [*batches, [END]], window=window)
    shown = "".join(delta.text for delta in joined(read(turn)) if isinstance(delta, d.TextDelta))
    assert shown == "".join(pieces).replace(WORD, "****")


def test_text_goes_on_as_soon_as_guards_have_seen_the_window_after_it() -> None:
    pieces = [[d.TextDelta(letter)] for letter in "0123456789"]
    turn, _ = guarded(Words(), [*pieces, [END]], window=4)
    shown = [
        "".join(each.text for each in batch if isinstance(each, d.TextDelta))
        for batch in read(turn)
    ]
    assert shown == ["", "", "", "", "", "", "", "0123", "", "", "456789"]


@given(st.lists(st.sampled_from(["abba", "ab", " "]), max_size=60), st.integers(0, 12))
def test_a_text_with_many_words_goes_on_window_by_window(pieces: list[str], window: int) -> None:
    turn, _ = guarded(
        Words("mask"), [*([d.TextDelta(each)] for each in pieces), [END]], window=window
    )
    written = shown = 0
    for batch, piece in zip(read(turn), [*pieces, ""], strict=True):
        shown += sum(len(each.text) for each in batch if isinstance(each, d.TextDelta))
        written += len(piece)
        assert written - shown <= 2 * max(1, window) + len("abba")


def test_a_guard_is_asked_once_for_each_window() -> None:
    guard = Words()
    pieces = [[d.TextDelta("word ")] for _ in range(100)]
    turn, _ = guarded(guard, [*pieces, [END]], window=50)
    read(turn)
    assert len(guard.asked) == 10


def test_a_call_is_shown_only_when_it_is_whole() -> None:
    batches = [[d.CallStart("f")], [d.ArgumentsDelta('{"a":')], [d.ArgumentsDelta("1}")], [END]]
    turn, _ = guarded(Words(), batches)
    assert read(turn) == [[], [], [], joined(batches)]


def test_a_call_that_the_server_runs_is_refused_without_its_arguments() -> None:
    batches = [[d.CallStart("f"), d.ArgumentsDelta('{"a": "abba"}'), d.ItemEnd()], [END]]
    turn, _ = guarded(Words(), batches, runs_here=True)
    start, arguments, end, over = joined(read(turn))
    assert start == d.CallStart("f", refusal=MESSAGE)
    assert arguments == d.ArgumentsDelta("{}")
    assert (end, over) == (d.ItemEnd(), END)


def test_the_call_of_a_client_is_refused_with_the_answer() -> None:
    batches = [[d.CallStart("f"), d.ArgumentsDelta('{"a": "abba"}'), d.ItemEnd()], [END]]
    turn, _ = guarded(Words(), batches)
    assert joined(read(turn)) == [
        d.RefusalDelta(MESSAGE),
        d.TurnEnd("refused", TurnUsage(input=3, output=1)),
    ]


def test_a_guard_that_is_asked_only_about_calls_delays_no_text() -> None:
    guard = Words(places=["tool_call"])
    batches = [[d.TextDelta("abba ")], [d.TextDelta("and more")], [END]]
    turn, _ = guarded(guard, batches, window=100)
    assert read(turn) == batches
    assert not guard.asked


def test_arguments_are_asked_about_as_output_by_a_guard_of_outputs_alone() -> None:
    guard = Words(places=["output"])
    turn, _ = guarded(guard, [[d.CallStart("f"), d.ArgumentsDelta("abba")], [END]])
    assert joined(read(turn))[0] == d.RefusalDelta(MESSAGE)
    assert [(each.place, each.tool) for each in guard.asked] == [("output", "f")]


def test_alternatives_of_tokens_are_left_out_since_guards_do_not_see_them() -> None:
    alternatives = (TopLogprob(token="abba", logprob=-2.0),)
    logprob = Logprob(token="a", logprob=-1.0, bytes=(97,), top_logprobs=alternatives)
    turn, _ = guarded(Words(), [[d.TextDelta("a", (logprob,))], [END]])
    [shown, _end] = joined(read(turn))
    assert isinstance(shown, d.TextDelta)
    assert shown.logprobs == (Logprob(token="a", logprob=-1.0, bytes=(97,)),)


@pytest.mark.parametrize("text", ["abba", "fine"])
def test_no_prompt_repeats_what_guards_have_replaced(text: str) -> None:
    turn, written = guarded(Words("mask"), [[d.TextDelta(text)], [END]])
    read(turn)
    turn.record_items(["an item"])  # type: ignore[list-item]
    assert written.recorded == ([] if text == WORD else ["an item"])
    assert turn.messages()[1] == ([] if text == WORD else [{"written": "y"}])


@given(st.integers(0, 40), st.integers(0, 12))
def test_words_between_boundaries_are_found_in_the_text_that_follows_another(
    length: int, window: int
) -> None:
    class Whole(Words):
        async def check(self, asked: GuardQuestion) -> Verdict:
            return Refuse(MESSAGE) if WORD in asked.text.split() else Pass()

    deltas = [d.ReasoningDelta("x" * (length + 1)), d.TextDelta("ab"), d.TextDelta("ba")]
    turn, _ = guarded(Whole(), [*([delta] for delta in deltas), [END]], window=window)
    assert WORD not in json.dumps(shown_in(joined(read(turn))))
