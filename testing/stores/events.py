"""Contract tests for a store's logs of runs that outlive their process."""

from __future__ import annotations

import asyncio

import pytest

from antiphon.application.ports import EventChunk, NewRun, Store, WebhookDelivery
from antiphon.domain.errors import NotFound, StoreError
from antiphon.testing.samples import (
    EVERY_BYTE,
    OWNER,
    THEM,
    US,
    chunk,
    finished_response,
    lease,
    new_response,
    response_with_log,
)
from antiphon.testing.stores.calls import finish, is_unknown, last_number, log_ends, log_of, sweep
from antiphon.testing.stores.fixtures import StoreFixtures


@pytest.mark.asyncio
class StoredEventsContract(StoreFixtures):
    """The part of StoreContract about logs."""

    # --- logs -------------------------------------------------------------------------------------

    async def test_a_log_starts_with_its_response(self, store: Store, another: Store) -> None:
        await store.create_response(US, response_with_log("a"))
        for one in (store, another):
            assert await log_of(one, "a") == [chunk(0, 2)]
            assert not await log_ends(one, "a", after=1)

    async def test_events_are_kept_in_order_and_byte_for_byte(
        self, store: Store, another: Store
    ) -> None:
        await store.create_response(US, response_with_log("a"))
        added = [chunk(2, 3, EVERY_BYTE), chunk(5), chunk(6, 1000, b"x" * 300_000), chunk(1006)]
        for one in added:
            assert await store.append_events(lease("a"), one)
        for one_store in (store, another):
            assert await log_of(one_store, "a") == [chunk(0, 2), *added]

    async def test_a_log_can_be_read_after_any_number(self, store: Store) -> None:
        await store.create_response(US, response_with_log("a"))
        chunks = [chunk(0, 2), chunk(2, 3), chunk(5), chunk(6, 4)]
        for one in chunks[1:3]:
            assert await store.append_events(lease("a"), one)
        assert await store.finish_response(lease("a"), finished_response("a"), events=chunks[3])
        for after in range(-1, 12):
            expected = [one for one in chunks if one.first + one.count > after + 1]
            assert await log_of(store, "a", after=after) == expected

    async def test_a_log_ends_with_its_run(self, store: Store, another: Store) -> None:
        await store.create_response(US, response_with_log("a"))
        assert not await log_ends(another, "a", after=1)
        assert await store.finish_response(lease("a"), finished_response("a"), events=chunk(2, 2))
        for one in (store, another):
            assert await log_of(one, "a") == [chunk(0, 2), chunk(2, 2)]
            assert await log_ends(one, "a", after=-1)
            assert await log_ends(one, "a", after=3)

    async def test_a_log_may_end_without_more_events(self, store: Store) -> None:
        await store.create_response(US, response_with_log("a"))
        assert await store.finish_response(lease("a"), finished_response("a"))
        assert await log_of(store, "a") == [chunk(0, 2)]
        assert await log_ends(store, "a", after=1)

    async def test_the_same_chunk_again_changes_nothing(self, store: Store) -> None:
        await store.create_response(US, response_with_log("a"))
        for one in (chunk(2, 3), chunk(2, 3), chunk(5), chunk(5), chunk(2, 3)):
            assert await store.append_events(lease("a"), one)
        assert await log_of(store, "a") == [chunk(0, 2), chunk(2, 3), chunk(5)]

    @pytest.mark.parametrize("first", [0, 1, 3, 4, 6, 1000])
    async def test_events_that_do_not_follow_the_last_are_refused(
        self, store: Store, first: int
    ) -> None:
        await store.create_response(US, response_with_log("a"))
        assert await store.append_events(lease("a"), chunk(2, 3))
        delivery = WebhookDelivery(id="evt_a", tenant=US, endpoint="main", body=b"{}")
        with pytest.raises(StoreError):
            await store.append_events(lease("a"), chunk(first, 3))
        with pytest.raises(StoreError):
            await store.finish_response(
                lease("a"), finished_response("a"), events=chunk(first, 3), deliveries=[delivery]
            )
        assert await log_of(store, "a") == [chunk(0, 2), chunk(2, 3)]
        assert (await store.get_response(US, "resp_a")).status == "in_progress"
        assert await store.claim_due_deliveries(limit=10, claim_s=60) == []
        assert await store.append_events(lease("a"), chunk(5))

    async def test_a_response_without_first_events_has_no_log(self, store: Store) -> None:
        await store.create_response(US, new_response("a"))
        with pytest.raises(StoreError):
            await store.append_events(lease("a"), chunk(0))
        with pytest.raises(NotFound):
            await store.read_events(US, "resp_a")
        assert await finish(store, finished_response("a"))
        with pytest.raises(NotFound):
            await store.read_events(US, "resp_a")

    async def test_unknown_foreign_and_deleted_responses_have_no_log(
        self, store: Store, another: Store
    ) -> None:
        await store.create_response(US, response_with_log("a"))
        await store.create_response(THEM, response_with_log("foreign"))
        await store.create_response(US, response_with_log("deleted"))
        await store.delete_response(US, "resp_deleted")
        for name in ("unknown", "foreign", "deleted"):
            assert await is_unknown(another.read_events(US, f"resp_{name}"))
        assert await is_unknown(another.read_events(THEM, "resp_a"))

    async def test_logs_of_the_same_id_do_not_mix(self, store: Store) -> None:
        for tenant in (US, THEM):
            await store.create_response(tenant, response_with_log("a"))
        assert await store.append_events(lease("a", tenant=THEM), chunk(2, 9))
        assert await store.append_events(lease("a"), chunk(2))
        assert await log_of(store, "a") == [chunk(0, 2), chunk(2)]
        await store.delete_response(THEM, "resp_a")
        assert await log_of(store, "a") == [chunk(0, 2), chunk(2)]

    async def test_a_response_created_after_a_deletion_has_its_own_log(self, store: Store) -> None:
        await store.create_response(US, response_with_log("a"))
        assert await store.append_events(lease("a"), chunk(2))
        await store.delete_response(US, "resp_a")
        await store.create_response(US, response_with_log("b"))
        assert await log_of(store, "b") == [chunk(0, 2)]

    async def test_a_long_log_comes_in_pieces(self, store: Store) -> None:
        await store.create_response(US, response_with_log("a"))
        large = [chunk(2 + number, 1, b"%x" % (number % 10) * 1_000_000) for number in range(16)]
        for one in large:
            assert await store.append_events(lease("a"), one)
        assert await store.finish_response(lease("a"), finished_response("a"))
        piece = await store.read_events(US, "resp_a")
        assert 1 <= len(piece.chunks) <= 10
        assert not piece.ends
        assert await log_of(store, "a") == [chunk(0, 2), *large]
        for after in (-1, 1):
            least = await store.read_events(US, "resp_a", after=after, limit_bytes=1)
            assert 1 <= len(least.chunks) <= 4
            assert not least.ends

    async def test_a_chunk_larger_than_a_piece_comes_alone(self, store: Store) -> None:
        await store.create_response(US, response_with_log("a"))
        huge = chunk(2, 1, b"x" * 9_000_000)
        assert await store.append_events(lease("a"), huge)
        assert await log_of(store, "a") == [chunk(0, 2), huge]

    async def test_a_log_is_read_whole_while_it_is_written(
        self, store: Store, another: Store
    ) -> None:
        await store.create_response(US, response_with_log("a"))

        async def follow(one: Store) -> list[EventChunk]:
            found: list[EventChunk] = []
            while True:
                after = last_number(found) if found else -1
                await one.wait_for_events(US, "resp_a", after=after, limit_s=5)
                piece = await one.read_events(US, "resp_a", after=after)
                found += piece.chunks
                if piece.ends:
                    return found

        readers = [asyncio.create_task(follow(one)) for one in (store, another, another)]
        written = [chunk(0, 2), *[chunk(number) for number in range(2, 40)]]
        for one in written[1:-1]:
            assert await store.append_events(lease("a"), one)
        assert await store.finish_response(lease("a"), finished_response("a"), events=written[-1])
        for reader in readers:
            assert await reader == written

    async def test_many_runs_write_their_logs_at_the_same_time(self, store: Store) -> None:
        async def run(name: str) -> None:
            await store.create_response(US, response_with_log(name))
            for number in range(2, 10):
                assert await store.append_events(lease(name), chunk(number, 1, name.encode()))
            last = chunk(10, 1, name.encode())
            assert await store.finish_response(lease(name), finished_response(name), events=last)

        names = [f"run_{number}" for number in range(20)]
        await asyncio.gather(*map(run, names))
        for name in names:
            found = await log_of(store, name)
            assert [one.first for one in found] == [0, *range(2, 11)]
            assert {one.body for one in found[1:]} == {name.encode()}

    # --- waiting ----------------------------------------------------------------------------------

    async def test_waiting_returns_immediately_if_there_are_events_already(
        self, store: Store, another: Store
    ) -> None:
        await store.create_response(US, response_with_log("a"))
        await store.create_response(US, response_with_log("ended"))
        assert await store.finish_response(lease("ended"), finished_response("ended"))
        async with asyncio.timeout(2):
            for one in (store, another):
                await one.wait_for_events(US, "resp_a", limit_s=30)
                await one.wait_for_events(US, "resp_a", after=0, limit_s=30)
                await one.wait_for_events(US, "resp_ended", after=1, limit_s=30)
                await one.wait_for_events(US, "resp_unknown", after=1, limit_s=30)
                await one.wait_for_events(THEM, "resp_a", after=1, limit_s=30)

    async def test_waiting_ends_at_its_limit(self, store: Store) -> None:
        await store.create_response(US, response_with_log("a"))
        loop = asyncio.get_running_loop()
        began = loop.time()
        await store.wait_for_events(US, "resp_a", after=1, limit_s=0.3)
        assert 0.25 <= loop.time() - began < 2

    async def test_waiting_can_be_cancelled_at_any_point(self, store: Store) -> None:
        await store.create_response(US, response_with_log("a"))
        for turns_waited in range(60):  # in the middle of whatever waiting is made of
            waiting = asyncio.create_task(store.wait_for_events(US, "resp_a", after=1, limit_s=30))
            for _ in range(turns_waited):
                await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting], timeout=5)
            assert waiting.cancelled()

    @pytest.mark.parametrize("event", ["append", "finish", "delete"])
    async def test_waiting_ends_when_something_happens(
        self, store: Store, another: Store, event: str
    ) -> None:
        await store.create_response(US, response_with_log("a"))
        await store.create_response(US, response_with_log("other"))
        waiters = [
            asyncio.create_task(one.wait_for_events(US, "resp_a", after=1, limit_s=30))
            for one in (store, another) * 50
        ]
        leaving = waiters.pop()
        await store.wait_for_events(US, "resp_other", after=1, limit_s=0.2)
        assert not any(waiter.done() for waiter in waiters)
        leaving.cancel()
        if event == "append":
            assert await store.append_events(lease("a"), chunk(2))
        elif event == "finish":
            assert await store.finish_response(lease("a"), finished_response("a"))
        else:
            await store.delete_response(US, "resp_a")
        async with asyncio.timeout(2):
            await asyncio.gather(*waiters)

    # --- sweeping ---------------------------------------------------------------------------------

    async def test_a_log_is_swept_some_time_after_its_run(
        self, store: Store, another: Store
    ) -> None:
        for name in ("over", "runs"):
            await store.create_response(US, response_with_log(name))
        assert await store.finish_response(
            lease("over"), finished_response("over"), events=chunk(2)
        )
        assert await sweep(store, keep_events_s=3600) == 0
        assert await log_of(another, "over") == [chunk(0, 2), chunk(2)]
        assert await sweep(store, keep_events_s=0) == 1
        assert await is_unknown(another.read_events(US, "resp_over"))
        assert await another.get_response(US, "resp_over") == finished_response("over")
        assert await log_of(another, "runs") == [chunk(0, 2)]
        assert await store.append_events(lease("runs"), chunk(2))

    async def test_waiting_for_a_swept_log_returns_immediately(self, store: Store) -> None:
        await store.create_response(US, response_with_log("a"))
        assert await store.finish_response(lease("a"), finished_response("a"))
        await sweep(store, keep_events_s=0)
        async with asyncio.timeout(2):
            await store.wait_for_events(US, "resp_a", after=1, limit_s=30)

    async def test_a_sweep_takes_no_more_logs_than_its_limit(self, store: Store) -> None:
        names = [str(number) for number in range(5)]
        for name in names:
            await store.create_response(US, response_with_log(name))
            assert await store.finish_response(lease(name), finished_response(name))
        assert await store.sweep(keep_events_s=0, limit=2) == 2
        gone = [await is_unknown(store.read_events(US, f"resp_{name}")) for name in names]
        assert gone.count(True) == 2
        assert await sweep(store, keep_events_s=0) == 3

    async def test_the_log_of_a_response_in_a_conversation_is_swept(self, store: Store) -> None:
        run = NewRun(owner=OWNER, events=chunk(0, 2))
        await store.create_response(US, new_response("a", within="a", run=run))
        assert await store.finish_response(lease("a"), finished_response("a", within="a"))
        assert await sweep(store, keep_events_s=0) == 1
        assert await is_unknown(store.read_events(US, "resp_a"))
