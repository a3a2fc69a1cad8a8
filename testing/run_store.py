"""What every store must do with runs: who has them, and the logs of those that outlive their
process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from antiphon.application.ports import (
    EventChunk,
    Lease,
    LeasedRun,
    NewRun,
    Store,
    StoredResponse,
    WebhookDelivery,
)
from antiphon.domain.errors import NotFound, StoreError
from antiphon.testing.response_store import (
    EVERY_FIELD,
    OWNER,
    THEM,
    US,
    alive,
    as_json,
    end,
    finished,
    keep,
    running,
    sweep,
    unknown,
    until,
)
from antiphon.testing.store_fixtures import StoreFixtures

NEXT = "srv_b"
"""The server that takes what OWNER had."""

EVERY_BYTE = bytes(range(256)) * 2


def chunk(first: int, count: int = 1, body: bytes | None = None) -> EventChunk:
    return EventChunk(first=first, count=count, body=body or b"events %d+%d\n" % (first, count))


def lease(name: str, epoch: int = 1, tenant: str = US) -> Lease:
    return Lease(tenant=tenant, response_id=f"resp_{name}", epoch=epoch)


def logged(name: str, *, owner: str | None = OWNER, job: bytes | None = b"job") -> StoredResponse:
    """A response whose log begins with two events."""
    return running(name, run=NewRun(owner=owner, job=job, events=chunk(0, 2)))


def waiting(name: str) -> StoredResponse:
    return logged(name, owner=None)


async def log_of(store: Store, name: str, *, after: int = -1, tenant: str = US) -> list[EventChunk]:
    """Read what is there, piece by piece."""
    found: list[EventChunk] = []
    while True:
        piece = await store.events(tenant, f"resp_{name}", after=after)
        found += piece.chunks
        if piece.ends or not piece.chunks:
            return found
        after = last_of(piece.chunks)


def last_of(chunks: Sequence[EventChunk]) -> int:
    return chunks[-1].first + chunks[-1].count - 1


async def ends(store: Store, name: str, *, after: int) -> bool:
    return (await store.events(US, f"resp_{name}", after=after)).ends


def names(taken: Sequence[LeasedRun]) -> list[str]:
    return [one.lease.response_id.removeprefix("resp_") for one in taken]


async def take(store: Store, owner: str = NEXT, *, limit: int = 100) -> list[LeasedRun]:
    """Take as an owner that is alive."""
    await alive(store, owner)
    return await store.lease_runs(owner, limit=limit)


async def take_over(store: Store, name: str, owner: str = NEXT) -> LeasedRun | None:
    await alive(store, owner)
    return await store.take_over(owner, US, f"resp_{name}")


async def writes(store: Store, held: Lease, first: int = 2) -> bool:
    """Whether the lease writes: events, the end, the owner."""
    name = held.response_id.removeprefix("resp_")
    delivery = WebhookDelivery(id=f"evt_{name}", tenant=held.tenant, endpoint="main", body=b"{}")
    done = [
        await store.append(held, chunk(first)),
        await store.finish(held, finished(name), events=chunk(first), deliveries=[delivery]),
        await store.give_back(held),
    ]
    return any(done)


async def finish_it(store: Store) -> None:
    assert await end(store, finished("a"))


async def delete_it(store: Store) -> None:
    await store.delete(US, "resp_a")


async def take_it_over(store: Store) -> None:
    assert await take_over(store, "a")


async def take_it_from_the_dead(store: Store) -> None:
    await store.leave(OWNER)
    assert names(await take(store)) == ["a"]


async def give_it_back(store: Store) -> None:
    assert await store.give_back(lease("a"))


VOIDED_BY: dict[str, Callable[[Store], Awaitable[None]]] = {
    "finished": finish_it,
    "deleted": delete_it,
    "taken over": take_it_over,
    "taken": take_it_from_the_dead,
    "given back": give_it_back,
}


@pytest.mark.asyncio
class RunStoreContract(StoreFixtures):
    """What StoreContract says of runs."""

    # --- logs -------------------------------------------------------------------------------------

    async def test_a_log_begins_with_its_response(self, store: Store, another: Store) -> None:
        await store.create(US, logged("a"))
        for one in (store, another):
            assert await log_of(one, "a") == [chunk(0, 2)]
            assert not await ends(one, "a", after=1)

    async def test_events_are_kept_in_order_and_byte_for_byte(
        self, store: Store, another: Store
    ) -> None:
        await store.create(US, logged("a"))
        added = [chunk(2, 3, EVERY_BYTE), chunk(5), chunk(6, 1000, b"x" * 300_000), chunk(1006)]
        for one in added:
            assert await store.append(lease("a"), one)
        for one_store in (store, another):
            assert await log_of(one_store, "a") == [chunk(0, 2), *added]

    async def test_a_log_can_be_read_after_any_number(self, store: Store) -> None:
        await store.create(US, logged("a"))
        chunks = [chunk(0, 2), chunk(2, 3), chunk(5), chunk(6, 4)]
        for one in chunks[1:3]:
            assert await store.append(lease("a"), one)
        assert await store.finish(lease("a"), finished("a"), events=chunks[3])
        for after in range(-1, 12):
            wanted = [one for one in chunks if one.first + one.count > after + 1]
            assert await log_of(store, "a", after=after) == wanted

    async def test_a_log_ends_with_its_run(self, store: Store, another: Store) -> None:
        await store.create(US, logged("a"))
        assert not await ends(another, "a", after=1)
        assert await store.finish(lease("a"), finished("a"), events=chunk(2, 2))
        for one in (store, another):
            assert await log_of(one, "a") == [chunk(0, 2), chunk(2, 2)]
            assert await ends(one, "a", after=-1)
            assert await ends(one, "a", after=3)

    async def test_a_log_may_end_without_more_events(self, store: Store) -> None:
        await store.create(US, logged("a"))
        assert await store.finish(lease("a"), finished("a"))
        assert await log_of(store, "a") == [chunk(0, 2)]
        assert await ends(store, "a", after=1)

    async def test_the_same_chunk_again_changes_nothing(self, store: Store) -> None:
        await store.create(US, logged("a"))
        for one in (chunk(2, 3), chunk(2, 3), chunk(5), chunk(5), chunk(2, 3)):
            assert await store.append(lease("a"), one)
        assert await log_of(store, "a") == [chunk(0, 2), chunk(2, 3), chunk(5)]

    @pytest.mark.parametrize("first", [0, 1, 3, 4, 6, 1000])
    async def test_events_that_do_not_follow_the_last_are_refused(
        self, store: Store, first: int
    ) -> None:
        await store.create(US, logged("a"))
        assert await store.append(lease("a"), chunk(2, 3))
        delivery = WebhookDelivery(id="evt_a", tenant=US, endpoint="main", body=b"{}")
        with pytest.raises(StoreError):
            await store.append(lease("a"), chunk(first, 3))
        with pytest.raises(StoreError):
            await store.finish(
                lease("a"), finished("a"), events=chunk(first, 3), deliveries=[delivery]
            )
        assert await log_of(store, "a") == [chunk(0, 2), chunk(2, 3)]
        assert (await store.get(US, "resp_a")).status == "in_progress"
        assert await store.claim_due(limit=10, claim_s=60) == []
        assert await store.append(lease("a"), chunk(5))

    async def test_a_log_that_was_not_begun_is_not_kept(self, store: Store) -> None:
        await store.create(US, running("a"))
        with pytest.raises(StoreError):
            await store.append(lease("a"), chunk(0))
        with pytest.raises(NotFound):
            await store.events(US, "resp_a")
        assert await end(store, finished("a"))
        with pytest.raises(NotFound):
            await store.events(US, "resp_a")

    async def test_there_is_no_log_of_what_is_unknown_foreign_or_deleted(
        self, store: Store, another: Store
    ) -> None:
        await store.create(US, logged("a"))
        await store.create(THEM, logged("foreign"))
        await store.create(US, logged("deleted"))
        await store.delete(US, "resp_deleted")
        for name in ("unknown", "foreign", "deleted"):
            assert await unknown(another.events(US, f"resp_{name}"))
        assert await unknown(another.events(THEM, "resp_a"))

    async def test_logs_of_the_same_id_do_not_mix(self, store: Store) -> None:
        for tenant in (US, THEM):
            await store.create(tenant, logged("a"))
        assert await store.append(lease("a", tenant=THEM), chunk(2, 9))
        assert await store.append(lease("a"), chunk(2))
        assert await log_of(store, "a") == [chunk(0, 2), chunk(2)]
        await store.delete(THEM, "resp_a")
        assert await log_of(store, "a") == [chunk(0, 2), chunk(2)]

    async def test_what_is_created_after_a_deletion_has_a_log_of_its_own(
        self, store: Store
    ) -> None:
        await store.create(US, logged("a"))
        assert await store.append(lease("a"), chunk(2))
        await store.delete(US, "resp_a")
        await store.create(US, logged("b"))
        assert await log_of(store, "b") == [chunk(0, 2)]

    async def test_a_long_log_comes_in_pieces(self, store: Store) -> None:
        await store.create(US, logged("a"))
        large = [chunk(2 + number, 1, b"%x" % (number % 10) * 1_000_000) for number in range(16)]
        for one in large:
            assert await store.append(lease("a"), one)
        assert await store.finish(lease("a"), finished("a"))
        piece = await store.events(US, "resp_a")
        assert 1 <= len(piece.chunks) <= 10
        assert not piece.ends
        assert await log_of(store, "a") == [chunk(0, 2), *large]
        for after in (-1, 1):
            least = await store.events(US, "resp_a", after=after, limit_bytes=1)
            assert 1 <= len(least.chunks) <= 4
            assert not least.ends

    async def test_a_chunk_larger_than_a_piece_comes_alone(self, store: Store) -> None:
        await store.create(US, logged("a"))
        huge = chunk(2, 1, b"x" * 9_000_000)
        assert await store.append(lease("a"), huge)
        assert await log_of(store, "a") == [chunk(0, 2), huge]

    async def test_a_log_is_read_whole_while_it_is_written(
        self, store: Store, another: Store
    ) -> None:
        await store.create(US, logged("a"))

        async def follow(one: Store) -> list[EventChunk]:
            found: list[EventChunk] = []
            while True:
                after = last_of(found) if found else -1
                await one.wait_for_events(US, "resp_a", after=after, limit_s=5)
                piece = await one.events(US, "resp_a", after=after)
                found += piece.chunks
                if piece.ends:
                    return found

        readers = [asyncio.create_task(follow(one)) for one in (store, another, another)]
        written = [chunk(0, 2), *[chunk(number) for number in range(2, 40)]]
        for one in written[1:-1]:
            assert await store.append(lease("a"), one)
        assert await store.finish(lease("a"), finished("a"), events=written[-1])
        for reader in readers:
            assert await reader == written

    async def test_many_runs_write_their_logs_at_the_same_time(self, store: Store) -> None:
        async def run(name: str) -> None:
            await store.create(US, logged(name))
            for number in range(2, 10):
                assert await store.append(lease(name), chunk(number, 1, name.encode()))
            last = chunk(10, 1, name.encode())
            assert await store.finish(lease(name), finished(name), events=last)

        names = [f"run_{number}" for number in range(20)]
        await asyncio.gather(*map(run, names))
        for name in names:
            found = await log_of(store, name)
            assert [one.first for one in found] == [0, *range(2, 11)]
            assert {one.body for one in found[1:]} == {name.encode()}

    # --- leases -----------------------------------------------------------------------------------

    @pytest.mark.parametrize("event", VOIDED_BY)
    async def test_a_void_lease_writes_nothing(
        self, store: Store, another: Store, event: str
    ) -> None:
        await store.create(US, logged("a"))
        await VOIDED_BY[event](another)
        before = await state_of(store)
        assert not await writes(store, lease("a"))
        assert not await store.append(lease("a"), chunk(0, 2))
        assert await state_of(store) == before
        assert await store.claim_due(limit=10, claim_s=60) == []

    @pytest.mark.parametrize(
        "void",
        [lease("a", 0), lease("a", 2), lease("a", tenant=THEM), lease("unknown")],
        ids=["too low", "too high", "foreign", "unknown"],
    )
    async def test_a_lease_that_nobody_was_given_writes_nothing(
        self, store: Store, void: Lease
    ) -> None:
        await store.create(US, logged("a"))
        assert not await writes(store, void)
        assert await log_of(store, "a") == [chunk(0, 2)]
        assert (await store.get(US, "resp_a")).status == "in_progress"
        assert await store.held_leases(OWNER) == [lease("a")]

    async def test_nobody_has_the_lease_of_a_run_that_waits(self, store: Store) -> None:
        await store.create(US, waiting("a"))
        for epoch in (0, 1):
            assert not await writes(store, lease("a", epoch))
        assert names(await take(store)) == ["a"]

    async def test_who_takes_a_run_writes_on(self, store: Store, another: Store) -> None:
        await store.create(US, logged("a"))
        assert await store.append(lease("a"), chunk(2))
        taken = await take_over(another, "a")
        assert taken is not None
        assert not await store.append(lease("a"), chunk(3, 7))
        assert await another.append(taken.lease, chunk(3))
        assert await another.finish(taken.lease, finished("a"), events=chunk(4))
        assert await log_of(store, "a") == [chunk(0, 2), chunk(2), chunk(3), chunk(4)]
        assert await store.get(US, "resp_a") == finished("a")

    async def test_an_end_comes_whole(self, store: Store, another: Store) -> None:
        await store.create(US, logged("a"))
        deliveries = [
            WebhookDelivery(id=f"evt_{n}", tenant=US, endpoint="main", body=EVERY_BYTE)
            for n in range(3)
        ]
        assert await store.finish(
            lease("a"), finished("a"), events=chunk(2, 5), deliveries=deliveries
        )
        assert await another.get(US, "resp_a") == finished("a")
        assert await log_of(another, "a") == [chunk(0, 2), chunk(2, 5)]
        found = await another.claim_due(limit=10, claim_s=60)
        assert sorted(one.id for one in found) == ["evt_0", "evt_1", "evt_2"]

    async def test_of_many_ends_one_is_written_with_its_events_and_notices(
        self, store: Store, another: Store
    ) -> None:
        await store.create(US, logged("a"))

        async def finish(number: int, one: Store) -> bool:
            delivery = WebhookDelivery(id=f"evt_{number}", tenant=US, endpoint="main", body=b"{}")
            last, done = chunk(2, 1, b"%d" % number), finished("a", model=f"m{number}")
            return await one.finish(lease("a"), done, events=last, deliveries=[delivery])

        won = await asyncio.gather(*[finish(n, (store, another)[n % 2]) for n in range(20)])
        assert won.count(True) == 1
        number = won.index(True)
        assert (await store.get(US, "resp_a")).model == f"m{number}"
        assert (await log_of(store, "a"))[-1].body == b"%d" % number
        assert [one.id for one in await store.claim_due(limit=30, claim_s=60)] == [f"evt_{number}"]

    # --- taking -----------------------------------------------------------------------------------

    async def test_waiting_runs_are_taken_whole_and_oldest_first(
        self, store: Store, another: Store
    ) -> None:
        assert await take(store) == []
        new = running(
            "z", run=NewRun(job=EVERY_BYTE, events=chunk(0, 2)), status="queued", **EVERY_FIELD
        )
        await store.create(US, new)
        for tenant, name in ((THEM, "a"), (US, "done"), (US, "gone"), (US, "m")):
            await store.create(tenant, waiting(name))
        await store.delete(US, "resp_gone")
        done = await take_over(store, "done")
        assert done is not None
        assert await store.finish(done.lease, finished("done"))
        taken = await take(another)
        assert [one.lease for one in taken] == [lease("z"), lease("a", tenant=THEM), lease("m")]
        assert as_json(taken[0].response) == as_json(new.response)
        assert [one.job for one in taken] == [EVERY_BYTE, b"job", b"job"]
        assert await take(store, "srv_c") == []

    async def test_what_the_living_run_is_not_taken(self, store: Store, another: Store) -> None:
        await alive(store, OWNER)
        await store.create(US, logged("a"))
        assert await take(another) == []
        await alive(store, OWNER, ttl_s=0.1)
        await alive(store, OWNER)
        await alive(store, "srv_short", ttl_s=0.2)
        await store.create(US, logged("b", owner="srv_short"))
        taken: list[LeasedRun] = []

        async def is_one_taken() -> bool:
            taken.extend(await take(another))
            return bool(taken)

        await until(is_one_taken)
        assert names(taken) == ["b"]
        assert await store.append(lease("a"), chunk(2))

    async def test_what_the_dead_left_is_taken(self, store: Store, another: Store) -> None:
        await store.create(US, logged("never_alive", owner="srv_never"))
        await alive(store, OWNER)
        await store.create(US, running("left"))
        await store.leave(OWNER)
        taken = await take(another)
        assert names(taken) == ["never_alive", "left"]
        assert [one.job for one in taken] == [b"job", None]
        assert {one.lease.epoch for one in taken} == {2}
        assert await another.held_leases(NEXT) == [one.lease for one in taken]

    async def test_who_is_dead_itself_does_not_take_again_what_it_has(
        self, store: Store, another: Store
    ) -> None:
        await store.create(US, waiting("a"))
        await store.create(US, running("b"))
        assert names(await store.lease_runs(OWNER, limit=9)) == ["a"]
        assert await store.lease_runs(OWNER, limit=9) == []
        assert len(await store.held_leases(OWNER)) == 2
        assert names(await take(another)) == ["a", "b"]

    async def test_who_has_no_room_takes_what_the_dead_have_left_alone(
        self, store: Store, another: Store
    ) -> None:
        for name in "abc":
            await store.create(US, waiting(name))
        assert names(await take(store, limit=2)) == ["a", "b"]
        await alive(another, "srv_full")
        assert await another.lease_runs("srv_full", limit=9, waiting=False) == []
        await store.leave(NEXT)
        assert names(await another.lease_runs("srv_full", limit=1, waiting=False)) == ["a"]
        assert names(await another.lease_runs("srv_full", limit=9, waiting=False)) == ["b"]
        assert await another.lease_runs("srv_full", limit=9, waiting=False) == []
        assert names(await another.lease_runs("srv_full", limit=9)) == ["c"]

    async def test_no_more_is_taken_than_asked_for(self, store: Store) -> None:
        for number in range(5):
            await store.create(US, waiting(str(number)))
        assert await take(store, limit=0) == []
        assert names(await take(store, limit=2)) == ["0", "1"]
        assert names(await take(store, limit=2)) == ["2", "3"]
        assert names(await take(store, limit=2)) == ["4"]

    async def test_of_many_that_take_one_gets_a_run(self, store: Store, another: Store) -> None:
        wanted = [str(number) for number in range(30)]
        for name in wanted:
            await store.create(US, waiting(name))
        takers = [f"srv_{number}" for number in range(20)]
        await alive(store, *takers)
        taken = await asyncio.gather(
            *[(store, another)[n % 2].lease_runs(one, limit=3) for n, one in enumerate(takers)]
        )
        found = [name for one in taken for name in names(one)]
        assert len(found) == len(set(found))
        rest = names(await take(store))
        assert sorted([*found, *rest]) == sorted(wanted)
        for owner, runs in zip(takers, taken, strict=True):
            held = await store.held_leases(owner)
            assert sorted(names(runs)) == sorted(one.response_id[5:] for one in held)

    async def test_each_taking_has_a_higher_epoch(self, store: Store) -> None:
        await store.create(US, waiting("a"))
        epochs = []
        for number in range(5):
            [taken] = await take(store, f"srv_{number}")
            epochs.append(taken.lease.epoch)
            await store.leave(f"srv_{number}")
        assert epochs == [1, 2, 3, 4, 5]

    async def test_what_is_taken_was_not_changed_by_running(self, store: Store) -> None:
        new = logged("a")
        await store.create(US, new)
        assert await store.append(lease("a"), chunk(2))
        [taken] = await take(store)
        assert as_json(taken.response) == as_json(new.response)
        assert taken.job == b"job"
        assert await log_of(store, "a") == [chunk(0, 2), chunk(2)]

    async def test_a_run_is_taken_over_from_the_living(self, store: Store, another: Store) -> None:
        await alive(store, OWNER)
        await store.create(US, logged("a"))
        taken = await take_over(another, "a")
        assert taken == LeasedRun(lease=lease("a", 2), response=logged("a").response, job=b"job")
        assert await store.held_leases(OWNER) == []
        assert await store.held_leases(NEXT) == [lease("a", 2)]

    async def test_a_run_that_waits_is_taken_over(self, store: Store) -> None:
        await store.create(US, waiting("a"))
        taken = await take_over(store, "a")
        assert taken is not None
        assert taken.lease == lease("a")
        assert await take(store, "srv_c") == []

    async def test_what_is_over_is_not_taken_over(self, store: Store) -> None:
        await keep(store, "done")
        assert await take_over(store, "done") is None

    async def test_what_is_unknown_foreign_or_deleted_is_not_taken_over(self, store: Store) -> None:
        await store.create(THEM, logged("foreign"))
        await store.create(US, logged("deleted"))
        await store.delete(US, "resp_deleted")
        for name in ("unknown", "foreign", "deleted"):
            assert await unknown(take_over(store, name))
        assert await store.append(lease("foreign", tenant=THEM), chunk(2))

    async def test_of_many_that_take_a_run_over_the_last_has_it(
        self, store: Store, another: Store
    ) -> None:
        await store.create(US, logged("a"))
        takers = [
            take_over((store, another)[number % 2], "a", f"srv_{number}") for number in range(10)
        ]
        leases = [taken.lease for taken in await asyncio.gather(*takers) if taken]
        assert sorted(one.epoch for one in leases) == list(range(2, 12))
        valid = [await store.append(one, chunk(2)) for one in leases]
        assert valid == [one.epoch == 11 for one in leases]

    async def test_a_run_that_is_given_back_waits_for_another(self, store: Store) -> None:
        await alive(store, OWNER)
        await store.create(US, logged("a"))
        assert await store.give_back(lease("a"))
        assert await store.held_leases(OWNER) == []
        [taken] = await take(store)
        assert taken.lease == lease("a", 2)
        assert await store.append(taken.lease, chunk(2))

    async def test_leases_that_an_owner_has_are_listed(self, store: Store, another: Store) -> None:
        assert await store.held_leases(OWNER) == []
        for name in ("kept", "done", "deleted", "lost", "returned"):
            await store.create(US, logged(name))
        await store.create(THEM, logged("foreign"))
        await store.create(US, waiting("waits"))
        await store.create(US, logged("other", owner="srv_c"))
        assert await end(store, finished("done"))
        await store.delete(US, "resp_deleted")
        assert await take_over(another, "lost")
        assert await store.give_back(lease("returned"))
        for one in (store, another):
            held = await one.held_leases(OWNER)
            assert sorted(found.response_id for found in held) == ["resp_foreign", "resp_kept"]
            assert lease("foreign", tenant=THEM) in held

    # --- news -------------------------------------------------------------------------------------

    async def test_what_is_there_already_is_news(self, store: Store, another: Store) -> None:
        await store.create(US, logged("a"))
        await store.create(US, logged("ended"))
        assert await store.finish(lease("ended"), finished("ended"))
        async with asyncio.timeout(2):
            for one in (store, another):
                await one.wait_for_events(US, "resp_a", limit_s=30)
                await one.wait_for_events(US, "resp_a", after=0, limit_s=30)
                await one.wait_for_events(US, "resp_ended", after=1, limit_s=30)
                await one.wait_for_events(US, "resp_unknown", after=1, limit_s=30)
                await one.wait_for_events(THEM, "resp_a", after=1, limit_s=30)

    async def test_no_news_are_not_waited_for_longer_than_asked(self, store: Store) -> None:
        await store.create(US, logged("a"))
        loop = asyncio.get_running_loop()
        began = loop.time()
        await store.wait_for_events(US, "resp_a", after=1, limit_s=0.3)
        assert 0.25 <= loop.time() - began < 2

    async def test_whoever_is_cancelled_while_waiting_for_news_waits_no_more(
        self, store: Store
    ) -> None:
        await store.create(US, logged("a"))
        for turns_waited in range(60):  # in the middle of whatever waiting is made of
            waiting = asyncio.create_task(store.wait_for_events(US, "resp_a", after=1, limit_s=30))
            for _ in range(turns_waited):
                await asyncio.sleep(0)
            waiting.cancel()
            await asyncio.wait([waiting], timeout=5)
            assert waiting.cancelled()

    @pytest.mark.parametrize("event", ["append", "finish", "delete"])
    async def test_news_wake_those_who_wait(self, store: Store, another: Store, event: str) -> None:
        await store.create(US, logged("a"))
        await store.create(US, logged("other"))
        waiters = [
            asyncio.create_task(one.wait_for_events(US, "resp_a", after=1, limit_s=30))
            for one in (store, another) * 50
        ]
        leaving = waiters.pop()
        await store.wait_for_events(US, "resp_other", after=1, limit_s=0.2)
        assert not any(waiter.done() for waiter in waiters)
        leaving.cancel()
        if event == "append":
            assert await store.append(lease("a"), chunk(2))
        elif event == "finish":
            assert await store.finish(lease("a"), finished("a"))
        else:
            await store.delete(US, "resp_a")
        async with asyncio.timeout(2):
            await asyncio.gather(*waiters)

    # --- what is past its time --------------------------------------------------------------------

    async def test_a_log_is_swept_some_time_after_its_run(
        self, store: Store, another: Store
    ) -> None:
        for name in ("over", "runs"):
            await store.create(US, logged(name))
        assert await store.finish(lease("over"), finished("over"), events=chunk(2))
        assert await sweep(store, keep_events_s=3600) == 0
        assert await log_of(another, "over") == [chunk(0, 2), chunk(2)]
        assert await sweep(store, keep_events_s=0) == 1
        assert await unknown(another.events(US, "resp_over"))
        assert await another.get(US, "resp_over") == finished("over")
        assert await log_of(another, "runs") == [chunk(0, 2)]
        assert await store.append(lease("runs"), chunk(2))

    async def test_who_waits_for_news_of_a_swept_log_is_told(self, store: Store) -> None:
        await store.create(US, logged("a"))
        assert await store.finish(lease("a"), finished("a"))
        await sweep(store, keep_events_s=0)
        async with asyncio.timeout(2):
            await store.wait_for_events(US, "resp_a", after=1, limit_s=30)

    async def test_no_more_logs_are_swept_at_once_than_asked_for(self, store: Store) -> None:
        names = [str(number) for number in range(5)]
        for name in names:
            await store.create(US, logged(name))
            assert await store.finish(lease(name), finished(name))
        assert await store.sweep(keep_events_s=0, limit=2) == 2
        gone = [await unknown(store.events(US, f"resp_{name}")) for name in names]
        assert gone.count(True) == 2
        assert await sweep(store, keep_events_s=0) == 3

    async def test_the_log_of_a_response_in_a_conversation_is_swept(self, store: Store) -> None:
        run = NewRun(owner=OWNER, events=chunk(0, 2))
        await store.create(US, running("a", within="a", run=run))
        assert await store.finish(lease("a"), finished("a", within="a"))
        assert await sweep(store, keep_events_s=0) == 1
        assert await unknown(store.events(US, "resp_a"))


async def state_of(store: Store) -> object:
    """What can be seen of the response `a`."""
    try:
        response = await store.get(US, "resp_a")
    except NotFound:
        return None
    return as_json(response), await log_of(store, "a"), await store.held_leases(NEXT)
