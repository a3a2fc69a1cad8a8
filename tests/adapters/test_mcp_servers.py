"""Sessions with real MCP servers of the SDK, and with faulty ones, on real sockets."""

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
from mcp.server.mcpserver import Context, MCPServer
from tests.faults.support import faulty_mcp

from antiphon.adapters.fetching import GuardedPools
from antiphon.adapters.tool_servers.mcp import McpServers
from antiphon.adapters.url_policy import UrlPolicy
from antiphon.application.ports import ToolResult, ToolSession
from antiphon.domain.errors import ToolServerError
from antiphon.domain.tools import McpTool

pytestmark = pytest.mark.slow

LOOPBACK_ONLY = UrlPolicy(hosts=["127.0.0.1:*"], private=[ipaddress.ip_network("127.0.0.1")])
MAX_BYTES = 20_000


def add_tools(server: MCPServer, waits: asyncio.Event) -> None:
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
        return "x" * 10 * MAX_BYTES

    @server.tool()
    async def wait() -> str:
        waits.set()
        await asyncio.Event().wait()
        return "late"

    @server.tool()
    async def long(context: Context[Any, Any]) -> str:
        for step in range(8):
            await context.report_progress(step)
            await asyncio.sleep(0.25)
        return "at last"


class Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_listening.set()


class RunningServer:
    """A running server; `waits` is set when its tool `wait` is called."""

    def __init__(self, server: uvicorn.Server, port: int, waits: asyncio.Event) -> None:
        self._server = server
        self.port = port
        self.waits = waits

    @property
    def connections(self) -> int:
        return len(self._server.server_state.connections)

    def kill(self) -> None:
        for connection in list(self._server.server_state.connections):
            connection.transport.abort()
        for server in self._server.servers:
            server.close()


@asynccontextmanager
async def serving(app: Any, waits: asyncio.Event | None = None) -> AsyncIterator[RunningServer]:
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=0)
    server = Server(config)
    task = asyncio.create_task(server.serve(sockets=[listener]))
    await server.is_listening.wait()
    try:
        yield RunningServer(server, listener.getsockname()[1], waits or asyncio.Event())
    finally:
        server.should_exit = True
        await task


@asynccontextmanager
async def session_with(
    port: int,
    path: str = "/mcp",
    *,
    timeout_s: float = 5.0,
    policy: UrlPolicy | None = LOOPBACK_ONLY,
) -> AsyncIterator[ToolSession]:
    pools = GuardedPools(policy) if policy else None
    servers = McpServers(pools, timeout_s=timeout_s, max_bytes=MAX_BYTES)
    url = f"http://127.0.0.1:{port}{path}"
    session = servers.session(McpTool(server_label="s", server_url=url, authorization="token"))
    try:
        yield session
    finally:
        await session.aclose()


@pytest.fixture(params=["streamable", "sse"])
async def endpoint(request: pytest.FixtureRequest) -> AsyncIterator[tuple[RunningServer, str]]:
    """A real server and the path of its transport."""
    server, waits = MCPServer("test", instructions="Numbers are in meters."), asyncio.Event()
    add_tools(server, waits)
    is_sse = request.param == "sse"
    app = server.sse_app() if is_sse else server.streamable_http_app()
    async with serving(app, waits) as running:
        yield running, "/sse" if is_sse else "/mcp"


async def test_tools_are_listed_and_called(endpoint: tuple[RunningServer, str]) -> None:
    running, path = endpoint
    async with session_with(running.port, path) as session:
        tools = await session.tools()
        assert [tool["name"] for tool in tools] == ["add", "fail", "large", "wait", "long"]
        assert tools[0]["description"] == "Adds."
        assert set(tools[0]["input_schema"]["properties"]) == {"a", "b"}
        assert await session.instructions() == "Numbers are in meters."
        result = await session.call("add", {"a": 2, "b": 40})
        assert (result.output, result.error) == ("42", None)


async def test_an_exception_of_a_tool_is_an_error(endpoint: tuple[RunningServer, str]) -> None:
    running, path = endpoint
    async with session_with(running.port, path) as session:
        failure = await session.call("fail", {})
        unknown_tool = await session.call("nobody", {})
    assert failure.output is None
    assert failure.error is not None
    assert failure.error["type"] == "mcp_tool_execution_error"
    assert unknown_tool.error is not None


async def test_calls_run_concurrently_and_time_out(endpoint: tuple[RunningServer, str]) -> None:
    running, path = endpoint
    started_at = time.monotonic()
    async with session_with(running.port, path, timeout_s=3) as session:
        slow, quick = await asyncio.gather(
            session.call("wait", {}), session.call("add", {"a": 1, "b": 1})
        )
        again = await session.call("add", {"a": 2, "b": 2})
    assert slow.error is not None
    assert "3 seconds" in slow.error["message"]
    assert (quick.output, again.output) == ("2", "4")
    assert time.monotonic() - started_at < 30


