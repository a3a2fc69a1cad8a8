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
from mcp.shared.exceptions import MCPError

from antiphon.adapters.fetching import GuardedPools
from antiphon.adapters.tool_servers.mcp import CallFailed, protocol_error, too_large_error
from antiphon.application.ports import Json, ToolResult
from antiphon.domain.errors import FetchRefused
from antiphon.domain.offers.mcp import LOST

T = TypeVar("T")

# These libraries log URLs, which may contain keys, and answers. Items report the errors.
for _name in ("httpx2", "httpcore2", "mcp", "client"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)

NOT_STREAMABLE = (400, 404, 405)
"""The answers of servers that support only SSE to a POST to their URL."""

MAX_PAGES = 32
MAX_MESSAGE_LENGTH = 2000
_LOST = "The connection to the MCP server was lost or could not be made."


class McpClient:
    """A connected client with the methods of `ports.ToolSession`.

    `refused` is set when the server will not answer although the SDK still waits for it.
    """

    def __init__(
        self,
        client: Client,
        to_failure: Callable[[BaseException | None], CallFailed],
        is_lost: Callable[[], bool] = lambda: False,
        refused: asyncio.Event | None = None,
    ) -> None:
        self._client = client
        self._to_failure = to_failure
        self._is_lost = is_lost
        self._refused = refused or asyncio.Event()

    def is_lost(self) -> bool:
        return self._is_lost() or self._refused.is_set()

    async def ping(self) -> None:
        """Wait until the server answers, with a result or an error."""
        with suppress(MCPError):
            await self._client.session.send_ping()

    async def tools(self) -> tuple[Json, ...]:
        tools: list[Json] = []
        cursor = None
        for _ in range(MAX_PAGES):
            try:
                page = await self._answer(self._client.list_tools(cursor=cursor))
            except Exception as error:
                raise self._to_failure(error) from None
            tools += map(_to_tool, page.tools)
            cursor = page.next_cursor
            if not cursor:
                break
        return tuple(tools)

    async def call(self, name: str, arguments: Json) -> ToolResult:
        try:
            result = await self._answer(self._call_tool(name, arguments))
        except Exception as error:
            raise self._to_failure(error) from None
        if result.is_error:
            content = [_to_json(block) for block in result.content]
            return ToolResult(error={"type": "mcp_tool_execution_error", "content": content})
        return ToolResult(output=_text_of(result.content, result.structured_content))

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

    async def _call_tool(self, name: str, arguments: Json) -> mcp_types.CallToolResult:
        # Not `Client.call_tool`, which lists the tools again to check the output against its
        # schema, and then reports a call that has run as failed.
        params = mcp_types.CallToolRequestParams(name=name, arguments=arguments)
        request = mcp_types.CallToolRequest(params=params)
        try:
            return await self._client.session.send_request(request, mcp_types.CallToolResult)
        except MCPError as error:
            if error.code != mcp_types.HEADER_MISMATCH:
                raise
        # The server rejected the call before running it: the right headers are in the tool list.
        await self._client.list_tools()
        return await self._client.session.send_request(request, mcp_types.CallToolResult)


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


def _text_of(content: Sequence[Any], structured: Any) -> str:
    if not content and structured is not None:
        return msgspec.json.encode(structured).decode()
    return "\n".join(map(_block_text_of, content))


def _block_text_of(block: Any) -> str:
    if isinstance(block, mcp_types.TextContent):
        return block.text
    text = getattr(getattr(block, "resource", None), "text", None)
    # Models get only text, but they should know what is missing.
    return text if isinstance(text, str) else f"[{block.type} omitted]"


@asynccontextmanager
async def connect(
    url: httpx.URL, headers: Mapping[str, str], pools: GuardedPools, *, max_bytes: int
) -> AsyncGenerator[McpClient]:
    """Connect to the server and yield a client. Raises: CallFailed."""
    async with pools.pool(url) as pool:
        transport = _Transport(pool, url, pools, max_bytes=max_bytes)
        try:
            async with _connect_streamable(url, headers, transport) as client:
                transport.is_connected = True
                yield McpClient(client, transport.to_failure)
                return
        except Exception as error:
            if transport.is_connected or transport.status not in NOT_STREAMABLE:
                raise transport.to_failure(error) from None
        streamable_failure = transport.to_failure(None)
        transport.refused.clear()
        try:
            async with _connect_sse(url, headers, transport) as client:
                transport.is_connected = True
                yield McpClient(client, transport.to_failure, refused=transport.refused)
        except Exception as error:
            if transport.is_connected:
                raise transport.to_failure(error) from None
            raise streamable_failure from None


@asynccontextmanager
async def _connect_streamable(
    url: httpx.URL, headers: Mapping[str, str], transport: _Transport
) -> AsyncGenerator[Client]:
    async with (
        _http_client(transport, headers) as http,
        Client(streamable_http_client(str(url), http_client=http)) as client,
    ):
        yield client


@asynccontextmanager
async def _connect_sse(
    url: httpx.URL, headers: Mapping[str, str], transport: _Transport
) -> AsyncGenerator[Client]:
    def make_http_client(
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,  # noqa: ARG001
        auth: httpx2.Auth | None = None,  # noqa: ARG001
    ) -> httpx2.AsyncClient:
        return _http_client(transport, headers or {})

    streams = sse_client(str(url), headers=dict(headers), httpx_client_factory=make_http_client)
    async with Client(streams, mode="legacy") as client:
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
    ) -> None:
        self._pool = pool
        self._origin = (url.scheme, url.host, url.port)
        self._pools = pools
        self._max_bytes = max_bytes
        self.is_connected = False
        self.status: int | None = None
        # With SSE, answers come on another stream, and the SDK stops sending after a refusal.
        self.refused = asyncio.Event()
        self._is_too_large = False

    def to_failure(self, error: BaseException | None) -> CallFailed:
        """Return the failure that clients see for an error."""
        if self._is_too_large:
            return too_large_error(self._max_bytes)
        if self.status is not None:
            message = f"The MCP server answered with HTTP status {self.status}{_hint(self.status)}."
            return CallFailed({"type": "http_error", "code": self.status, "message": message})
        if isinstance(error, MCPError):
            return protocol_error(error.code, error.message[:MAX_MESSAGE_LENGTH])
        return protocol_error(LOST, _LOST)

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
            raise httpx2.ConnectError(_LOST) from error
        # Servers may refuse to end a session or to open its notification stream; no call fails.
        if request.method == "POST" and answer.status >= 400:
            self.status = answer.status
        elif request.method == "POST":
            self.status = None
        if answer.status >= 300:
            self._mark_refused(request)
        if any(name.lower() == b"content-encoding" for name, _ in answer.headers):
            self._mark_refused(request)
            await answer.aclose()
            raise httpx2.DecodingError("The MCP server's answer is compressed.")
        return httpx2.Response(
            answer.status, headers=answer.headers, stream=_LimitedStream(answer, self)
        )

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


class _LimitedStream(httpx2.AsyncByteStream):
    def __init__(self, answer: httpcore.Response, transport: _Transport) -> None:
        self._answer = answer
        self._transport = transport

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        try:
            async for chunk in self._answer.aiter_stream():
                size += len(chunk)
                self._transport.check_size(size)
                yield chunk
        except (httpcore.NetworkError, httpcore.ProtocolError) as error:
            raise httpx2.ReadError(_LOST) from error

    async def aclose(self) -> None:
        await self._answer.aclose()


def _hint(status: int) -> str:
    return ": it does not accept the tool's 'authorization'" if status in (401, 403) else ""
