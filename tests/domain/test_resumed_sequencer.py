"""A sequencer resumed from a log: it ends a run as the original sequencer would have."""

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
from antiphon.domain.lifecycle import OVER, START, advance
from antiphon.domain.responses.response import Failure, Response
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


def seal(text: str) -> str:
    return f"sealed {text}"


def resumed(events: Sequence[e.Event]) -> Sequencer:
    numbers = count(1)
    return Sequencer.resumed(
        Response(id="resp_1", created_at=100, model="m"),
        events,
        new_id=lambda prefix: f"{prefix}_later_{next(numbers)}",
        now=lambda: 200.0,
        seal=seal,
    )


def sequencer_after(deltas: Sequence[d.Delta]) -> tuple[Sequencer, list[e.Event]]:
    seq = sequencer()
    seq._seal = seal
    events = [*seq.open(), *seq.start()]
    for delta in deltas:
        events += seq.feed(delta)
    return seq, events


def check(stream: Sequence[e.Event], response: Response) -> None:
    """Check that the stream is legal and complete, and merges to the response."""
    state = START
    for event in stream:
        state = advance(state, event)
    assert state == OVER
    assert [event.sequence_number for event in stream] == list(range(len(stream)))
    assert tuple(merge_deltas(stream)) == response.output
    assert stream[-1].response == response  # type: ignore[attr-defined]


def golden_events(name: str) -> list[e.Event]:
    frames = (STREAMS / name / "stream.sse").read_text().split("\n")
    lines = [line.removeprefix("data: ") for line in frames if line.startswith("data: {")]
    kinds = [EVENT_TYPES[msgspec.json.decode(line)["type"]] for line in lines]
    return [msgspec.json.decode(line, type=kind) for line, kind in zip(lines, kinds, strict=True)]


@pytest.mark.parametrize("how", ["fail", "cancel"])
@pytest.mark.parametrize("name", sorted(folder.name for folder in STREAMS.iterdir()))
def test_a_golden_stream_cut_off_anywhere_gets_a_legal_end(name: str, how: str) -> None:
    events = golden_events(name)
    for length in range(1, len(events)):
        logged = events[:length]
        ending = "fail" if isinstance(logged[-1], e.Error) else how
        seq = resumed(logged)
        check([*logged, *end(seq, ending)], seq.response)


@settings(max_examples=150)
@given(st.lists(DELTAS, max_size=20), ENDS, ENDINGS)
def test_any_stream_cut_off_anywhere_gets_a_legal_end(
    deltas: list[d.Delta], how: str, ending: str
) -> None:
    seq, events = sequencer_after(deltas)
    events += end(seq, how)
    for length in range(1, len(events)):
        logged = events[:length]
        resumed_sequencer = resumed(logged)
        last = "fail" if isinstance(logged[-1], e.Error) else ending
        check([*logged, *end(resumed_sequencer, last)], resumed_sequencer.response)


def flatten(groups: Sequence[Sequence[d.Delta]]) -> list[d.Delta]:
    return [delta for group in groups for delta in group]


# Deltas whose events show everything that they change, so that their item can be restored exactly.
VISIBLE_DELTAS: st.SearchStrategy[d.Delta] = st.one_of(
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
SINGLE_KIND_STEPS = st.sampled_from(
    [
        [STARTS["image_generation_call"], STEPS["partial_image"], STEPS["partial_image"]],
        [STARTS["shell_call_output"], STEPS["output"], STEPS["output_done"], STEPS["output"]],
    ]
)


DELTA_GROUPS = VISIBLE_DELTAS.map(lambda delta: [delta]) | SINGLE_KIND_STEPS


@settings(max_examples=300)
@given(st.lists(DELTA_GROUPS, max_size=15).map(flatten), ENDINGS)
def test_a_run_resumed_between_deltas_ends_like_the_original(
    deltas: list[d.Delta], how: str
) -> None:
    original, events = sequencer_after(deltas)
    resumed_end, original_end = end(resumed(events), how), end(original, how)
    assert list(map(without_usage, resumed_end)) == list(map(without_usage, original_end))


def without_usage(event: Any) -> Any:
    if isinstance(event, e.TERMINAL):
        return replace(event, response=replace(event.response, usage=None, usage_per_turn=UNSET))
    return event


def test_the_tokens_of_earlier_turns_are_unknown() -> None:
    deltas = [d.TextDelta("Once"), d.TurnEnd("stop", USAGE), d.ReasoningDelta("Hm")]
    _, events = sequencer_after(deltas)
    seq = resumed(events)
    seq.fail(Failure(code="server_restarted", message="gone"))
    assert seq.response.usage is None
    assert len(seq.response.output) == 2


@pytest.mark.parametrize("logged", [0, 1, 2, 3])
def test_a_run_without_output_goes_on_as_if_it_had_not_stopped(logged: int) -> None:
    original = sequencer(status="queued")
    opening = [*original.open(), *original.start()]
    stream = [*opening, *original.feed(d.TextDelta("Hi")), *original.complete()]
    seq = Sequencer.resumed(
        Response(id="resp_1", created_at=100, model="m", status="queued"),
        stream[:logged],
        new_id=lambda prefix: f"{prefix}_1",
        now=lambda: 101.5,
    )
    events = [] if logged else seq.open()
    events += [] if logged == 3 else seq.start()
    events += [*seq.feed(d.TextDelta("Hi")), *seq.complete()]
    skipped = 1 if logged == 1 else 0  # `queued`, which is not needed any more
    assert types(events) == types(stream[logged + skipped :])
    assert [event.sequence_number for event in events] == list(range(logged, logged + len(events)))


def test_a_completed_run_cannot_be_ended_again() -> None:
    original, events = sequencer_after([d.TextDelta("Hi")])
    events += original.complete()
    seq = resumed(events)
    assert seq.response == original.response
    with pytest.raises(EventOutOfOrder):
        seq.cancel()


def test_events_that_do_not_begin_a_log_are_refused() -> None:
    _, events = sequencer_after([d.TextDelta("Hi")])
    with pytest.raises(EventOutOfOrder):
        resumed(events[1:])


def test_a_run_has_output_from_its_first_item_on() -> None:
    _, events = sequencer_after([d.TextDelta("Hi")])
    has_output = [resumed(events[:length]).has_output for length in range(4)]
    assert has_output == [False, False, False, True]
