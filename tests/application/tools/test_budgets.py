"""What a response and its calls may take: each has an end, and the response is whole."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest
from tests.application.tools.test_calls import ANSWER, SERVER, STOP, Written, call, types

from antiphon.application.ports import ModelTurn, ToolResult
from antiphon.application.tools.budgets import Budgets
from antiphon.application.tools.calls import ToolCaller, ToolCallingTurn, ToolCalls
from antiphon.application.tools.work import Given
from antiphon.domain import deltas as d
from antiphon.domain import items as i
from antiphon.domain.errors import CONTEXT_EXCEEDED, RequestError
from antiphon.domain.mcp import LOST

GONE = ToolResult(error={"type": "mcp_protocol_error", "code": LOST, "message": "no answer"})
WRONG = ToolResult(error={"type": "mcp_protocol_error", "code": -32602, "message": "no such a"})
SAID_NO = ToolResult(error={"type": "mcp_tool_execution_error", "content": "not found"})
CALLING = [call("add", "{}"), [STOP]]


# --- turns ----------------------------------------------------------------------------------------


async def test_a_model_that_only_calls_is_cut_after_its_last_turn(new_house: Any) -> None:
    house = new_house(budgets=Budgets(turns=3))
    house.model.played = CALLING
    response = await house.whole(tools=[SERVER])
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_turns")
    assert types(response) == [i.McpListTools, i.McpCall, i.McpCall, i.McpCall]
    assert [item.output for item in response.output[1:]] == ["add 1", "add 2", "add 3"]
    assert (len(house.model.turns), len(response.usage_per_turn)) == (3, 3)
    assert await house.get("t", response.id) == response


async def test_what_tools_give_beyond_the_context_cuts_the_response_and_is_kept(
    house: Any,
) -> None:
    house.model.played = CALLING
    house.model.later = [RequestError("too long", param="input", code=CONTEXT_EXCEEDED)]
    response = await house.whole(tools=[SERVER])
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_context")
    assert response.output[-1].output == "add 1"
    assert await house.get("t", response.id) == response


async def test_what_is_no_answer_of_the_models_is_no_turn_of_the_budget(new_house: Any) -> None:
    house = new_house(budgets=Budgets(turns=2))
    house.model.context_length = 2
    house.model.played = [[d.TextDelta("They talked.")], [STOP]]
    house.model.later = [CALLING, ANSWER]
    said = [{"role": role, "content": "x"} for role in ("user", "assistant", "user")]
    response = await house.whole(
        input=said, tools=[SERVER], context_management=[{"type": "compaction"}]
    )
    assert response.status == "completed"
    assert types(response) == [i.Compaction, i.McpListTools, i.McpCall, i.Message]


async def test_a_response_that_was_cut_goes_on_in_the_next(new_house: Any) -> None:
    house = new_house(budgets=Budgets(turns=1))
    house.model.played = CALLING
    house.model.later = [ANSWER]
    cut = await house.whole(tools=[SERVER])
    assert cut.status == "incomplete"
    response = await house.whole(tools=[SERVER], previous_response_id=cut.id, input=[])
    assert response.status == "completed"
    assert any(getattr(item, "output", "") == "add 1" for item in house.model.turns[-1].items)


async def test_the_next_turn_knows_what_the_last_one_read_and_wrote(house: Any) -> None:
    house.model.played = CALLING
    house.model.later = [CALLING, ANSWER]
    await house.whole(tools=[SERVER])
    assert [turn.known_tokens for turn in house.model.turns] == [None, 5, 5]


# --- time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("background", [False, True])
async def test_an_engine_that_hangs_is_cut_in_time(new_house: Any, background: bool) -> None:
    house = new_house(max_run_s=0.3)
    house.model.played = [[d.TextDelta("Hel")], asyncio.Event()]
    response = await house.whole(background=background, stream=True)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_time")
    # On a busy machine the time may be up before any of it has happened.
    assert {item.status for item in response.output} <= {"incomplete"}
    assert all(turn.closed for turn in house.model.begun)
    assert response.usage is None or response.usage.total_tokens == 5
    assert await house.get("t", response.id) == response


@pytest.mark.parametrize("background", [False, True])
async def test_a_tool_that_hangs_is_stopped_with_its_response(
    new_house: Any, background: bool
) -> None:
    house = new_house(max_run_s=0.3)
    house.model.played = [call("add", "{}"), call("wait", "{}"), call("wait", "{}"), [STOP]]
    response = await house.whole(tools=[SERVER], background=background, stream=True)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_time")
    # On a busy machine the time may be up before all of it has begun.
    assert response.output[2:] == [] or response.output[2].status == "incomplete"
    assert house.tools.stopped == [name for name, _ in house.tools.called if name == "wait"]
    assert house.tools.open == 0
    assert response.usage is None or response.usage.total_tokens == 5
    assert await house.get("t", response.id) == response


async def test_a_list_that_hangs_is_stopped_too(new_house: Any) -> None:
    house = new_house(budgets=Budgets(call_s=0.05))

    async def never() -> None:
        await asyncio.Event().wait()

    house.tools.tools = never
    response = await house.whole(tools=[SERVER])
    assert (response.status, types(response)) == ("completed", [i.McpListTools, i.Message])
    assert "0.05 seconds" in response.output[0].error


# --- calls ----------------------------------------------------------------------------------------


async def test_a_call_that_hangs_fails_alone(new_house: Any) -> None:
    house = new_house(budgets=Budgets(call_s=0.2))
    house.model.played = [call("wait", "{}"), call("add", "{}"), [STOP]]
    house.model.later = [ANSWER]
    response = await house.whole(tools=[SERVER])
    assert response.status == "completed"
    assert types(response) == [i.McpListTools, i.McpCall, i.McpCall, i.Message]
    assert [item.status for item in response.output[1:3]] == ["failed", "completed"]
    assert "0.2 seconds" in house.model.turns[-1].items[-2].error["content"]
    assert house.tools.stopped == ["wait"]


@pytest.mark.parametrize(
    "given",
    [
        ValueError("oops"),
        SystemExit(3),
        asyncio.CancelledError(),
        TimeoutError(),
        ToolResult(output=5j),  # type: ignore[arg-type]
        ToolResult(output="x" * 5000),
    ],
)
async def test_a_call_that_breaks_fails_alone_and_is_logged(
    new_house: Any, given: Any, caplog: pytest.LogCaptureFixture
) -> None:
    house = new_house(budgets=Budgets(call_bytes=4000))
    house.model.played = CALLING
    house.model.later = [CALLING, ANSWER]
    house.tools.gives = [given]
    with caplog.at_level(logging.ERROR):
        response = await house.whole(tools=[SERVER])
    assert response.status == "completed"
    broken, worked = response.output[1:3]
    assert (broken.status, broken.output, worked.output) == ("failed", None, "add 2")
    assert broken.error["content"]
    is_too_much = isinstance(given, ToolResult) and len(str(given.output)) > 4000
    assert ("a call of a tool broke" in caplog.text) != is_too_much


async def test_a_call_that_cannot_be_stopped_holds_nothing_up(
    caplog: pytest.LogCaptureFixture,
) -> None:
    is_free = asyncio.Event()

    class Stubborn(Named):
        async def call(self, start: d.CallStart, arguments: str) -> Given:
            while not is_free.is_set():
                try:
                    await is_free.wait()
                except asyncio.CancelledError:
                    continue
            yield [d.ToolEnd()]

    budgets = Budgets(call_s=0.02, stopping_s=0.02)
    try:
        ends = await ends_of(ToolCalls({"mcp": Stubborn()}, None, budgets), "one")
    finally:
        is_free.set()
    assert [end.status for end in ends] == ["failed"]
    assert "could not be stopped" in caplog.text


async def test_no_more_calls_run_at_once_than_may_and_in_their_order() -> None:
    class TokenCount(Named):
        async def call(self, start: d.CallStart, arguments: str) -> Given:
            self.begun.append(start.name)
            await asyncio.sleep(0)
            self.begun.append(f"end of {start.name}")
            yield [d.ToolEnd()]

    tool = TokenCount()
    await ends_of(ToolCalls({"mcp": tool}, None, at_once=1), "one", "two")
    assert tool.begun == ["one", "end of one", "two", "end of two"]


async def test_without_parallel_tool_calls_one_is_run_after_another(house: Any) -> None:
    house.model.played = [call("wait", "{}"), call("add", "{}"), [STOP]]
    created = await house.create(tools=[SERVER], parallel_tool_calls=False, stream=True)
    await house.tools.waits.wait()
    for _ in range(10):
        await asyncio.sleep(0)
    assert [name for name, _ in house.tools.called] == ["wait"]
    await created.leave()
    await asyncio.wait([created.task])


# --- who does not answer --------------------------------------------------------------------------


async def asked(house: Any, *given: ToolResult | BaseException) -> Sequence[Any]:
    """Return the calls of a response of one call a turn, of which these are the results."""
    house.tools.gives = list(given)
    house.model.played = CALLING
    house.model.later = [*[CALLING] * (len(given) - 1), ANSWER]
    response = await house.whole(tools=[SERVER])
    assert response.status == "completed"
    return [item for item in response.output if isinstance(item, i.McpCall)]


async def test_who_did_not_answer_three_times_is_not_asked_again(house: Any) -> None:
    calls = await asked(house, *[GONE] * 6)
    assert len(house.tools.called) == 3
    assert [item.error.get("code") for item in calls] == [LOST] * 3 + [None] * 3
    assert "of no use to try again" in calls[-1].error["content"]
    house.tools.gives = []
    again = await house.whole(tools=[SERVER])  # of the next response nothing is known
    assert again.output[1].output == "add 4"


@pytest.mark.parametrize("between", [ToolResult(output="yes"), WRONG, SAID_NO])
async def test_an_answer_of_any_kind_shows_that_somebody_is_there(house: Any, between: Any) -> None:
    await asked(house, GONE, GONE, between, GONE, GONE, between)
    assert len(house.tools.called) == 6


@pytest.mark.parametrize("answer", [WRONG, SAID_NO])
async def test_arguments_that_are_wrong_are_no_reason_to_stop(house: Any, answer: Any) -> None:
    await asked(house, *[answer] * 6)
    assert len(house.tools.called) == 6


async def test_a_tool_with_a_defect_is_not_asked_for_ever(house: Any) -> None:
    await asked(house, *[ValueError("oops")] * 6)
    assert len(house.tools.called) == 3


# --- what these tests call ------------------------------------------------------------------------


class Named(ToolCaller):
    """A tool that notes what is called."""

    step = "calling"

    def __init__(self) -> None:
        self.begun: list[str] = []

    def open_item(self, start: d.CallStart) -> d.Delta:
        return start

    def refused(self, start: d.CallStart, arguments: str, why: str) -> list[d.Delta]:
        return [d.ToolEnd("failed", {"error": why})]


async def ends_of(calls: ToolCalls, *names: str) -> list[d.ToolEnd]:
    turn: ModelTurn = ToolCallingTurn(Written(*map(call, names), [STOP]), calls)
    batches: AsyncGenerator[list[d.Delta]] = aiter(turn)
    return [each async for batch in batches for each in batch if isinstance(each, d.ToolEnd)]
