"""Several servers on one store: a response has one log and one end, whichever server runs it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import pairwise
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace
from tests.application.conftest import House

from antiphon.application.ports import StorageUsage
from antiphon.application.runs.stored_events import log_of
from antiphon.domain import deltas as d
from antiphon.domain import events as e
from antiphon.domain.errors import (
    ConcurrencyLimitExceeded,
    ConversationLocked,
    EngineDead,
    NotFound,
    RequestError,
    ServerShuttingDown,
)
from antiphon.domain.history.conversation import Conversation
from antiphon.domain.responses.response import TERMINAL, Response

TENANT = "t"
STOP = d.TurnEnd("stop", d.TurnUsage(input=3, output=2))
Events = list[e.Event]


@pytest.fixture
def other(house: House) -> House:
    """Another server on the store of `house`."""
    return House(house.store, owner="srv_2")


def set_turns(house: House, *batches: Any) -> asyncio.Event:
    """Let a server's model play these batches, and end when the returned event is set."""
    gate = asyncio.Event()
    house.model.played = [*batches, gate, [d.TextDelta(" end")], [STOP]]
    return gate


async def wait_until(holds: Callable[[], Awaitable[Any]]) -> Any:
    """Wait for a true result, and return it."""
    async with asyncio.timeout(30):
        while True:
            if result := await holds():
                return result
            await asyncio.sleep(0.001)


async def wait_for_turns(house: House, count: int = 1) -> None:
    """Wait until a server's model has started this many turns."""

    async def holds() -> bool:
        return len(house.model.begun) == count

    await wait_until(holds)


async def let_die(house: House) -> None:
    """Let the server seem dead to the others; its tasks continue."""
    await house.store.end_heartbeat(house.owner)


async def wait_for_end(house: House, response_id: str) -> Any:
    """Wait until the response has ended, and return it."""

    async def holds() -> Response | None:
        response: Response = await house.get(TENANT, response_id)
        return response if response.status in TERMINAL else None

    return await wait_until(holds)


async def log_events(house: House, response_id: str) -> Events:
    return await log_of(house.store, TENANT, response_id)


def names(events: Events) -> list[str]:
    return [type(event).__name__ for event in events]


async def wait_for_output(house: House, response_id: str) -> None:
    """Wait until some output is in the store."""

    async def holds() -> bool:
        return len(await log_events(house, response_id)) > 3

    await wait_until(holds)


def is_whole(events: Events) -> bool:
    """Whether the numbers have no gaps, and only the last event is terminal."""
    dense = [event.sequence_number for event in events] == list(range(len(events)))
    ends = [event for event in events if isinstance(event, e.TERMINAL)]
    return dense and ends == [events[-1]]


# --- the runs of a dead server --------------------------------------------------------------------


async def test_a_run_without_output_starts_again_and_its_numbers_continue(
    house: House, other: House
) -> None:
    set_turns(house)
    created = await house.create(background=True, stream=True)
    await let_die(house)
    assert await other.start_background_runs.run_once() == 1
    assert (await wait_for_end(other, created.id)).status == "completed"
    events = await log_events(other, created.id)
    assert is_whole(events)
    assert names(events)[:4] == ["Created", "Queued", "InProgress", "ItemAdded"]
    assert names(events).count("InProgress") == 1


async def test_a_run_that_its_model_begins_otherwise_fails_and_its_items_are_closed(
    house: House, other: House
) -> None:
    set_turns(house, [d.TextDelta("Once")])
    created = await house.create(background=True)
    await wait_for_output(house, created.id)
    await let_die(house)
    reader = await other.follow(TENANT, created.id)
    await other.start_background_runs.run_once()
    response = await wait_for_end(other, created.id)
    assert (response.status, response.error.code) == ("failed", "server_restarted")
    assert [item.status for item in response.output] == ["incomplete"]
    events = [event async for batch in reader for event in batch]
    assert is_whole(events)
    assert names(events)[-3:] == ["ItemDone", "Error", "Failed"]


async def test_a_run_that_its_model_begins_in_the_same_way_goes_on(
    house: House, other: House
) -> None:
    set_turns(house, [d.TextDelta("Once")])
    created = await house.create(background=True)
    await wait_for_output(house, created.id)
    await let_die(house)
    other.model.played = [[d.TextDelta("Once")], [d.TextDelta(" more")], [STOP]]
    await other.start_background_runs.run_once()
    assert (await wait_for_end(other, created.id)).output[0].content[0].text == "Once more"
    events = await log_events(other, created.id)
    assert is_whole(events)
    assert names(events).count("ItemAdded") == 1