async def test_progress_keeps_a_call_alive(endpoint: tuple[RunningServer, str]) -> None:
    running, path = endpoint
    async with session_with(running.port, path, timeout_s=1.5) as session:
        assert await session.call("long", {}) == ToolResult(output="at last")


async def test_an_answer_that_is_too_large_is_an_error(endpoint: tuple[RunningServer, str]) -> None:
    running, path = endpoint
    async with session_with(running.port, path) as session:
        result = await session.call("large", {})
    assert result.output is None
    assert result.error is not None
    assert str(MAX_BYTES) in result.error["message"]


async def test_a_call_fails_when_its_server_is_lost(endpoint: tuple[RunningServer, str]) -> None:
    running, path = endpoint
    async with session_with(running.port, path) as session:
        await session.tools()
        waiting = asyncio.create_task(session.call("wait", {}))
        await running.waits.wait()
        running.kill()
        result = await waiting
        assert result.error is not None
        after = await session.call("add", {"a": 1, "b": 1})
        assert after.error is not None


async def test_a_call_can_be_canceled(endpoint: tuple[RunningServer, str]) -> None:
    running, path = endpoint
    started_at = time.monotonic()
    async with session_with(running.port, path) as session:
        await session.tools()
        waiting = asyncio.create_task(session.call("wait", {}))
        await running.waits.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
    assert time.monotonic() - started_at < 30


@pytest.mark.parametrize("path", ["/json", "/stream", "/sse"])
async def test_a_refused_call_fails_immediately_with_the_status(path: str) -> None:
    with faulty_mcp.serving("http://127.0.0.1:1") as faulty:
        # The timeout of the call is longer than that of the test.
        async with session_with(faulty.server_address[1], path, timeout_s=60) as session:
            refused = await session.call("unauthorized", {})
            after = await session.call("add", {})
    assert refused.error is not None
    assert (refused.error["type"], refused.error["code"]) == ("http_error", 401)
    assert after.output == "42"


# --- not an MCP server ----------------------------------------------------------------------------


def answer_with(status: int, body: bytes = b"", **headers: str) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return
        head = [(name.replace("_", "-").encode(), text.encode()) for name, text in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": head})
        await send({"type": "http.response.body", "body": body})

    return app


async def never_answer(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await asyncio.Event().wait()


@pytest.mark.parametrize(
    ("app", "message"),
    [
        (
            answer_with(401, www_authenticate='Bearer resource_metadata="http://127.0.0.1:1/"'),
            "401",
        ),
        (answer_with(500), "500"),
        (answer_with(404), "404"),
        (answer_with(200, b"{not json", content_type="application/json"), "'s'"),
        (answer_with(200, b"\xff\xfe", content_type="application/json"), "'s'"),
        (answer_with(200, 300 * b"[", content_type="application/json"), "'s'"),
        (answer_with(200, b"x" * 3 * MAX_BYTES, content_type="application/json"), str(MAX_BYTES)),
        (answer_with(200, b"<html>", content_type="text/html"), "'s'"),
        (answer_with(200, b"", content_type="text/event-stream"), "'s'"),
        (answer_with(200, b"x", content_type="application/json", content_encoding="gzip"), "'s'"),
        (answer_with(307, location="http://127.0.0.1:1/mcp"), "'s'"),
        (never_answer, "0.7 seconds"),
    ],
)
async def test_a_server_that_does_not_speak_mcp_is_a_failed_list(app: Any, message: str) -> None:
    async with serving(app) as running, session_with(running.port, timeout_s=0.7) as session:
        with pytest.raises(ToolServerError, match=message) as failure:
            await session.tools()
        assert "token" not in str(failure.value)


async def test_a_closed_port_is_a_failed_list() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    async with session_with(port) as session:
        with pytest.raises(ToolServerError, match="lost or could not be made"):
            await session.tools()
        result = await session.call("add", {})
    assert result.error is not None


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        (None, "--fetch-urls"),
        (UrlPolicy(), "may not fetch"),
        (UrlPolicy(hosts=["127.0.0.1:*"]), "lost or could not be made"),
    ],
)
async def test_a_server_that_the_policy_does_not_allow_gets_no_request(
    policy: UrlPolicy | None, message: str
) -> None:
    paths: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            paths.append(scope["path"])
            await answer_with(404)(scope, receive, send)

    async with serving(app) as running, session_with(running.port, policy=policy) as session:
        with pytest.raises(ToolServerError, match=message):
            await session.tools()
    assert paths == []


async def test_a_session_sends_nothing_before_its_first_request() -> None:
    scope_types: list[str] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope_types.append(scope["type"])

    async with serving(app) as running, session_with(running.port):
        pass
    assert "http" not in scope_types
