"""The figures of the console's charts, from a list of responses."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.domain.responses.activity import OTHERS, CountActivity, Grouping
from antiphon.domain.responses.metrics import ResponseMetrics, ToolCallMetrics, TurnMetrics
from antiphon.domain.responses.response import Failure, IncompleteDetails
from antiphon.domain.responses.response_lists import ResponseSummary
from antiphon.domain.responses.usage import InputTokensDetails, OutputTokensDetails, Usage

NOW = 1_000_000.0
HOUR = 3600


def response(number: int, *, age: int = 0, **fields: Any) -> ResponseSummary:
    """A completed response with a call, which waited `number` seconds for its first token."""
    call = ToolCallMetrics(type="mcp", server="calc", name="add", started_at=1.0)
    turn = TurnMetrics(
        started_at=1.0, first_token_at=float(number), tokens_per_second=20.0, tool_calls=(call,)
    )
    usage = Usage(
        input_tokens=10,
        input_tokens_details=InputTokensDetails(cached_tokens=4),
        output_tokens=5,
        output_tokens_details=OutputTokensDetails(reasoning_tokens=0),
        total_tokens=15,
    )
    metrics = ResponseMetrics(received_at=0.0, admitted_at=0.5, key_name="ops", turns=(turn,))
    plain = {"status": "completed", "model": "m", "usage": usage, "metrics": metrics}
    made: dict[str, Any] = {**plain, **fields}
    return ResponseSummary(id=f"resp_{number}", created_at=int(NOW) - age, **made)


def count(
    *responses: ResponseSummary, grouping: Grouping = "model", only: str | None = None
) -> Any:
    counted = CountActivity("hour", now=NOW, grouping=grouping, only=only)
    for each in responses:
        counted.add(each)
    return counted.report()


def test_a_bar_has_what_was_created_in_its_minute() -> None:
    failure = Failure(code="server_error", message="no")
    cut = IncompleteDetails(reason="max_output_tokens")
    report = count(
        response(1),
        response(2, age=1, status="failed", error=failure),
        response(3, age=2, status="incomplete", incomplete_details=cut),
        response(4, age=3, status="cancelled"),
        response(5, age=4, status="in_progress"),
        response(6, age=HOUR // 2),
        response(7, age=2 * HOUR),
    )
    old, new = report.buckets
    assert (new.after, old.after) == (None, "resp_5")
    assert new.figures.requests == 5
    assert new.reasons == {"server_error": 1, "max_output_tokens": 1, "cancelled": 1}
    assert new.figures.ended_badly == 3
    assert (new.figures.first_token.p50, new.figures.first_token.p95) == (3.0, 5.0)
    assert new.figures.queue.p95 == 0.5
    assert (new.figures.input_tokens, new.figures.cached_tokens) == (50, 20)
    assert new.tools == {"add": 5}
    assert old.figures.requests == 1
    assert (report.read, report.ends_at - report.begins_at, report.step) == (7, HOUR, 60)


@pytest.mark.parametrize(
    ("grouping", "name"), [("model", "m"), ("key", "ops"), ("door", "messages")]
)
def test_responses_are_counted_by_model_key_or_door(grouping: Grouping, name: str) -> None:
    metrics = ResponseMetrics(received_at=0.0, key_name="ops", door="messages")
    other = ResponseMetrics(received_at=0.0)
    responses = [
        response(1, metrics=metrics),
        response(2, metrics=metrics),
        response(3, metrics=other, model="n"),
    ]
    report = count(*responses, grouping=grouping)
    assert (report.groups[0].name, report.groups[0].figures.requests) == (name, 2)
    assert sum(each.figures.requests for each in report.groups) == 3
    assert count(*responses, grouping=grouping, only=name).buckets[0].figures.requests == 2


def test_names_are_few_and_the_rest_is_one() -> None:
    report = count(*(response(number, model=f"m{number % 9}") for number in range(99)))
    assert len(report.names) == 6
    [bar] = report.buckets
    assert bar.groups[OTHERS] == 33
    assert sum(bar.groups.values()) == 99
