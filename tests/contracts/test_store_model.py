"""Any sequence of calls gives what a simple model of the promises says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from antiphon.application.ports import Lease, NewRun, Store
from antiphon.domain.conversation import Conversation
from antiphon.domain.errors import ConversationLocked, NotFound
from antiphon.testing.samples import (
    US,
    chunk,
    finished,
    ids,
    item,
    lease,
    running,
    turns,
)
from antiphon.testing.store_calls import claim, items_of, log_of, unknown

T = TypeVar("T")
NAMES = st.sampled_from("abcdefgh")
TALKS = st.sampled_from("xyz")
OWNERS = st.sampled_from(["srv_a", "srv_b", "srv_c"])

NewStore = Callable[[], Store]
Place = Callable[[Path], AbstractAsyncContextManager[NewStore]]


class Known:
    """What the model remembers of a response."""

    def __init__(self, name: str, lineage: list[str]) -> None:
        self.name = name
        self.lineage = lineage
        self.status = "in_progress"
        self.deleted = False
        self.within: str | None = None
        self.given: list[str] = []
        self.owner: str | None = "srv_a"
        self.epoch = 1
        self.last: int | None = None  # the number of its log's last event

    def lease(self, behind: int = 0) -> Lease:
        return lease(self.name, self.epoch - behind)


class Talk:
    """What the model remembers of a conversation."""

    def __init__(self, items: list[str]) -> None:
        self.items = items
        self.held_by: str | None = None


class Machine(RuleBasedStateMachine):
    def __init__(self, place: Place) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.directory = TemporaryDirectory()
        self.place = AsyncExitStack()
        new_store = self.do(self.place.enter_async_context(place(Path(self.directory.name))))
        self.store = new_store()
        self.known: dict[str, Known] = {}
        self.talks: dict[str, Talk] = {}
        self.unused = set("xyz")  # an id is given once, also after what had it is gone
        self.added = 0
        self.alive: set[str] = set()
        self.do(self.store.start())

    def do(self, call: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(call)

    def teardown(self) -> None:
        self.do(self.store.aclose())
        self.do(self.place.aclose())
        self.runner.close()
        self.directory.cleanup()

    def there(self, name: str | None) -> Known | None:
        known = self.known.get(name or "")
        return None if known is None or known.deleted else known

    @rule(name=NAMES, after=st.none() | NAMES, waits=st.booleans(), logged=st.booleans())
    def create(self, name: str, after: str | None, waits: bool, logged: bool) -> None:
        if name in self.known or name == after:
            return
        parent = self.there(after)
        run = NewRun(owner=None if waits else "srv_a", events=chunk(0, 2) if logged else None)
        self.do(self.store.create(US, running(name, after=after, run=run)))
        lineage = [] if parent is None else [*parent.lineage, parent.name]
        known = self.known[name] = Known(name, lineage)
        known.last = 1 if logged else None
        if waits:
            known.owner, known.epoch = None, 0

    @rule(name=NAMES, within=TALKS)
    def create_within(self, name: str, within: str) -> None:
        if name in self.known:
            return
        expected = self.refusal(within)
        assert self.raised(claim(self.store, within, name)) == expected
        self.alive.add("srv_a")
        if expected is not None:
            return
        self.do(self.store.create(US, running(name, within=within)))
        self.talks[within].held_by = name
        self.known[name] = Known(name, [])
        self.known[name].within = within
        self.known[name].given = list(self.talks[within].items)

    @rule(name=NAMES, status=st.sampled_from(["completed", "failed"]), behind=st.integers(0, 1))
    def finish(self, name: str, status: str, behind: int) -> None:
        known = self.known.get(name) or Known(name, [])
        expected = self.holds(known, behind)
        last = chunk(known.last + 1) if known.last is not None else None
        done = finished(name, status=status, within=known.within)
        written = self.store.finish(known.lease(behind), done, events=last)
        assert self.do(written) == expected
        if expected:
            known.status, known.owner = status, None
            known.last = known.last + 1 if known.last is not None else None
            self.let_go(name, turns(name) if status != "failed" else [])

    def holds(self, known: Known, behind: int) -> bool:
        """Whether the newest lease is valid, and this is it."""
        return self.runs(known) and known.owner is not None and not behind

    def runs(self, known: Known) -> bool:
        return self.there(known.name) is known and known.status == "in_progress"

    @rule(name=NAMES, behind=st.integers(0, 1), count=st.integers(1, 3))
    def append(self, name: str, behind: int, count: int) -> None:
        known = self.there(name)
        if known is None or known.last is None:
            return
        added = chunk(known.last + 1, count)
        expected = self.holds(known, behind)
        for _ in range(2):
            assert self.do(self.store.append(known.lease(behind), added)) == expected
        if expected:
            known.last += count

    @rule(owner=OWNERS)
    def live(self, owner: str) -> None:
        self.store.beat(owner, 600)
        self.alive.add(owner)

    @rule(owner=OWNERS)
    def die(self, owner: str) -> None:
        self.do(self.store.leave(owner))
        self.alive.discard(owner)

    @rule(owner=OWNERS, limit=st.integers(0, 3), waiting=st.booleans())
    def take(self, owner: str, limit: int, waiting: bool) -> None:
        free = [one for one in self.known.values() if self.runs(one)]
        free = [one for one in free if waiting or one.owner is not None]
        free = [one for one in free if one.owner not in {*self.alive, owner}][:limit]
        for one in free:
            one.owner, one.epoch = owner, one.epoch + 1
        taken = self.do(self.store.lease_runs(owner, limit=limit, waiting=waiting))
        assert [one.lease for one in taken] == [one.lease() for one in free]

    @rule(owner=OWNERS, name=NAMES)
    def take_over(self, owner: str, name: str) -> None:
        known = self.there(name)
        taking = self.store.take_over(owner, US, f"resp_{name}")
        if known is None:
            assert self.do(unknown(taking))
            return
        taken = self.do(taking)
        assert (taken is not None) == self.runs(known)
        if taken is not None:
            known.owner, known.epoch = owner, known.epoch + 1
            assert taken.lease == known.lease()

    @rule(name=NAMES, behind=st.integers(0, 1))
    def give_back(self, name: str, behind: int) -> None:
        known = self.known.get(name) or Known(name, [])
        expected = self.holds(known, behind)
        assert self.do(self.store.give_back(known.lease(behind))) == expected
        if expected:
            known.owner = None

    def let_go(self, name: str, items: list[str]) -> None:
        for talk in self.talks.values():
            if talk.held_by == name:
                talk.held_by = None
                talk.items += items

    @rule(talk=TALKS)
    def converse(self, talk: str) -> None:
        if talk in self.unused:
            self.unused.remove(talk)
            new = Conversation(id=f"conv_{talk}", created_at=0)
            self.do(self.store.create_conversation(US, new))
            self.talks[talk] = Talk([])

    @rule(talk=TALKS)
    def add(self, talk: str) -> None:
        self.added += 1
        name, expected = f"own_{self.added}", self.refusal(talk)
        added = self.store.add_items(US, f"conv_{talk}", [item(name)])
        assert self.raised(added) == expected
        if expected is None:
            self.talks[talk].items.append(name)

    @rule(talk=TALKS, position=st.integers(0, 5))
    def remove(self, talk: str, position: int) -> None:
        items = self.talks[talk].items if talk in self.talks else []
        name = items[position] if position < len(items) else "none"
        removed = self.raised(self.store.remove_item(US, f"conv_{talk}", f"msg_{name}"))
        assert removed == (None if name in items else NotFound)
        if removed is None:
            items.remove(name)

    @rule(talk=TALKS)
    def delete_conversation(self, talk: str) -> None:
        gone = self.raised(self.store.delete_conversation(US, f"conv_{talk}"))
        assert gone == (None if talk in self.talks else NotFound)
        if gone is None:
            self.talks.pop(talk).items.clear()

    def refusal(self, talk: str) -> type[Exception] | None:
        if talk not in self.talks:
            return NotFound
        return ConversationLocked if self.talks[talk].held_by else None

    def raised(self, call: Coroutine[Any, Any, object]) -> type[Exception] | None:
        try:
            self.do(call)
        except (NotFound, ConversationLocked) as error:
            return type(error)
        return None

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        known = self.there(name)
        assert self.do(unknown(self.store.delete(US, f"resp_{name}"))) == (known is None)
        if known is not None:
            known.deleted = True
            self.let_go(name, [])

    def turns_of(self, names: list[str]) -> list[str]:
        outputs = {name for name in names if self.known[name].status != "in_progress"}
        return [t for t in turns(*names) if t.endswith("_in") or t[: -len("_out")] in outputs]

    def given_to(self, known: Known) -> list[str]:
        """What the root of its chain was given, and is still in its conversation."""
        root = self.known[known.lineage[0]] if known.lineage else known
        still = self.talks[root.within].items if root.within in self.talks else []
        return [name for name in root.given if name in still]

    @invariant()
    def the_store_agrees(self) -> None:
        self.do(self.compare_and_set())

    async def compare_and_set(self) -> None:
        for name in self.known:
            known = self.there(name)
            if known is None:
                assert await unknown(self.store.get(US, f"resp_{name}"))
                continue
            assert (await self.store.get(US, f"resp_{name}")).status == known.status
            found = await self.store.context(US, f"resp_{name}")
            assert ids(found) == self.given_to(known) + self.turns_of([*known.lineage, name])
        for name, talk in self.talks.items():
            assert await items_of(self.store, name) == talk.items
        kept = [known for known in self.known.values() if not known.deleted]
        needed = {name for known in kept for name in (*known.lineage, known.name)}
        needed_turns = {turn for name in needed for turn in turns(name)}
        talked_of = {name for talk in self.talks.values() for name in talk.items}
        for name in self.known:
            lost = f"{name}_in" not in needed_turns | talked_of
            assert await unknown(self.store.item(US, f"msg_{name}_in")) == lost
        await self.agree_on_runs(kept)

    async def agree_on_runs(self, kept: list[Known]) -> None:
        for known in kept:
            if known.last is None:
                assert await unknown(self.store.events(US, f"resp_{known.name}"))
                continue
            log = await log_of(self.store, known.name)
            assert sum(one.count for one in log) == known.last + 1
            piece = await self.store.events(US, f"resp_{known.name}", after=known.last)
            assert piece.ends == (known.status != "in_progress")
        going_on = [known for known in kept if known.status == "in_progress"]
        for owner in ("srv_a", "srv_b", "srv_c"):
            held = {one.response_id: one for one in await self.store.held_leases(owner)}
            owned = [known.lease() for known in going_on if known.owner == owner]
            assert held == {one.response_id: one for one in owned}
        use = await self.store.usage(US)
        waiting = [known for known in going_on if known.owner is None]
        assert (use.responses, use.waiting) == (len(kept), len(waiting))


EXAMPLES = {"memory": 80}
"""How many sequences are tried; 20 of a store that waits for a disk."""


def test_any_sequence_of_calls(place: Place, request: pytest.FixtureRequest) -> None:
    examples = EXAMPLES.get(request.node.callspec.id, 20)
    run_state_machine_as_test(
        lambda: Machine(place),
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            suppress_health_check=list(HealthCheck),
        ),
    )
