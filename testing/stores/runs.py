"""Contract tests for a store's runs: which server owns them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from antiphon.application.ports import Lease, LeasedRun, NewRun, Store, WebhookDelivery
from antiphon.domain.errors import NotFound
from antiphon.testing.samples import (
    EVERY_BYTE,
    EVERY_FIELD,
    NEXT_OWNER,
    OWNER,
    THEM,
    US,
    as_json,
    chunk,
    finished_response,
    lease,
    new_response,
    response_with_log,
    waiting_response,
)
from antiphon.testing.stores.calls import (
    beat,
    create_and_finish,
    finish,
    is_unknown,
    lease_runs,
    log_of,
    run_names,
    take_over,
    try_to_write,
    wait_until,
)
from antiphon.testing.stores.fixtures import StoreFixtures


async def finish_it(store: Store) -> None:
    assert await finish(store, finished_response("a"))


async def delete_it(store: Store) -> None:
    await store.delete_response(US, "resp_a")


async def take_it_over(store: Store) -> None:
    assert await take_over(store, "a")


async def take_it_from_the_dead(store: Store) -> None:
    await store.end_heartbeat(OWNER)
    assert run_names(await lease_runs(store)) == ["a"]


async def give_it_back(store: Store) -> None:
    assert await store.give_back_run(lease("a"))


VOIDED_BY: dict[str, Callable[[Store], Awaitable[None]]] = {
    "finished": finish_it,
    "deleted": delete_it,
    "taken over": take_it_over,
    "taken": take_it_from_the_dead,
    "given back": give_it_back,
}


@pytest.mark.asyncio
class RunStoreContract(StoreFixtures):
    """The part of StoreContract about leases."""

    # --- leases -----------------------------------------------------------------------------------

    @pytest.mark.parametrize("event", VOIDED_BY)
    async def test_a_void_lease_writes_nothing(
        self, store: Store, another: Store, event: str
    ) -> None:
        await store.create_response(US, response_with_log("a"))
        await VOIDED_BY[event](another)
        before = await state_of(store)
        assert not await try_to_write(store, lease("a"))
        assert not await store.append_events(lease("a"), chunk(0, 2))
        assert await state_of(store) == before
        assert await store.claim_due_deliveries(limit=10, claim_s=60) == []

    @pytest.mark.parametrize(
        "void",
        [lease("a", 0), lease("a", 2), lease("a", tenant=THEM), lease("unknown")],
        ids=["too low", "too high", "foreign", "unknown"],
    )
    async def test_a_lease_that_was_never_granted_writes_nothing(
        self, store: Store, void: Lease
    ) -> None:
        await store.create_response(US, response_with_log("a"))
        assert not await try_to_write(store, void)
        assert await log_of(store, "a") == [chunk(0, 2)]
        assert (await store.get_response(US, "resp_a")).status == "in_progress"
        assert await store.list_leases(OWNER) == [lease("a")]

    async def test_a_waiting_run_has_no_lease(self, store: Store) -> None:
        await store.create_response(US, waiting_response("a"))
        for epoch in (0, 1):
            assert not await try_to_write(store, lease("a", epoch))
        assert run_names(await lease_runs(store)) == ["a"]

    async def test_the_new_owner_continues_the_log(self, store: Store, another: Store) -> None:
        await store.create_response(US, response_with_log("a"))
        assert await store.append_events(lease("a"), chunk(2))
        taken = await take_over(another, "a")
        assert taken is not None
        assert not await store.append_events(lease("a"), chunk(3, 7))
        assert await another.append_events(taken.lease, chunk(3))
        assert await another.finish_response(taken.lease, finished_response("a"), events=chunk(4))
        assert await log_of(store, "a") == [chunk(0, 2), chunk(2), chunk(3), chunk(4)]
        assert await store.get_response(US, "resp_a") == finished_response("a")

    async def test_an_end_is_written_as_a_whole(self, store: Store, another: Store) -> None:
        await store.create_response(US, response_with_log("a"))
        deliveries = [
            WebhookDelivery(id=f"evt_{n}", tenant=US, endpoint="main", body=EVERY_BYTE)
            for n in range(3)
        ]
        assert await store.finish_response(
            lease("a"), finished_response("a"), events=chunk(2, 5), deliveries=deliveries
        )
        assert await another.get_response(US, "resp_a") == finished_response("a")
        assert await log_of(another, "a") == [chunk(0, 2), chunk(2, 5)]
        found = await another.claim_due_deliveries(limit=10, claim_s=60)
        assert sorted(one.id for one in found) == ["evt_0", "evt_1", "evt_2"]

    async def test_one_of_many_ends_is_written_with_its_events_and_deliveries(
        self, store: Store, another: Store
    ) -> None:
        await store.create_response(US, response_with_log("a"))

        async def finish_with(number: int, one: Store) -> bool:
            delivery = WebhookDelivery(id=f"evt_{number}", tenant=US, endpoint="main", body=b"{}")
            last, done = chunk(2, 1, b"%d" % number), finished_response("a", model=f"m{number}")
            return await one.finish_response(lease("a"), done, events=last, deliveries=[delivery])

        won = await asyncio.gather(*[finish_with(n, (store, another)[n % 2]) for n in range(20)])
        assert won.count(True) == 1
        number = won.index(True)
        assert (await store.get_response(US, "resp_a")).model == f"m{number}"
        assert (await log_of(store, "a"))[-1].body == b"%d" % number
        assert [one.id for one in await store.claim_due_deliveries(limit=30, claim_s=60)] == [
            f"evt_{number}"
        ]

    # --- leasing ----------------------------------------------------------------------------------

    async def test_the_waiting_runs_of_all_tenants_are_counted(self, store: Store) -> None:
        assert await store.count_waiting_runs() == 0
        await beat(store, OWNER)
        await store.create_response(US, response_with_log("running"))
        for tenant, name in ((THEM, "a"), (US, "b"), (US, "c")):
            await store.create_response(tenant, waiting_response(name))
        await store.delete_response(US, "resp_c")
        assert await store.count_waiting_runs() == 2
        await lease_runs(store, limit=1)
        assert await store.count_waiting_runs() == 1

    async def test_waiting_runs_are_leased_complete_and_oldest_first(
        self, store: Store, another: Store
    ) -> None:
        assert await lease_runs(store) == []
        new = new_response(
            "z", run=NewRun(job=EVERY_BYTE, events=chunk(0, 2)), status="queued", **EVERY_FIELD
        )
        await store.create_response(US, new)
        for tenant, name in ((THEM, "a"), (US, "done"), (US, "gone"), (US, "m")):
            await store.create_response(tenant, waiting_response(name))
        await store.delete_response(US, "resp_gone")
        done = await take_over(store, "done")
        assert done is not None
        assert await store.finish_response(done.lease, finished_response("done"))
        taken = await lease_runs(another)
        assert [one.lease for one in taken] == [lease("z"), lease("a", tenant=THEM), lease("m")]
        assert as_json(taken[0].response) == as_json(new.response)
        assert [one.job for one in taken] == [EVERY_BYTE, b"job", b"job"]
        assert await lease_runs(store, "srv_c") == []

    async def test_runs_of_a_living_owner_are_not_leased(
        self, store: Store, another: Store
    ) -> None:
        await beat(store, OWNER)
        await store.create_response(US, response_with_log("a"))
        assert await lease_runs(another) == []
        await beat(store, OWNER, ttl_s=0.1)
        await beat(store, OWNER)
        await beat(store, "srv_short", ttl_s=0.2)
        await store.create_response(US, response_with_log("b", owner="srv_short"))
        taken: list[LeasedRun] = []

        async def is_one_taken() -> bool:
            taken.extend(await lease_runs(another))
            return bool(taken)

        await wait_until(is_one_taken)
        assert run_names(taken) == ["b"]
        assert await store.append_events(lease("a"), chunk(2))

    async def test_runs_of_a_dead_owner_are_leased(self, store: Store, another: Store) -> None:
        await store.create_response(US, response_with_log("never_alive", owner="srv_never"))
        await beat(store, OWNER)
        await store.create_response(US, new_response("left"))
        await store.end_heartbeat(OWNER)
        taken = await lease_runs(another)
        assert run_names(taken) == ["never_alive", "left"]
        assert [one.job for one in taken] == [b"job", None]
        assert {one.lease.epoch for one in taken} == {2}
        assert await another.list_leases(NEXT_OWNER) == [one.lease for one in taken]

    async def test_a_dead_owner_does_not_lease_its_own_runs_again(
        self, store: Store, another: Store
    ) -> None:
        await store.create_response(US, waiting_response("a"))
        await store.create_response(US, new_response("b"))
        assert run_names(await store.lease_runs(OWNER, limit=9)) == ["a"]
        assert await store.lease_runs(OWNER, limit=9) == []
        assert len(await store.list_leases(OWNER)) == 2
        assert run_names(await lease_runs(another)) == ["a", "b"]

    async def test_without_waiting_only_runs_of_dead_owners_are_leased(
        self, store: Store, another: Store
    ) -> None:
        for name in "abc":
            await store.create_response(US, waiting_response(name))
        assert run_names(await lease_runs(store, limit=2)) == ["a", "b"]
        await beat(another, "srv_full")
        assert await another.lease_runs("srv_full", limit=9, waiting=False) == []
        await store.end_heartbeat(NEXT_OWNER)
        assert run_names(await another.lease_runs("srv_full", limit=1, waiting=False)) == ["a"]
        assert run_names(await another.lease_runs("srv_full", limit=9, waiting=False)) == ["b"]
        assert await another.lease_runs("srv_full", limit=9, waiting=False) == []
        assert run_names(await another.lease_runs("srv_full", limit=9)) == ["c"]

    async def test_no_more_runs_are_leased_than_the_limit(self, store: Store) -> None:
        for number in range(5):
            await store.create_response(US, waiting_response(str(number)))
        assert await lease_runs(store, limit=0) == []
        assert run_names(await lease_runs(store, limit=2)) == ["0", "1"]
        assert run_names(await lease_runs(store, limit=2)) == ["2", "3"]
        assert run_names(await lease_runs(store, limit=2)) == ["4"]

    async def test_tenants_take_turns_when_runs_are_leased(self, store: Store) -> None:
        for name in "abcde":
            await store.create_response(US, waiting_response(name))
        for name in "fg":
            await store.create_response(THEM, waiting_response(name))
        await store.create_response("", waiting_response("h"))
        assert run_names(await lease_runs(store, limit=4)) == ["a", "b", "f", "h"]
        assert run_names(await lease_runs(store, limit=2)) == ["c", "g"]
        assert run_names(await lease_runs(store)) == ["d", "e"]

    async def test_a_tenant_that_has_runs_already_waits_for_the_others(self, store: Store) -> None:
        await beat(store, NEXT_OWNER)
        for name in "abc":
            await store.create_response(US, waiting_response(name))
        for name in "def":
            await store.create_response(THEM, waiting_response(name))
        leased = await store.lease_runs(NEXT_OWNER, limit=2, held={US: 2, "none": 9})
        assert run_names(leased) == ["d", "e"]
        leased = await store.lease_runs(NEXT_OWNER, limit=9, held={US: 2, THEM: 3}, per_tenant=3)
        assert run_names(leased) == ["a"]
        assert (
            await store.lease_runs(NEXT_OWNER, limit=9, held={US: 3, THEM: 4}, per_tenant=3) == []
        )
        assert run_names(await store.lease_runs(NEXT_OWNER, limit=9, per_tenant=1)) == ["b", "f"]
        assert run_names(await store.lease_runs(NEXT_OWNER, limit=9)) == ["c"]

    async def test_runs_of_dead_owners_take_turns_too(self, store: Store, another: Store) -> None:
        for name in "abc":
            await store.create_response(US, response_with_log(name, owner="srv_dead"))
        await store.create_response(THEM, response_with_log("d", owner="srv_dead"))
        await store.create_response(US, waiting_response("e"))
        assert run_names(await lease_runs(another, limit=2)) == ["a", "d"]
        await store.end_heartbeat(NEXT_OWNER)
        again = await another.lease_runs("srv_c", limit=2, waiting=False)
        assert run_names(again) == ["a", "d"]

    async def test_a_run_that_was_given_back_waits_in_its_tenants_line(self, store: Store) -> None:
        for name in "ab":
            await store.create_response(US, waiting_response(name))
        [taken] = await lease_runs(store, limit=1)
        assert await store.give_back_run(taken.lease)
        await store.delete_response(US, "resp_b")
        assert run_names(await lease_runs(store, "srv_c")) == ["a"]
        assert await lease_runs(store, "srv_d") == []

    async def test_one_of_many_owners_leases_a_run(self, store: Store, another: Store) -> None:
        names = [str(number) for number in range(30)]
        for name in names:
            await store.create_response(US, waiting_response(name))
        takers = [f"srv_{number}" for number in range(20)]
        await beat(store, *takers)
        taken = await asyncio.gather(
            *[(store, another)[n % 2].lease_runs(one, limit=3) for n, one in enumerate(takers)]
        )
        found = [name for one in taken for name in run_names(one)]
        assert len(found) == len(set(found))
        rest = run_names(await lease_runs(store))
        assert sorted([*found, *rest]) == sorted(names)
        for owner, runs in zip(takers, taken, strict=True):
            held = await store.list_leases(owner)
            assert sorted(run_names(runs)) == sorted(one.response_id[5:] for one in held)

    async def test_each_lease_has_a_higher_epoch(self, store: Store) -> None:
        await store.create_response(US, waiting_response("a"))
        epochs = []
        for number in range(5):
            [taken] = await lease_runs(store, f"srv_{number}")
            epochs.append(taken.lease.epoch)
            await store.end_heartbeat(f"srv_{number}")
        assert epochs == [1, 2, 3, 4, 5]

    async def test_a_leased_run_is_as_it_was_created(self, store: Store) -> None:
        new = response_with_log("a")
        await store.create_response(US, new)
        assert await store.append_events(lease("a"), chunk(2))
        [taken] = await lease_runs(store)
        assert as_json(taken.response) == as_json(new.response)
        assert taken.job == b"job"
        assert await log_of(store, "a") == [chunk(0, 2), chunk(2)]

    async def test_a_run_is_taken_over_from_a_living_owner(
        self, store: Store, another: Store
    ) -> None:
        await beat(store, OWNER)
        await store.create_response(US, response_with_log("a"))
        taken = await take_over(another, "a")
        assert taken == LeasedRun(
            lease=lease("a", 2), response=response_with_log("a").response, job=b"job"
        )
        assert await store.list_leases(OWNER) == []
        assert await store.list_leases(NEXT_OWNER) == [lease("a", 2)]

    async def test_a_waiting_run_is_taken_over(self, store: Store) -> None:
        await store.create_response(US, waiting_response("a"))
        taken = await take_over(store, "a")
        assert taken is not None
        assert taken.lease == lease("a")
        assert await lease_runs(store, "srv_c") == []

    async def test_a_finished_run_is_not_taken_over(self, store: Store) -> None:
        await create_and_finish(store, "done")
        assert await take_over(store, "done") is None

    async def test_an_unknown_foreign_or_deleted_run_is_not_taken_over(self, store: Store) -> None:
        await store.create_response(THEM, response_with_log("foreign"))
        await store.create_response(US, response_with_log("deleted"))
        await store.delete_response(US, "resp_deleted")
        for name in ("unknown", "foreign", "deleted"):
            assert await is_unknown(take_over(store, name))
        assert await store.append_events(lease("foreign", tenant=THEM), chunk(2))

    async def test_the_last_of_many_takeovers_has_the_run(
        self, store: Store, another: Store
    ) -> None:
        await store.create_response(US, response_with_log("a"))
        takers = [
            take_over((store, another)[number % 2], "a", f"srv_{number}") for number in range(10)
        ]
        leases = [taken.lease for taken in await asyncio.gather(*takers) if taken]
        assert sorted(one.epoch for one in leases) == list(range(2, 12))
        valid = [await store.append_events(one, chunk(2)) for one in leases]
        assert valid == [one.epoch == 11 for one in leases]

    async def test_a_run_that_is_given_back_waits_for_another_owner(self, store: Store) -> None:
        await beat(store, OWNER)
        await store.create_response(US, response_with_log("a"))
        assert await store.give_back_run(lease("a"))
        assert await store.list_leases(OWNER) == []
        [taken] = await lease_runs(store)
        assert taken.lease == lease("a", 2)
        assert await store.append_events(taken.lease, chunk(2))

    async def test_the_leases_of_an_owner_are_listed(self, store: Store, another: Store) -> None:
        assert await store.list_leases(OWNER) == []
        for name in ("kept", "done", "deleted", "lost", "returned"):
            await store.create_response(US, response_with_log(name))
        await store.create_response(THEM, response_with_log("foreign"))
        await store.create_response(US, waiting_response("waits"))
        await store.create_response(US, response_with_log("other", owner="srv_c"))
        assert await finish(store, finished_response("done"))
        await store.delete_response(US, "resp_deleted")
        assert await take_over(another, "lost")
        assert await store.give_back_run(lease("returned"))
        for one in (store, another):
            held = await one.list_leases(OWNER)
            assert sorted(found.response_id for found in held) == ["resp_foreign", "resp_kept"]
            assert lease("foreign", tenant=THEM) in held


async def state_of(store: Store) -> object:
    """Return all that can be read of the response `a`."""
    try:
        response = await store.get_response(US, "resp_a")
    except NotFound:
        return None
    return as_json(response), await log_of(store, "a"), await store.list_leases(NEXT_OWNER)
