"""Contract tests for a store's responses and their items."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial

import msgspec
import pytest
from msgspec.structs import replace

from antiphon.application.ports import (
    EventChunk,
    Lease,
    NewRun,
    StorageUsage,
    Store,
    StoredItem,
    StoredResponse,
    StorePageQuery,
)
from antiphon.domain import items as i
from antiphon.domain.errors import NotInList, StoreError
from antiphon.domain.responses.response import TERMINAL
from antiphon.testing.samples import (
    EVERY_FIELD,
    EVERY_KIND_OF_OUTPUT,
    FAR_FUTURE,
    OWNER,
    RUNNING_STATUSES,
    THEM,
    US,
    as_json,
    finished_response,
    ids,
    item,
    new_response,
    turn_item_names,
)
from antiphon.testing.stores.calls import (
    claim,
    context_of,
    create_and_finish,
    create_conversation,
    finish,
    input_of,
    is_gone,
    is_unknown,
    pages_of,
    run_in_conversation,
    sweep,
)
from antiphon.testing.stores.fixtures import StoreFixtures


@pytest.mark.asyncio
class ResponseStoreContract(StoreFixtures):
    """The part of StoreContract about responses and items."""

    # --- one response -----------------------------------------------------------------------------

    async def test_a_new_response_is_read_as_it_was_written(self, store: Store) -> None:
        new = new_response("a", **EVERY_FIELD)
        await store.create_response(US, new)
        assert as_json(await store.get_response(US, "resp_a")) == as_json(new.response)

    async def test_a_finished_response_is_read_as_it_was_written(self, store: Store) -> None:
        await store.create_response(US, new_response("a"))
        done = finished_response("a", **EVERY_FIELD, output=EVERY_KIND_OF_OUTPUT)
        assert await finish(store, done)
        assert as_json(await store.get_response(US, "resp_a")) == as_json(done)

    async def test_output_items_can_be_read_as_input(self, store: Store) -> None:
        await store.create_response(US, new_response("a"))
        await finish(store, finished_response("a", output=EVERY_KIND_OF_OUTPUT))
        found = (await store.get_context(US, "resp_a"))[1:]
        assert [one.id for one in found] == [one.id for one in EVERY_KIND_OF_OUTPUT]
        assert [bytes(one.raw) for one in found] == [
            msgspec.json.encode(one) for one in EVERY_KIND_OF_OUTPUT
        ]

    async def test_a_response_may_have_no_items_at_all(self, store: Store) -> None:
        bare = StoredResponse(response=new_response("a").response, run=NewRun(owner=OWNER))
        await store.create_response(US, bare)
        assert await finish(store, finished_response("a", output=()))
        assert await store.get_context(US, "resp_a") == []
        assert (await store.get_response(US, "resp_a")).output == ()

    async def test_finishing_replaces_the_output_so_far(self, store: Store) -> None:
        early = i.Message(id="msg_early", role="assistant", content="h", status="in_progress")
        new = new_response("a", output=(early, *EVERY_KIND_OF_OUTPUT))
        await store.create_response(US, new)
        assert as_json(await store.get_response(US, "resp_a")) == as_json(new.response)
        assert await finish(store, finished_response("a"))
        assert await store.get_response(US, "resp_a") == finished_response("a")
        assert await context_of(store, "a") == ["a_in", "a_out"]
        assert await is_unknown(store.get_item(US, "msg_early"))

    @pytest.mark.parametrize("status", RUNNING_STATUSES)
    @pytest.mark.parametrize("last", sorted(TERMINAL))
    async def test_a_response_is_finished_once(self, store: Store, status: str, last: str) -> None:
        await store.create_response(US, new_response("a", status=status))
        first = finished_response("a", status=last)
        assert await finish(store, first)
        for later in sorted(TERMINAL):
            assert not await finish(store, finished_response("a", status=later, output=()))
        assert await store.get_response(US, "resp_a") == first
        assert await context_of(store, "a") == turn_item_names("a")

    async def test_a_response_that_was_never_created_cannot_be_finished(self, store: Store) -> None:
        assert not await finish(store, finished_response("a"))
        assert await is_gone(store, "a")

    async def test_an_id_cannot_be_used_twice(self, store: Store) -> None:
        await store.create_response(US, new_response("a"))
        with pytest.raises(StoreError):
            await store.create_response(US, new_response("a", item("other")))
        assert await input_of(store, "a") == ["a_in"]
        assert await is_unknown(store.get_item(US, "msg_other"))

    async def test_an_id_that_was_never_written_is_unknown(self, store: Store) -> None:
        assert await is_gone(store, "a")
        assert await is_unknown(store.get_item(US, "msg_a"))

    # --- items ------------------------------------------------------------------------------------

    @pytest.mark.parametrize(
        "raw",
        [
            b'{"id":"msg_x","role":"user","unknown":[1.50,1e2,-0.0],"content":"\\u00e9\\/"}',
            b'{ "type" : "from_the_future",\n\t"huge": 123456789012345678901234567890 }',
            '{"type":"message","content":"é 🍀 \u2028","a":1,"a":2}'.encode(),
            b'{"type":"message","content":"%b"}' % (b"A" * 3_000_000),
        ],
        ids=["unknown fields", "unknown type", "not ASCII", "large"],
    )
    async def test_an_input_item_is_kept_byte_for_byte(self, store: Store, raw: bytes) -> None:
        await store.create_response(US, new_response("a", item("x", raw=raw)))
        [listed] = await store.list_input_items(US, "resp_a")
        assert bytes(listed.raw) == raw
        assert bytes((await store.get_item(US, "msg_x")).raw) == raw

    async def test_input_and_output_items_are_found_by_id(self, store: Store) -> None:
        await create_and_finish(store, "a")
        found = await store.get_item(US, "msg_a_out")
        assert found.id == "msg_a_out"
        assert bytes(found.raw) == msgspec.json.encode(finished_response("a").output[0])
        assert (await store.get_item(US, "msg_a_in")) == item("a_in")

    async def test_the_newest_of_several_items_with_one_id_is_found(self, store: Store) -> None:
        for name in ("z", "a", "m"):
            again = item("again", raw=b'{"content":"%b"}' % name.encode())
            await store.create_response(US, new_response(name, again))
        assert bytes((await store.get_item(US, "msg_again")).raw) == b'{"content":"m"}'
        await store.delete_response(US, "resp_m")
        assert bytes((await store.get_item(US, "msg_again")).raw) == b'{"content":"a"}'

    async def test_an_item_may_come_twice_in_one_input(self, store: Store) -> None:
        await store.create_response(US, new_response("a", item("x"), item("x")))
        assert await input_of(store, "a") == ["x", "x"]

    # --- chains -----------------------------------------------------------------------------------

    @pytest.mark.parametrize("length", [1, 3, 30])
    async def test_a_chain_is_read_in_the_order_of_the_conversation(
        self, store: Store, length: int
    ) -> None:
        names = [str(n) for n in range(length)]
        for name, before in zip(names, [None, *names], strict=False):
            await store.create_response(
                US, new_response(name, item(f"{name}_1"), item(f"{name}_2"), after=before)
            )
            assert await finish(store, finished_response(name, after=before))
        each = [[f"{name}_1", f"{name}_2", f"{name}_out"] for name in names]
        whole = [name for one in each for name in one]
        assert await context_of(store, names[-1]) == whole
        assert await input_of(store, names[-1]) == whole[:-1]
        assert await context_of(store, names[0]) == each[0]

    async def test_an_input_is_read_in_pages(self, store: Store) -> None:
        await create_conversation(store, "a", "x", "y", "z")
        await run_in_conversation(store, "a", "root")
        await store.delete_conversation_item(US, "conv_a", "msg_y")
        await store.create_conversation_items(US, "conv_a", [item("later")])
        for name, before in (("one", "root"), ("fork", "root"), ("two", "one"), ("last", "two")):
            many = [item(f"{name}_{number}") for number in range(3)]
            await store.create_response(US, new_response(name, *many, after=before))
            assert await finish(store, finished_response(name, after=before))
        whole = await input_of(store, "last")
        assert len(whole) == 2 + 2 + 2 * 4 + 3
        read = partial(store.list_input_items, US, "resp_last")
        for limit in (1, 2, 3, 5, 100):
            assert await pages_of(read, limit) == whole
            assert await pages_of(read, limit, is_descending=True) == whole[::-1]
        for max_bytes in (1, 200):
            assert await pages_of(read, 5, max_bytes=max_bytes) == whole
            assert await pages_of(read, 5, is_descending=True, max_bytes=max_bytes) == whole[::-1]
        first = StorePageQuery(limit=5)
        for after in ("later", "y", "fork_1", "last_out", "none"):
            with pytest.raises(NotInList):
                await read(replace(first, after=f"msg_{after}"))

    async def test_a_response_without_items_is_a_part_of_its_chain(self, store: Store) -> None:
        await create_and_finish(store, "first")
        await store.create_response(US, replace(new_response("empty", after="first"), input=()))
        assert await finish(store, finished_response("empty", after="first", output=()))
        await create_and_finish(store, "last", after="empty")
        assert await context_of(store, "empty") == turn_item_names("first")
        assert await context_of(store, "last") == turn_item_names("first", "last")
        read = partial(store.list_input_items, US, "resp_last")
        assert await pages_of(read, 2) == [*turn_item_names("first"), "last_in"]

    async def test_an_input_without_items_is_an_empty_page(self, store: Store) -> None:
        await store.create_response(US, replace(new_response("a"), input=()))
        assert await store.list_input_items(US, "resp_a", StorePageQuery(limit=5)) == []
        assert await store.list_input_items(US, "resp_a") == []

    @pytest.mark.parametrize("item_id", ["\x00", 'a"b\\', "é🍀", "\n", "'"])
    async def test_any_item_id_is_kept(self, store: Store, item_id: str) -> None:
        odd = StoredItem(id=item_id, raw=msgspec.Raw(b'{"a":"\xc3\xa9"}'))
        await store.create_response(US, new_response("a", odd, item("x")))
        assert await store.list_input_items(US, "resp_a") == [odd, item("x")]
        assert await store.list_input_items(US, "resp_a", StorePageQuery(limit=1)) == [odd]
        after = StorePageQuery(limit=1, after=item_id)
        assert await store.list_input_items(US, "resp_a", after) == [item("x")]

    async def test_many_items_keep_their_order(self, store: Store) -> None:
        many = [item(f"{n}") for n in range(120)]
        await store.create_response(US, new_response("a", *many))
        assert await input_of(store, "a") == ids(many)

    async def test_forks_share_what_is_before_them(self, store: Store) -> None:
        await create_and_finish(store, "root")
        await create_and_finish(store, "left", after="root")
        await create_and_finish(store, "right", after="root")
        await create_and_finish(store, "leaf", after="left")
        assert await context_of(store, "leaf") == turn_item_names("root", "left", "leaf")
        assert await context_of(store, "right") == turn_item_names("root", "right")

    async def test_a_running_response_has_an_input_already(self, store: Store) -> None:
        await create_and_finish(store, "a")
        await store.create_response(US, new_response("b", after="a"))
        assert await input_of(store, "b") == [*turn_item_names("a"), "b_in"]
        assert await context_of(store, "b") == [*turn_item_names("a"), "b_in"]

    async def test_a_response_that_names_itself_continues_nothing(self, store: Store) -> None:
        await create_and_finish(store, "a", after="a")
        assert await context_of(store, "a") == turn_item_names("a")
        await store.delete_response(US, "resp_a")
        assert (await store.get_storage_usage(US)) == StorageUsage()

    async def test_a_parent_that_is_unknown_deleted_or_foreign_is_no_parent(
        self, store: Store
    ) -> None:
        await create_and_finish(store, "foreign", tenant=THEM)
        await create_and_finish(store, "deleted")
        await create_and_finish(store, "holds_deleted", after="deleted")
        await store.delete_response(US, "resp_deleted")
        for parent in ("foreign", "deleted", "unknown"):
            await create_and_finish(store, f"after_{parent}", after=parent)
            assert await context_of(store, f"after_{parent}") == turn_item_names(f"after_{parent}")

    # --- deleting ---------------------------------------------------------------------------------

    async def test_a_deleted_response_is_unknown(self, store: Store) -> None:
        await create_and_finish(store, "a")
        await store.delete_response(US, "resp_a")
        assert await is_gone(store, "a")
        assert await is_unknown(store.get_item(US, "msg_a_in"))
        assert await is_unknown(store.get_item(US, "msg_a_out"))

    async def test_a_running_response_can_be_deleted_and_not_finished(self, store: Store) -> None:
        await store.create_response(US, new_response("a"))
        await store.delete_response(US, "resp_a")
        assert await is_gone(store, "a")
        assert await is_unknown(store.get_item(US, "msg_a_out"))

    @pytest.mark.parametrize("name", ["root", "middle", "leaf"])
    async def test_a_continuation_keeps_the_items_of_a_deleted_response(
        self, store: Store, name: str
    ) -> None:
        chain = ["root", "middle", "leaf"]
        for one, before in zip(chain, [None, *chain], strict=False):
            await create_and_finish(store, one, after=before)
        await store.delete_response(US, f"resp_{name}")
        assert await is_gone(store, name)
        for one in chain:
            if one != name:
                up_to_it = chain[: chain.index(one) + 1]
                assert await context_of(store, one) == turn_item_names(*up_to_it)

    async def test_items_go_with_the_last_response_that_continues_them(self, store: Store) -> None:
        for one, before in (("a", None), ("b", "a"), ("c", "b"), ("d", "b")):
            await create_and_finish(store, one, after=before)
        await store.delete_response(US, "resp_a")
        await store.delete_response(US, "resp_b")
        await store.delete_response(US, "resp_c")
        assert await context_of(store, "d") == turn_item_names("a", "b", "d")
        assert (await store.get_item(US, "msg_a_in")).id == "msg_a_in"
        assert await is_unknown(store.get_item(US, "msg_c_in"))
        await store.delete_response(US, "resp_d")
        for name in turn_item_names("a", "b", "c", "d"):
            assert await is_unknown(store.get_item(US, f"msg_{name}"))

    async def test_what_is_before_a_deleted_response_stays(self, store: Store) -> None:
        await create_and_finish(store, "a")
        await create_and_finish(store, "b", after="a")
        await store.delete_response(US, "resp_b")
        assert await context_of(store, "a") == turn_item_names("a")
        await create_and_finish(store, "c", after="a")
        assert await context_of(store, "c") == turn_item_names("a", "c")

    async def test_deleting_leaves_the_same_ids_of_another_tenant(self, store: Store) -> None:
        for tenant in (US, THEM):
            await create_and_finish(store, "a", tenant=tenant)
        await store.delete_response(THEM, "resp_a")
        assert await context_of(store, "a") == turn_item_names("a")
        assert (await store.get_item(US, "msg_a_in")).id == "msg_a_in"

    # --- sweeping ---------------------------------------------------------------------------------

    async def test_a_response_is_swept_once_it_has_expired(self, store: Store) -> None:
        ends = {"past": 1.0, "future": FAR_FUTURE, "never": None}
        for name, expires_at in ends.items():
            await store.create_response(US, new_response(name, expires_at=expires_at))
            assert await finish(store, finished_response(name))
        assert await sweep(store) >= 1
        assert await is_gone(store, "past")
        assert await is_unknown(store.get_item(US, "msg_past_in"))
        assert await context_of(store, "future") == turn_item_names("future")
        assert await context_of(store, "never") == turn_item_names("never")
        assert await sweep(store) == 0

    async def test_a_continuation_keeps_the_items_of_a_swept_response(self, store: Store) -> None:
        await store.create_response(US, new_response("a", expires_at=1.0))
        assert await finish(store, finished_response("a"))
        await create_and_finish(store, "b", after="a")
        await sweep(store)
        assert await is_gone(store, "a")
        assert await context_of(store, "b") == turn_item_names("a", "b")

    async def test_running_responses_and_those_in_conversations_are_never_swept(
        self, store: Store
    ) -> None:
        await create_conversation(store, "a")
        await claim(store, "a", "within")
        await store.create_response(US, new_response("within", within="a", expires_at=1.0))
        assert await finish(store, finished_response("within", within="a"))
        await store.create_response(US, new_response("runs", expires_at=1.0))
        await store.create_response(US, new_response("waits", expires_at=1.0, run=NewRun()))
        await sweep(store)
        for name in ("within", "runs", "waits"):
            assert await input_of(store, name) == [f"{name}_in"]
        assert await finish(store, finished_response("runs"))
        await sweep(store)
        assert await is_gone(store, "runs")

    async def test_a_sweep_takes_no_more_than_its_limit(self, store: Store) -> None:
        for number in range(7):
            await store.create_response(US, new_response(str(number), expires_at=1.0))
            assert await finish(store, finished_response(str(number)))
        swept = []
        while count := await store.sweep(keep_events_s=60, limit=3):
            swept.append(count)
            gone = [
                await is_unknown(store.get_response(US, f"resp_{number}")) for number in range(7)
            ]
            assert gone.count(True) == sum(swept)
        assert swept == [3, 3, 1]

    # --- usage ------------------------------------------------------------------------------------

    async def test_nothing_is_used_at_first(self, store: Store) -> None:
        assert await store.get_storage_usage(US) == StorageUsage()

    async def test_the_responses_of_a_tenant_are_counted(self, store: Store) -> None:
        await create_and_finish(store, "done")
        await store.create_response(US, new_response("runs"))
        await store.create_response(US, new_response("waits", run=NewRun()))
        await create_and_finish(store, "foreign", tenant=THEM)
        usage = await store.get_storage_usage(US)
        assert (usage.responses, usage.waiting) == (3, 1)
        await store.delete_response(US, "resp_waits")
        await store.delete_response(US, "resp_done")
        usage = await store.get_storage_usage(US)
        assert (usage.responses, usage.waiting) == (1, 0)

    async def test_a_run_counts_as_waiting_until_it_is_leased(self, store: Store) -> None:
        await store.create_response(US, new_response("a", run=NewRun()))
        [taken] = await store.lease_runs(OWNER, limit=1)
        assert (await store.get_storage_usage(US)).waiting == 0
        assert await store.give_back_run(taken.lease)
        assert (await store.get_storage_usage(US)).waiting == 1

    async def test_the_bytes_of_items_responses_and_logs_are_counted(self, store: Store) -> None:
        async def used() -> int:
            return (await store.get_storage_usage(US)).bytes

        await create_conversation(store, "other")
        at_first, size = await used(), 100_000
        large = b"x" * size
        events = EventChunk(first=0, count=1, body=large)
        run = NewRun(owner=OWNER, events=events)
        await store.create_response(
            US, new_response("a", item("a", raw=b'"%b"' % large), instructions="y" * size, run=run)
        )
        assert 2.9 * size < await used() - at_first < 4 * size
        lease = Lease(tenant=US, response_id="resp_a")
        assert await store.append_events(lease, EventChunk(first=1, count=1, body=large))
        assert 3.9 * size < await used() - at_first < 5 * size
        answer = i.Message(id="msg_a_out", role="assistant", content="z" * size)
        done = finished_response("a", output=(answer,), instructions="y" * size)
        assert await store.finish_response(
            lease, done, events=EventChunk(first=2, count=1, body=large)
        )
        assert 5.9 * size < await used() - at_first < 7 * size
        await sweep(store, keep_events_s=0)
        assert 2.9 * size < await used() - at_first < 4 * size
        await store.delete_response(US, "resp_a")
        assert abs(await used() - at_first) < 1_000
        await store.create_conversation_items(US, "conv_other", [item("b", raw=b'"%b"' % large)])
        assert 0.9 * size < await used() - at_first < 2 * size
        await store.delete_conversation(US, "conv_other")
        assert await used() <= at_first

    # --- tenants ----------------------------------------------------------------------------------

    async def test_responses_of_another_tenant_are_unknown(self, store: Store) -> None:
        await create_and_finish(store, "done")
        await store.create_response(US, new_response("running"))
        assert await is_unknown(store.get_response(THEM, "resp_done"))
        assert await is_unknown(store.list_input_items(THEM, "resp_done"))
        assert await is_unknown(store.list_input_items(THEM, "resp_done", StorePageQuery(limit=5)))
        assert await is_unknown(store.get_context(THEM, "resp_done"))
        assert await is_unknown(store.get_item(THEM, "msg_done_in"))
        assert await is_unknown(store.get_item(THEM, "msg_done_out"))
        assert await is_unknown(store.delete_response(THEM, "resp_done"))
        assert not await finish(store, finished_response("running"), THEM)
        assert (await store.get_response(US, "resp_done")).status == "completed"
        assert (await store.get_response(US, "resp_running")).status == "in_progress"

    async def test_tenants_may_use_the_same_ids(self, store: Store) -> None:
        await store.create_response(
            US, new_response("a", item("x", raw=b'{"of":"us"}'), model="ours")
        )
        await store.create_response(
            THEM, new_response("a", item("x", raw=b'{"of":"them"}'), model="theirs")
        )
        assert (await store.get_response(US, "resp_a")).model == "ours"
        assert (await store.get_response(THEM, "resp_a")).model == "theirs"
        assert bytes((await store.get_item(US, "msg_x")).raw) == b'{"of":"us"}'

    async def test_chains_of_the_same_ids_do_not_mix(self, store: Store) -> None:
        await create_and_finish(store, "a", tenant=THEM)
        await store.create_response(US, new_response("a", item("ours")))
        for tenant in (US, THEM):
            await create_and_finish(store, "b", after="a", tenant=tenant)
        assert await context_of(store, "b") == ["ours", *turn_item_names("b")]
        assert ids(await store.get_context(THEM, "resp_b")) == turn_item_names("a", "b")

    @pytest.mark.parametrize("name", ["' OR 1=1 --", "%", "", "\x00", "é🍀", "*"])
    async def test_an_id_is_taken_literally(self, store: Store, name: str) -> None:
        await create_and_finish(store, "a")
        for lookup in (
            store.get_response,
            store.list_input_items,
            store.get_context,
            store.get_item,
            store.delete_response,
        ):
            call: Callable[[str, str], Awaitable[object]] = lookup
            assert await is_unknown(call(US, name))
            assert await is_unknown(call(name, "resp_a"))
        assert await context_of(store, "a") == turn_item_names("a")

    # --- at the same time -------------------------------------------------------------------------

    async def test_many_clients_write_and_read_at_the_same_time(self, store: Store) -> None:
        await create_and_finish(store, "root")

        async def client(name: str) -> None:
            await store.create_response(US, new_response(name, after="root"))
            assert (await store.get_response(US, f"resp_{name}")).status == "in_progress"
            assert await finish(store, finished_response(name, after="root"))
            assert (await store.get_response(US, f"resp_{name}")).status == "completed"
            assert await context_of(store, name) == turn_item_names("root", name)

        await asyncio.gather(*[client(str(n)) for n in range(50)])
        assert await store.list_leases(OWNER) == []

    async def test_one_of_many_calls_finishes_a_response(self, store: Store) -> None:
        await store.create_response(US, new_response("a"))
        done = [finished_response("a", model=f"m{n}") for n in range(20)]
        won = await asyncio.gather(*[finish(store, one) for one in done])
        assert won.count(True) == 1
        assert await store.get_response(US, "resp_a") == done[won.index(True)]

    async def test_a_failing_write_does_not_affect_the_others(self, store: Store) -> None:
        await store.create_response(US, new_response("taken"))
        names = [str(n) for n in range(10)]
        writes = [store.create_response(US, new_response(name)) for name in names]
        writes.insert(5, store.create_response(US, new_response("taken", item("lost"))))
        outcomes = await asyncio.gather(*writes, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes if outcome is not None] == [StoreError]
        for name in names:
            assert await input_of(store, name) == [f"{name}_in"]
        assert await is_unknown(store.get_item(US, "msg_lost"))

    async def test_a_cancelled_call_does_not_affect_the_others(self, store: Store) -> None:
        leaving = asyncio.create_task(store.create_response(US, new_response("leaving")))
        staying = asyncio.create_task(store.create_response(US, new_response("staying")))
        await asyncio.sleep(0)
        leaving.cancel()
        await staying
        assert await input_of(store, "staying") == ["staying_in"]
