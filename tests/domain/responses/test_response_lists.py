"""Which responses a filter of a list finds."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.domain.responses.metrics import ResponseMetrics, ToolCallMetrics, TurnMetrics
from antiphon.domain.responses.response import ConversationRef, Failure, IncompleteDetails
from antiphon.domain.responses.response_lists import ResponseFilter, ResponseSummary

CALL = ToolCallMetrics(type="mcp", server="calc", name="add", started_at=1.0)
RESPONSE = ResponseSummary(
    id="resp_1",
    created_at=100,
    status="failed",
    model="m",
    error=Failure(code="server_error", message="no"),
    conversation=ConversationRef(id="conv_1"),
    previous_response_id="resp_0",
    metadata={"team": "blue", "n": "1"},
    metrics=ResponseMetrics(
        received_at=1.0,
        key_id="key_1",
        key_name="mine",
        door="messages",
        turns=(TurnMetrics(started_at=1.0), TurnMetrics(started_at=2.0, tool_calls=(CALL,))),
    ),
)
CUT = ResponseSummary(
    id="resp_2",
    created_at=100,
    status="incomplete",
    model="m",
    incomplete_details=IncompleteDetails(reason="max_turns"),
)


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"statuses": frozenset({"failed"})},
        {"statuses": frozenset({"failed", "queued"})},
        {"model": "m"},
        {"key": "key_1"},
        {"key": "mine"},
        {"door": "messages"},
        {"conversation": "conv_1"},
        {"previous_response_id": "resp_0"},
        {"tool": "mcp"},
        {"tool": "calc"},
        {"tool": "add"},
        {"error": "server_error"},
        {"created_after": 99.5},
        {"created_before": 100.5},
        {"metadata": {"team": "blue"}},
        {"metadata": {"team": "blue", "n": "1"}},
        {"model": "m", "tool": "add", "error": "server_error"},
    ],
)
def test_a_filter_finds_a_response_with_all_that_it_names(wanted: dict[str, Any]) -> None:
    assert ResponseFilter(**wanted).matches(RESPONSE)


@pytest.mark.parametrize(
    "wanted",
    [
        {"statuses": frozenset({"completed"})},
        {"model": "M"},
        {"key": "key"},
        {"door": "responses"},
        {"conversation": "conv_2"},
        {"previous_response_id": "resp_1"},
        {"tool": "ad"},
        {"error": "max_turns"},
        {"created_after": 100.0},
        {"created_before": 100.0},
        {"metadata": {"team": "red"}},
        {"metadata": {"team": "blue", "x": ""}},
        {"model": "m", "tool": "sub"},
    ],
)
def test_a_filter_leaves_out_what_lacks_one_thing(wanted: dict[str, Any]) -> None:
    assert not ResponseFilter(**wanted).matches(RESPONSE)


def test_a_response_without_a_record_was_asked_by_nobody_and_called_nothing() -> None:
    assert ResponseFilter(error="max_turns").matches(CUT)
    assert not ResponseFilter(key="").matches(CUT)
    assert not ResponseFilter(tool="").matches(CUT)
    assert not ResponseFilter(door="responses").matches(CUT)
