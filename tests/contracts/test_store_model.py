"""Every store answers any sequence of calls as a simple model of the contract does."""

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
from antiphon.domain.errors import ConversationLocked, NotFound
from antiphon.domain.history.conversation import Conversation
from antiphon.testing.samples import (
    US,
    chunk,
    finished_response,
    ids,
    item,
    lease,
    new_response,
    turn_item_names,
)
from antiphon.testing.stores.calls import claim, is_unknown, items_of, log_of

pytestmark = pytest.mark.slow

T = TypeVar("T")
NAMES = st.sampled_from("abcdefgh")
TALKS = st.sampled_from("xyz")
OWNERS = st.sampled_from(["srv_a", "srv_b", "srv_c"])

NewStore = Callable[[], Store]
Place = Callable[[Path], AbstractAsyncContextManager[NewStore]]


class ModelResponse:
    """A response in the model."""

    def __init__(self, name: str, lineage: list[str]) -> None:
        self.name = name
        self.lineage = lineage
        self.status = "in_progress"
        self.is_deleted = False
        self.within: str | None = None
        self.conversation_items: list[str] = []
        self.owner: str | None = "srv_a"
        self.epoch = 1
        self.last_event: int | None = None

    def lease(self, behind: int = 0) -> Lease:
        return lease(self.name, self.epoch - behind)


