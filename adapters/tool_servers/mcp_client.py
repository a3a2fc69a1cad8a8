"""The MCP SDK over guarded connections: streamable HTTP first, then the older SSE."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, TypeVar

import httpcore
import httpx
import httpx2
import mcp_types
import msgspec
from mcp.client.client import Client
from mcp.client.sse import sse_client
from mcp.client.streamable_http import streamable_http_client
from mcp.client.subscriptions import SubscriptionLost
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from antiphon.adapters.fetching import GuardedPools
from antiphon.adapters.outgoing.connections import cause_of
from antiphon.adapters.tool_servers.lenient_results import lenient
from antiphon.adapters.tool_servers.mcp import (
    CallFailed,
    SessionLost,
    Unauthorized,
    protocol_error,
    too_large_error,
)
from antiphon.application.ports import Json, ToolResult
from antiphon.application.support.bytes_in_work import FREE_BYTES, draw_bytes
from antiphon.application.support.loop_portions import LoopPortions
from antiphon.application.support.tasks import current_tenant
from antiphon.domain.errors import FetchRefused, RequestError
from antiphon.domain.offers.mcp import LOST, TOO_LARGE

T = TypeVar("T")

# These libraries log URLs, which may contain keys, and answers. Items report the errors.
for _name in ("httpx2", "httpcore2", "mcp", "client"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)

logger = logging.getLogger("antiphon.tools")

NOT_STREAMABLE = (400, 404, 405)
"""The answers of servers that support only SSE to a POST to their URL."""

MAX_PAGES = 32
SUBSCRIBE_S = 1.0
"""How long a list waits for the server to agree to tell of changes."""
MAX_ERROR_BYTES = 64 * 1024
ERROR_BODY_S = 2.0
MAX_MESSAGE_LENGTH = 2000
SESSION_HEADER = "mcp-session-id"
_LOST = "The connection to the MCP server was lost or could not be made"


class McpClient:
    """A connected client with the methods of `ports.ToolSession`.

    `refused` is set when the server will not answer although the SDK still waits for it.
    `changes`: the subscription to changes of the tools, where the version of MCP has any.
    """

    def __init__(
        self,
        client: Client,
        to_failure: Callable[[BaseException | None], CallFailed],
        is_lost: Callable[[], bool] = lambda: False,
        refused: asyncio.Event | None = None,
        changes: _ChangeSubscription | None = None,
        stop_drawing: Callable[[], None] | None = None,
    ) -> None:
        self.stop_drawing = stop_drawing or (lambda: None)
        """Read only what needs no room from now on: the response that gave the room has ended."""
        self._client = client
        self._to_failure = to_failure
        self._is_lost = is_lost
        self._refused = refused or asyncio.Event()
        self._changes = changes

    def is_lost(self) -> bool:
        return self._is_lost() or self._refused.is_set()

    @property
    def hears_changes(self) -> bool:
        """Whether the server promises to say on this connection when its tools change."""
        if self._changes is not None:
            return self._changes.is_open
        capabilities = self._client.server_capabilities
        return bool(capabilities and capabilities.tools and capabilities.tools.list_changed)

    async def ping(self) -> None:
        """Wait until the server answers, with a result or an error."""
        with suppress(MCPError):
            await self._client.session.send_ping()

    async def tools(self) -> tuple[Json, ...]:
        if self._changes is not None:  # first, so that no change is missed
            await self._changes.settle()
        tools: list[Json] = []
        cursor: str | None = None
        seen: set[str | None] = set()
        while cursor not in seen and len(seen) < MAX_PAGES:
            seen.add(cursor)
            try:
                page = await self._answer(self._client.list_tools(cursor=cursor))
            except Exception as error:
                raise self._to_failure(error) from None
            tools += map(_to_tool, page.tools)
            cursor = page.next_cursor
            if not cursor:
                break
        return tuple(tools)

    async def instructions(self) -> str:
        return self._client.instructions or ""

    async def call(self, name: str, arguments: Json, on_progress: Callable[[], None]) -> ToolResult:
        try:
            result = await self._answer(self._call_tool(name, arguments, on_progress))
        except Exception as error:
            raise self._to_failure(error) from None
        if result.is_error:
            # As text: whatever is in the error is shown to the model.
            content = [{"type": "text", "text": _text_of(result)}]
            return ToolResult(error={"type": "mcp_tool_execution_error", "content": content})
        return ToolResult(output=_text_of(result))

    async def _answer(self, request: Coroutine[Any, Any, T]) -> T:
        """Return the result of the request. Raises: CallFailed if the server refuses to answer."""
        answer = asyncio.ensure_future(request)
        refusal = asyncio.ensure_future(self._refused.wait())
        try:
            await asyncio.wait({answer, refusal}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise self._to_failure(None)
            return answer.result()
        finally:
            for task in (answer, refusal):
                task.cancel()
            await asyncio.gather(answer, refusal, return_exceptions=True)

    async def _call_tool(
        self, name: str, arguments: Json, on_progress: Callable[[], None]
    ) -> mcp_types.CallToolResult:
        async def note(progress: float, total: float | None, message: str | None) -> None:  # noqa: ARG001
            on_progress()

        def send() -> Coroutine[Any, Any, mcp_types.CallToolResult]:
            return self._client.session.send_request(
                request, mcp_types.CallToolResult, progress_callback=note
            )

        # Not `Client.call_tool`, which lists the tools again to check the output against its
        # schema, and then reports a call that has run as failed.
        params = mcp_types.CallToolRequestParams(name=name, arguments=arguments)
        request = mcp_types.CallToolRequest(params=params)
        try:
            return await send()
        except MCPError as error:
            if error.code != mcp_types.HEADER_MISMATCH:
                raise
        # The server rejected the call before running it: the right headers are in the tool list.
        await self._client.list_tools()
        return await send()


def client_options(changed: Callable[[], None] | None) -> dict[str, Any]:
    """Return the options of a client of the SDK that calls `changed` when the tools change."""

    async def receive(message: Any) -> None:
        if changed is not None and isinstance(message, mcp_types.ToolListChangedNotification):
            changed()

    return {"message_handler": receive}


class _ChangeSubscription:
    """A subscription that calls `changed` when the tools change, in MCP from 2026-07-28 on.

    Without it, such a server says nothing; earlier ones tell all their clients, unasked.
    """

    def __init__(self, client: Client, changed: Callable[[], None]) -> None:
        self._settled = asyncio.Event()
        self.is_open = False
        self._task = asyncio.create_task(self._listen(client, changed))

    async def settle(self) -> None:
        """Wait until the server has agreed, or seems not to: it need not offer this."""
        with suppress(TimeoutError):
            async with asyncio.timeout(SUBSCRIBE_S):
                await self._settled.wait()

    async def aclose(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _listen(self, client: Client, changed: Callable[[], None]) -> None:
        try:
            with suppress(MCPError, SubscriptionLost, TimeoutError):
                async with client.listen(tools_list_changed=True) as events:
                    self.is_open = events.honored.tools_list_changed is True
                    self._settled.set()
                    async for _ in events:
                        changed()
        finally:
            self.is_open = False
            self._settled.set()


@asynccontextmanager
async def _subscription(
    client: Client, changed: Callable[[], None] | None
) -> AsyncGenerator[_ChangeSubscription | None]:
    if changed is None or client.protocol_version not in MODERN_PROTOCOL_VERSIONS:
        yield None
        return
    subscription = _ChangeSubscription(client, changed)
    try:
        yield subscription
    finally:
        await subscription.aclose()


def _to_tool(tool: mcp_types.Tool) -> Json:
    fields = _to_json(tool)
    return {
        "name": tool.name,
        "description": tool.description,
        "input_schema": fields.get("inputSchema") or {},
        "annotations": fields.get("annotations"),
    }


def _to_json(model: Any) -> Json:
    fields: Json = model.model_dump(by_alias=True, mode="json", exclude_none=True)
    return fields


def _text_of(result: mcp_types.CallToolResult) -> str:
    text = "\n".join(map(_block_text_of, result.content))
    if not text.strip() and result.structured_content is not None:
        return msgspec.json.encode(result.structured_content).decode()
    return text


def _block_text_of(block: mcp_types.ContentBlock) -> str:
    """Return the text of a block; of what has none, what models should know is missing."""
    match block:
        case mcp_types.TextContent():
            return block.text
        case mcp_types.ResourceLink():
            known = [block.title or block.name, str(block.uri), block.description]
            return f"[resource_link: {', '.join(filter(None, known))}]"
        case mcp_types.EmbeddedResource(resource=mcp_types.TextResourceContents(text=text)):
            return text
        case mcp_types.EmbeddedResource():
            return f"[resource omitted: {block.resource.uri}]"
    return f"[{block.type} omitted]"


@asynccontextmanager
async def connect(
    url: httpx.URL,
    headers: Mapping[str, str],
    pools: GuardedPools,
    *,
    max_bytes: int,
    tells_cause: bool = False,
    changed: Callable[[], None] | None = None,
) -> AsyncGenerator[McpClient]:
    """Connect to the server and yield a client. Raises: CallFailed.

    `tells_cause`: whether the caller reads why a connection failed, as the log does. A client that
    names the server could look around in the network behind this one.
    """
    options = client_options(changed)
    async with pools.pool(url) as pool:
        transport = _Transport(pool, url, pools, max_bytes=max_bytes, tells_cause=tells_cause)
        try:
            async with (
                _connect_streamable(url, headers, transport, options) as client,
                _subscription(client, changed) as changes,
            ):
                transport.is_connected = True
                yield McpClient(
                    client,
                    transport.to_failure,
                    transport.has_lost_session,
                    changes=changes,
                    stop_drawing=transport.stop_drawing,
                )
                return
        except Exception as error:
            if transport.is_connected or transport.status not in NOT_STREAMABLE:
                raise transport.to_failure(error) from None
        streamable_failure = transport.to_failure(None)
        transport.refused.clear()
        transport.is_sse = True
        try:
            async with _connect_sse(url, headers, transport, options) as client:
                transport.is_connected = True
                yield McpClient(
                    client,
                    transport.to_failure,
                    transport.has_lost_session,
                    transport.refused,
                    stop_drawing=transport.stop_drawing,
                )
        except Exception as error:
            if transport.is_connected:
                raise transport.to_failure(error) from None
            raise streamable_failure from None


@asynccontextmanager
async def _connect_streamable(
    url: httpx.URL, headers: Mapping[str, str], transport: _Transport, options: Mapping[str, Any]
) -> AsyncGenerator[Client]:
    async with (
        _http_client(transport, headers) as http,
        Client(lenient(streamable_http_client(str(url), http_client=http)), **options) as client,
    ):
        yield client


@asynccontextmanager
async def _connect_sse(
    url: httpx.URL, headers: Mapping[str, str], transport: _Transport, options: Mapping[str, Any]
) -> AsyncGenerator[Client]:
    def make_http_client(
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,  # noqa: ARG001
        auth: httpx2.Auth | None = None,  # noqa: ARG001
    ) -> httpx2.AsyncClient:
        return _http_client(transport, headers or {})

    streams = sse_client(str(url), headers=dict(headers), httpx_client_factory=make_http_client)
    async with Client(lenient(streams), mode="legacy", **options) as client:
        yield client


def _http_client(transport: _Transport, headers: Mapping[str, str]) -> httpx2.AsyncClient:
    # The session has its own timeout.
    return httpx2.AsyncClient(
        transport=transport,
        headers={**headers, "user-agent": "antiphon", "accept-encoding": "identity"},
        timeout=None,
        trust_env=False,
        follow_redirects=False,
    )


class _Transport(httpx2.AsyncBaseTransport):
    """Sends requests only to the origin of one server, and limits answers to `max_bytes`.

    Every request carries the server's credentials, so none may go to another origin.
    """

    def __init__(
        self,
        pool: httpcore.AsyncConnectionPool,
        url: httpx.URL,
        pools: GuardedPools,
        *,
        max_bytes: int,
        tells_cause: bool,
    ) -> None:
        self._pool = pool
        self._tells_cause = tells_cause
        self._origin = (url.scheme, url.host, url.port)
        self._pools = pools
        self._max_bytes = max_bytes
        self.is_connected = False
        self.is_sse = False
        self.status: int | None = None
        self._reason = ""
        self._cause = ""
        self._has_lost_session = False
        self._no_room: str | None = None
        # With SSE, answers come on another stream, and the SDK stops sending after a refusal.
        self.refused = asyncio.Event()
        self._is_too_large = False
        self._may_draw = True

    def stop_drawing(self) -> None:
        self._may_draw = False

    def to_failure(self, error: BaseException | None) -> CallFailed:
        """Return the failure that clients see for an error."""
        if self._is_too_large:
            return too_large_error(self._max_bytes)
        if self._no_room is not None:
            return protocol_error(TOO_LARGE, self._no_room)
        if self.status is not None:
            why = self._reason or _hint(self.status)
            message = f"The MCP server answered with HTTP status {self.status}{why and ': '}{why}"
            message = message if message.endswith(".") else f"{message}."
            shown = {"type": "http_error", "code": self.status, "message": message}
            if self._has_lost_session:
                return SessionLost(shown)
            return Unauthorized(shown) if self.status == 401 else CallFailed(shown)
        if isinstance(error, MCPError):
            return protocol_error(error.code, error.message[:MAX_MESSAGE_LENGTH])
        return protocol_error(LOST, f"{_LOST}{self._cause and ': '}{self._cause}.")

    def has_lost_session(self) -> bool:
        return self._has_lost_session

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        target = self._check_target(str(request.url))
        guarded_request = httpcore.Request(
            request.method,
            httpcore.URL(
                scheme=target.raw_scheme,
                host=target.raw_host,
                port=target.port,
                target=target.raw_path,
            ),
            headers=request.headers.raw,
            content=request.stream,
        )
        try:
            answer = await self._pool.handle_async_request(guarded_request)
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as error:
            self._mark_refused(request)
            cause = cause_of(error) or "it could not be reached"
            logger.warning("the MCP server at %s: %s", _origin_of(target), cause)
            self._cause = cause if self._tells_cause else ""
            raise httpx2.ConnectError(_LOST) from error
        # Servers may refuse to end a session or to open its notification stream; no call fails.
        if request.method == "POST" and answer.status >= 400:
            self.status = answer.status
            return await self._read_refusal(request, answer)
        if request.method == "POST":
            self.status = None
        if answer.status >= 300:
            self._mark_refused(request)
        if any(
            name.lower() == b"content-encoding" and value.strip().lower() != b"identity"
            for name, value in answer.headers
        ):
            self._mark_refused(request)
            await answer.aclose()
            raise httpx2.DecodingError("The MCP server's answer is compressed.")
        return httpx2.Response(
            answer.status, headers=answer.headers, stream=_LimitedStream(answer, self)
        )

    async def _read_refusal(
        self, request: httpx2.Request, answer: httpcore.Response
    ) -> httpx2.Response:
        """Read why the server refuses, and whether it no longer knows the session.

        It then has not run the call, and wants a new session (MCP, transports, session management;
        many servers answer 400 in place of 404).
        """
        body = b""
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(ERROR_BODY_S):
                    async for part in _LimitedStream(answer, self):
                        body = (body + part)[:MAX_ERROR_BYTES]
                        if len(body) == MAX_ERROR_BYTES:
                            break
            self._reason = _reason_in(body)
            has_session = self.is_sse or SESSION_HEADER in request.headers
            is_about_it = answer.status == 404 or (
                answer.status == 400 and b"session" in body.lower()
            )
            self._has_lost_session |= self.is_connected and has_session and is_about_it
        finally:
            self._mark_refused(request)  # whoever waits for it asks why
            await answer.aclose()
        return httpx2.Response(answer.status, headers=_plain(answer.headers), content=body)

    def _mark_refused(self, request: httpx2.Request) -> None:
        if request.method == "POST":
            self.refused.set()

    def _check_target(self, text: str) -> httpx.URL:
        try:
            url = self._pools.policy.check_url(text)
        except FetchRefused as error:
            raise httpx2.UnsupportedProtocol(str(error)) from None
        if (url.scheme, url.host, url.port) != self._origin:
            raise httpx2.UnsupportedProtocol("An MCP server must not use another origin.")
        return url

    def check_size(self, size: int) -> None:
        if size > self._max_bytes:
            self._is_too_large = True
            raise httpx2.ReadError("The MCP server's answer is too large.")

    async def draw(self, size: int | None) -> int:
        """Wait for room for an answer of this size, or of any, and for its text.

        Return how much of it there is room for. All of it at once: answers that have arrived
        halfway would wait for each other.
        """
        size = self._max_bytes if size is None else size
        if size <= FREE_BYTES:
            return FREE_BYTES
        if not self._may_draw:
            raise httpx2.ReadError("The MCP server says too much to nobody.")
        try:
            await draw_bytes(2 * min(size, self._max_bytes))
        except RequestError as error:
            self._no_room = error.message
            raise httpx2.ReadError("There is no room for the MCP server's answer.") from None
        return size


_DECODING = LoopPortions()


async def _start() -> None:
    """Let the caller go on."""


class _LimitedStream(httpx2.AsyncByteStream):
    def __init__(self, answer: httpcore.Response, transport: _Transport) -> None:
        self._answer = answer
        self._transport = transport
        headers = {name.lower(): value for name, value in answer.headers}
        length = headers.get(b"content-length", b"")
        self._announced_bytes = int(length) if length.isdigit() else 0

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size, drawn = 0, await self._transport.draw(self._announced_bytes)
        try:
            async for chunk in self._answer.aiter_stream():
                size += len(chunk)
                self._transport.check_size(size)
                if size > drawn:
                    drawn = await self._transport.draw(None)
                yield chunk
            if size > FREE_BYTES:
                # The SDK decodes the answer next, at once: a megabyte takes five milliseconds.
                await _DECODING.run(current_tenant(), _start)
        except (httpcore.NetworkError, httpcore.ProtocolError) as error:
            raise httpx2.ReadError(_LOST) from error

    async def aclose(self) -> None:
        await self._answer.aclose()


def _origin_of(url: httpx.URL) -> str:
    return f"{url.scheme}://{url.netloc.decode()}"


def _plain(headers: Sequence[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Return the headers of an answer whose body has been read."""
    framing = (b"content-length", b"transfer-encoding", b"content-encoding")
    return [(name, value) for name, value in headers if name.lower() not in framing]


def _hint(status: int) -> str:
    return "it does not accept the tool's 'authorization'" if status in (401, 403) else ""


def _reason_in(body: bytes) -> str:
    """Return the message of a JSON-RPC error, "" if there is none."""
    with suppress(ValueError, RecursionError):
        error = msgspec.json.decode(body, type=_Refusal).error
        return error.message[:MAX_MESSAGE_LENGTH]
    return ""


class _RefusalError(msgspec.Struct):
    message: str


class _Refusal(msgspec.Struct):
    error: _RefusalError
