"""The MCP SDK on checked connections: streamable HTTP first, then the older SSE."""

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
from antiphon.domain.mcp import LOST

T = TypeVar("T")

# They log addresses, which may hold keys, and answers. What went wrong is told in items.
for _name in ("httpx2", "httpcore2", "mcp", "client"):
    logging.getLogger(_name).setLevel(logging.CRITICAL)

NOT_STREAMABLE = (400, 404, 405)
"""How servers that only know SSE answer a POST to their address."""

MOST_PAGES = 32
MAX_MESSAGE_LENGTH = 2000
_LOST = "The connection to the MCP server was lost, or was never made."


class McpClient:
    """A connected client, in the words of ports.ToolSession.

    `refused` is set when no answer will come any more, where the SDK would wait for one.
    """

    def __init__(
        self,
        client: Client,
        fault_of: Callable[[BaseException | None], CallFailed],
        is_lost: Callable[[], bool] = lambda: False,
        refused: asyncio.Event | None = None,
    ) -> None:
        self._client = client
        self._fault_of = fault_of
        self._is_lost = is_lost
        self._refused = refused or asyncio.Event()

    def is_lost(self) -> bool:
        return self._is_lost() or self._refused.is_set()

    async def is_there(self) -> None:
        """Return once the server has answered anything at all."""
        with suppress(MCPError):
            await self._client.session.send_ping()

    async def tools(self) -> tuple[Json, ...]:
        found: list[Json] = []
        cursor = None
        for _ in range(MOST_PAGES):
            try:
                page = await self._answer(self._client.list_tools(cursor=cursor))
            except Exception as error:
                raise self._fault_of(error) from None
            found += map(_listed, page.tools)
            cursor = page.next_cursor
            if not cursor:
                break
        return tuple(found)

    async def call(self, name: str, arguments: Json) -> ToolResult:
        try:
            result = await self._answer(self._called(name, arguments))
        except Exception as error:
            raise self._fault_of(error) from None
        if result.is_error:
            content = [_dumped(block) for block in result.content]
            return ToolResult(error={"type": "mcp_tool_execution_error", "content": content})
        return ToolResult(output=_text_of(result.content, result.structured_content))

    async def _answer(self, asking: Coroutine[Any, Any, T]) -> T:
        answer = asyncio.ensure_future(asking)
        refusal = asyncio.ensure_future(self._refused.wait())
        try:
            await asyncio.wait({answer, refusal}, return_when=asyncio.FIRST_COMPLETED)
            if not answer.done():
                raise self._fault_of(None)
            return answer.result()
        finally:
            for each in (answer, refusal):
                each.cancel()
            await asyncio.gather(answer, refusal, return_exceptions=True)

    async def _called(self, name: str, arguments: Json) -> mcp_types.CallToolResult:
        # Not `Client.call_tool`: it lists the tools again to check the output against its schema,
        # and reports a call as failed that was run.
        params = mcp_types.CallToolRequestParams(name=name, arguments=arguments)
        request = mcp_types.CallToolRequest(params=params)
        try:
            return await self._client.session.send_request(request, mcp_types.CallToolResult)
        except MCPError as error:
            if error.code != mcp_types.HEADER_MISMATCH:
                raise
        # It was refused unseen, for headers that only the list of tools tells of.
        await self._client.list_tools()
        return await self._client.session.send_request(request, mcp_types.CallToolResult)


def _listed(tool: mcp_types.Tool) -> Json:
    given = _dumped(tool)
    return {
        "name": tool.name,
        "description": tool.description,
        "input_schema": given.get("inputSchema") or {},
        "annotations": given.get("annotations"),
    }


def _dumped(model: Any) -> Json:
    dumped: Json = model.model_dump(by_alias=True, mode="json", exclude_none=True)
    return dumped


def _text_of(content: Sequence[Any], structured: Any) -> str:
    if not content and structured is not None:
        return msgspec.json.encode(structured).decode()
    return "\n".join(map(_text, content))


def _text(block: Any) -> str:
    if isinstance(block, mcp_types.TextContent):
        return block.text
    text = getattr(getattr(block, "resource", None), "text", None)
    # A model is shown text only; that there was more, it should know.
    return text if isinstance(text, str) else f"[{block.type} omitted]"


