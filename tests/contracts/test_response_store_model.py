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
from antiphon.adapters.testing.response_store import US, finished, ids, running, turns, unknown
from antiphon.application.ports import ResponseStore

T = TypeVar("T")
NAMES = st.sampled_from("abcdefgh")


class Known:
    """What the model remembers of a response."""

    def __init__(self, name: str, lineage: list[str]) -> None:
        self.name = name
        self.lineage = lineage
        self.status = "in_progress"
        self.deleted = False


class Machine(RuleBasedStateMachine):
    def __init__(self, make: Callable[[Path], ResponseStore]) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.directory = TemporaryDirectory()
        self.store = make(Path(self.directory.name))
        self.known: dict[str, Known] = {}
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

    @rule(name=NAMES, status=st.sampled_from(["completed", "failed"]))
    def finish(self, name: str, status: str) -> None:
        known = self.there(name)
        expected = known is not None and known.status == "in_progress"
        assert self.do(self.store.finish(US, finished(name, status=status))) == expected
        if expected:
            self.known[name].status = status

    @rule(name=NAMES)
    def delete(self, name: str) -> None:
        known = self.there(name)
        assert self.do(unknown(self.store.delete(US, f"resp_{name}"))) == (known is None)
        if known is not None:
            known.deleted = True

    def turns_of(self, names: list[str]) -> list[str]:
        outputs = {name for name in names if self.known[name].status != "in_progress"}
        return [t for t in turns(*names) if t.endswith("_in") or t[: -len("_out")] in outputs]

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
            assert ids(found) == self.turns_of([*known.lineage, name])
        kept = [known for known in self.known.values() if not known.deleted]
        needed = {name for known in kept for name in (*known.lineage, known.name)}
        for name in self.known:
            assert await unknown(self.store.item(US, f"msg_{name}_in")) == (name not in needed)
        going_on = [f"resp_{known.name}" for known in kept if known.status == "in_progress"]
        assert [response.id for _, response in await self.store.unfinished()] == going_on


@pytest.mark.parametrize(
    ("make", "examples"),
    [
        (lambda _: MemoryResponseStore(), 40),
        (lambda directory: SqliteResponseStore(directory / "antiphon.db"), 15),
    ],
    ids=["memory", "sqlite"],
)
def test_any_sequence_of_calls(make: Callable[[Path], ResponseStore], examples: int) -> None:
    run_state_machine_as_test(
        lambda: Machine(make),
        settings=settings(
            max_examples=examples,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
