"""Sessions with real MCP servers of the SDK, on real sockets: what holds whatever a server does."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from mcp.server.mcpserver import MCPServer
from tests.faults import faulty_mcp

from antiphon.adapters.fetching import GuardedPools, UrlPolicy
from antiphon.adapters.tool_servers.mcp import McpServers
from antiphon.application.ports import ToolSession
from antiphon.domain.errors import ToolServerError
from antiphon.domain.tools import McpTool

HERE = UrlPolicy(hosts=["127.0.0.1:*"], private=[ipaddress.ip_network("127.0.0.1")])
LARGEST = 20_000


def tools_of(server: MCPServer, waits: asyncio.Event) -> None:
    @server.tool()
    def add(a: int, b: int) -> int:
        """Adds."""
        return a + b

    @server.tool()
    def fail() -> str:
        message = "no such page"
        raise ValueError(message)

    @server.tool()
    def large() -> str:
        return "x" * 10 * LARGEST

    @server.tool()
    async def wait() -> str:
        waits.set()
        await asyncio.Event().wait()
        return "late"


class Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listens = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listens.set()


class Running:
    """`waits` is set when its tool `wait` was called."""

    def __init__(self, server: uvicorn.Server, port: int, waits: asyncio.Event) -> None:
        self._server = server
        self.port = port
        self.waits = waits

    def kill(self) -> None:
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()
        for each in self._server.servers:
            each.close()


@asynccontextmanager
async def served(app: Any, waits: asyncio.Event | None = None) -> AsyncIterator[Running]:
    listening = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=0)
    server = Server(config)
    task = asyncio.create_task(server.serve(sockets=[listening]))
    await server.listens.wait()
    try:
        yield Running(server, listening.getsockname()[1], waits or asyncio.Event())
    finally:
        server.should_exit = True
        await task


@asynccontextmanager
async def session_with(
    port: int, path: str = "/mcp", *, timeout_s: float = 5.0, guard: UrlPolicy | None = HERE
) -> AsyncIterator[ToolSession]:
    checked = GuardedPools(guard) if guard else None
    servers = McpServers(checked, timeout_s=timeout_s, max_bytes=LARGEST)
    url = f"http://127.0.0.1:{port}{path}"
    session = servers.session(McpTool(server_label="s", server_url=url, authorization="token"))
    try:
        yield session
    finally:
        await session.aclose()


@pytest.fixture(params=["streamable", "sse"])
async def link(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Running, str]]:
    """A real server and the path of its transport."""
    server, waits = MCPServer("test"), asyncio.Event()
    tools_of(server, waits)
    is_sse = request.param == "sse"
    app = server.sse_app() if is_sse else server.streamable_http_app()
    async with served(app, waits) as running:
        yield running, "/sse" if is_sse else "/mcp"


async def test_tools_are_listed_and_called(link: tuple[Running, str]) -> None:
    running, path = link
    async with session_with(running.port, path) as session:
        tools = await session.tools()
        assert [tool["name"] for tool in tools] == ["add", "fail", "large", "wait"]
        assert tools[0]["description"] == "Adds."
        assert set(tools[0]["input_schema"]["properties"]) == {"a", "b"}
        result = await session.call("add", {"a": 2, "b": 40})
        assert (result.output, result.error) == ("42", None)


async def test_what_a_tool_cannot_do_is_its_error(link: tuple[Running, str]) -> None:
    running, path = link
    async with session_with(running.port, path) as session:
        failed = await session.call("fail", {})
        unknown = await session.call("nobody", {})
    assert failed.output is None
    assert failed.error is not None
    assert failed.error["type"] == "mcp_tool_execution_error"
    assert unknown.error is not None


async def test_calls_run_at_the_same_time_and_end_in_time(link: tuple[Running, str]) -> None:
    running, path = link
    begun = time.monotonic()
    async with session_with(running.port, path, timeout_s=3) as session:
        slow, quick = await asyncio.gather(
            session.call("wait", {}), session.call("add", {"a": 1, "b": 1})
        )
        again = await session.call("add", {"a": 2, "b": 2})
    assert slow.error is not None
    assert "3 seconds" in slow.error["message"]
    assert (quick.output, again.output) == ("2", "4")
    assert time.monotonic() - begun < 30


async def test_no_more_is_read_than_allowed(link: tuple[Running, str]) -> None:
    running, path = link
    async with session_with(running.port, path) as session:
        result = await session.call("large", {})
    assert result.output is None
    assert result.error is not None
    assert str(LARGEST) in result.error["message"]


async def test_a_server_that_is_lost_ends_the_call(link: tuple[Running, str]) -> None:
    running, path = link
    async with session_with(running.port, path) as session:
        await session.tools()
        waiting = asyncio.create_task(session.call("wait", {}))
        await running.waits.wait()
        running.kill()
        result = await waiting
        assert result.error is not None
        after = await session.call("add", {"a": 1, "b": 1})
        assert after.error is not None


async def test_leaving_ends_what_still_runs(link: tuple[Running, str]) -> None:
    running, path = link
    begun = time.monotonic()
    async with session_with(running.port, path) as session:
        await session.tools()
        waiting = asyncio.create_task(session.call("wait", {}))
        await running.waits.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert time.monotonic() - begun < 30


@pytest.mark.parametrize("path", ["/json", "/stream", "/sse"])
async def test_a_call_that_is_refused_fails_at_once_and_says_how(path: str) -> None:
    with faulty_mcp.serving("http://127.0.0.1:1") as faulty:
        # No test waits as long as this call might.
        async with session_with(faulty.server_address[1], path, timeout_s=60) as session:
            refused = await session.call("unauthorized", {})
            after = await session.call("add", {})
    assert refused.error is not None
    assert (refused.error["type"], refused.error["code"]) == ("http_error", 401)
    assert after.output == "42"


# --- servers that are none ------------------------------------------------------------------------


def answering(status: int, body: bytes = b"", **headers: str) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        head = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": body})

    return app


async def silent(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("app", "said"),
    [
        (answering(401, www_authenticate='Bearer resource_metadata="http://127.0.0.1:1/"'), "401"),
        (answering(500), "500"),
        (answering(404), "404"),
        (answering(200, b"{not json", content_type="application/json"), "'s'"),
        (answering(200, b"\xff\xfe", content_type="application/json"), "'s'"),
        (answering(200, 300 * b"[", content_type="application/json"), "'s'"),
        (answering(200, b"x" * 3 * LARGEST, content_type="application/json"), str(LARGEST)),
        (answering(200, b"<html>", content_type="text/html"), "'s'"),
        (answering(200, b"", content_type="text/event-stream"), "'s'"),
        (answering(200, b"x", content_type="application/json", content_encoding="gzip"), "'s'"),
        (answering(307, location="http://127.0.0.1:1/mcp"), "'s'"),
        (silent, "0.7 seconds"),
    ],
)
async def test_what_is_no_server_is_a_failed_list(app: Any, said: str) -> None:
    async with served(app) as running, session_with(running.port, timeout_s=0.7) as session:
        with pytest.raises(ToolServerError, match=said) as failure:
            await session.tools()
        assert "token" not in str(failure.value)


async def test_nobody_listening_is_a_failed_list() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    async with session_with(port) as session:
        with pytest.raises(ToolServerError, match="lost, or was never made"):
            await session.tools()
        result = await session.call("add", {})
    assert result.error is not None


@pytest.mark.parametrize(
    ("guard", "said"),
    [
        (None, "--fetch-urls"),
        (UrlPolicy(), "may not fetch"),
        (UrlPolicy(hosts=["127.0.0.1:*"]), "lost, or was never made"),
    ],
)
async def test_only_what_the_guard_allows_is_reached(guard: UrlPolicy | None, said: str) -> None:
    asked: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            asked.append(scope["path"])
            await answering(404)(scope, receive, send)

    async with served(app) as running, session_with(running.port, guard=guard) as session:
        with pytest.raises(ToolServerError, match=said):
            await session.tools()
    assert asked == []


async def test_nothing_is_sent_before_the_first_use() -> None:
    asked: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["type"])

    async with served(app) as running, session_with(running.port):
        pass
    assert "http" not in asked
