"""A sequencer out of a log: it ends a run as the one that wrote the log would have."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET
from msgspec.structs import replace

from antiphon.domain import deltas as d
from antiphon.domain import events as e
from antiphon.domain.content import UrlCitation
from antiphon.domain.errors import EventOutOfOrder
from antiphon.domain.events import EVENT_TYPES
from antiphon.domain.lifecycle import State, advance
from antiphon.domain.response import Failure, Response
from antiphon.domain.sequencer import Sequencer

from .delta_strategies import (
    DELTAS,
    ENDS,
    STEP_DELTAS,
    TEXTS,
    TOOL_STARTS,
    USAGE,
    end,
    merge_deltas,
    sequencer,
    types,
)

STREAMS = Path(__file__).parents[1] / "golden" / "streams"
ENDINGS = st.sampled_from(["fail", "cancel"])


CITATION = d.AnnotationDelta(UrlCitation(start_index=0, end_index=0, url="https://e.org", title=""))


def sealed(text: str) -> str:
    return f"sealed {text}"


def resumed(events: Sequence[e.Event]) -> Sequencer:
    numbers = count(1)
    return Sequencer.resumed(
        Response(id="resp_1", created_at=100, model="m"),
        events,
        new_id=lambda prefix: f"{prefix}_later_{next(numbers)}",
        now=lambda: 200.0,
        seal=sealed,
    )


def fed(deltas: Sequence[d.Delta]) -> tuple[Sequencer, list[e.Event]]:
    seq = sequencer()
    seq._seal = sealed
    events = [*seq.open(), *seq.start()]
    for delta in deltas:
        events += seq.feed(delta)
    return seq, events


def check(stream: Sequence[e.Event], response: Response) -> None:
    """The stream is legal and whole, and a client makes of it what the response says."""
    state = State.START
    for event in stream:
        state = advance(state, event)
    assert state is State.OVER
    assert [event.sequence_number for event in stream] == list(range(len(stream)))
    assert tuple(merge_deltas(stream)) == response.output
    assert stream[-1].response == response  # type: ignore[attr-defined]


def recorded(name: str) -> list[e.Event]:
    frames = (STREAMS / name / "stream.sse").read_text().split("\n")
    lines = [line.removeprefix("data: ") for line in frames if line.startswith("data: {")]
    kinds = [EVENT_TYPES[msgspec.json.decode(line)["type"]] for line in lines]
    return [msgspec.json.decode(line, type=kind) for line, kind in zip(lines, kinds, strict=True)]


@pytest.mark.parametrize("how", ["fail", "cancel"])
@pytest.mark.parametrize("name", sorted(folder.name for folder in STREAMS.iterdir()))
def test_a_recorded_stream_that_was_cut_anywhere_gets_a_legal_end(name: str, how: str) -> None:
    events = recorded(name)
    for length in range(1, len(events)):
        logged = events[:length]
        ending = "fail" if isinstance(logged[-1], e.Error) else how
        seq = resumed(logged)
        check([*logged, *end(seq, ending)], seq.response)


@settings(max_examples=150)
@given(st.lists(DELTAS, max_size=20), ENDS, ENDINGS)
def test_any_stream_that_was_cut_anywhere_gets_a_legal_end(
    deltas: list[d.Delta], how: str, ending: str
) -> None:
    seq, events = fed(deltas)
    events += end(seq, how)
    for length in range(1, len(events)):
        logged = events[:length]
        cut = resumed(logged)
        last = "fail" if isinstance(logged[-1], e.Error) else ending
        check([*logged, *end(cut, last)], cut.response)


def flat(pieces: Sequence[Sequence[d.Delta]]) -> list[d.Delta]:
    return [delta for piece in pieces for delta in piece]


# Deltas that tell a client all that they change: what they leave open can be closed as it was.
OPEN: st.SearchStrategy[d.Delta] = st.one_of(
    st.builds(d.TextDelta, TEXTS, phase=st.sampled_from([None, "commentary", "final_answer"])),
    st.builds(d.RefusalDelta, TEXTS),
    st.builds(d.ReasoningDelta, TEXTS),
    st.builds(d.SummaryDelta, TEXTS),
    st.builds(d.CallStart, TEXTS, kind=st.sampled_from(["function", "custom"])),
    st.builds(d.ArgumentsDelta, TEXTS),
    st.sampled_from(TOOL_STARTS),
    st.sampled_from([delta for delta in STEP_DELTAS if not delta.fields]),
    st.just(CITATION),
    st.just(d.ItemEnd()),
    st.builds(d.TurnEnd, st.sampled_from(["stop", "length"]), st.just(USAGE)),
)


# Steps that only one kind of item has.
STARTS = {start.kind: start for start in TOOL_STARTS}
STEPS = {delta.step: delta for delta in STEP_DELTAS}
OF_ONE_KIND = st.sampled_from(
    [
        [STARTS["image_generation_call"], STEPS["partial_image"], STEPS["partial_image"]],
        [STARTS["shell_call_output"], STEPS["output"], STEPS["output_done"], STEPS["output"]],
    ]
)


@settings(max_examples=300)
@given(st.lists(OPEN.map(lambda delta: [delta]) | OF_ONE_KIND, max_size=15).map(flat), ENDINGS)
def test_between_deltas_the_end_is_the_one_that_the_first_sequencer_would_have_given(
    deltas: list[d.Delta], how: str
) -> None:
    first, events = fed(deltas)
    again = resumed(events)
    expected, given = end(first, how), end(again, how)
    assert [without_usage(event) for event in given] == [without_usage(event) for event in expected]


def without_usage(event: Any) -> Any:
    if isinstance(event, e.TERMINAL):
        return replace(event, response=replace(event.response, usage=None, usage_per_turn=UNSET))
    return event


def test_the_tokens_of_earlier_turns_are_unknown() -> None:
    _, events = fed([d.TextDelta("Once"), d.TurnEnd("stop", USAGE), d.ReasoningDelta("Hm")])
    seq = resumed(events)
    seq.fail(Failure(code="server_restarted", message="gone"))
    assert seq.response.usage is None
    assert len(seq.response.output) == 2


@pytest.mark.parametrize("logged", [0, 1, 2, 3])
def test_a_run_that_has_shown_nothing_goes_on_as_if_it_had_not_stopped(logged: int) -> None:
    seq = sequencer(status="queued")
    whole = [*seq.open(), *seq.start(), *seq.feed(d.TextDelta("Hi")), *seq.complete()]
    again = Sequencer.resumed(
        Response(id="resp_1", created_at=100, model="m", status="queued"),
        whole[:logged],
        new_id=lambda prefix: f"{prefix}_1",
        now=lambda: 101.5,
    )
    went_on = [] if logged else again.open()
    went_on += [] if logged == 3 else again.start()
    went_on += [*again.feed(d.TextDelta("Hi")), *again.complete()]
    skipped = 1 if logged == 1 else 0  # `queued`, which need not be told later
    assert types(went_on) == types(whole[logged + skipped :])
    assert [event.sequence_number for event in went_on] == list(
        range(logged, logged + len(went_on))
    )


def test_what_is_over_stays_over() -> None:
    seq, events = fed([d.TextDelta("Hi")])
    events += seq.complete()
    again = resumed(events)
    assert again.response == seq.response
    with pytest.raises(EventOutOfOrder):
        again.cancel()


def test_what_is_no_beginning_of_a_log_is_refused() -> None:
    _, events = fed([d.TextDelta("Hi")])
    with pytest.raises(EventOutOfOrder):
        resumed(events[1:])


def test_a_run_has_begun_with_the_first_event_that_tells_of_the_model() -> None:
    _, events = fed([d.TextDelta("Hi")])
    begun = [resumed(events[:length]).has_output for length in range(4)]
    assert begun == [False, False, False, True]