class ModelConversation:
    """A conversation in the model."""

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
        self.responses: dict[str, ModelResponse] = {}
        self.conversations: dict[str, ModelConversation] = {}
        self.unused = set("xyz")  # ids are not used again after a deletion
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

    def find(self, name: str | None) -> ModelResponse | None:
        response = self.responses.get(name or "")
        return None if response is None or response.is_deleted else response

    @rule(name=NAMES, after=st.none() | NAMES, waits=st.booleans(), logged=st.booleans())
    def create(self, name: str, after: str | None, waits: bool, logged: bool) -> None:
        if name in self.responses or name == after:
            return
        parent = self.find(after)
        run = NewRun(owner=None if waits else "srv_a", events=chunk(0, 2) if logged else None)
        self.do(self.store.create_response(US, new_response(name, after=after, run=run)))
        lineage = [] if parent is None else [*parent.lineage, parent.name]
        response = self.responses[name] = ModelResponse(name, lineage)
        response.last_event = 1 if logged else None
        if waits:
            response.owner, response.epoch = None, 0

    @rule(name=NAMES, within=TALKS)
    def create_within(self, name: str, within: str) -> None:
        if name in self.responses:
            return
        expected = self.refusal(within)
        assert self.raised(claim(self.store, within, name)) == expected
        self.alive.add("srv_a")
        if expected is not None:
            return
        self.do(self.store.create_response(US, new_response(name, within=within)))
        self.conversations[within].held_by = name
        self.responses[name] = ModelResponse(name, [])
        self.responses[name].within = within
        self.responses[name].conversation_items = list(self.conversations[within].items)

    @rule(name=NAMES, status=st.sampled_from(["completed", "failed"]), behind=st.integers(0, 1))
    def finish(self, name: str, status: str, behind: int) -> None:
        response = self.responses.get(name) or ModelResponse(name, [])
        expected = self.holds(response, behind)
        last = chunk(response.last_event + 1) if response.last_event is not None else None
        done = finished_response(name, status=status, within=response.within)
        written = self.store.finish_response(response.lease(behind), done, events=last)
        assert self.do(written) == expected
        if expected:
            response.status, response.owner = status, None
            response.last_event = (
                response.last_event + 1 if response.last_event is not None else None
            )
            self.release(name, turn_item_names(name) if status != "failed" else [])

    def holds(self, response: ModelResponse, behind: int) -> bool:
        """Return whether the newest lease is valid, and this is it."""
        return self.runs(response) and response.owner is not None and not behind

    def runs(self, response: ModelResponse) -> bool:
        return self.find(response.name) is response and response.status == "in_progress"

    @rule(name=NAMES, behind=st.integers(0, 1), count=st.integers(1, 3))
    def append(self, name: str, behind: int, count: int) -> None:
        response = self.find(name)
        if response is None or response.last_event is None:
            return
        added = chunk(response.last_event + 1, count)
        expected = self.holds(response, behind)
        for _ in range(2):
            assert self.do(self.store.append_events(response.lease(behind), added)) == expected
        if expected:
            response.last_event += count

    @rule(owner=OWNERS)
    def live(self, owner: str) -> None:
        self.store.record_heartbeat(owner, 600)
        self.alive.add(owner)

    @rule(owner=OWNERS)
    def die(self, owner: str) -> None:
        self.do(self.store.end_heartbeat(owner))
        self.alive.discard(owner)

    @rule(owner=OWNERS, limit=st.integers(0, 3), waiting=st.booleans())
    def take(self, owner: str, limit: int, waiting: bool) -> None:
        free = [one for one in self.responses.values() if self.runs(one)]
        free = [one for one in free if waiting or one.owner is not None]
        free = [one for one in free if one.owner not in {*self.alive, owner}][:limit]
        for one in free:
            one.owner, one.epoch = owner, one.epoch + 1
        taken = self.do(self.store.lease_runs(owner, limit=limit, waiting=waiting))
        assert [one.lease for one in taken] == [one.lease() for one in free]

    @rule(owner=OWNERS, name=NAMES)
    def take_over(self, owner: str, name: str) -> None:
        response = self.find(name)
        taking = self.store.take_over_run(owner, US, f"resp_{name}")
        if response is None:
            assert self.do(is_unknown(taking))
            return
        taken = self.do(taking)
        assert (taken is not None) == self.runs(response)
        if taken is not None:
            response.owner, response.epoch = owner, response.epoch + 1
            assert taken.lease == response.lease()

    @rule(name=NAMES, behind=st.integers(0, 1))
    def give_back(self, name: str, behind: int) -> None:
        response = self.responses.get(name) or ModelResponse(name, [])
        expected = self.holds(response, behind)
        assert self.do(self.store.give_back_run(response.lease(behind))) == expected
        if expected:
            response.owner = None

    def release(self, name: str, items: list[str]) -> None:
        for talk in self.conversations.values():
            if talk.held_by == name:
                talk.held_by = None
                talk.items += items

    @rule(talk=TALKS)
    def converse(self, talk: str) -> None:
        if talk in self.unused:
            self.unused.remove(talk)
            new = Conversation(id=f"conv_{talk}", created_at=0)
            self.do(self.store.create_conversation(US, new))
            self.conversations[talk] = ModelConversation([])

    @rule(talk=TALKS)
    def add(self, talk: str) -> None:
        self.added += 1
        name, expected = f"own_{self.added}", self.refusal(talk)
        added = self.store.create_conversation_items(US, f"conv_{talk}", [item(name)])
        assert self.raised(added) == expected
        if expected is None:
            self.conversations[talk].items.append(name)

    @rule(talk=TALKS, position=st.integers(0, 5))
    def remove(self, talk: str, position: int) -> None:
        items = self.conversations[talk].items if talk in self.conversations else []
        name = items[position] if position < len(items) else "none"
        removed = self.raised(
            self.store.delete_conversation_item(US, f"conv_{talk}", f"msg_{name}")
        )
        assert removed == (None if name in items else NotFound)
        if removed is None:
            items.remove(name)

    @rule(talk=TALKS)
    def delete_conversation(self, talk: str) -> None:
        gone = self.raised(self.store.delete_conversation(US, f"conv_{talk}"))
        assert gone == (None if talk in self.conversations else NotFound)
        if gone is None:
            self.conversations.pop(talk).items.clear()

    def refusal(self, talk: str) -> type[Exception] | None:
        if talk not in self.conversations:
            return NotFound
        return ConversationLocked if self.conversations[talk].held_by else None

    def raised(self, call: Coroutine[Any, Any, object]) -> type[Exception] | None:
        try:
            self.do(call)
        except (NotFound, ConversationLocked) as error:
            return type(error)
        return None

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        response = self.find(name)
        assert self.do(is_unknown(self.store.delete_response(US, f"resp_{name}"))) == (
            response is None
        )
        if response is not None:
            response.is_deleted = True
            self.release(name, [])

    def turns_of(self, names: list[str]) -> list[str]:
        outputs = {name for name in names if self.responses[name].status != "in_progress"}
        return [
            t for t in turn_item_names(*names) if t.endswith("_in") or t[: -len("_out")] in outputs
        ]

    def conversation_items_of(self, response: ModelResponse) -> list[str]:
        """Return the items that the root of the chain got and its conversation still has."""
        root = self.responses[response.lineage[0]] if response.lineage else response
        current = self.conversations[root.within].items if root.within in self.conversations else []
        return [name for name in root.conversation_items if name in current]

    @invariant()
    def the_store_matches_the_model(self) -> None:
        self.do(self.compare())

    async def compare(self) -> None:
        for name in self.responses:
            response = self.find(name)
            if response is None:
                assert await is_unknown(self.store.get_response(US, f"resp_{name}"))
                continue
            assert (await self.store.get_response(US, f"resp_{name}")).status == response.status
            items = await self.store.get_context(US, f"resp_{name}")
            assert ids(items) == self.conversation_items_of(response) + self.turns_of(
                [*response.lineage, name]
            )
        for name, talk in self.conversations.items():
            assert await items_of(self.store, name) == talk.items
        existing = [response for response in self.responses.values() if not response.is_deleted]
        needed = {name for response in existing for name in (*response.lineage, response.name)}
        needed_turns = {turn for name in needed for turn in turn_item_names(name)}
        talked_of = {name for talk in self.conversations.values() for name in talk.items}
        for name in self.responses:
            lost = f"{name}_in" not in needed_turns | talked_of
            assert await is_unknown(self.store.get_item(US, f"msg_{name}_in")) == lost
        await self.compare_runs(existing)

    async def compare_runs(self, existing: list[ModelResponse]) -> None:
        for response in existing:
            if response.last_event is None:
                assert await is_unknown(self.store.read_events(US, f"resp_{response.name}"))
                continue
            log = await log_of(self.store, response.name)
            assert sum(one.count for one in log) == response.last_event + 1
            log_slice = await self.store.read_events(
                US, f"resp_{response.name}", after=response.last_event
            )
            assert log_slice.ends == (response.status != "in_progress")
        unfinished = [response for response in existing if response.status == "in_progress"]
        for owner in ("srv_a", "srv_b", "srv_c"):
            held = {one.response_id: one for one in await self.store.list_leases(owner)}
            owned = [response.lease() for response in unfinished if response.owner == owner]
            assert held == {one.response_id: one for one in owned}
        usage = await self.store.get_storage_usage(US)
        waiting = [response for response in unfinished if response.owner is None]
        assert (usage.responses, usage.waiting) == (len(existing), len(waiting))


EXAMPLES = {"memory": 80}
"""The number of sequences to try; 20 for stores that wait for a disk."""


def test_any_sequence_of_calls_matches_the_model(
    place: Place, request: pytest.FixtureRequest
) -> None:
    examples = EXAMPLES.get(request.node.callspec.id, 20)
    run_state_machine_as_test(
        lambda: Machine(place),
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            suppress_health_check=list(HealthCheck),
        ),
    )
