"""What the tools of a response return together, and the room that all responses share for it."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack
from typing import Any

import pytest
from tests.application.tools.test_calls import ANSWER, SERVER, STOP, call

from antiphon.application.ports import ToolResult
from antiphon.application.support.bytes_in_work import FREE_BYTES, BytesInWork
from antiphon.application.tools.budgets import Budgets
from antiphon.application.tools.outputs import (
    MAX_CALLS_OF_TENANT,
    MAX_WAITING_OF_TENANT,
    NO_ROOM,
    ResponseOutputs,
    ToolRoom,
)
from antiphon.domain.errors import RequestError

MAX = 1_000_000
LARGE = 200_000
"""More than a response may hold without counting."""


def room_of(max_bytes: int = MAX) -> tuple[BytesInWork, ToolRoom]:
    account = BytesInWork(max_bytes)
    return account, ToolRoom(account)


async def test_calls_past_the_budget_of_a_response_do_not_run(new_house: Any) -> None:
    house = new_house(budgets=Budgets(response_bytes=5000))
    house.model.played = [*(call("add", "{}") for _ in range(4)), [STOP]]
    house.model.later = [ANSWER]
    house.tools.gives = [ToolResult(output="x" * 2000)] * 4
    response = await house.whole(tools=[SERVER], parallel_tool_calls=False, include=["metrics"])
    assert response.status == "completed"
    calls = response.output[1:5]
    assert [len(each.output or "") for each in calls] == [2000, 2000, 0, 0]
    assert [each.status for each in calls] == ["completed", "completed", "failed", "failed"]
    assert "5000 bytes together" in calls[2].error["content"]
    assert "was not run" in calls[3].error["content"]
    records = [each for turn in response.metrics.turns for each in turn.tool_calls]
    results = [each.result for each in records if each.name == "add"]
    assert results == ["ok", "ok", "error", "refused"]


async def test_output_counts_until_the_response_has_ended() -> None:
    account, room = room_of()
    outputs = room.open_response("t", MAX)
    one = outputs.open_call()
    await one.read(2 * LARGE)
    assert account.by_subject["tool_outputs"] == 2 * LARGE
    assert await one.keep(b"x" * LARGE) is None
    one.end()
    assert account.total == LARGE
    outputs.release()
    assert account.total == 0


async def test_short_output_does_not_count() -> None:
    account, room = room_of()
    assert await room.open_response("t", MAX).open_call().keep(b"x" * FREE_BYTES) is None
    assert account.total == 0


async def test_text_counts_as_wide_as_its_widest_character() -> None:
    account, room = room_of(4 * MAX)
    text = "x" * LARGE + "\U0001f600"
    await room.open_response("t", MAX).open_call().keep(text.encode())
    assert account.total >= 4 * LARGE


async def test_output_waits_for_room_and_gets_it() -> None:
    account, room = room_of()
    first, second = (room.open_response("t", MAX) for _ in range(2))
    body = account.hold("t", "requests")
    body.resize(2 * LARGE)
    assert await first.open_call().keep(b"x" * 90_000) is None
    waiting = asyncio.create_task(second.open_call().keep(b"x" * LARGE))
    await asyncio.sleep(0)
    assert account.waiting == 1
    body.release()
    assert await waiting is None


async def test_who_would_wait_only_for_those_that_wait_is_refused_and_makes_room() -> None:
    account, room = room_of()
    first, second = (room.open_response("t", MAX) for _ in range(2))
    for outputs in (first, second):
        assert await outputs.open_call().keep(b"x" * LARGE) is None
    waiting = asyncio.create_task(first.open_call().keep(b"x" * LARGE))
    await asyncio.sleep(0)
    assert account.waiting == 1
    assert await second.open_call().keep(b"x" * LARGE) == NO_ROOM
    assert second.refusal == NO_ROOM
    second.release()
    assert await waiting is None


async def test_only_some_responses_wait_so_that_their_calls_leave_slots_to_others() -> None:
    account, room = room_of()
    account.hold("t", "requests").resize(MAX // 2)
    waiting = [
        asyncio.create_task(room.open_response("t", MAX).open_call().read(LARGE))
        for _ in range(MAX_WAITING_OF_TENANT)
    ]
    await asyncio.sleep(0)
    with pytest.raises(RequestError):
        await room.open_response("t", MAX).open_call().read(LARGE)
    for task in waiting:
        task.cancel()


async def test_a_tenant_has_a_limited_number_of_calls_at_a_time() -> None:
    _, room = room_of()
    busy, other = room.open_response("t", MAX), room.open_response("other", MAX)

    async def take(outputs: ResponseOutputs) -> None:
        async with outputs.slot():
            pass

    async with AsyncExitStack() as stack:
        for _ in range(MAX_CALLS_OF_TENANT):
            await stack.enter_async_context(busy.slot())
        await take(other)
        waiting = asyncio.create_task(take(busy))
        await asyncio.sleep(0)
        assert not waiting.done()
    await waiting


async def test_a_call_that_may_not_run_waits_for_no_slot() -> None:
    _, room = room_of()
    busy, spent = room.open_response("t", MAX), room.open_response("t", 10)

    async def take() -> None:
        async with spent.slot():
            pass

    async with AsyncExitStack() as stack:
        for _ in range(MAX_CALLS_OF_TENANT):
            await stack.enter_async_context(busy.slot())
        waiting = asyncio.create_task(take())
        await asyncio.sleep(0)
        assert await spent.open_call().keep(b"x" * 11) is not None
        await waiting
        await take()
    assert room.calls.held_by("t") == 0