async def test_the_former_owner_writes_nothing_and_releases_its_engine(
    house: House, other: House
) -> None:
    gate = set_turns(house, [d.TextDelta("Once")])
    created = await house.create(background=True)
    await wait_for_output(house, created.id)
    await let_die(house)
    await other.start_background_runs.run_once()
    await wait_for_end(other, created.id)
    before = await log_events(other, created.id)
    gate.set()
    assert created.task is not None
    await asyncio.wait([created.task])
    assert house.model.begun[0].closed
    assert await log_events(other, created.id) == before
    events = [event async for batch in created.events for event in batch]
    assert events == before, "its readers read on in the store"


async def test_a_foreground_response_of_a_dead_server_fails_and_locks_nothing(
    house: House, other: House
) -> None:
    await house.store.create_conversation(TENANT, Conversation(id="conv_a", created_at=0))
    gate = set_turns(house, [d.TextDelta("Once")])
    created = await house.create(conversation="conv_a")
    await let_die(house)
    await other.start_background_runs.run_once()
    assert (await wait_for_end(other, created.id)).error.code == "server_restarted"
    await other.whole(conversation="conv_a")
    gate.set()
    events = [event async for batch in created.events for event in batch]
    assert isinstance(events[-1], e.Failed), "the stream must not report a success that GET denies"


async def test_a_run_fails_after_several_servers_died_with_it(house: House) -> None:
    servers = [house, *(House(house.store, owner=f"srv_{n}") for n in range(2, 6))]
    for server in servers:
        set_turns(server)
    created = await house.create(background=True)
    for before, server in pairwise(servers[:4]):
        await let_die(before)
        await server.start_background_runs.run_once()
        await wait_for_turns(server)
    await let_die(servers[3])
    await servers[4].start_background_runs.run_once()
    assert (await wait_for_end(house, created.id)).error.code == "server_restarted"
    assert not servers[4].model.begun


async def test_a_run_whose_job_has_another_seal_key_fails_with_the_reason(
    house: House, other: House, monkeypatch: Any
) -> None:
    set_turns(house)
    created = await house.create(background=True)
    await let_die(house)
    monkeypatch.setattr(other.jobs, "_unseal", lambda _tenant, _text: None)
    await other.start_background_runs.run_once()
    assert "seal_key_file" in (await wait_for_end(other, created.id)).error.message


async def test_a_waiting_run_fails_if_its_previous_response_is_deleted(house: House) -> None:
    previous = await house.whole()
    house.runs.may_have_waiting_runs = True
    created = await house.create(background=True, previous_response_id=previous.id)
    await house.delete(TENANT, previous.id)
    await house.start_background_runs.run_once()
    response = await wait_for_end(house, created.id)
    assert response.status == "failed"
    assert previous.id in response.error.message


async def test_a_server_that_seemed_dead_continues_runs_that_no_server_took_over(
    house: House,
) -> None:
    gate = set_turns(house, [d.TextDelta("Once")])
    created = await house.create(background=True)
    await wait_for_output(house, created.id)
    await let_die(house)
    assert await house.start_background_runs.run_once() == 0
    gate.set()
    assert (await wait_for_end(house, created.id)).status == "completed"
    assert len(house.model.begun) == 1


async def test_a_run_that_was_taken_over_and_given_back_continues_under_a_new_lease(
    house: House, other: House
) -> None:
    set_turns(house)
    created = await house.create(background=True)
    taken = await other.store.take_over_run(other.owner, TENANT, created.id)
    assert taken is not None
    await other.store.give_back_run(taken.lease)
    house.model.played = [[d.TextDelta("Once")], [STOP]]
    await house.start_background_runs.run_once()
    assert (await wait_for_end(house, created.id)).status == "completed"
    assert house.model.begun[0].closed
    events = [event async for batch in created.events for event in batch]
    assert is_whole(events)


async def test_a_server_with_a_dead_engine_leases_no_runs(house: House, other: House) -> None:
    set_turns(house)
    created = await house.create(background=True)
    await let_die(house)
    other.model.dead = EngineDead("no GPU")
    with pytest.raises(EngineDead):
        await other.start_background_runs.run_once()
    assert (await house.store.get_response(TENANT, created.id)).status == "in_progress"