@asynccontextmanager
async def connected(
    url: httpx.URL, headers: Mapping[str, str], checked: GuardedPools, *, max_bytes: int
) -> AsyncGenerator[McpClient]:
    """Yield a client of the server. Raises: Unreached."""
    async with checked.pool(url) as pool:
        transport = _Transport(pool, url, checked, max_bytes=max_bytes)
        try:
            async with _streamable(url, headers, transport) as client:
                transport.answered = True
                yield McpClient(client, transport.fault_of)
                return
        except Exception as error:
            if transport.answered or transport.status not in NOT_STREAMABLE:
                raise transport.fault_of(error) from None
        first = transport.fault_of(None)
        transport.refused.clear()
        try:
            async with _sse(url, headers, transport) as client:
                transport.answered = True
                yield McpClient(client, transport.fault_of, refused=transport.refused)
        except Exception as error:
            raise (transport.fault_of(error) if transport.answered else first) from None


@asynccontextmanager
async def _streamable(
    url: httpx.URL, headers: Mapping[str, str], transport: _Transport
) -> AsyncGenerator[Client]:
    async with (
        _http(transport, headers) as http,
        Client(streamable_http_client(str(url), http_client=http)) as client,
    ):
        yield client


@asynccontextmanager
async def _sse(
    url: httpx.URL, headers: Mapping[str, str], transport: _Transport
) -> AsyncGenerator[Client]:
    def factory(
        headers: dict[str, str] | None = None,
        timeout: httpx2.Timeout | None = None,  # noqa: ARG001
        auth: httpx2.Auth | None = None,  # noqa: ARG001
    ) -> httpx2.AsyncClient:
        return _http(transport, headers or {})

    link = sse_client(str(url), headers=dict(headers), httpx_client_factory=factory)
    async with Client(link, mode="legacy") as client:
        yield client


def _http(transport: _Transport, headers: Mapping[str, str]) -> httpx2.AsyncClient:
    # Time is limited where the session is used; nothing of the environment is read.
    return httpx2.AsyncClient(
        transport=transport,
        headers={**headers, "user-agent": "antiphon", "accept-encoding": "identity"},
        timeout=None,
        trust_env=False,
        follow_redirects=False,
    )


class _Transport(httpx2.AsyncBaseTransport):
    """One server's exchanges: to its own origin only, none larger than `max_bytes`.

    The credentials of a server are in every request, so none may go anywhere else.
    """

    def __init__(
        self,
        pool: httpcore.AsyncConnectionPool,
        url: httpx.URL,
        checked: GuardedPools,
        *,
        max_bytes: int,
    ) -> None:
        self._pool = pool
        self._origin = (url.scheme, url.host, url.port)
        self._checked = checked
        self._max_bytes = max_bytes
        self.answered = False
        self.status: int | None = None
        # On SSE answers come elsewhere, and the SDK sends nothing more after one refusal.
        self.refused = asyncio.Event()
        self._too_large = False

    def fault_of(self, error: BaseException | None) -> CallFailed:
        """Return what went wrong as a client may see it."""
        if self._too_large:
            return too_large_error(self._max_bytes)
        if self.status is not None:
            message = f"The MCP server answered with HTTP status {self.status}."
            return CallFailed({"type": "http_error", "code": self.status, "message": message})
        if isinstance(error, MCPError):
            return protocol_error(error.code, error.message[:MAX_MESSAGE_LENGTH])
        return protocol_error(LOST, _LOST)

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        target = self._target(str(request.url))
        sent = httpcore.Request(
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
            answer = await self._pool.handle_async_request(sent)
        except (httpcore.NetworkError, httpcore.ProtocolError, httpcore.TimeoutException) as error:
            self._refuse(request)
            raise httpx2.ConnectError(_LOST) from error
        # A session's end and its channel for notices may be refused; that is no answer to a call.
        if request.method == "POST" and answer.status >= 400:
            self.status = answer.status
        elif request.method == "POST":
            self.status = None
        if answer.status >= 300:
            self._refuse(request)
        if any(name.lower() == b"content-encoding" for name, _ in answer.headers):
            self._refuse(request)
            await answer.aclose()
            raise httpx2.DecodingError("The MCP server's answer is compressed.")
        return httpx2.Response(answer.status, headers=answer.headers, stream=_Limited(answer, self))

    def _refuse(self, request: httpx2.Request) -> None:
        if request.method == "POST":
            self.refused.set()

    def _target(self, text: str) -> httpx.URL:
        try:
            url = self._checked.policy.check_url(text)
        except FetchRefused as error:
            raise httpx2.UnsupportedProtocol(str(error)) from None
        if (url.scheme, url.host, url.port) != self._origin:
            raise httpx2.UnsupportedProtocol("An MCP server must be asked where it was named.")
        return url

    def check_size(self, size: int) -> None:
        if size > self._max_bytes:
            self._too_large = True
            raise httpx2.ReadError("The MCP server's answer is too large.")


class _Limited(httpx2.AsyncByteStream):
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
