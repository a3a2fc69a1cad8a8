"""A store that cannot be reached for a while: what runs goes on, and nothing is left undone."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from tests.contracts.conftest import REDIS, redis_prefix, schema_of_postgres

from antiphon.adapters.stores.postgres.store import PostgresStore
from antiphon.adapters.stores.redis.store import RedisStore
from antiphon.application.ports import Store

pytestmark = pytest.mark.faults

MODEL = "scripted-chat"
LEASE_S = 1.5


class Road:
    """The way to a service: what goes through it is cut off, and nothing comes through, while it
    is closed."""

    def __init__(self, host: str, port: int) -> None:
        self._to = (host, port)
        self._loop = asyncio.new_event_loop()
        self._ends: set[asyncio.StreamWriter] = set()
        self._is_closed = False
        self._thread = threading.Thread(target=self._loop.run_forever, name="road")
        self._thread.start()
        self.port = self._do(self._open())

    def close(self) -> None:
        self._do(self._cut())

    def open(self) -> None:
        self._is_closed = False

    def tear_down(self) -> None:
        self._do(self._end())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    async def _open(self) -> int:
        self._server = await asyncio.start_server(self._go, "127.0.0.1", 0)
        return int(self._server.sockets[0].getsockname()[1])

    async def _cut(self) -> None:
        self._is_closed = True
        for end in self._ends:
            end.transport.abort()

    async def _end(self) -> None:
        self._server.close()
        await self._cut()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        if left:
            await asyncio.wait(left)

    async def _go(self, near: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        ends = {back}
        try:
            if not self._is_closed:
                far, forth = await asyncio.open_connection(*self._to)
                ends.add(forth)
                self._ends |= ends
                await asyncio.gather(_carry(near, forth), _carry(far, back))
        finally:
            self._ends -= ends
            for end in ends:
                end.transport.abort()


async def _carry(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while some := await source.read(65536):
            to.write(some)
            await to.drain()
    to.transport.abort()


@contextmanager
def road_to(url: str, default_port: int) -> Iterator[tuple[Road, str]]:
    """A road, and the URL that leads over it."""
    parts = urlsplit(url)
    road = Road(parts.hostname or "127.0.0.1", parts.port or default_port)
    user, at, _ = parts.netloc.rpartition("@")
    try:
        yield road, parts._replace(netloc=f"{user}{at}127.0.0.1:{road.port}").geturl()
    finally:
        road.tear_down()


@pytest.fixture(params=["postgres", "redis"])
async def away(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Road, Callable[[], Store]]]:
    """A road to a store, and what makes stores at its end."""
    if request.param == "postgres":
        async with schema_of_postgres() as (dsn, schema):
            with road_to(dsn, 5432) as (road, url):
                yield road, lambda: PostgresStore(url, schema=schema)
    else:
        async with redis_prefix() as prefix:
            with road_to(REDIS, 6379) as (road, url):
                yield road, lambda: RedisStore(url, prefix=prefix)


def words(count: int, tick: float) -> str:
    return f'@@script [[{{"say": "word ", "repeat": {count}, "tick": {tick}}}]]'


def within(limit_s: float, holds: Callable[[], Any]) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.02)


class Reader(threading.Thread):
    """Reads a stream to its end."""

    def __init__(self, server: Any, **body: Any) -> None:
        super().__init__()
        self._url = f"{server.api}/responses"
        self._body = {"model": MODEL, "stream": True, **body}
        self.events: list[Any] = []
        self.start()

    def run(self) -> None:
        with httpx.stream("POST", self._url, json=self._body, timeout=20) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: {"):
                    self.events.append(json.loads(line.removeprefix("data: ")))


@pytest.mark.timeout(60)
def test_an_outage_that_outlasts_every_lease_ends_no_run(
    serve: Any, away: tuple[Road, Callable[[], Store]]
) -> None:
    road, new_store = away
    with ExitStack() as stack:
        both = [
            stack.enter_context(serve(instead=new_store(), lease_s=LEASE_S, store_retry_s=10))
            for _ in range(2)
        ]
        readers = [
            Reader(server, input=words(120, 0.05), background=background)
            for server in both
            for background in (False, True)
        ]
        within(5, lambda: all(len(reader.events) > 10 for reader in readers))
        road.close()
        lapsed_at = time.monotonic() + 2 * LEASE_S
        within(3 * LEASE_S, lambda: time.monotonic() > lapsed_at)
        for server in both:
            assert httpx.get(f"{server.url}/livez").status_code == 200
            assert httpx.get(f"{server.url}/readyz").status_code == 503
        road.open()
        for server in both:
            within(2, lambda s=server: httpx.get(f"{s.url}/readyz").status_code == 200)
            answer = httpx.post(f"{server.api}/responses", json={"model": MODEL, "input": "hi"})
            assert answer.status_code == 200
        for reader in readers:
            reader.join(20)
            numbers = [event["sequence_number"] for event in reader.events]
            assert numbers == list(range(len(numbers)))
            last = reader.events[-1]
            assert last["type"] == "response.completed", last
            found = httpx.get(f"{both[0].api}/responses/{last['response']['id']}").json()
            assert found == last["response"]
