"""Waits for new events, for all readers of this process, on one connection that listens.

A notification is only a hint that saves time. All logs with a waiting reader are also polled: every
second while listening, ten times a second otherwise. So a lost connection loses no events.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import NamedTuple

from antiphon.adapters.stores.postgres import statements as sql
from antiphon.adapters.stores.postgres.server import (
    DATABASE_ERRORS,
    Connection,
    PostgresServer,
    Row,
    columns,
)
from antiphon.domain.errors import StoreError

POLL_LISTENING_S = 1.0
"""How often to poll while listening."""

POLL_DISCONNECTED_S = 0.1
"""How often to poll, and to try to reconnect, while not listening."""


class _Waiter(NamedTuple):
    tenant: str
    response_id: str
    after: int
    woken: asyncio.Future[None]


class PostgresNotifications:
    """Wakes waiting readers. Each write notifies `channel` with the payload `id number`."""

    def __init__(self, server: PostgresServer, channel: str) -> None:
        self._server = server
        self._channel = channel
        self._waiters: defaultdict[str, list[_Waiter]] = defaultdict(list)
        self._listening: asyncio.Task[None] | None = None

    async def start(self) -> None:
        self._listening = asyncio.create_task(self._listen())

    async def aclose(self) -> None:
        if self._listening is not None:
            self._listening.cancel()
            await asyncio.wait([self._listening])

    async def wait(self, tenant: str, response_id: str, *, after: int, limit_s: float) -> None:
        """Return when this log has news, or after `limit_s`. Raises: StoreError."""
        woken = asyncio.get_running_loop().create_future()
        waiter = _Waiter(tenant, response_id, after, woken)
        with self._registered(waiter), suppress(TimeoutError):
            async with asyncio.timeout(limit_s):
                # There is no notification for events from before this call, so check once.
                if not await self._server.fetch(
                    sql.LOGS_WITH_NEWS, *columns([waiter], 3), idempotent=True
                ):
                    await woken

    @contextmanager
    def _registered(self, waiter: _Waiter) -> Iterator[None]:
        waiters = self._waiters[waiter.response_id]
        waiters.append(waiter)
        try:
            yield
        finally:
            waiters.remove(waiter)
            if not waiters:
                self._waiters.pop(waiter.response_id, None)

    def _wake(self, response_id: str) -> None:
        for waiter in self._waiters.get(response_id, ()):
            if not waiter.woken.done():
                waiter.woken.set_result(None)

    async def _listen(self) -> None:
        while True:
            with suppress(*DATABASE_ERRORS):
                async with self._listening_connection() as (connection, is_lost):
                    await self._poll(connection, is_lost)
            with suppress(StoreError):
                if waiters := self._all_waiters():
                    rows = await self._server.fetch(sql.LOGS_WITH_NEWS, *columns(waiters, 3))
                    self._wake_all(rows)
            await asyncio.sleep(POLL_DISCONNECTED_S)

    @asynccontextmanager
    async def _listening_connection(self) -> AsyncGenerator[tuple[Connection, asyncio.Event]]:
        """Yield a connection that listens, and an event that is set when it is lost."""
        is_lost = asyncio.Event()
        connection = await self._server.connect("notifications")
        try:
            connection.add_termination_listener(lambda _: is_lost.set())
            async with asyncio.timeout(POLL_LISTENING_S):
                await connection.add_listener(self._channel, self._on_notification)
            yield connection, is_lost
        finally:
            connection.terminate()

    def _on_notification(
        self, _connection: Connection, _pid: int, _channel: str, payload: str
    ) -> None:
        self._wake(payload.partition(" ")[0])

    async def _poll(self, connection: Connection, is_lost: asyncio.Event) -> None:
        while not is_lost.is_set():
            # Even if no reader waits: this detects a connection that was lost silently.
            async with asyncio.timeout(POLL_LISTENING_S):
                self._wake_all(
                    await connection.fetch(sql.LOGS_WITH_NEWS, *columns(self._all_waiters(), 3))
                )
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_LISTENING_S):
                    await is_lost.wait()

    def _all_waiters(self) -> list[_Waiter]:
        return [waiter for waiters in self._waiters.values() for waiter in waiters]

    def _wake_all(self, rows: list[Row]) -> None:
        for (response_id,) in rows:
            self._wake(response_id)
