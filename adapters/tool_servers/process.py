"""Local MCP servers: one process each, kept while this server lives and shared by all responses.

On stdio a process has one session, which carries calls side by side. To begin it takes one to four
seconds, which no response should wait for. So it is begun by the first use, and again by the next
use when it was lost. One that dies young three times is left alone for a while.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

from antiphon.adapters.tool_servers.mcp import CallFailed, Line, protocol_error, timeout_error
from antiphon.application.ports import Json, ToolResult, ToolServer, ToolSession
from antiphon.domain.errors import ToolServerError
from antiphon.domain.mcp import LOST

logger = logging.getLogger("antiphon.tools")

BEGINNING_S = 60.0
"""A process may take longer to begin than a use may wait; the next use then finds it begun."""

YOUNG_S = 10.0
MAX_EARLY_EXITS = 3
RESTART_DELAY_S = 30.0
"""For so long it is not begun again, after that many deaths in its first seconds."""

ANSWER_S = 2.0
"""After a use that ended without an answer, a process that does not say within this that it is
there is stopped."""


class ProcessServer(ToolServer):
    """`command` are a program and its arguments; no shell reads them. `env` is all that it is given
    of an environment but for what every program needs (PATH, HOME and the like).
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
        self._deaths = _Deaths(now)
        self._line: Line | None = None
        self._lines: set[Line] = set()
        self._opening: asyncio.Task[Line] | None = None
        self._asking: set[asyncio.Task[None]] = set()

    def session(self) -> ToolSession:
        return _SharedSession(self)

    async def aclose(self) -> None:
        for task in (self._opening, *self._asking):
            if task is not None:
                task.cancel()
        if self._opening is not None:
            await asyncio.wait({self._opening})
        await asyncio.gather(*(line.aclose() for line in self._lines))

    async def use(self, ask: Callable[[Any], Awaitable[Any]]) -> Any:
        """Return what `ask` gives for the process. Raises: Unreached."""
        line: Line | None = None
        try:
            async with asyncio.timeout(self._timeout_s):
                line = await self._connected()
                return await line.use(ask)
        except TimeoutError:
            if line is not None:
                self._ask_whether_there(line)
            raise timeout_error(self._timeout_s) from None

    async def _connected(self) -> Line:
        if self._line is not None and self._line.is_open:
            return self._line
        if self._opening is None or self._opening.done():
            self._deaths.check()
            # A task of its own: whoever waits for it may leave, and others wait as well.
            self._opening = asyncio.create_task(self._open())
            self._opening.add_done_callback(lambda task: task.cancelled() or task.exception())
        return await asyncio.shield(self._opening)

    async def _open(self) -> Line:
        born = self._deaths.now()
        line = Line(await self._process())
        self._lines.add(line)
        line.on_close(lambda: self._lines.discard(line))
        limit_s = max(self._timeout_s, BEGINNING_S)
        try:
            async with asyncio.timeout(limit_s):
                await line.open()
        except TimeoutError:
            self._deaths.count(born, was_ready=False)
            raise timeout_error(limit_s) from None
        except CallFailed:
            self._deaths.count(born, was_ready=False)
            raise
        line.on_close(lambda: self._deaths.count(born, was_ready=True))
        self._line = line
        return line

    async def _process(self) -> AbstractAsyncContextManager[Any]:
        sdk = await asyncio.to_thread(
            importlib.import_module, "antiphon.adapters.tool_servers.mcp_process"
        )
        process: AbstractAsyncContextManager[Any] = sdk.connected(
            self.label, self._command, self._env, max_bytes=self._max_bytes
        )
        return process

    def _ask_whether_there(self, line: Line) -> None:
        task = asyncio.create_task(self._stop_unless_there(line))
        self._asking.add(task)
        task.add_done_callback(self._asking.discard)

    async def _stop_unless_there(self, line: Line) -> None:
        try:
            async with asyncio.timeout(ANSWER_S):
                await line.use(lambda client: client.is_there())
        except CallFailed:
            pass  # it is gone already
        except TimeoutError:
            logger.warning("the MCP server %r does not answer: it is stopped", self.label)
            await line.aclose()


class _SharedSession(ToolSession):
    def __init__(self, server: ProcessServer) -> None:
        self._server = server

    async def tools(self) -> tuple[Json, ...]:
        try:
            found: tuple[Json, ...] = await self._server.use(lambda client: client.tools())
        except CallFailed as unreached:
            raise ToolServerError(
                f"Error retrieving tool list from MCP server: {self._server.label!r}. {unreached}"
            ) from None
        return found

    async def call(self, name: str, arguments: Json) -> ToolResult:
        try:
            result: ToolResult = await self._server.use(lambda client: client.call(name, arguments))
        except CallFailed as unreached:
            return ToolResult(error=unreached.error)
        return result

    async def aclose(self) -> None:
        pass  # the process is everybody's


class _Deaths:
    """Counts how often in a row the process died young."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self._young = 0
        self._again_at = float("-inf")

    def count(self, born: float, *, was_ready: bool) -> None:
        if was_ready and self.now() - born >= YOUNG_S:
            self._young = 0
            return
        self._young += 1
        if self._young >= MAX_EARLY_EXITS:  # from now on, one attempt a pause
            self._again_at = self.now() + RESTART_DELAY_S

    def check(self) -> None:
        """Raises: Unreached while it is to be left alone."""
        wait_s = self._again_at - self.now()
        if wait_s > 0:
            raise protocol_error(
                LOST,
                f"The MCP server ended {self._young} times soon after it was begun; it is begun "
                f"again in {wait_s:.0f} seconds.",
            )