@pytest.mark.parametrize("hindrance", ["no slot", "no engine"])
async def test_a_run_of_a_dead_server_waits_for_a_slot_and_an_engine(
    house: House, other: House, hindrance: str
) -> None:
    set_turns(house, [d.TextDelta("Once")])
    shown_one = await house.create(background=True)
    await wait_for_output(house, shown_one.id)
    set_turns(house)
    silent = await house.create(background=True)
    set_turns(other)
    if hindrance == "no slot":
        for _ in range(2):
            await other.create(background=True)
        assert not other.runs.free_slots
    else:
        other.model.dead = EngineDead("no GPU")
    await let_die(house)
    with suppress(EngineDead):
        assert await other.start_background_runs.run_once() == 0

    async def wait() -> bool:
        return (await other.store.get_storage_usage(TENANT)).waiting == 2

    await wait_until(wait)
    for waiting in (shown_one, silent):
        assert (await house.store.get_response(TENANT, waiting.id)).status in (
            "queued",
            "in_progress",
        )


# --- the queue ------------------------------------------------------------------------------------


async def test_a_response_waits_until_a_slot_is_free(house: House) -> None:
    gate = set_turns(house)
    running = [await house.create(background=True) for _ in range(2)]
    waiting = await house.create(background=True, stream=True)
    assert waiting.run is None
    assert (await house.get(TENANT, waiting.id)).status == "queued"
    assert await house.start_background_runs.run_once() == 0
    house.runs.work_available.clear()
    gate.set()
    for each in running:
        await wait_for_end(house, each.id)
    await house.runs.work_available.wait()
    set_turns(house).set()
    assert await house.start_background_runs.run_once() == 1
    assert (await wait_for_end(house, waiting.id)).status == "completed"
    events = [event async for batch in waiting.events for event in batch]
    assert names(events)[:3] == ["Created", "Queued", "InProgress"]
    assert is_whole(events)


async def test_another_server_starts_a_waiting_run_and_all_see_it_in_progress(
    house: House, other: House
) -> None:
    house.runs.may_have_waiting_runs = True
    waiting = await house.create(background=True)
    gate = set_turns(other)
    await other.start_background_runs.run_once()
    await wait_for_turns(other)
    assert (await house.get(TENANT, waiting.id)).status == "in_progress"
    gate.set()
    assert (await wait_for_end(house, waiting.id)).status == "completed"


async def test_new_responses_queue_behind_waiting_ones(house: House) -> None:
    house.runs.may_have_waiting_runs = True
    first = await house.create(background=True)
    set_turns(house)
    second = await house.create(background=True)
    assert second.run is None
    assert await house.start_background_runs.run_once() == 2
    await wait_for_turns(house, 2)
    third = await house.create(background=True)
    assert third.run is None, "no slot is free"
    assert {first.id, second.id} == {lease.response_id for lease in house.runs.leases}


async def test_the_number_of_waiting_responses_is_limited(house: House) -> None:
    house.runs.may_have_waiting_runs = True
    for _ in range(3):
        await house.create(background=True)
    with pytest.raises(ConcurrencyLimitExceeded):
        await house.create(background=True)
    assert (await house.store.get_storage_usage(TENANT)) == StorageUsage(
        responses=3, bytes=(await house.store.get_storage_usage(TENANT)).bytes, waiting=3
    )
    await house.whole()


async def test_a_waiting_response_is_cancelled_without_running(house: House, other: House) -> None:
    house.runs.may_have_waiting_runs = True
    waiting = await house.create(background=True, stream=True)
    assert (await other.cancel(TENANT, waiting.id)).status == "cancelled"
    assert await house.start_background_runs.run_once() == 0
    events = [event async for batch in waiting.events for event in batch]
    assert names(events) == ["Created", "Queued", "Incomplete"]


# --- cancelling and deleting on another server ----------------------------------------------------


async def test_any_server_can_cancel_a_run_of_another(house: House, other: House) -> None:
    set_turns(house, [d.TextDelta("Once")])
    created = await house.create(background=True, stream=True)
    await wait_for_output(house, created.id)
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


async def test_concurrent_cancellations_have_the_same_result(house: House, other: House) -> None:
    third = House(house.store, owner="srv_3")
    set_turns(house, [d.TextDelta("Once")])
    created = await house.create(background=True)
    await wait_for_output(house, created.id)
    responses = await asyncio.gather(
        *(server.cancel(TENANT, created.id) for server in (other, third, house, other))
    )
    assert {each.status for each in responses} == {"cancelled"}
    assert is_whole(await log_events(house, created.id))


async def test_a_completed_response_cannot_be_cancelled_on_another_server(
    house: House, other: House
) -> None:
    created = await house.create(background=True)
    await wait_for_end(house, created.id)
    with pytest.raises(RequestError, match="Cannot cancel a completed response"):
        await other.cancel(TENANT, created.id)


