"""Every store gives the same answers as the memory store to any sequence of calls."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from random import Random
from typing import Any

import msgspec
import pytest
from tests.contracts.conftest import NewStore

from antiphon.adapters.stores.memory.store import MemoryStore
from antiphon.application.ports import ApiKey, NewRun, StorageUsage, Store, WebhookDelivery
from antiphon.domain.errors import AntiphonError
from antiphon.domain.history.conversation import Conversation
from antiphon.testing.samples import FAR_FUTURE, chunk, finished_response, item, lease, new_response

SEEDS = int(os.environ.get("ANTIPHON_TEST_SEEDS", "3"))
STEPS = 150

TENANTS = ("us", "a:b")
NAMES = "abcdef"
TALKS = "xyz"
OWNERS = ("srv_a", "srv_b")
KEYS = ("k", "k:1")
KEEP_ALL_S = 1e9
"""Longer than any log has existed."""


def key_of(name: str) -> str:
    """Return the key of a response. Several responses have the same key."""
    return KEYS[NAMES.index(name) % 2] if name in NAMES else KEYS[0]


Call = Callable[[Store], Awaitable[Any]]


class RandomCalls:
    """Draws random calls. The memory store says what exists to call them with."""

    def __init__(self, seed: int, memory: MemoryStore) -> None:
        self._random = Random(seed)
        self._memory = memory
        self._count = 0
        self._used_names: set[tuple[str, str]] = set()
        self._claims: dict[tuple[str, str], str] = {}

    async def next(self) -> tuple[str, Call]:
        kinds = [name for name in dir(self) if name.startswith("draw_")]
        kind = self._random.choice(kinds)
        return kind, await getattr(self, kind)()

    def pick(self, *options: Any) -> Any:
        return self._random.choice(options)

    def tenant(self) -> str:
        return self.pick("us", "us", "us", *TENANTS)

    def name(self) -> str:
        return self.pick(*NAMES)

    def new_name(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}_{self._count}"

    async def lease(self) -> Any:
        """Return the newest lease of some response, or the one before."""
        tenant, name = self.tenant(), self.name()
        leases = [it for owner in OWNERS for it in await self._memory.list_leases(owner)]
        epochs = {(it.tenant, it.response_id): it.epoch for it in leases}
        epoch = epochs.get((tenant, f"resp_{name}"), 1)
        return name, lease(name, epoch - self.pick(0, 0, 0, 0, 1), tenant)

    async def chunk(self, tenant: str, name: str) -> Any:
        """Return the next events of the log, events that it has, or events after a gap."""
        try:
            log = (await self._memory.read_events(tenant, f"resp_{name}")).chunks
        except AntiphonError:
            return self.pick(None, chunk(1))
        next_number = log[-1].first + log[-1].count
        return self.pick(
            *[chunk(next_number, self.pick(1, 3))] * 5,
            log[-1],
            log[0],
            chunk(next_number + 1),
            None,
        )

    async def unused_name(self, tenant: str, prefix: str, *names: str) -> str:
        """Return a name that is new or in use. Names of deleted objects are not used again."""
        lookup = self._memory.get_response if prefix == "resp" else self._memory.get_conversation
        for name in self._random.sample(names, len(names)):
            is_new = (tenant, name) not in self._used_names
            if is_new or isinstance(await outcome(lookup(tenant, f"{prefix}_{name}")), dict):
                self._used_names.add((tenant, name))
                return name
        return self.new_name("more")

    async def draw_create(self) -> Call:
        tenant = self.tenant()
        name = await self.unused_name(tenant, "resp", *NAMES)
        owner, within = self.pick(None, *OWNERS), self._claims.get((tenant, name))
        stored = new_response(
            name,
            *[self.pick(item(self.name()), item(self.new_name("own")))] * self.pick(0, 1, 2),
            after=None if within else self.pick(None, *NAMES),
            within=within,
            status=self.pick("queued", "in_progress"),
            expires_at=self.pick(None, 1.0, FAR_FUTURE),
            run=NewRun(
                owner=owner,
                job=self.pick(None, b"job"),
                events=self.pick(None, chunk(0, 2)),
                key=self.pick(None, None, None, key_of(name)),
            ),
        )
        return lambda store: store.create_response(tenant, stored)

    async def draw_finish(self) -> Call:
        name, response_lease = await self.lease()
        within = None
        try:
            current = await self._memory.get_response(response_lease.tenant, f"resp_{name}")
            within = current.conversation.id.removeprefix("conv_") if current.conversation else None
        except AntiphonError:
            pass
        done = finished_response(
            name,
            within=within,
            status=self.pick("completed", "failed", "cancelled", "incomplete"),
            metadata={"n": self.new_name("end")},
        )
        events = await self.chunk(response_lease.tenant, name)
        deliveries = [
            WebhookDelivery(
                id=self.new_name("evt"),
                tenant=response_lease.tenant,
                endpoint=self.pick("e", "f"),
                body=b"\0{}",
            )
            for _ in range(self.pick(0, 0, 1, 2))
        ]
        return lambda store: store.finish_response(
            response_lease, done, events=events, deliveries=deliveries
        )

    draw_finish_2 = draw_finish_3 = draw_finish

    async def draw_append(self) -> Call:
        name, response_lease = await self.lease()
        events = await self.chunk(response_lease.tenant, name) or chunk(2)
        return lambda store: store.append_events(response_lease, events)

    async def draw_give_back(self) -> Call:
        _, response_lease = await self.lease()
        return lambda store: store.give_back_run(response_lease)

    async def draw_beat(self) -> Call:
        owner = self.pick(*OWNERS)

        async def beat(store: Store) -> None:
            store.record_heartbeat(owner, 600)

        return beat

    async def draw_leave(self) -> Call:
        owner = self.pick(*OWNERS)
        return lambda store: store.end_heartbeat(owner)

    async def draw_lease_runs(self) -> Call:
        owner, limit, waiting = self.pick(*OWNERS), self.pick(0, 1, 2), self.pick(True, True, False)
        held = {self.tenant(): self.pick(0, 1, 3)}
        per_tenant = self.pick(None, None, 1, 2)
        return lambda store: store.lease_runs(
            owner, limit=limit, waiting=waiting, held=held, per_tenant=per_tenant
        )

    async def draw_take_over(self) -> Call:
        owner, tenant, name = self.pick(*OWNERS), self.tenant(), self.name()
        return lambda store: store.take_over_run(owner, tenant, f"resp_{name}")

    async def draw_delete(self) -> Call:
        tenant, name = self.tenant(), self.name()
        return lambda store: store.delete_response(tenant, f"resp_{name}")

    async def draw_sweep(self) -> Call:
        keep_events_s = self.pick(KEEP_ALL_S, KEEP_ALL_S, -1.0)

        async def sweep(store: Store) -> None:
            while await store.sweep(keep_events_s=keep_events_s, limit=3):
                pass

        return sweep

    async def draw_reserve(self) -> Call:
        tenant, name = self.tenant(), self.name()
        key, response_id = key_of(name), f"resp_{name}"
        owner, fingerprint = self.pick(*OWNERS), self.pick(b"1", b"\0\xff")
        return lambda store: store.reserve_idempotency_key(
            tenant,
            key,
            response_id=response_id,
            fingerprint=fingerprint,
            owner=owner,
            expires_at=FAR_FUTURE,
        )

    async def draw_unreserve(self) -> Call:
        tenant, key, response_id = self.tenant(), self.pick(*KEYS), f"resp_{self.name()}"
        return lambda store: store.release_idempotency_key(tenant, key, response_id)

    async def draw_create_conversation(self) -> Call:
        tenant = self.tenant()
        talk = await self.unused_name(tenant, "conv", *TALKS)
        conversation = Conversation(id=f"conv_{talk}", created_at=1, metadata={"é": "\0"})
        items = [item(self.name())] * self.pick(0, 1, 2)
        return lambda store: store.create_conversation(tenant, conversation, items)

    async def draw_update_conversation(self) -> Call:
        tenant, talk, value = self.tenant(), self.pick(*TALKS), self.new_name("v")
        return lambda store: store.update_conversation(tenant, f"conv_{talk}", {"v": value})

    async def draw_delete_conversation(self) -> Call:
        tenant, talk = self.tenant(), self.pick(*TALKS)
        return lambda store: store.delete_conversation(tenant, f"conv_{talk}")

    async def draw_add_items(self) -> Call:
        tenant, talk, items = self.tenant(), self.pick(*TALKS), [item(self.name())]
        return lambda store: store.create_conversation_items(tenant, f"conv_{talk}", items)

    async def draw_remove_item(self) -> Call:
        tenant, talk = self.tenant(), self.pick(*TALKS)
        item_id = f"msg_{self.name()}{self.pick('', '_in', '_out')}"
        return lambda store: store.delete_conversation_item(tenant, f"conv_{talk}", item_id)

    async def draw_claim(self) -> Call:
        tenant, talk, name = self.tenant(), self.pick(*TALKS), self.name()
        owner, response_id = self.pick(*OWNERS), f"resp_{name}"
        if (tenant, name) in self._used_names:  # a response claims before it is created
            return lambda store: store.get_conversation(tenant, f"conv_{talk}")
        talk = self._claims.setdefault((tenant, name), talk)
        return lambda store: store.claim_conversation(
            tenant, f"conv_{talk}", response_id, owner=owner
        )

    async def draw_release(self) -> Call:
        tenant, talk, response_id = self.tenant(), self.pick(*TALKS), f"resp_{self.name()}"
        items = [item(self.name())] * self.pick(0, 1)
        return lambda store: store.release_conversation(tenant, f"conv_{talk}", response_id, items)

    async def draw_claim_due(self) -> Call:
        limit, claim_s = self.pick(1, 2), self.pick(-1.0, 600.0)
        leave_out = self.pick((), ("e",), ("e", "f"))
        return lambda store: store.claim_due_deliveries(
            limit=limit, claim_s=claim_s, leave_out=leave_out
        )

    async def draw_delay(self) -> Call:
        delivery, seconds = (
            f"evt_{self._random.randint(1, self._count + 1)}",
            self.pick(-1.0, 600.0),
        )
        return lambda store: store.delay_delivery(delivery, seconds)

    async def draw_remove(self) -> Call:
        delivery = f"evt_{self._random.randint(1, self._count + 1)}"
        return lambda store: store.delete_delivery(delivery)

    async def draw_add_key(self) -> Call:
        name = self.name()
        key = ApiKey(id=name, name=name, tenant="us", hash=self.name().encode(), created_at=1)
        return lambda store: store.create_api_key(key)

    async def draw_revoke_key(self) -> Call:
        name = self.name()
        return lambda store: store.revoke_api_key(name)

    async def draw_save_trace(self) -> Call:
        _, lease = await self.lease()
        trace = self.pick(b"", b"\0\xff", b"sealed" * 100)
        return lambda store: store.save_trace(lease, trace)

    async def draw_compare_and_set(self) -> Call:
        name, value = self.pick(*KEYS), self.pick(b"1", b"\0\xff")
        expected = self.pick(None, b"1", b"\0\xff")
        return lambda store: store.compare_and_set(name, value, expected=expected)


async def outcome(call: Awaitable[Any]) -> Any:
    try:
        return msgspec.to_builtins(await call, builtin_types=(bytes,), enc_hook=bytes)
    except AntiphonError as error:
        return type(error).__name__


async def read_state(store: Store) -> dict[str, Any]:
    """Return everything that can be read from a store."""
    state: dict[str, Any] = {"keys": await outcome(store.list_api_keys())}
    for tenant in TENANTS:
        usage = await store.get_storage_usage(tenant)
        state[tenant, "usage"] = (usage.responses, usage.waiting)
        for name in NAMES:
            response_id = f"resp_{name}"
            state[tenant, name] = [
                await outcome(store.get_response(tenant, response_id)),
                await outcome(store.list_input_items(tenant, response_id)),
                await outcome(store.get_context(tenant, response_id)),
                await outcome(store.read_events(tenant, response_id)),
                await outcome(store.read_events(tenant, response_id, after=2)),
                *[
                    await outcome(store.get_item(tenant, f"msg_{name}{way}"))
                    for way in ("", "_in", "_out")
                ],
            ]
        for talk in TALKS:
            state[tenant, talk] = [
                await outcome(store.get_conversation(tenant, f"conv_{talk}")),
                await outcome(store.list_conversation_items(tenant, f"conv_{talk}")),
            ]
    for owner in OWNERS:
        leases = await store.list_leases(owner)
        state[owner] = sorted((it.tenant, it.response_id, it.epoch) for it in leases)
    return state


async def assert_same_state(store: Store, memory: MemoryStore, history: Sequence[str]) -> None:
    expected, actual = await read_state(memory), await read_state(store)
    differences = {it: (expected[it], actual[it]) for it in expected if expected[it] != actual[it]}
    assert not differences, "\n".join(history)


async def delete_all(store: Store, more: Sequence[str]) -> None:
    for tenant in TENANTS:
        for name in (*NAMES, *more):
            await outcome(store.delete_response(tenant, f"resp_{name}"))
        for talk in (*TALKS, *more):
            await outcome(store.delete_conversation(tenant, f"conv_{talk}"))


@pytest.fixture
async def store(new_store: NewStore) -> AsyncIterator[Store]:
    store = new_store()
    await store.start()
    yield store
    await store.aclose()


@pytest.mark.timeout(60 * SEEDS)
@pytest.mark.parametrize("seed", range(SEEDS))
async def test_any_store_answers_as_the_memory_store_does(store: Store, seed: int) -> None:
    memory = MemoryStore()
    calls, history = RandomCalls(seed, memory), []
    for step in range(STEPS):
        kind, call = await calls.next()
        expected, actual = await outcome(call(memory)), await outcome(call(store))
        history.append(f"{kind}: {expected}")
        assert actual == expected, "\n".join(history)
        if step % 10 == 9:
            await assert_same_state(store, memory, history)
    await assert_same_state(store, memory, history)
    await delete_all(store, [f"more_{n}" for n in range(STEPS)])
    for tenant in TENANTS:
        assert await store.get_storage_usage(tenant) == StorageUsage(), "\n".join(history)
