"""Sessions with MCP servers. A task keeps each connection open; callers only wait for it.

When the SDK loses a server, it cancels everything that runs inside its connection, and it is slow
to import. So it is kept apart: the first session imports mcp_client.py, and the connection runs in
its own task.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from antiphon.application.ports import Json, ToolResult, ToolServer, ToolServers, ToolSession
from antiphon.application.telemetry.trace_context import TRACE_HEADERS
from antiphon.domain.errors import AntiphonError, FetchRefused, ToolServerError
from antiphon.domain.offers.mcp import LOST, TIMED_OUT, TOO_LARGE, check_headers, check_url
from antiphon.domain.tools import McpTool

if TYPE_CHECKING:
    from antiphon.adapters.fetching import GuardedPools

MAX_CONNECTS = 3
"""The number of times that a response connects to a server that keeps getting lost."""

CLOSE_TIMEOUT_S = 2.0
CANCEL_TIMEOUT_S = 5.0
"""The time limit for a canceled connection to clean up, for example to kill its process."""
LEAVE_TIMEOUT_S = 0.2


class CallFailed(AntiphonError):
    """A request to the server failed; `error` is the error as items show it
    (docs/reference/api.md#mcp-servers)."""

    def __init__(self, error: Json) -> None:
        super().__init__(str(error.get("message", error)))
        self.error = error


def protocol_error(code: int, message: str) -> CallFailed:
    return CallFailed({"type": "mcp_protocol_error", "code": code, "message": message})


def timeout_error(timeout_s: float) -> CallFailed:
    return protocol_error(TIMED_OUT, f"The MCP server did not answer within {timeout_s:g} seconds.")


def too_large_error(max_bytes: int) -> CallFailed:
    return protocol_error(TOO_LARGE, f"The MCP server's answer has more than {max_bytes} bytes.")


class McpServers(ToolServers):
    """The MCP servers that requests name by URL. Without `pools`, none may be called.

    With `needs_approval`, each call of one needs an approval, whatever the request says.
    """

    def __init__(
        self,
        pools: GuardedPools | None,
        *,
        timeout_s: float,
        max_bytes: int,
        needs_approval: bool = False,
    ) -> None:
        self._pools = pools
        self._needs_approval = needs_approval
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes

    def resolve(self, server: McpTool, path: str) -> McpTool | None:
        if not server.server_url:
            return None
        check_url(server, path)
        check_headers(server, path)
        return replace(server, require_approval="always") if self._needs_approval else server

    def session(self, server: McpTool) -> ToolSession:
        return McpSession(server, self._pools, timeout_s=self._timeout_s, max_bytes=self._max_bytes)

    async def aclose(self) -> None:
        pass  # the connections belong to the sessions


class UrlServer(ToolServer):
    """A remote MCP server that the operator configured; `headers` are sent only to it."""

    def __init__(
        self,
        label: str,
        *,
        url: str,
        headers: Mapping[str, str],
        pools: GuardedPools,
        timeout_s: float,
        max_bytes: int,
    ) -> None:
        self.label = label
        self._server = McpTool(server_label=label, server_url=url, headers=dict(headers))
        self._pools = pools
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes

    def session(self) -> ToolSession:
        return McpSession(
            self._server, self._pools, timeout_s=self._timeout_s, max_bytes=self._max_bytes
        )

    async def aclose(self) -> None:
        pass  # the connections belong to the sessions


class McpSession(ToolSession):
    """A session with a remote MCP server; the first request connects to it."""

    def __init__(
        self, server: McpTool, pools: GuardedPools | None, *, timeout_s: float, max_bytes: int
    ) -> None:
        self._server = server
        self._pools = pools
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._connecting = asyncio.Lock()
        self._connects = 0
        self._failure: CallFailed | None = None
        self._connection: Connection | None = None

    async def tools(self) -> tuple[Json, ...]:
        try:
            tools: tuple[Json, ...] = await self._request(lambda client: client.tools())
        except (CallFailed, FetchRefused) as error:
            label = self._server.server_label
            raise ToolServerError(
                f"Error retrieving tool list from MCP server: {label!r}. {error}"
            ) from None
        return tools

    async def call(self, name: str, arguments: Json) -> ToolResult:
        try:
            result: ToolResult = await self._request(lambda client: client.call(name, arguments))
        except FetchRefused as error:
            return ToolResult(error=protocol_error(LOST, str(error)).error)
        except CallFailed as failure:
            return ToolResult(error=failure.error)
        return result

    async def aclose(self) -> None:
        if self._connection is not None:
            await self._connection.aclose()

    async def _request(self, send: Callable[[Any], Awaitable[Any]]) -> Any:
        try:
            async with asyncio.timeout(self._timeout_s):
                connection = await self._open_connection()
                return await connection.request(send)
        except TimeoutError:
            raise timeout_error(self._timeout_s) from None

    async def _open_connection(self) -> Connection:
        async with self._connecting:
            if self._connection is not None and self._connection.is_open:
                return self._connection
            if self._failure is not None:
                raise self._failure
            if self._connects == MAX_CONNECTS:
                raise protocol_error(LOST, "The MCP server was lost too many times.")
            self._connects += 1
            try:
                self._connection = await self._connect()
            except CallFailed as failure:
                self._failure = failure  # this response does not try again
                raise
            return self._connection

    async def _connect(self) -> Connection:
        if self._pools is None:
            raise FetchRefused(
                "This server does not call MCP servers (its operator can allow it with "
                "--fetch-urls)."
            )
        url = self._pools.policy.check_url(str(self._server.server_url))
        sdk = await asyncio.to_thread(
            importlib.import_module, "antiphon.adapters.tool_servers.mcp_client"
        )
        connection = Connection(
            sdk.connect(url, _headers_of(self._server), self._pools, max_bytes=self._max_bytes)
        )
        await connection.open()
        return connection


def _headers_of(server: McpTool) -> dict[str, str]:
    given = {name.lower(): value for name, value in (server.headers or {}).items()}
    headers = {**TRACE_HEADERS.get(), **given}
    if server.authorization:
        headers["authorization"] = f"Bearer {server.authorization}"
    return headers


class Connection:
    """A connection that its own task keeps open until it is lost or closed."""

    def __init__(self, connecting: AbstractAsyncContextManager[Any]) -> None:
        self._connecting = connecting
        self._closed = asyncio.Event()
        self._client: Any = None
        self._ready = asyncio.Event()
        self._task = asyncio.create_task(self._keep_open())
        # Callers see a failure; without this, asyncio logs one that no caller waited for.
        self._task.add_done_callback(lambda task: task.cancelled() or task.exception())

    @property
    def is_open(self) -> bool:
        # The task may still be cleaning up after the connection was lost or closed.
        is_lost = self._client is not None and self._client.is_lost()
        return not (self._task.done() or self._closed.is_set() or is_lost)

    async def open(self) -> None:
        """Wait until the connection is ready. Raises: CallFailed."""
        try:
            await self._unless_lost(self._ready.wait())
        except BaseException:
            self._task.cancel()
            raise

    async def request(self, send: Callable[[Any], Awaitable[Any]]) -> Any:
        """Return the result of `send` with the client. Raises: CallFailed."""
        return await self._unless_lost(send(self._client))

    def on_close(self, callback: Callable[[], None]) -> None:
        """Call `callback` after the connection was lost or closed, soon if it already was."""
        self._task.add_done_callback(lambda _: callback())

    async def aclose(self) -> None:
        self._closed.set()
        await asyncio.wait({self._task}, timeout=CLOSE_TIMEOUT_S)
        if not self._task.cancelling():  # a second cancel would interrupt its cleanup
            self._task.cancel()
        await asyncio.wait({self._task}, timeout=CANCEL_TIMEOUT_S)

    async def _unless_lost(self, awaitable: Awaitable[Any]) -> Any:
        """Return the result of `awaitable`. Raises: CallFailed if the connection ends first."""
        request = asyncio.ensure_future(awaitable)
        request.add_done_callback(lambda task: task.cancelled() or task.exception())
        try:
            await asyncio.wait({request, self._task}, return_when=asyncio.FIRST_COMPLETED)
            if request.done():
                return request.result()
            raise self._failure()
        finally:
            request.cancel()
            # Not forever: the SDK first tells the server, which may have stopped reading.
            await asyncio.wait({request}, timeout=LEAVE_TIMEOUT_S)

    def _failure(self) -> CallFailed:
        failure = None if self._task.cancelled() else self._task.exception()
        if isinstance(failure, CallFailed):
            return failure
        return protocol_error(LOST, "The connection to the MCP server was lost.")

    async def _keep_open(self) -> None:
        async with self._connecting as self._client:
            self._ready.set()
            await self._closed.wait()
