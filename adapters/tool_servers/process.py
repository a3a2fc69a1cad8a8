"""Local MCP servers: one process each, which all responses share.

On stdio a process has one session, which carries concurrent calls. A start takes one to four
seconds, too long for each response. So the first request starts the process, it stays for the
lifetime of this server, and after it was lost the next request starts it again. After three early
exits in a row it is not restarted for a while.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from antiphon.adapters.tool_servers.mcp import (
    CallFailed,
    Connection,
    Send,
    TimedOut,
    listing_error,
    protocol_error,
    time_limit,
    timeout_error,
)
from antiphon.application.ports import Json, ToolResult, ToolServer, ToolSession
from antiphon.application.support.tasks import start_shared_task
from antiphon.domain.offers.mcp import LOST

logger = logging.getLogger("antiphon.tools")

START_TIMEOUT_S = 60.0
"""A start may take longer than a request may wait; a later request then finds the process ready."""

EARLY_EXIT_S = 10.0
MAX_EARLY_EXITS = 3
RESTART_DELAY_S = 30.0
"""The pause before the next start, after that many exits within `EARLY_EXIT_S` of the start."""

PING_TIMEOUT_S = 2.0
"""After a request timed out, a process that does not answer a ping in this time is stopped."""


class ProcessServer(ToolServer):
    """Runs `command`, a program and its arguments, without a shell.

    The process gets only `env` and a few standard variables (PATH, HOME and the like).
    """

    def __init__(
        self,
        label: str,
        command: Sequence[str],
        *,
        env: Mapping[str, str],
        timeout_s: float,
        max_bytes: int,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self.label = label
        self._command = tuple(command)
        self._env = dict(env)
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._changed: Callable[[], None] | None = None
        self._exits = _EarlyExits(now)
        self._connection: Connection | None = None
        self._connections: set[Connection] = set()
        self._connecting: asyncio.Task[Connection] | None = None
        self._pings: set[asyncio.Task[None]] = set()

    def session(self) -> ToolSession:
        return _SharedSession(self)

    def watch(self, changed: Callable[[], None]) -> None:
        self._changed = changed

    async def aclose(self) -> None:
        for task in (self._connecting, *self._pings):
            if task is not None:
                task.cancel()
        if self._connecting is not None:
            await asyncio.wait({self._connecting})
        await asyncio.gather(*(connection.aclose() for connection in self._connections))

    async def request(self, send: Send) -> Any:
        """Return the result of `send` with the client of the process. Raises: CallFailed."""
        connection: Connection | None = None
        try:
            async with time_limit(self._timeout_s) as prolong:
                connection = await self._open_connection()
                return await connection.request(lambda client: send(client, prolong))
        except TimedOut:
            if connection is not None:
                self._start_ping(connection)
            raise

    async def _open_connection(self) -> Connection:
        if self._connection is not None and self._connection.is_open:
            return self._connection
        if self._connecting is None or self._connecting.done():
            self._exits.check()
            # A separate task, because others may still wait for it when this caller leaves.
            self._connecting = start_shared_task(self._connect())
            self._connecting.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._connecting)

    async def _connect(self) -> Connection:
        started_at = self._exits.now()
        connection = Connection(await self._start_process())
        self._connections.add(connection)
        connection.on_close(lambda: self._connections.discard(connection))
        timeout_s = max(self._timeout_s, START_TIMEOUT_S)
        try:
            async with asyncio.timeout(timeout_s):
                await connection.open()
        except TimeoutError:
            self._exits.count(started_at, was_ready=False)
            raise timeout_error(timeout_s) from None
        except CallFailed:
            self._exits.count(started_at, was_ready=False)
            raise
        connection.on_close(lambda: self._exits.count(started_at, was_ready=True))
        self._connection = connection
        return connection

    async def _start_process(self) -> AbstractAsyncContextManager[Any]:
        sdk = await asyncio.to_thread(
            importlib.import_module, "antiphon.adapters.tool_servers.mcp_process"
        )
        connecting: AbstractAsyncContextManager[Any] = sdk.connect(
            self.label, self._command, self._env, max_bytes=self._max_bytes, changed=self._changed
        )
        return connecting

    def _start_ping(self, connection: Connection) -> None:
        task = asyncio.create_task(self._close_unless_alive(connection))
        self._pings.add(task)
        task.add_done_callback(self._pings.discard)

    async def _close_unless_alive(self, connection: Connection) -> None:
        try:
            async with asyncio.timeout(PING_TIMEOUT_S):
                await connection.request(lambda client: client.ping())
        except CallFailed:
            pass  # it has already ended
        except TimeoutError:
            logger.warning("the MCP server %r does not answer: stopping it", self.label)
            await connection.aclose()


class _SharedSession(ToolSession):
    def __init__(self, server: ProcessServer) -> None:
        self._server = server

    async def tools(self) -> tuple[Json, ...]:
        tools: tuple[Json, ...] = await self._list(lambda client, _: client.tools())
        return tools

    async def instructions(self) -> str:
        return str(await self._list(lambda client, _: client.instructions()))

    async def _list(self, send: Send) -> Any:
        try:
            return await self._server.request(send)
        except CallFailed as failure:
            raise listing_error(self._server.label, failure) from None

    async def call(self, name: str, arguments: Json) -> ToolResult:
        try:
            result: ToolResult = await self._server.request(
                lambda client, on_progress: client.call(name, arguments, on_progress)
            )
        except CallFailed as failure:
            return ToolResult(error=failure.error)
        return result

    async def aclose(self) -> None:
        pass  # other sessions share the process


class _EarlyExits:
    """Counts how often in a row the process ended soon after its start."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self._count = 0
        self._restart_at = float("-inf")

    def count(self, started_at: float, *, was_ready: bool) -> None:
        if was_ready and self.now() - started_at >= EARLY_EXIT_S:
            self._count = 0
            return
        self._count += 1
        if self._count >= MAX_EARLY_EXITS:  # from now on, one start after each delay
            self._restart_at = self.now() + RESTART_DELAY_S

    def check(self) -> None:
        """Check that the process may be started now. Raises: CallFailed."""
        wait_s = self._restart_at - self.now()
        if wait_s > 0:
            raise protocol_error(
                LOST,
                f"The MCP server ended {self._count} times soon after its start; it will be "
                f"restarted in {wait_s:.0f} seconds.",
            )