@pytest.mark.parametrize("background", [True, False])
async def test_any_server_can_delete_a_run_of_another(
    house: House, other: House, background: bool
) -> None:
    gate = set_turns(house, [d.TextDelta("Once")])
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


async def test_watching_leases_stops_no_run_with_a_valid_lease(house: House, other: House) -> None:
    gate = set_turns(house)
    mine = [await house.create(background=True), await house.create(), await house.create()]
    unstored = await house.create(store=False)
    for server in (house, other, house, other):
        await server.watch_leases.run_once()
    gate.set()
    for each in (*mine, unstored):
        events = [event async for batch in each.events for event in batch]
        assert isinstance(events[-1], e.Completed)


# --- failing stores and shutdown ------------------------------------------------------------------


async def test_a_run_whose_end_could_not_be_stored_ends_later(house: House) -> None:
    house.store.failing = {"finish"}
    created = await house.create(background=True)
    assert created.task is not None
    await asyncio.wait([created.task])
    house.store.failing = set()
    assert (await house.get(TENANT, created.id)).status == "in_progress"
    await house.watch_leases.run_once()
    await house.watch_leases.run_once()
    await house.start_background_runs.run_once()
    response = await wait_for_end(house, created.id)
    assert response.status in ("failed", "completed")
    events = [event async for batch in created.events for event in batch]
    assert is_whole(events)
    assert events[-1].response == replace(response, metrics=UNSET, preview=UNSET)  # type: ignore[attr-defined]


async def test_later_readers_never_see_an_unstored_end(house: House) -> None:
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
    assert (await wait_for_end(house, created.id)).error.code == "server_restarted"
    with pytest.raises(RequestError, match="retrieve it without 'stream'"):
        await house.follow(TENANT, created.id)


async def test_a_run_that_can_restart_keeps_its_conversation_locked(house: House) -> None:
    await house.store.create_conversation(TENANT, Conversation(id="conv_a", created_at=0))
    set_turns(house, [d.TextDelta("Once")]).set()
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
    assert (await wait_for_end(house, created.id)).status == "completed"
    assert len(await house.store.list_conversation_items(TENANT, "conv_a")) == 2


async def test_a_restarting_run_survives_a_short_outage_of_the_store(
    house: House, other: House
) -> None:
    before = await house.whole()
    set_turns(house)
    created = await house.create(background=True, previous_response_id=before.id)
    await let_die(house)
    house.store.failing = {"context once"}
    await other.start_background_runs.run_once()
    assert (await wait_for_end(other, created.id)).status == "completed"


async def test_shutdown_gives_runs_back(house: House, other: House) -> None:
    set_turns(house)
    silent = await house.create(background=True, stream=True)
    set_turns(house, [d.TextDelta("Once")])
    heard = await house.create(background=True)
    await wait_for_output(house, heard.id)
    await house.runs.drain(0)
    assert len(house.runs) == 0
    other.model.played = [[d.TextDelta("Once")], [STOP]]
    for given_back in (silent, heard):
        assert (await house.get(TENANT, given_back.id)).status == "in_progress"
    await other.start_background_runs.run_once()
    for given_back in (silent, heard):
        assert (await wait_for_end(other, given_back.id)).status == "completed"
        assert is_whole([event async for batch in given_back.events for event in batch])


async def test_no_run_starts_during_shutdown(house: House) -> None:
    house.runs.close()
    for background in (True, False):
        with pytest.raises(ServerShuttingDown):
            await house.create(background=background)
    assert await house.start_background_runs.run_once() == 0


async def test_shutdown_waits_for_running_responses(house: House) -> None:
    gate = set_turns(house)
    created = await house.create()
    draining = asyncio.create_task(house.runs.drain(5))
    gate.set()
    await draining
    events = [event async for batch in created.events for event in batch]
    assert isinstance(events[-1], e.Completed)


async def test_draining_can_be_cut_short(house: House) -> None:
    set_turns(house, [d.TextDelta("Once")])
    created = await house.create()
    draining = asyncio.create_task(house.runs.drain(60))
    await asyncio.sleep(0)
    house.runs.stop_draining()
    async with asyncio.timeout(30):
        await draining
    assert (await house.get(TENANT, created.id)).status == "failed"


async def test_a_background_response_has_one_webhook_delivery(house: House) -> None:
    created = await house.create(background=True)
    await wait_for_end(house, created.id)
    await house.whole()
    assert house.deliveries == [(TENANT, "completed")]
