"""Whatever is asked of a store, in whatever order: it answers as the memory store does."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from random import Random
from typing import Any

import msgspec
import pytest
from tests.contracts.conftest import NewStore

from antiphon.adapters.stores.memory import MemoryStore
from antiphon.application.ports import ApiKey, NewRun, StorageUsage, Store, WebhookDelivery
from antiphon.domain.conversation import Conversation
from antiphon.domain.errors import AntiphonError
from antiphon.testing.samples import FAR_FUTURE, chunk, finished, item, lease, running

SEEDS = int(os.environ.get("ANTIPHON_TEST_SEEDS", "3"))
STEPS = 150

TENANTS = ("us", "a:b")
NAMES = "abcdef"
TALKS = "xyz"
OWNERS = ("srv_a", "srv_b")
KEYS = ("k", "k:1")
LOGGED = 1e9
"""Seconds for which a log is kept: nothing is so old."""


def key_of(name: str) -> str:
    """A response has one key; a key may be wanted for several."""
    return KEYS[NAMES.index(name) % 2] if name in NAMES else KEYS[0]


Ask = Callable[[Store], Awaitable[Any]]


class Asks:
    """Draws what is asked next; the memory store says what there is to be asked about."""

    def __init__(self, seed: int, known: MemoryStore) -> None:
        self._random = Random(seed)
        self._known = known
        self._count = 0
        self._given: set[tuple[str, str]] = set()
        self._claims: dict[tuple[str, str], str] = {}

    async def next(self) -> tuple[str, Ask]:
        kinds = [name for name in dir(self) if name.startswith(("a_", "an_"))]
        kind = self._random.choice(kinds)
        return kind, await getattr(self, kind)()

    def one(self, *of: Any) -> Any:
        return self._random.choice(of)

    def tenant(self) -> str:
        return self.one("us", "us", "us", *TENANTS)

    def name(self) -> str:
        return self.one(*NAMES)

    def new(self, prefix: str) -> str:
        self._count += 1
        return f"{prefix}_{self._count}"

    async def lease(self) -> Any:
        """The newest lease of some response, or the one before."""
        tenant, name = self.tenant(), self.name()
        held = [one for owner in OWNERS for one in await self._known.held_leases(owner)]
        found = {(one.tenant, one.response_id): one.epoch for one in held}
        epoch = found.get((tenant, f"resp_{name}"), 1)
        return name, lease(name, epoch - self.one(0, 0, 0, 0, 1), tenant)

    async def chunk(self, tenant: str, name: str) -> Any:
        """The next events of the log, or the last ones again, or some that leave a gap."""
        try:
            log = (await self._known.events(tenant, f"resp_{name}")).chunks
        except AntiphonError:
            return self.one(None, chunk(1))
        following = log[-1].first + log[-1].count
        return self.one(
            *[chunk(following, self.one(1, 3))] * 5, log[-1], log[0], chunk(following + 1), None
        )

    async def fresh(self, tenant: str, prefix: str, *names: str) -> str:
        """Return a name that is new or in use: what is gone does not come again."""
        lookup = self._known.get if prefix == "resp" else self._known.conversation
        for name in self._random.sample(names, len(names)):
            is_new = (tenant, name) not in self._given
            if is_new or isinstance(await outcome(lookup(tenant, f"{prefix}_{name}")), dict):
                self._given.add((tenant, name))
                return name
        return self.new("more")

    async def a_creation(self) -> Ask:
        tenant = self.tenant()
        name = await self.fresh(tenant, "resp", *NAMES)
        owner, within = self.one(None, *OWNERS), self._claims.get((tenant, name))
        stored = running(
            name,
            *[self.one(item(self.name()), item(self.new("own")))] * self.one(0, 1, 2),
            after=None if within else self.one(None, *NAMES),
            within=within,
            status=self.one("queued", "in_progress"),
            expires_at=self.one(None, 1.0, FAR_FUTURE),
            run=NewRun(
                owner=owner,
                job=self.one(None, b"job"),
                events=self.one(None, chunk(0, 2)),
                key=self.one(None, None, None, key_of(name)),
            ),
        )
        return lambda store: store.create(tenant, stored)

    async def an_end(self) -> Ask:
        name, held = await self.lease()
        within = None
        try:
            current = await self._known.get(held.tenant, f"resp_{name}")
            within = current.conversation.id.removeprefix("conv_") if current.conversation else None
        except AntiphonError:
            pass
        done = finished(
            name,
            within=within,
            status=self.one("completed", "failed", "cancelled", "incomplete"),
            metadata={"n": self.new("end")},
        )
        events = await self.chunk(held.tenant, name)
        deliveries = [
            WebhookDelivery(id=self.new("evt"), tenant=held.tenant, endpoint="e", body=b"\0{}")
            for _ in range(self.one(0, 0, 1, 2))
        ]
        return lambda store: store.finish(held, done, events=events, deliveries=deliveries)

    an_earlier_end = an_end_again = an_end

    async def a_chunk(self) -> Ask:
        name, held = await self.lease()
        events = await self.chunk(held.tenant, name) or chunk(2)
        return lambda store: store.append(held, events)

    async def a_gift(self) -> Ask:
        _, held = await self.lease()
        return lambda store: store.give_back(held)

    async def a_beat(self) -> Ask:
        owner = self.one(*OWNERS)

        async def beat(store: Store) -> None:
            store.beat(owner, 600)

        return beat

    async def a_death(self) -> Ask:
        owner = self.one(*OWNERS)
        return lambda store: store.leave(owner)

    async def a_take(self) -> Ask:
        owner, limit, waiting = self.one(*OWNERS), self.one(0, 1, 2), self.one(True, True, False)
        return lambda store: store.lease_runs(owner, limit=limit, waiting=waiting)

    async def a_take_over(self) -> Ask:
        owner, tenant, name = self.one(*OWNERS), self.tenant(), self.name()
        return lambda store: store.take_over(owner, tenant, f"resp_{name}")

    async def a_deletion(self) -> Ask:
        tenant, name = self.tenant(), self.name()
        return lambda store: store.delete(tenant, f"resp_{name}")

    async def a_sweep(self) -> Ask:
        keep_events_s = self.one(LOGGED, LOGGED, -1.0)

        async def sweep(store: Store) -> None:
            while await store.sweep(keep_events_s=keep_events_s, limit=3):
                pass

        return sweep

    async def a_reservation(self) -> Ask:
        tenant, name = self.tenant(), self.name()
        key, response_id = key_of(name), f"resp_{name}"
        owner, fingerprint = self.one(*OWNERS), self.one(b"1", b"\0\xff")
        return lambda store: store.reserve(
            tenant,
            key,
            response_id=response_id,
            fingerprint=fingerprint,
            owner=owner,
            expires_at=FAR_FUTURE,
        )

    async def a_key_less(self) -> Ask:
        tenant, key, response_id = self.tenant(), self.one(*KEYS), f"resp_{self.name()}"
        return lambda store: store.unreserve(tenant, key, response_id)

    async def a_conversation(self) -> Ask:
        tenant = self.tenant()
        talk = await self.fresh(tenant, "conv", *TALKS)
        about = Conversation(id=f"conv_{talk}", created_at=1, metadata={"é": "\0"})
        items = [item(self.name())] * self.one(0, 1, 2)
        return lambda store: store.create_conversation(tenant, about, items)

    async def a_change(self) -> Ask:
        tenant, talk, value = self.tenant(), self.one(*TALKS), self.new("v")
        return lambda store: store.update_conversation(tenant, f"conv_{talk}", {"v": value})

    async def a_conversations_end(self) -> Ask:
        tenant, talk = self.tenant(), self.one(*TALKS)
        return lambda store: store.delete_conversation(tenant, f"conv_{talk}")

    async def an_addition(self) -> Ask:
        tenant, talk, items = self.tenant(), self.one(*TALKS), [item(self.name())]
        return lambda store: store.add_items(tenant, f"conv_{talk}", items)

    async def a_removal(self) -> Ask:
        tenant, talk = self.tenant(), self.one(*TALKS)
        item_id = f"msg_{self.name()}{self.one('', '_in', '_out')}"
        return lambda store: store.remove_item(tenant, f"conv_{talk}", item_id)

    async def a_claim(self) -> Ask:
        tenant, talk, name = self.tenant(), self.one(*TALKS), self.name()
        owner, response_id = self.one(*OWNERS), f"resp_{name}"
        if (tenant, name) in self._given:  # who claims is not there yet
            return lambda store: store.conversation(tenant, f"conv_{talk}")
        talk = self._claims.setdefault((tenant, name), talk)
        return lambda store: store.claim(tenant, f"conv_{talk}", response_id, owner=owner)

    async def a_release(self) -> Ask:
        tenant, talk, response_id = self.tenant(), self.one(*TALKS), f"resp_{self.name()}"
        items = [item(self.name())] * self.one(0, 1)
        return lambda store: store.release(tenant, f"conv_{talk}", response_id, items)

    async def a_delivery(self) -> Ask:
        limit, claim_s = self.one(1, 2), self.one(-1.0, 600.0)
        return lambda store: store.claim_due(limit=limit, claim_s=claim_s)

    async def a_delay(self) -> Ask:
        delivery, seconds = f"evt_{self._random.randint(1, self._count + 1)}", self.one(-1.0, 600.0)
        return lambda store: store.delay(delivery, seconds)

    async def a_receipt(self) -> Ask:
        delivery = f"evt_{self._random.randint(1, self._count + 1)}"
        return lambda store: store.remove(delivery)

    async def a_key(self) -> Ask:
        name = self.name()
        key = ApiKey(id=name, name=name, tenant="us", hash=self.name().encode(), created_at=1)
        return lambda store: store.add_key(key)

    async def a_revocation(self) -> Ask:
        name = self.name()
        return lambda store: store.revoke_key(name)

    async def an_agreement(self) -> Ask:
        name, value = self.one(*KEYS), self.one(b"1", b"\0\xff")
        expected = self.one(None, b"1", b"\0\xff")
        return lambda store: store.compare_and_set(name, value, expected=expected)


async def outcome(call: Awaitable[Any]) -> Any:
    try:
        return msgspec.to_builtins(await call, builtin_types=(bytes,), enc_hook=bytes)
    except AntiphonError as error:
        return type(error).__name__


async def seen(store: Store) -> dict[str, Any]:
    """All that can be asked of a store without changing it."""
    found: dict[str, Any] = {"keys": await outcome(store.keys())}
    for tenant in TENANTS:
        use = await store.usage(tenant)
        found[tenant, "use"] = (use.responses, use.waiting)
        for name in NAMES:
            response_id = f"resp_{name}"
            found[tenant, name] = [
                await outcome(store.get(tenant, response_id)),
                await outcome(store.input_items(tenant, response_id)),
                await outcome(store.context(tenant, response_id)),
                await outcome(store.events(tenant, response_id)),
                await outcome(store.events(tenant, response_id, after=2)),
                *[
                    await outcome(store.item(tenant, f"msg_{name}{way}"))
                    for way in ("", "_in", "_out")
                ],
            ]
        for talk in TALKS:
            found[tenant, talk] = [
                await outcome(store.conversation(tenant, f"conv_{talk}")),
                await outcome(store.conversation_items(tenant, f"conv_{talk}")),
            ]
    for owner in OWNERS:
        held = await store.held_leases(owner)
        found[owner] = sorted((one.tenant, one.response_id, one.epoch) for one in held)
    return found


async def compare_and_set(store: Store, memory: MemoryStore, told: Sequence[str]) -> None:
    ours, theirs = await seen(memory), await seen(store)
    differ = {what: (ours[what], theirs[what]) for what in ours if ours[what] != theirs[what]}
    assert not differ, "\n".join(told)


async def forget_all(store: Store, more: Sequence[str]) -> None:
    for tenant in TENANTS:
        for name in (*NAMES, *more):
            await outcome(store.delete(tenant, f"resp_{name}"))
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
    asks, told = Asks(seed, memory), []
    for step in range(STEPS):
        kind, ask = await asks.next()
        ours, theirs = await outcome(ask(memory)), await outcome(ask(store))
        told.append(f"{kind}: {ours}")
        assert theirs == ours, "\n".join(told)
        if step % 10 == 9:
            await compare_and_set(store, memory, told)
    await compare_and_set(store, memory, told)
    await forget_all(store, [f"more_{n}" for n in range(STEPS)])
    for tenant in TENANTS:
        assert await store.usage(tenant) == StorageUsage(), "\n".join(told)
