"""The sequencer: the events that deltas cause always obey the lifecycle."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET

from antiphon.domain import deltas as d
from antiphon.domain import events as e
from antiphon.domain import items as i
from antiphon.domain.content import UrlCitation
from antiphon.domain.errors import EventOutOfOrder
from antiphon.domain.lifecycle import OPENS, OVER, START, TRANSITIONS, advance
from antiphon.domain.responses.response import Failure
from antiphon.domain.responses.usage import TurnUsage

from .delta_strategies import (
    DELTAS,
    ENDS,
    TOOL_STARTS,
    USAGE,
    end,
    merge_deltas,
    running,
    sequencer,
    types,
)


def test_a_response_is_created_and_in_progress_before_its_first_item() -> None:
    seq = sequencer()
    assert types([*seq.open(), *seq.start()]) == [e.Created, e.InProgress]


def test_a_queued_response_says_so_before_it_is_in_progress() -> None:
    seq = sequencer(status="queued")
    events = [*seq.open(), *seq.start()]
    assert types(events) == [e.Created, e.Queued, e.InProgress]
    assert [event.response.status for event in events] == ["queued", "queued", "in_progress"]  # type: ignore[attr-defined]


def test_a_tool_call_closes_the_open_message_first() -> None:
    seq = running()
    seq.feed(d.TextDelta("Let me look."))
    events = seq.feed(d.CallStart("search", "call_0"))
    assert types(events) == [e.TextDone, e.PartDone, e.ItemDone, e.ItemAdded]


def test_a_call_keeps_its_ids_from_added_to_the_final_response() -> None:
    seq = running()
    added = seq.feed(d.CallStart("search"))[0]
    seq.feed(d.ArgumentsDelta('{"q":'))
    seq.feed(d.ArgumentsDelta("1}"))
    done = seq.complete()[1]
    assert isinstance(added, e.ItemAdded)
    assert isinstance(done, e.ItemDone)
    final = seq.response.output[0]
    assert isinstance(final, i.FunctionCall)
    assert (added.item.id, added.item.call_id) == (final.id, final.call_id)  # type: ignore[union-attr]
    assert done.item == final
    assert final.arguments == '{"q":1}'


@pytest.mark.parametrize("written", [[], [""], [" \n"]])
def test_a_function_call_without_arguments_has_an_empty_object(written: list[str]) -> None:
    seq = running()
    seq.feed(d.CallStart("now"))
    events = [event for text in written for event in seq.feed(d.ArgumentsDelta(text))]
    events += seq.feed(d.TurnEnd("stop", USAGE))
    assert types(events)[-3:] == [e.ArgumentsDelta, e.ArgumentsDone, e.ItemDone]
    text = "".join(event.delta for event in events if isinstance(event, e.ArgumentsDelta))
    assert json.loads(text) == {}
    assert events[-2].arguments == text  # type: ignore[attr-defined]
    seq.complete()
    assert seq.response.output[0].arguments == text  # type: ignore[union-attr]


def test_a_function_call_that_was_cut_has_the_arguments_that_were_written() -> None:
    seq = running()
    seq.feed(d.CallStart("now"))
    seq.feed(d.TurnEnd("length", USAGE))
    seq.complete()
    assert seq.response.output[0].arguments == ""  # type: ignore[union-attr]


def test_a_custom_call_without_input_has_an_empty_text() -> None:
    seq = running()
    seq.feed(d.CallStart("note", kind="custom"))
    seq.feed(d.TurnEnd("stop", USAGE))
    seq.complete()
    assert seq.response.output[0].input == ""  # type: ignore[union-attr]


def test_a_different_phase_starts_a_new_message() -> None:
    seq = running()
    seq.feed(d.TextDelta("Looking.", phase="commentary"))
    seq.feed(d.TextDelta("Found.", phase="final_answer"))
    seq.complete()
    phases = [item.phase for item in seq.response.output]  # type: ignore[union-attr]
    assert phases == ["commentary", "final_answer"]


def test_a_refusal_is_a_separate_part() -> None:
    seq = running()
    seq.feed(d.TextDelta("Well. "))
    events = seq.feed(d.RefusalDelta("No."))
    assert types(events) == [e.TextDone, e.PartDone, e.PartAdded, e.RefusalDelta]
    assert [event.content_index for event in events] == [0, 0, 1, 1]  # type: ignore[attr-defined]


def test_an_annotation_is_in_the_event_and_in_the_final_part() -> None:
    citation = UrlCitation(start_index=0, end_index=3, url="https://example.org", title="E")
    seq = running()
    seq.feed(d.TextDelta("See"))
    assert types(seq.feed(d.AnnotationDelta(citation))) == [e.AnnotationAdded]
    seq.complete()
    message = seq.response.output[0]
    assert isinstance(message, i.Message)
    assert message.content[0].annotations == (citation,)  # type: ignore[union-attr]


def test_a_limit_leaves_the_last_item_incomplete_and_gives_the_reason() -> None:
    seq = running()
    seq.feed(d.ReasoningDelta("Hm"))
    seq.feed(d.TextDelta("Once upon"))
    seq.feed(d.TurnEnd("length", USAGE))
    events = seq.end_incomplete("max_output_tokens")
    assert types(events) == [e.Incomplete]
    assert [item.status for item in seq.response.output] == ["completed", "incomplete"]  # type: ignore[union-attr]
    assert seq.response.incomplete_details is not None
    assert seq.response.incomplete_details.reason == "max_output_tokens"
    assert seq.response.completed_at is None


def test_a_failure_closes_the_open_item_and_ends_with_error_and_failed() -> None:
    seq = running()
    seq.feed(d.TextDelta("Once"))
    events = seq.fail(Failure(code="server_error", message="gone"))
    assert types(events) == [e.TextDone, e.PartDone, e.ItemDone, e.Error, e.Failed]
    assert seq.response.status == "failed"
    assert seq.response.usage is None


def test_a_cancelled_response_keeps_its_output() -> None:
    seq = running()
    seq.feed(d.TextDelta("Once"))
    assert types(seq.cancel())[-1] is e.Incomplete
    assert seq.response.status == "cancelled"
    assert len(seq.response.output) == 1


def test_a_revoked_end_gives_its_number_back() -> None:
    seq = running()
    seq.feed(d.TextDelta("x"))
    end = seq.complete()
    new_end = seq.revoke(end, Failure(code="server_error", message="not stored"))
    assert types(new_end)[-2:] == [e.Error, e.Failed]
    numbers = [event.sequence_number for event in new_end]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert seq.response.completed_at is None


def test_a_bug_in_a_builder_still_ends_in_failed_with_consecutive_numbers() -> None:
    seq = running()
    seq.feed(d.TextDelta("x"))
    assert seq._open is not None
    seq._open.close("completed")  # as if a builder had a bug: closing it again is not legal
    end = seq.fail(Failure(code="server_error", message="a bug"))
    assert types(end) == [e.Error, e.Failed]
    assert [event.sequence_number for event in end] == [5, 6]
    assert seq.response.output == ()


def test_usage_is_the_sum_of_all_turns() -> None:
    seq = running()
    seq.feed(d.TurnEnd("stop", TurnUsage(input=10, cached=2, output=5, reasoning=1)))
    seq.feed(d.TurnEnd("stop", TurnUsage(input=20, cached=15, output=7, reasoning=0)))
    seq.show_messages([], [])
    seq.complete()
    usage = seq.response.usage
    assert usage is not None
    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (30, 12, 42)
    assert usage.input_tokens_details.cached_tokens == 17
    assert usage.output_tokens_details.output_tokens_per_turn == (5, 7)


def test_the_usage_of_each_turn_is_shown_if_there_were_several() -> None:
    seq = running()
    seq.feed(d.TurnEnd("stop", TurnUsage(input=10, output=5, reasoning=1)))
    seq.feed(d.TurnEnd("stop", TurnUsage()))  # a tool search, which called no model
    failed = seq.fail(Failure(code="server_error", message="x"))[-1]
    assert isinstance(failed, e.Failed)
    assert failed.response.usage_per_turn is UNSET
    seq = running()
    seq.feed(d.TurnEnd("stop", TurnUsage(input=10, output=5, reasoning=1)))
    seq.feed(d.TurnEnd("stop", TurnUsage(input=20, cached=15, output=7, tool_output=5)))
    seq.complete()
    assert json.loads(msgspec.json.encode(seq.response.usage_per_turn)) == [
        {
            "input_tokens": 10,
            "cached_tokens": 0,
            "output_tokens": 5,
            "reasoning_tokens": 1,
            "tool_output_tokens": 0,
        },
        {
            "input_tokens": 20,
            "cached_tokens": 15,
            "output_tokens": 7,
            "reasoning_tokens": 0,
            "tool_output_tokens": 5,
        },
    ]


@pytest.mark.parametrize(
    ("status", "expected"),
    [("completed", e.McpCallCompleted), ("failed", e.McpCallFailed)],
)
def test_a_tool_call_that_the_server_runs_ends_with_its_own_event(
    status: str, expected: type[e.Event]
) -> None:
    seq = running()
    seq.feed(d.ToolStart("mcp_call", {"server_label": "s", "name": "t"}))
    seq.feed(d.ArgumentsDelta("{}"))
    seq.feed(d.ToolProgress("calling"))
    seq.feed(d.ToolEnd(status, {"output": "x"}))
    events = seq.feed(d.ItemEnd())
    assert types(events) == [expected, e.ItemDone]
    assert seq.output[0].status == status  # type: ignore[union-attr]


def test_a_failed_search_has_no_completed_event() -> None:
    seq = running()
    seq.feed(d.ToolStart("web_search_call", {"action": {"type": "search"}}))
    seq.feed(d.ToolProgress("searching"))
    seq.feed(d.ToolEnd("failed"))
    assert types(seq.feed(d.ItemEnd())) == [e.ItemDone]


def test_a_tool_without_a_tool_end_is_incomplete() -> None:
    seq = running()
    seq.feed(d.ToolStart("code_interpreter_call", {"container_id": "cntr_1"}))
    seq.feed(d.ArgumentsDelta("print("))
    seq.fail(Failure(code="server_error", message="gone"))
    assert seq.response.output[0].status == "incomplete"  # type: ignore[union-attr]


def test_every_event_of_a_finished_response_is_refused() -> None:
    seq = running()
    seq.complete()
    with pytest.raises(EventOutOfOrder, match="cannot follow OVER"):
        seq.feed(d.TextDelta("late"))


def test_nothing_follows_a_terminal_event() -> None:
    assert TRANSITIONS[OVER] == {}


def test_every_event_type_has_a_place_in_the_lifecycle() -> None:
    event_types = {kind for row in TRANSITIONS.values() for kind in row} | {e.ItemAdded}
    assert set(e.EVENT_TYPES.values()) == event_types


# --- for any list of deltas -----------------------------------------------------------------------


@settings(max_examples=300)
@given(st.lists(DELTAS, max_size=30), ENDS)
def test_any_deltas_give_a_legal_stream_that_folds_to_the_response(
    deltas: list[d.Delta], how: str
) -> None:
    seq = sequencer()
    events = [*seq.open(), *seq.start()]
    for delta in deltas:
        events += seq.feed(delta)
    events += end(seq, how)

    state = START
    for event in events:
        state = advance(state, event)
    assert state == OVER
    assert [event.sequence_number for event in events] == list(range(len(events)))
    added = [event.item.id for event in events if isinstance(event, e.ItemAdded)]
    done = [event.item.id for event in events if isinstance(event, e.ItemDone)]
    assert added == done
    assert len(set(added)) == len(added)
    assert tuple(merge_deltas(events)) == seq.response.output
    assert events[-1].response is seq.response  # type: ignore[attr-defined]
    assert sum(isinstance(event, e.TERMINAL) for event in events) == 1


@settings(max_examples=100)
@given(st.lists(DELTAS, max_size=12), ENDS)
def test_every_event_can_be_encoded_and_decoded(deltas: list[d.Delta], how: str) -> None:
    seq = sequencer()
    events = [*seq.open(), *seq.start()]
    for delta in deltas:
        events += seq.feed(delta)
    events += end(seq, how)
    for event in events:
        encoded = msgspec.json.encode(event)
        assert msgspec.json.encode(msgspec.json.decode(encoded, type=type(event))) == encoded


def test_every_item_that_the_server_can_emit_has_a_first_state() -> None:
    item_types = {type(item_from(start)) for start in TOOL_STARTS}
    assert item_types <= set(OPENS)


def item_from(start: d.ToolStart) -> Any:
    seq = running()
    seq.feed(start)
    seq.feed(d.ItemEnd())
    return seq.output[0]
