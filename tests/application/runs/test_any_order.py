"""Events in any order on several servers: each run has one log and one end, and they agree."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import count
from random import Random
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace
from tests.application.conftest import FailingStore, House

from antiphon.application.ports import EventBatches
from antiphon.application.runs.stored_events import log_of
from antiphon.domain import deltas as d
from antiphon.domain import events as e
from antiphon.domain.errors import AntiphonError, NotFound
from antiphon.domain.responses.response import TERMINAL

TENANT = "t"
STOP = d.TurnEnd("stop", d.TurnUsage(input=3, output=2))
STEPS = 60


class Cluster:
    """Servers on one store. A server that dies continues to work, like one that was only paused."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)
        self._numbers = count(1)
        self.store = FailingStore()
        self.response_ids: list[str] = []
        self.readers: dict[str, list[asyncio.Task[list[e.Event]]]] = {}
        self.tasks: set[asyncio.Task[Any]] = set()
        self.servers = [self._server() for _ in range(3)]

    def _server(self) -> House:
        return House(self.store, owner=f"srv_{next(self._numbers)}")

    def _set_turns(self, house: House) -> None:
        words = [[d.TextDelta("word ")] for _ in range(self._random.randrange(12))]
        waits: list[Any] = [[] for _ in range(self._random.randrange(20))]
        house.model.played = [*waits, *words, *waits, [STOP]]

    async def step(self) -> None:
        actions: list[Callable[[House], Awaitable[Any]]] = [
            *[self.create] * 4,
            *[self.poll] * 6,
            self.cancel,
            self.delete,
            self.read,
            self.die,
            self.fail,
            self.heal,
            self.heal,
        ]
        action, server = self._random.choice(actions), self._random.choice(self.servers)
        task = asyncio.ensure_future(self._quietly(action(server)))
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        for _ in range(self._random.randrange(8)):
            await asyncio.sleep(0)

    async def _quietly(self, work: Awaitable[Any]) -> None:
        with suppress(AntiphonError):
            await work

    async def create(self, server: House) -> None:
        self._set_turns(server)
        created = await server.create(background=self._random.random() < 0.8, stream=True)
        self.response_ids.append(created.id)
        self._start_reader(created.id, created.events)

    async def read(self, server: House) -> None:
        if self.response_ids:
            response_id = self._random.choice(self.response_ids)
            self._start_reader(response_id, await server.follow(TENANT, response_id))

    def _start_reader(self, response_id: str, batches: EventBatches) -> None:
        async def read_all() -> list[e.Event]:
            return [event async for batch in batches for event in batch]

        self.readers.setdefault(response_id, []).append(asyncio.ensure_future(read_all()))

    async def poll(self, server: House) -> None:
        self._set_turns(server)
        await server.watch_leases.run_once()
        await server.start_background_runs.run_once()

    async def cancel(self, server: House) -> None:
        if self.response_ids:
            await server.cancel(TENANT, self._random.choice(self.response_ids))

    async def delete(self, server: House) -> None:
        if self.response_ids:
            await server.delete(TENANT, self._random.choice(self.response_ids))

    async def die(self, server: House) -> None:
        if server in self.servers:
            self.servers[self.servers.index(server)] = self._server()
            await self.store.end_heartbeat(server.owner)

    async def fail(self, _: House) -> None:
        self.store.failing = {self._random.choice(["create", "finish", "append"])}

    async def heal(self, _: House) -> None:
        self.store.failing = set()

    async def settle(self) -> None:
        """Wait until all runs have ended."""
        while self.tasks or await self._unfinished():
            self.store.failing = set()
            for server in self.servers:
                await self.poll(server)
            await asyncio.sleep(0.001)

    async def _unfinished(self) -> bool:
        states = [await self.final(each) for each in self.response_ids]
        return any(each is not None and each.status not in TERMINAL for each in states)

    async def final(self, response_id: str) -> Any:
        try:
            return await self.store.get_response(TENANT, response_id)
        except NotFound:
            return None


@pytest.mark.parametrize("seed", range(40))
async def test_every_run_has_one_log_and_one_end(seed: int) -> None:
    cluster = Cluster(seed)
    for _ in range(STEPS):
        await cluster.step()
    async with asyncio.timeout(30):
        await cluster.settle()
        for response_id in cluster.response_ids:
            read = await asyncio.gather(*cluster.readers[response_id])
            final = await cluster.final(response_id)
            if final is None:
                continue
            if final.background:
                logged = await log_of(cluster.store, TENANT, response_id)
                assert all(each == logged for each in read)
                assert [event.sequence_number for event in logged] == list(range(len(logged)))
                assert [type(each) for each in logged if isinstance(each, e.TERMINAL)] == [
                    type(logged[-1])
                ]
                assert logged[-1].response == replace(final, metrics=UNSET, preview=UNSET)  # type: ignore[attr-defined]
            for events in read:
                status = events[-1].response.status  # type: ignore[attr-defined]
                assert status == final.status or (status, final.background) == ("failed", False)
        for server in cluster.servers:
            while len(server.runs):
                await server.watch_leases.run_once()
                await asyncio.sleep(0.001)
            assert await cluster.store.list_leases(server.owner) == []
