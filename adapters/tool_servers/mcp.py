"""Sessions with MCP servers. A task keeps each connection open; callers only wait for it.

When the SDK loses a server, it cancels everything that runs inside its connection, and it is slow
to import. So it is kept apart: the first session imports mcp_client.py, and the connection runs in
its own task.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from antiphon.application.ports import Json, ToolResult, ToolServer, ToolServers, ToolSession
from antiphon.application.telemetry.trace_context import TRACE_HEADERS
from antiphon.domain.errors import AntiphonError, FetchRefused, ToolServerError
from antiphon.domain.offers.mcp import LOST, TIMED_OUT, TOO_LARGE, check_headers, check_url
from antiphon.domain.tools import McpTool

if TYPE_CHECKING:
    from antiphon.adapters.fetching import GuardedPools
    from antiphon.adapters.tool_servers.oauth import AccessTokens

MAX_FAILURES = 3
RETRY_S = 5.0
"""After so many failures in a row, a response asks a server again only after this pause."""

Send = Callable[[Any, Callable[[], None]], Awaitable[Any]]
"""Sends a request with a client; the callback gives it as much time again."""

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


class TimedOut(CallFailed):
    """The server did not answer in time."""


class Unauthorized(CallFailed):
    """The server refused a request, unread, since it does not accept our credentials."""


class SessionLost(CallFailed):
    """The server refused a request, unread, since it does not know the session any more."""


def protocol_error(code: int, message: str) -> CallFailed:
    return CallFailed({"type": "mcp_protocol_error", "code": code, "message": message})


@asynccontextmanager
async def time_limit(seconds: float) -> AsyncGenerator[Callable[[], None]]:
    """Limit the time of the block. Calling what it yields begins that time again.

    Raises: CallFailed.
    """
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(seconds) as limit:

            def prolong() -> None:
                if not limit.expired():
                    limit.reschedule(loop.time() + seconds)

            yield prolong
    except TimeoutError:
        raise timeout_error(seconds) from None


def timeout_error(timeout_s: float) -> TimedOut:
    message = f"The MCP server did not answer within {timeout_s:g} seconds."
    return TimedOut(protocol_error(TIMED_OUT, message).error)


def listing_error(label: str, cause: Exception) -> ToolServerError:
    return ToolServerError(f"Error retrieving tool list from MCP server: {label!r}. {cause}")


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

    @property
    def labels(self) -> Sequence[str]:
        return ()

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
    """A remote MCP server that the operator configured; `headers` are sent only to it.

    If it says when its tools change, one connection stays open after its response, to hear it.
    """

    def __init__(
        self,
        label: str,
        *,
        url: str,
        headers: Mapping[str, str],
        pools: GuardedPools,
        timeout_s: float,
        max_bytes: int,
        tokens: AccessTokens | None = None,
    ) -> None:
        self.label = label
        self._tokens = tokens
        self._changed: Callable[[], None] | None = None
        self._listener: Connection | None = None
        self._server = McpTool(server_label=label, server_url=url, headers=dict(headers))
        self._pools = pools
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes

    def session(self) -> ToolSession:
        return McpSession(
            self._server,
            self._pools,
            timeout_s=self._timeout_s,
            max_bytes=self._max_bytes,
            tells_cause=True,
            changed=self._changed,
            keep=self._keep,
            tokens=self._tokens,
        )

    def session_with(self, token: str) -> ToolSession:
        """Return a session with a token that is nobody else's."""
        return McpSession(
            replace(self._server, authorization=token),
            self._pools,
            timeout_s=self._timeout_s,
            max_bytes=self._max_bytes,
            tells_cause=True,
        )

    def watch(self, changed: Callable[[], None]) -> None:
        self._changed = changed

    async def aclose(self) -> None:
        if self._listener is not None:  # the other connections belong to the sessions
            await self._listener.aclose()

    def _keep(self, connection: Connection) -> Connection | None:
        """Take over a connection of a session that ends, unless another one is there.

        Return the one that is to be closed, if any.
        """
        if self._listener is not None and self._listener.hears_changes:
            return connection
        connection.stop_drawing()
        lost, self._listener = self._listener, connection
        return lost


