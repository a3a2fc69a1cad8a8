"""Several servers on one store: whoever runs a response, it has one log and one end."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from tests.application.conftest import House

from antiphon.application.ports import StorageUsage
from antiphon.application.runs.stored_events import log_of
from antiphon.domain import deltas as d
from antiphon.domain import events as e
from antiphon.domain.conversation import Conversation
from antiphon.domain.errors import (
    ConversationLocked,
    EngineDead,
    NotFound,
    QueueFull,
    RequestError,
    ServerShuttingDown,
)
from antiphon.domain.response import TERMINAL, Response

TENANT = "t"
STOP = d.TurnEnd("stop", d.TurnUsage(input=3, output=2))
Events = list[e.Event]


@pytest.fixture
def other(house: House) -> House:
    """Another server on the store of `house`."""
    return House(house.store, owner="srv_2")


def plays(house: House, *batches: Any) -> asyncio.Event:
    """Let the model of a server say something, and go on when the returned event is set."""
    gate = asyncio.Event()
    house.model.played = [*batches, gate, [d.TextDelta(" end")], [STOP]]
    return gate


async def until(holds: Callable[[], Awaitable[Any]]) -> Any:
    """Wait until this is true, and return it."""
    async with asyncio.timeout(30):
        while True:
            if found := await holds():
                return found
            await asyncio.sleep(0.001)


async def begun(house: House, count: int = 1) -> None:
    """Wait until the model of a server was asked so often."""

    async def holds() -> bool:
        return len(house.model.begun) == count

    await until(holds)


async def dies(house: House) -> None:
    """The others see it dead; its tasks do not know."""
    await house.store.leave(house.owner)


async def over(house: House, response_id: str) -> Any:
    """Wait until the response is over, and return it."""

    async def holds() -> Response | None:
        found: Response = await house.get(TENANT, response_id)
        return found if found.status in TERMINAL else None

    return await until(holds)


async def logged(house: House, response_id: str) -> Events:
    return await log_of(house.store, TENANT, response_id)


def names(events: Events) -> list[str]:
    return [type(event).__name__ for event in events]


async def shown(house: House, response_id: str) -> None:
    """Wait until something of the answer is in the store."""

    async def holds() -> bool:
        return len(await logged(house, response_id)) > 3

    await until(holds)


def is_whole(events: Events) -> bool:
    """Whether the numbers are dense, and one event ends it all."""
    dense = [event.sequence_number for event in events] == list(range(len(events)))
    ends = [event for event in events if isinstance(event, e.TERMINAL)]
    return dense and ends == [events[-1]]


# --- what a dead server leaves --------------------------------------------------------------------


async def test_what_showed_nothing_is_begun_again_under_the_same_numbers(
    house: House, other: House
) -> None:
    plays(house)
    created = await house.create(background=True, stream=True)
    await dies(house)
    assert await other.start_background_runs.run_once() == 1
    assert (await over(other, created.id)).status == "completed"
    events = await logged(other, created.id)
    assert is_whole(events)
    assert names(events)[:4] == ["Created", "Queued", "InProgress", "ItemAdded"]
    assert names(events).count("InProgress") == 1


async def test_what_showed_something_has_failed_and_its_items_are_closed(
    house: House, other: House
) -> None:
    plays(house, [d.TextDelta("Once")])
    created = await house.create(background=True)
    await shown(house, created.id)
    await dies(house)
    reader = await other.follow(TENANT, created.id)
    await other.start_background_runs.run_once()
    response = await over(other, created.id)
    assert (response.status, response.error.code) == ("failed", "server_restarted")
    assert [item.status for item in response.output] == ["incomplete"]
    events = [event async for batch in reader for event in batch]
    assert is_whole(events)
    assert names(events)[-3:] == ["ItemDone", "Error", "Failed"]
    assert not other.model.begun


async def test_its_owner_writes_nothing_any_more_and_leaves_its_engine(
    house: House, other: House
) -> None:
    gate = plays(house, [d.TextDelta("Once")])
    created = await house.create(background=True)
    await shown(house, created.id)
    await dies(house)
    await other.start_background_runs.run_once()
    await over(other, created.id)
    before = await logged(other, created.id)
    gate.set()
    assert created.task is not None
    await asyncio.wait([created.task])
    assert house.model.begun[0].closed
    assert await logged(other, created.id) == before
    events = [event async for batch in created.events for event in batch]
    assert events == before, "its readers read on in the store"


async def test_a_foreground_response_of_a_dead_server_has_failed_and_holds_nothing(
    house: House, other: House
) -> None:
    await house.store.create_conversation(TENANT, Conversation(id="conv_a", created_at=0))
    gate = plays(house, [d.TextDelta("Once")])
    created = await house.create(conversation="conv_a")
    await dies(house)
    await other.start_background_runs.run_once()
    assert (await over(other, created.id)).error.code == "server_restarted"
    await other.whole(conversation="conv_a")
    gate.set()
    events = [event async for batch in created.events for event in batch]
    assert isinstance(events[-1], e.Failed), "what GET denies is not told as a success"


async def test_a_run_that_ends_server_after_server_is_given_up(house: House) -> None:
    servers = [house, *(House(house.store, owner=f"srv_{n}") for n in range(2, 6))]
    for server in servers:
        plays(server)
    created = await house.create(background=True)
    for before, server in pairwise(servers[:4]):
        await dies(before)
        await server.start_background_runs.run_once()
        await begun(server)
    await dies(servers[3])
    await servers[4].start_background_runs.run_once()
    assert (await over(house, created.id)).error.code == "server_restarted"
    assert not servers[4].model.begun


async def test_a_job_of_another_key_fails_and_says_why(
    house: House, other: House, monkeypatch: Any
) -> None:
    plays(house)
    created = await house.create(background=True)
    await dies(house)
    monkeypatch.setattr(other.jobs, "_unseal", lambda _tenant, _text: None)
    await other.start_background_runs.run_once()
    assert "seal_key_file" in (await over(other, created.id)).error.message


async def test_what_it_continues_may_be_deleted_before_it_begins(house: House) -> None:
    previous = await house.whole()
    house.runs.may_have_waiting_runs = True
    created = await house.create(background=True, previous_response_id=previous.id)
    await house.delete(TENANT, previous.id)
    await house.start_background_runs.run_once()
    response = await over(house, created.id)
    assert response.status == "failed"
    assert previous.id in response.error.message


async def test_a_server_that_was_taken_for_dead_goes_on_with_what_nobody_took(
    house: House,
) -> None:
    gate = plays(house, [d.TextDelta("Once")])
    created = await house.create(background=True)
    await shown(house, created.id)
    await dies(house)
    assert await house.start_background_runs.run_once() == 0
    gate.set()
    assert (await over(house, created.id)).status == "completed"
    assert len(house.model.begun) == 1


async def test_what_was_taken_from_a_server_and_given_back_goes_on_there_under_another_lease(
    house: House, other: House
) -> None:
    plays(house)
    created = await house.create(background=True)
    taken = await other.store.take_over(other.owner, TENANT, created.id)
    assert taken is not None
    await other.store.give_back(taken.lease)
    house.model.played = [[d.TextDelta("Once")], [STOP]]
    await house.start_background_runs.run_once()
    assert (await over(house, created.id)).status == "completed"
    assert house.model.begun[0].closed
    events = [event async for batch in created.events for event in batch]
    assert is_whole(events)


async def test_a_server_whose_engine_is_dead_takes_nothing(house: House, other: House) -> None:
    plays(house)
    created = await house.create(background=True)
    await dies(house)
    other.model.dead = EngineDead("no GPU")
    with pytest.raises(EngineDead):
        await other.start_background_runs.run_once()
    assert (await house.store.get(TENANT, created.id)).status == "in_progress"


@pytest.mark.parametrize("hindrance", ["no room", "no engine"])
async def test_to_end_what_a_dead_server_has_shown_takes_neither_room_nor_engine(
    house: House, other: House, hindrance: str
) -> None:
    plays(house, [d.TextDelta("Once")])
    shown_one = await house.create(background=True)
    await shown(house, shown_one.id)
    plays(house)
    silent = await house.create(background=True)
    plays(other)
    if hindrance == "no room":
        for _ in range(2):
            await other.create(background=True)
        assert not other.runs.free_slots
    else:
        other.model.dead = EngineDead("no GPU")
    await dies(house)
    with suppress(EngineDead):
        assert await other.start_background_runs.run_once() == 0
    ended = await over(other, shown_one.id)
    assert (ended.status, ended.error.code) == ("failed", "server_restarted")

    async def waits() -> bool:
        return (await other.store.usage(TENANT)).waiting == 1

    await until(waits)
    assert (await house.store.get(TENANT, silent.id)).status in ("queued", "in_progress")


# --- the queue ------------------------------------------------------------------------------------


async def test_what_has_no_room_waits_until_there_is_some(house: House) -> None:
    gate = plays(house)
    running = [await house.create(background=True) for _ in range(2)]
    waiting = await house.create(background=True, stream=True)
    assert waiting.run is None
    assert (await house.get(TENANT, waiting.id)).status == "queued"
    assert await house.start_background_runs.run_once() == 0
    house.runs.work_available.clear()
    gate.set()
    for each in running:
        await over(house, each.id)
    await house.runs.work_available.wait()
    plays(house).set()
    assert await house.start_background_runs.run_once() == 1
    assert (await over(house, waiting.id)).status == "completed"
    events = [event async for batch in waiting.events for event in batch]
    assert names(events)[:3] == ["Created", "Queued", "InProgress"]
    assert is_whole(events)


async def test_another_server_with_room_begins_it_and_it_is_in_progress_for_all(
    house: House, other: House
) -> None:
    house.runs.may_have_waiting_runs = True
    waiting = await house.create(background=True)
    gate = plays(other)
    await other.start_background_runs.run_once()
    await begun(other)
    assert (await house.get(TENANT, waiting.id)).status == "in_progress"
    gate.set()
    assert (await over(house, waiting.id)).status == "completed"


async def test_newcomers_stand_behind_those_that_wait(house: House) -> None:
    house.runs.may_have_waiting_runs = True
    first = await house.create(background=True)
    plays(house)
    second = await house.create(background=True)
    assert second.run is None
    assert await house.start_background_runs.run_once() == 2
    await begun(house, 2)
    third = await house.create(background=True)
    assert third.run is None, "there is no room"
    assert {first.id, second.id} == {lease.response_id for lease in house.runs.leases}


async def test_only_so_many_may_wait(house: House) -> None:
    house.runs.may_have_waiting_runs = True
    for _ in range(3):
        await house.create(background=True)
    with pytest.raises(QueueFull):
        await house.create(background=True)
    assert (await house.store.usage(TENANT)) == StorageUsage(
        responses=3, bytes=(await house.store.usage(TENANT)).bytes, waiting=3
    )
    await house.whole()


async def test_what_waits_is_cancelled_without_ever_running(house: House, other: House) -> None:
    house.runs.may_have_waiting_runs = True
    waiting = await house.create(background=True, stream=True)
    assert (await other.cancel(TENANT, waiting.id)).status == "cancelled"
    assert await house.start_background_runs.run_once() == 0
    events = [event async for batch in waiting.events for event in batch]
    assert names(events) == ["Created", "Queued", "Incomplete"]


# --- cancelling and deleting from elsewhere -------------------------------------------------------


async def test_any_server_cancels_a_run_of_another(house: House, other: House) -> None:
    plays(house, [d.TextDelta("Once")])
    created = await house.create(background=True, stream=True)
    await shown(house, created.id)
    cancelled = await other.cancel(TENANT, created.id)
    assert cancelled.status == "cancelled"
    assert [item.status for item in cancelled.output] == ["incomplete"]
    assert await house.cancel(TENANT, created.id) == cancelled
    await house.watch_leases.run_once()
    assert created.task is not None
    await asyncio.wait([created.task])
    assert house.model.begun[0].closed
    events = [event async for batch in created.events for event in batch]
    assert is_whole(events)
    assert names(events)[-2:] == ["ItemDone", "Incomplete"]


async def test_all_who_cancel_at_once_are_told_the_same(house: House, other: House) -> None:
    third = House(house.store, owner="srv_3")
    plays(house, [d.TextDelta("Once")])
    created = await house.create(background=True)
    await shown(house, created.id)
    told = await asyncio.gather(
        *(server.cancel(TENANT, created.id) for server in (other, third, house, other))
    )
    assert {each.status for each in told} == {"cancelled"}
    assert is_whole(await logged(house, created.id))


async def test_a_run_that_was_complete_first_cannot_be_cancelled(
    house: House, other: House
) -> None:
    created = await house.create(background=True)
    await over(house, created.id)
    with pytest.raises(RequestError, match="Cannot cancel a completed response"):
        await other.cancel(TENANT, created.id)


@pytest.mark.parametrize("background", [True, False])
async def test_any_server_deletes_a_run_of_another(
    house: House, other: House, background: bool
) -> None:
    gate = plays(house, [d.TextDelta("Once")])
    created = await house.create(background=background, stream=True)
    await other.delete(TENANT, created.id)
    with pytest.raises(NotFound):
        await house.get(TENANT, created.id)
    await house.watch_leases.run_once()
    assert created.task is not None
    await asyncio.wait([created.task])
    assert house.model.begun[0].closed
    gate.set()
    events = [event async for batch in created.events for event in batch]
    assert isinstance(events[-1], e.Error if background else e.Failed)


async def test_the_look_at_leases_stops_nothing_that_has_one(house: House, other: House) -> None:
    gate = plays(house)
    mine = [await house.create(background=True), await house.create(), await house.create()]
    unstored = await house.create(store=False)
    for server in (house, other, house, other):
        await server.watch_leases.run_once()
    gate.set()
    for each in (*mine, unstored):
        events = [event async for batch in each.events for event in batch]
        assert isinstance(events[-1], e.Completed)


# --- stores that fail, servers that stop ----------------------------------------------------------


async def test_an_end_that_could_not_be_kept_is_made_up_for(house: House) -> None:
    house.store.failing = {"finish"}
    created = await house.create(background=True)
    assert created.task is not None
    await asyncio.wait([created.task])
    house.store.failing = set()
    assert (await house.get(TENANT, created.id)).status == "in_progress"
    await house.watch_leases.run_once()
    await house.watch_leases.run_once()
    await house.start_background_runs.run_once()
    response = await over(house, created.id)
    assert response.status in ("failed", "completed")
    events = [event async for batch in created.events for event in batch]
    assert is_whole(events)
    assert events[-1].response == response  # type: ignore[attr-defined]


async def test_an_end_that_was_not_kept_is_shown_to_nobody_later(house: House) -> None:
    house.store.failing = {"finish"}
    created = await house.create()
    events = [event async for batch in created.events for event in batch]
    assert is_whole(events)
    assert created.task is not None
    await asyncio.wait([created.task])
    house.store.failing = set()
    for _ in range(2):
        await house.watch_leases.run_once()
    await house.start_background_runs.run_once()
    assert (await over(house, created.id)).error.code == "server_restarted"
    with pytest.raises(RequestError, match="retrieve it without 'stream'"):
        await house.follow(TENANT, created.id)


async def test_what_may_be_begun_again_keeps_its_conversation(house: House) -> None:
    await house.store.create_conversation(TENANT, Conversation(id="conv_a", created_at=0))
    plays(house, [d.TextDelta("Once")]).set()
    house.store.failing = {"append", "finish"}
    created = await house.create(background=True, conversation="conv_a")
    assert created.task is not None
    await asyncio.wait([created.task])
    house.store.failing = set()
    with pytest.raises(ConversationLocked):
        await house.create(conversation="conv_a")
    for _ in range(2):
        await house.watch_leases.run_once()
    await house.start_background_runs.run_once()
    assert (await over(house, created.id)).status == "completed"
    assert len(await house.store.conversation_items(TENANT, "conv_a")) == 2


async def test_a_store_that_fails_for_a_moment_does_not_fail_what_is_begun_again(
    house: House, other: House
) -> None:
    before = await house.whole()
    plays(house)
    created = await house.create(background=True, previous_response_id=before.id)
    await dies(house)
    house.store.failing = {"context once"}
    await other.start_background_runs.run_once()
    assert (await over(other, created.id)).status == "completed"


async def test_a_server_that_stops_gives_back_what_showed_nothing(
    house: House, other: House
) -> None:
    plays(house)
    silent = await house.create(background=True, stream=True)
    plays(house, [d.TextDelta("Once")])
    heard = await house.create(background=True)
    await shown(house, heard.id)
    await house.runs.drain(0)
    assert len(house.runs) == 0
    assert (await house.get(TENANT, heard.id)).status == "failed"
    assert (await house.get(TENANT, silent.id)).status == "in_progress"
    await other.start_background_runs.run_once()
    assert (await over(other, silent.id)).status == "completed"
    events = [event async for batch in silent.events for event in batch]
    assert is_whole(events)


async def test_a_server_that_stops_begins_nothing(house: House) -> None:
    house.runs.close()
    for background in (True, False):
        with pytest.raises(ServerShuttingDown):
            await house.create(background=background)
    assert await house.start_background_runs.run_once() == 0


async def test_a_server_that_stops_waits_for_its_runs(house: House) -> None:
    gate = plays(house)
    created = await house.create()
    draining = asyncio.create_task(house.runs.drain(5))
    gate.set()
    await draining
    events = [event async for batch in created.events for event in batch]
    assert isinstance(events[-1], e.Completed)


async def test_who_hurries_waits_no_longer(house: House) -> None:
    plays(house, [d.TextDelta("Once")])
    created = await house.create()
    draining = asyncio.create_task(house.runs.drain(60))
    await asyncio.sleep(0)
    house.runs.stop_draining()
    async with asyncio.timeout(30):
        await draining
    assert (await house.get(TENANT, created.id)).status == "failed"


async def test_a_response_in_the_background_is_told_of_once(house: House) -> None:
    created = await house.create(background=True)
    await over(house, created.id)
    await house.whole()
    assert house.deliveries == [(TENANT, "completed")]
