"""Sessions with MCP servers: one task holds each connection, whoever calls waits beside it.

The SDK takes its whole connection down when the server is lost, and whatever runs inside; it is
also slow to import. So both are kept apart: mcp_client.py is imported by the first session, and
runs in a task of its own.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from antiphon.adapters.fetching import GuardedPools
from antiphon.application.ports import Json, ToolResult, ToolServer, ToolServers, ToolSession
from antiphon.domain.errors import AntiphonError, FetchRefused, ToolServerError
from antiphon.domain.mcp import LOST, TIMED_OUT, TOO_LARGE, check_url
from antiphon.domain.tools import McpTool

MOST_OPENINGS = 3
"""A server that is lost again and again is given up for the response."""

CLOSING_S = 2.0
CLEARING_S = 5.0
"""After it was cancelled: to kill a process, if it has one."""
LEAVING_S = 0.2


class CallFailed(AntiphonError):
    """A use of the server failed; `error` says how, as items show it
    (docs/reference/api.md#mcp-servers)."""

    def __init__(self, error: Json) -> None:
        super().__init__(str(error.get("message", error)))
        self.error = error


def protocol_error(code: int, message: str) -> CallFailed:
    return CallFailed({"type": "mcp_protocol_error", "code": code, "message": message})


def timeout_error(timeout_s: float) -> CallFailed:
    return protocol_error(TIMED_OUT, f"The MCP server gave no answer within {timeout_s:g} seconds.")


def too_large_error(max_bytes: int) -> CallFailed:
    return protocol_error(TOO_LARGE, f"The MCP server's answer has more than {max_bytes} bytes.")


class McpServers(ToolServers):
    """`checked` is the way to the servers; None: no server may be reached."""

    def __init__(self, checked: GuardedPools | None, *, timeout_s: float, max_bytes: int) -> None:
        self._checked = checked
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes

    def resolve(self, server: McpTool, path: str) -> McpTool | None:
        if not server.server_url:
            return None
        check_url(server, path)
        return server

    def session(self, server: McpTool) -> ToolSession:
        return McpSession(
            server, self._checked, timeout_s=self._timeout_s, max_bytes=self._max_bytes
        )

    async def aclose(self) -> None:
        pass  # each session has its connection


class UrlServer(ToolServer):
    """A remote MCP server of the operator's; `headers` go to it alone, over `checked`."""

    def __init__(
        self,
        label: str,
        url: str,
        headers: Mapping[str, str],
        checked: GuardedPools,
        *,
        timeout_s: float,
        max_bytes: int,
    ) -> None:
        self.label = label
        self._server = McpTool(server_label=label, server_url=url, headers=dict(headers))
        self._checked = checked
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes

    def session(self) -> ToolSession:
        return McpSession(
            self._server, self._checked, timeout_s=self._timeout_s, max_bytes=self._max_bytes
        )

    async def aclose(self) -> None:
        pass  # each session has its connection


class McpSession(ToolSession):
    def __init__(
        self, server: McpTool, checked: GuardedPools | None, *, timeout_s: float, max_bytes: int
    ) -> None:
        self._server = server
        self._checked = checked
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._opening = asyncio.Lock()
        self._openings = 0
        self._failure: CallFailed | None = None
        self._line: Line | None = None

    async def tools(self) -> tuple[Json, ...]:
        try:
            found: tuple[Json, ...] = await self._use(lambda client: client.tools())
        except (CallFailed, FetchRefused) as error:
            label = self._server.server_label
            raise ToolServerError(
                f"Error retrieving tool list from MCP server: {label!r}. {error}"
            ) from None
        return found

    async def call(self, name: str, arguments: Json) -> ToolResult:
        try:
            result: ToolResult = await self._use(lambda client: client.call(name, arguments))
        except FetchRefused as error:
            return ToolResult(error=protocol_error(LOST, str(error)).error)
        except CallFailed as unreached:
            return ToolResult(error=unreached.error)
        return result

    async def aclose(self) -> None:
        if self._line is not None:
            await self._line.aclose()

    async def _use(self, ask: Callable[[Any], Awaitable[Any]]) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s):
                line = await self._connected()
                return await line.use(ask)
        except TimeoutError:
            raise timeout_error(self._timeout_s) from None

    async def _connected(self) -> Line:
        async with self._opening:
            if self._line is not None and self._line.is_open:
                return self._line
            if self._failure is not None:
                raise self._failure
            if self._openings == MOST_OPENINGS:
                raise protocol_error(LOST, "The MCP server was lost too often.")
            self._openings += 1
            try:
                self._line = await self._open()
            except CallFailed as failure:
                self._failure = failure  # it is not asked again in this response
                raise
            return self._line

    async def _open(self) -> Line:
        if self._checked is None:
            raise FetchRefused(
                "This server calls no MCP servers (its operator can allow it with --fetch-urls)."
            )
        url = self._checked.policy.check_url(str(self._server.server_url))
        sdk = await asyncio.to_thread(
            importlib.import_module, "antiphon.adapters.tool_servers.mcp_client"
        )
        line = Line(
            sdk.connected(url, _headers(self._server), self._checked, max_bytes=self._max_bytes)
        )
        await line.open()
        return line


def _headers(server: McpTool) -> dict[str, str]:
    headers = dict(server.headers or {})
    if server.authorization:
        headers["authorization"] = f"Bearer {server.authorization}"
    return headers


class Line:
    """A connection, held open by a task of its own until it is lost or closed."""

    def __init__(self, connected: Any) -> None:
        self._connected = connected
        self._closed = asyncio.Event()
        self._client: Any = None
        self._ready = asyncio.Event()
        self._holding = asyncio.create_task(self._hold())
        # A failure is asked for where somebody waits; asyncio would log one that nobody asked for.
        self._holding.add_done_callback(lambda task: task.cancelled() or task.exception())

    @property
    def is_open(self) -> bool:
        # What is lost or closed takes a while to be cleared away.
        is_lost = self._client is not None and self._client.is_lost()
        return not (self._holding.done() or self._closed.is_set() or is_lost)

    async def open(self) -> None:
        """Wait until it can be used. Raises: Unreached."""
        try:
            await self._while_held(self._ready.wait())
        except BaseException:
            self._holding.cancel()
            raise

    async def use(self, ask: Callable[[Any], Awaitable[Any]]) -> Any:
        return await self._while_held(ask(self._client))

    def on_close(self, tell: Callable[[], None]) -> None:
        """Call `tell` when the connection was lost or closed, soon if it is already."""
        self._holding.add_done_callback(lambda _: tell())

    async def aclose(self) -> None:
        self._closed.set()
        await asyncio.wait({self._holding}, timeout=CLOSING_S)
        if not self._holding.cancelling():  # again would interrupt how it clears away
            self._holding.cancel()
        await asyncio.wait({self._holding}, timeout=CLEARING_S)

    async def _while_held(self, work: Awaitable[Any]) -> Any:
        working = asyncio.ensure_future(work)
        working.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            await asyncio.wait({working, self._holding}, return_when=asyncio.FIRST_COMPLETED)
            if working.done():
                return working.result()
            raise self._loss()
        finally:
            working.cancel()
            # Not until it has ended: the SDK tells the server of it first, who may not be reading.
            await asyncio.wait({working}, timeout=LEAVING_S)

    def _loss(self) -> CallFailed:
        failure = None if self._holding.cancelled() else self._holding.exception()
        if isinstance(failure, CallFailed):
            return failure
        return protocol_error(LOST, "The connection to the MCP server was lost.")

    async def _hold(self) -> None:
        async with self._connected as self._client:
            self._ready.set()
            await self._closed.wait()