class McpSession(ToolSession):
    """A session with a remote MCP server; the first request connects to it."""

    def __init__(
        self,
        server: McpTool,
        pools: GuardedPools | None,
        *,
        timeout_s: float,
        max_bytes: int,
        tells_cause: bool = False,
        changed: Callable[[], None] | None = None,
        keep: Callable[[Connection], Connection | None] | None = None,
        tokens: AccessTokens | None = None,
    ) -> None:
        self._changed = changed
        self._keep = keep
        self._tokens = tokens
        self._token_of: dict[Connection, str] = {}
        self._expired: list[Connection] = []
        self._tells_cause = tells_cause
        self._server = server
        self._pools = pools
        self._timeout_s = timeout_s
        self._max_bytes = max_bytes
        self._connecting = asyncio.Lock()
        self._failures = 0
        self._failure: CallFailed | None = None
        self._retry_at = 0.0
        self._connections: list[Connection] = []

    async def tools(self) -> tuple[Json, ...]:
        tools: tuple[Json, ...] = await self._list(lambda client, _: client.tools())
        return tools

    async def instructions(self) -> str:
        return str(await self._list(lambda client, _: client.instructions()))

    async def _list(self, send: Send) -> Any:
        try:
            return await self._request(send)
        except (CallFailed, FetchRefused) as error:
            raise listing_error(self._server.server_label, error) from None

    async def call(self, name: str, arguments: Json) -> ToolResult:
        try:
            result: ToolResult = await self._request(
                lambda client, on_progress: client.call(name, arguments, on_progress)
            )
        except FetchRefused as error:
            return ToolResult(error=protocol_error(LOST, str(error)).error)
        except CallFailed as failure:
            return ToolResult(error=failure.error)
        return result

    async def aclose(self) -> None:
        closing = [*self._expired]
        for each in self._connections:
            left = self._keep(each) if self._keep is not None and each.hears_changes else each
            closing += [] if left is None else [left]
        await asyncio.gather(*(connection.aclose() for connection in closing))

    async def _request(self, send: Send) -> Any:
        try:
            return await self._request_once(send)
        except SessionLost:
            return await self._request_once(send)  # in a new session: it has not run yet
        except Unauthorized:
            if self._tokens is None:
                raise
            return await self._request_once(send)  # with a new token: nor has this

    async def _request_once(self, send: Send) -> Any:
        async with time_limit(self._timeout_s) as prolong:
            connection = await self._open_connection()
            try:
                answer = await connection.request(lambda client: send(client, prolong))
            except Unauthorized:
                self._expire(connection)
                raise
        self._failures = 0
        return answer

    def _expire(self, connection: Connection) -> None:
        """Make no new request with it, nor with its token; others may still use it."""
        if self._tokens is not None and connection in self._connections:
            self._connections.remove(connection)
            self._expired.append(connection)
            self._tokens.drop(self._token_of.pop(connection, ""))

    async def _open_connection(self) -> Connection:
        async with self._connecting:
            now = asyncio.get_running_loop().time()
            self._connections = [one for one in self._connections if not one.has_ended]
            for connection in self._connections:
                if connection.is_open:
                    return connection
            if self._failures >= MAX_FAILURES and now < self._retry_at:
                raise self._failure or protocol_error(LOST, "The MCP server was lost again.")
            self._failures += 1  # until it has answered
            self._retry_at = now + RETRY_S
            try:
                connection = await self._connect()
            except CallFailed as failure:
                self._failure = failure
                raise
            self._connections.append(connection)
            return connection

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
        headers = _headers_of(self._server)
        token = "" if self._tokens is None else await self._tokens.get()
        if token:
            headers["authorization"] = f"Bearer {token}"
        connection = Connection(
            sdk.connect(
                url,
                headers,
                self._pools,
                max_bytes=self._max_bytes,
                tells_cause=self._tells_cause,
                changed=self._changed,
            )
        )
        try:
            await connection.open()
        except Unauthorized:
            if self._tokens is not None:
                self._tokens.drop(token)
            raise
        self._token_of[connection] = token
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

    @property
    def hears_changes(self) -> bool:
        """Whether the server says on this connection when its tools change."""
        return self.is_open and self._client is not None and self._client.hears_changes

    def stop_drawing(self) -> None:
        """Let it go on without the room for answers that its response has."""
        self._client.stop_drawing()

    @property
    def has_ended(self) -> bool:
        return self._task.done()

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
