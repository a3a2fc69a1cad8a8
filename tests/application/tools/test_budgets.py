"""Budgets of a response and its calls: both end in time, and the response stays complete."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace
from tests.application.tools.test_calls import ANSWER, SERVER, STOP, Written, call, types

from antiphon.application.ports import ModelTurn, ToolResult
from antiphon.application.tools.budgets import Budgets
from antiphon.application.tools.calls import ToolCaller, ToolCallingTurn, ToolCalls
from antiphon.application.tools.work import WorkOutput
from antiphon.domain import deltas as d
from antiphon.domain import items as i
from antiphon.domain.errors import CONTEXT_EXCEEDED, RequestError
from antiphon.domain.offers.mcp import LOST

LOST_RESULT = ToolResult(error={"type": "mcp_protocol_error", "code": LOST, "message": "no answer"})
WRONG_ARGUMENTS = ToolResult(
    error={"type": "mcp_protocol_error", "code": -32602, "message": "no such a"}
)
TOOL_ERROR = ToolResult(error={"type": "mcp_tool_execution_error", "content": "not found"})
CALL_TURN = [call("add", "{}"), [STOP]]


# --- turns ----------------------------------------------------------------------------------------


async def test_a_model_that_only_makes_calls_is_cut_off_after_its_last_turn(new_house: Any) -> None:
    house = new_house(budgets=Budgets(turns=3))
    house.model.played = CALL_TURN
    response = await house.whole(tools=[SERVER])
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_turns")
    assert types(response) == [i.McpListTools, i.McpCall, i.McpCall, i.McpCall]
    assert [item.output for item in response.output[1:]] == ["add 1", "add 2", "add 3"]
    assert (len(house.model.turns), len(response.usage_per_turn)) == (3, 3)
    assert replace(await house.get("t", response.id), metrics=UNSET, preview=UNSET) == response


async def test_tool_output_beyond_the_context_is_kept_and_ends_the_response(
    house: Any,
) -> None:
    house.model.played = CALL_TURN
    house.model.later = [RequestError("too long", param="input", code=CONTEXT_EXCEEDED)]
    response = await house.whole(tools=[SERVER])
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_context")
    assert response.output[-1].output == "add 1"
    assert replace(await house.get("t", response.id), metrics=UNSET, preview=UNSET) == response


async def test_only_answers_of_the_model_count_as_turns(new_house: Any) -> None:
    house = new_house(budgets=Budgets(turns=2))
    house.model.context_length = 2
    house.model.played = [[d.TextDelta("They talked.")], [STOP]]
    house.model.later = [CALL_TURN, ANSWER]
    said = [{"role": role, "content": "x"} for role in ("user", "assistant", "user")]
    response = await house.whole(
        input=said, tools=[SERVER], context_management=[{"type": "compaction"}]
    )
    assert response.status == "completed"
    assert types(response) == [i.Compaction, i.McpListTools, i.McpCall, i.Message]


async def test_the_next_response_continues_one_that_was_cut_off(new_house: Any) -> None:
    house = new_house(budgets=Budgets(turns=1))
    house.model.played = CALL_TURN
    house.model.later = [ANSWER]
    cut_off = await house.whole(tools=[SERVER])
    assert cut_off.status == "incomplete"
    response = await house.whole(tools=[SERVER], previous_response_id=cut_off.id, input=[])
    assert response.status == "completed"
    assert any(getattr(item, "output", "") == "add 1" for item in house.model.turns[-1].items)


async def test_the_next_turn_knows_the_tokens_of_the_last_one(house: Any) -> None:
    house.model.played = CALL_TURN
    house.model.later = [CALL_TURN, ANSWER]
    await house.whole(tools=[SERVER])
    assert [turn.known_tokens for turn in house.model.turns] == [None, 5, 5]


# --- time -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("background", [False, True])
async def test_an_engine_that_hangs_is_stopped_in_time(new_house: Any, background: bool) -> None:
    house = new_house(max_run_s=0.3)
    house.model.played = [[d.TextDelta("Hel")], asyncio.Event()]
    response = await house.whole(background=background, stream=True)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_time")
    # On a busy machine the time may be up before any of it has happened.
    assert {item.status for item in response.output} <= {"incomplete"}
    assert all(turn.closed for turn in house.model.begun)
    assert response.usage is None or response.usage.total_tokens == 5
    assert replace(await house.get("t", response.id), metrics=UNSET, preview=UNSET) == response


@pytest.mark.parametrize("background", [False, True])
async def test_a_tool_that_hangs_is_stopped_with_its_response(
    new_house: Any, background: bool
) -> None:
    house = new_house(max_run_s=0.3)
    house.model.played = [call("add", "{}"), call("wait", "{}"), call("wait", "{}"), [STOP]]
    response = await house.whole(tools=[SERVER], background=background, stream=True)
    assert (response.status, response.incomplete_details.reason) == ("incomplete", "max_time")
    # On a busy machine the time may be up before all of it has started.
    assert response.output[2:] == [] or response.output[2].status == "incomplete"
    assert house.tools.stopped == [name for name, _ in house.tools.called if name == "wait"]
    assert house.tools.open == 0
    assert response.usage is None or response.usage.total_tokens == 5
    assert replace(await house.get("t", response.id), metrics=UNSET, preview=UNSET) == response


async def test_a_tool_listing_that_hangs_is_stopped_too(new_house: Any) -> None:
    house = new_house(budgets=Budgets(call_s=0.05))

    async def hang() -> None:
        await asyncio.Event().wait()

    house.tools.tools = hang
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
    "result",
    [
        ValueError("oops"),
        SystemExit(3),
        asyncio.CancelledError(),
        TimeoutError(),
        ToolResult(output=5j),  # type: ignore[arg-type]
        ToolResult(output="x" * 5000),
    ],
)
async def test_a_call_that_raises_or_returns_too_much_fails_alone_and_is_logged(
    new_house: Any, result: Any, caplog: pytest.LogCaptureFixture
) -> None:
    house = new_house(budgets=Budgets(call_bytes=4000))
    house.model.played = CALL_TURN
    house.model.later = [CALL_TURN, ANSWER]
    house.tools.gives = [result]
    with caplog.at_level(logging.ERROR):
        response = await house.whole(tools=[SERVER])
    assert response.status == "completed"
    failed, completed = response.output[1:3]
    assert (failed.status, failed.output, completed.output) == ("failed", None, "add 2")
    assert failed.error["content"]
    is_too_large = isinstance(result, ToolResult) and len(str(result.output)) > 4000
    assert ("a tool call failed" in caplog.text) != is_too_large


async def test_a_call_that_cannot_be_stopped_does_not_hold_up_the_turn(
    caplog: pytest.LogCaptureFixture,
) -> None:
    is_released = asyncio.Event()

    class Stubborn(RecordingCaller):
        async def call(self, start: d.CallStart, arguments: str) -> WorkOutput:
            while not is_released.is_set():
                try:
                    await is_released.wait()
                except asyncio.CancelledError:
                    continue
            yield [d.ToolEnd()]

    budgets = Budgets(call_s=0.02, stopping_s=0.02)
    try:
        ends = await ends_of(ToolCalls({"mcp": Stubborn()}, None, budgets), "one")
    finally:
        is_released.set()
    assert [end.status for end in ends] == ["failed"]
    assert "could not be stopped" in caplog.text


async def test_calls_run_in_order_within_the_limit_on_parallel_calls() -> None:
    class Slow(RecordingCaller):
        async def call(self, start: d.CallStart, arguments: str) -> WorkOutput:
            self.log.append(start.name)
            await asyncio.sleep(0)
            self.log.append(f"end of {start.name}")
            yield [d.ToolEnd()]

    tool = Slow()
    await ends_of(ToolCalls({"mcp": tool}, None, max_parallel=1), "one", "two")
    assert tool.log == ["one", "end of one", "two", "end of two"]


async def test_without_parallel_tool_calls_calls_run_one_after_another(house: Any) -> None:
    house.model.played = [call("wait", "{}"), call("add", "{}"), [STOP]]
    created = await house.create(tools=[SERVER], parallel_tool_calls=False, stream=True)
    await house.tools.waits.wait()
    for _ in range(10):
        await asyncio.sleep(0)
    assert [name for name, _ in house.tools.called] == ["wait"]
    await created.leave()
    await asyncio.wait([created.task])


# --- servers that do not answer -------------------------------------------------------------------


async def call_for_each(house: Any, *results: ToolResult | BaseException) -> Sequence[Any]:
    """Return the calls of a response with one call per turn, which have these results."""
    house.tools.gives = list(results)
    house.model.played = CALL_TURN
    house.model.later = [*[CALL_TURN] * (len(results) - 1), ANSWER]
    response = await house.whole(tools=[SERVER])
    assert response.status == "completed"
    return [item for item in response.output if isinstance(item, i.McpCall)]


async def test_a_server_that_left_three_calls_unanswered_is_not_called_again(house: Any) -> None:
    calls = await call_for_each(house, *[LOST_RESULT] * 6)
    assert len(house.tools.called) == 3
    assert [item.error.get("code") for item in calls] == [LOST] * 3 + [None] * 3
    assert "It is left alone for a while" in calls[-1].error["content"]
    house.tools.gives = []
    again = await house.whole(tools=[SERVER])  # the next response starts counting anew
    assert again.output[1].output == "add 4"


@pytest.mark.parametrize("answer", [ToolResult(output="yes"), WRONG_ARGUMENTS, TOOL_ERROR])
async def test_any_answer_resets_the_count_of_failures(house: Any, answer: Any) -> None:
    await call_for_each(house, LOST_RESULT, LOST_RESULT, answer, LOST_RESULT, LOST_RESULT, answer)
    assert len(house.tools.called) == 6


@pytest.mark.parametrize("answer", [WRONG_ARGUMENTS, TOOL_ERROR])
async def test_wrong_arguments_and_tool_errors_do_not_count_as_failures(
    house: Any, answer: Any
) -> None:
    await call_for_each(house, *[answer] * 6)
    assert len(house.tools.called) == 6


async def test_a_tool_that_keeps_failing_is_not_called_forever(house: Any) -> None:
    await call_for_each(house, *[ValueError("oops")] * 6)
    assert len(house.tools.called) == 3


# --- callers of these tests -----------------------------------------------------------------------


class RecordingCaller(ToolCaller):
    """A caller that records the calls it runs."""

    step = "calling"

    def __init__(self) -> None:
        self.log: list[str] = []

    def open_item(self, start: d.CallStart) -> d.Delta:
        return start

    def refuse(self, start: d.CallStart, arguments: str, reason: str) -> list[d.Delta]:
        return [d.ToolEnd("failed", {"error": reason})]


async def ends_of(calls: ToolCalls, *names: str) -> list[d.ToolEnd]:
    turn: ModelTurn = ToolCallingTurn(Written(*map(call, names), [STOP]), calls)
    batches: AsyncGenerator[list[d.Delta]] = aiter(turn)
    return [each async for batch in batches for each in batch if isinstance(each, d.ToolEnd)]
