"""Waits for logs to grow, for all that wait in this process, on one connection that listens.

What is heard is only a hint that saves time: every second all logs that somebody waits for are
looked at, and ten times a second while nothing can be heard. So a lost connection loses nothing.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import NamedTuple

from antiphon.adapters.stores import postgres_statements as sql
from antiphon.adapters.stores.postgres_server import (
    DATABASE_ERRORS,
    Connection,
    PostgresServer,
    Row,
    columns,
)
from antiphon.domain.errors import StoreError

LOOK_S = 1.0
"""How often to look while listening."""

LOOK_DEAF_S = 0.1
"""How often to look, and to try to listen again, while not."""


class _Waiter(NamedTuple):
    tenant: str
    response_id: str
    after: int
    woken: asyncio.Future[None]


class PostgresNotifications:
    """`channel` is where each write tells `id number`."""

    def __init__(self, server: PostgresServer, channel: str) -> None:
        self._server = server
        self._channel = channel
        self._waiting: defaultdict[str, list[_Waiter]] = defaultdict(list)
        self._listening: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._listening = asyncio.create_task(self._listen())

    async def aclose(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])

    async def wait(self, tenant: str, response_id: str, *, after: int, limit_s: float) -> None:
        """Return when there is news of this log, or after `limit_s`. Raises: StoreError."""
        woken = asyncio.get_running_loop().create_future()
        waiter = _Waiter(tenant, response_id, after, woken)
        with self._registered(waiter), suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                # What was written before this one waited is not told again.
                if not await self._server.fetch(sql.NEWS, *columns([waiter], 3), again=True):
                    await woken

    @contextmanager
    def _registered(self, waiter: _Waiter) -> Iterator[None]:
        waiting = self._waiting[waiter.response_id]
        waiting.append(waiter)
        try:
            yield
        finally:
            waiting.remove(waiter)
            if not waiting:
                self._waiting.pop(waiter.response_id, None)

    def _wake(self, response_id: str) -> None:
        for waiter in self._waiting.get(response_id, ()):
            if not waiter.woken.done():
                waiter.woken.set_result(None)

    async def _listen(self) -> None:
        while True:
            with suppress(*DATABASE_ERRORS):
                async with self._ear() as (connection, deaf):
                    await self._look_on(connection, deaf)
            with suppress(StoreError):
                if waiters := self._waiters():
                    rows = await self._server.fetch(sql.NEWS, *columns(waiters, 3))
                    self._wake_all(rows)
            await asyncio.sleep(LOOK_DEAF_S)

    @asynccontextmanager
    async def _ear(self) -> AsyncGenerator[tuple[Connection, asyncio.Event]]:
        """Listen. The event says that nothing is heard any more."""
        deaf = asyncio.Event()
        connection = await self._server.connect("news")
        try:
            connection.add_termination_listener(lambda _: deaf.set())
            async with asyncio.timeout(LOOK_S):
                await connection.add_listener(self._channel, self._hear)
            yield connection, deaf
        finally:
            connection.terminate()

    def _hear(self, _connection: Connection, _pid: int, _channel: str, said: str) -> None:
        self._wake(said.partition(" ")[0])

    async def _look_on(self, connection: Connection, deaf: asyncio.Event) -> None:
        while not deaf.is_set():
            # Also with nobody to look for: a connection that broke off silently must be found out.
            async with asyncio.timeout(LOOK_S):
                self._wake_all(await connection.fetch(sql.NEWS, *columns(self._waiters(), 3)))
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_S):
                    await deaf.wait()

    def _waiters(self) -> list[_Waiter]:
        return [waiter for waiting in self._waiting.values() for waiter in waiting]

    def _wake_all(self, rows: list[Row]) -> None:
        for (response_id,) in rows:
            self._wake(response_id)
