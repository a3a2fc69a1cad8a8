"""Any sequence of calls gives what a simple model of the promises says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from antiphon.adapters.stores.memory import MemoryResponseStore
from antiphon.adapters.stores.sqlite import SqliteResponseStore
from antiphon.adapters.testing.response_store import (
    US,
    finished,
    ids,
    item,
    items_of,
    running,
    turns,
    unknown,
)
from antiphon.application.ports import ResponseStore
from antiphon.domain.conversation import Conversation
from antiphon.domain.errors import ConversationLocked, NotFound

T = TypeVar("T")
NAMES = st.sampled_from("abcdefgh")
TALKS = st.sampled_from("xyz")


class Known:
    """What the model remembers of a response."""

    def __init__(self, name: str, lineage: list[str]) -> None:
        self.name = name
        self.lineage = lineage
        self.status = "in_progress"
        self.deleted = False
        self.within: str | None = None
        self.given: list[str] = []


class Talk:
    """What the model remembers of a conversation."""

    def __init__(self, items: list[str]) -> None:
        self.items = items
        self.held_by: str | None = None


class Machine(RuleBasedStateMachine):
    def __init__(self, make: Callable[[Path], ResponseStore]) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.directory = TemporaryDirectory()
        self.store = make(Path(self.directory.name))
        self.known: dict[str, Known] = {}
        self.talks: dict[str, Talk] = {}
        self.unused = set("xyz")  # an id is given once, also after what had it is gone
        self.added = 0
        self.do(self.store.start())

    def do(self, call: Coroutine[Any, Any, T]) -> T:
        return self.runner.run(call)

    def teardown(self) -> None:
        self.do(self.store.aclose())
        self.runner.close()
        self.directory.cleanup()

    def there(self, name: str | None) -> Known | None:
        known = self.known.get(name or "")
        return None if known is None or known.deleted else known

    @rule(name=NAMES, after=st.none() | NAMES)
    def create(self, name: str, after: str | None) -> None:
        if name in self.known or name == after:
            return
        parent = self.there(after)
        self.do(self.store.create(US, running(name, after=after)))
        lineage = [] if parent is None else [*parent.lineage, parent.name]
        self.known[name] = Known(name, lineage)

    @rule(name=NAMES, within=TALKS)
    def create_within(self, name: str, within: str) -> None:
        if name in self.known:
            return
        expected = self.refusal(within)
        assert self.raised(self.store.claim(US, f"conv_{within}", f"resp_{name}")) == expected
        if expected is not None:
            return
        self.do(self.store.create(US, running(name, within=within)))
        self.talks[within].held_by = name
        self.known[name] = Known(name, [])
        self.known[name].within = within
        self.known[name].given = list(self.talks[within].items)

    @rule(name=NAMES, status=st.sampled_from(["completed", "failed"]))
    def finish(self, name: str, status: str) -> None:
        known = self.there(name)
        expected = known is not None and known.status == "in_progress"
        within = self.known[name].within if name in self.known else None
        end = finished(name, status=status, within=within)
        assert self.do(self.store.finish(US, end)) == expected
        if expected:
            self.known[name].status = status
            self.let_go(name, turns(name) if status != "failed" else [])

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
        self.do(self.agree())

    async def agree(self) -> None:
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
        held = {name: talk.held_by for name, talk in self.talks.items() if talk.held_by}
        claims = await self.store.claims()
        assert {c.conversation_id[5:]: c.response_id[5:] for c in claims} == held
        kept = [known for known in self.known.values() if not known.deleted]
        needed = {name for known in kept for name in (*known.lineage, known.name)}
        needed_turns = {turn for name in needed for turn in turns(name)}
        talked_of = {name for talk in self.talks.values() for name in talk.items}
        for name in self.known:
            lost = f"{name}_in" not in needed_turns | talked_of
            assert await unknown(self.store.item(US, f"msg_{name}_in")) == lost
        going_on = [f"resp_{known.name}" for known in kept if known.status == "in_progress"]
        assert [response.id for _, response in await self.store.unfinished()] == going_on


@pytest.mark.parametrize(
    ("make", "examples"),
    [
        (lambda _: MemoryResponseStore(), 80),
        (lambda directory: SqliteResponseStore(directory / "antiphon.db"), 25),
    ],
    ids=["memory", "sqlite"],
)
def test_any_sequence_of_calls(make: Callable[[Path], ResponseStore], examples: int) -> None:
    run_state_machine_as_test(
        lambda: Machine(make),
        settings=settings(
            max_examples=examples,
            stateful_step_count=30,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
