"""The heartbeats of a server, on their own connection and event loop.

They continue while the server's event loop is busy. Otherwise, one long step would let another
server take over all runs.
"""

from __future__ import annotations

import asyncio
import threading

from antiphon.adapters.stores.postgres import statements as sql
from antiphon.adapters.stores.postgres.server import (
    CONNECTION_ERRORS,
    DATABASE_ERRORS,
    Connection,
    PostgresServer,
)
from antiphon.domain.errors import StoreError


class PostgresHeartbeat:
    """Begins its thread with the first beat. May be asked from any thread."""

    def __init__(self, server: PostgresServer) -> None:
        self._server = server
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._connection: Connection = None

    def beat(self, owner: str, ttl_s: float) -> None:
        """Record a heartbeat; blocks the calling thread. Raises: StoreError."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                # A daemon, so that a hanging PostgreSQL does not keep the process from ending.
                threading.Thread(
                    target=self._run, args=(self._loop,), name="postgres heartbeat", daemon=True
                ).start()
            asyncio.run_coroutine_threadsafe(self._beat(owner, ttl_s), self._loop).result()

    async def aclose(self) -> None:
        await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        with self._lock:
            loop, self._loop = self._loop, None
            if loop is not None:
                asyncio.run_coroutine_threadsafe(self._disconnect(), loop).result()
                loop.call_soon_threadsafe(loop.stop)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        loop.run_forever()
        loop.close()

    async def _beat(self, owner: str, ttl_s: float) -> None:
        try:
            async with asyncio.timeout(self._server.start_timeouts.total_s):
                try:
                    await self._send(owner, ttl_s)
                except CONNECTION_ERRORS:  # lost since the last heartbeat; repeating it is harmless
                    await self._disconnect()
                    await self._send(owner, ttl_s)
        except DATABASE_ERRORS as error:
            await self._disconnect()
            raise StoreError(self._server.error_message(error)) from error

    async def _send(self, owner: str, ttl_s: float) -> None:
        if self._connection is None:
            self._connection = await self._server.connect("heartbeat")
        await self._connection.execute(sql.BEAT, owner, float(ttl_s))

    async def _disconnect(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.terminate()
            await asyncio.sleep(0)  # lets the transport close
