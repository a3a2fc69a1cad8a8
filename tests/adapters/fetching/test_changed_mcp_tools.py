"""Configured MCP servers that say, over each transport, when their tools change."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, aclosing, asynccontextmanager
from functools import partial
from typing import Any

import pytest
from mcp.server.lowlevel import NotificationOptions
from mcp.server.mcpserver import Context, MCPServer
from tests.adapters.test_mcp_servers import RunningServer, serving

from antiphon.adapters.fetching import GuardedPools
from antiphon.adapters.tool_servers.configured import ConfiguredServer, ConfiguredServers
from antiphon.adapters.tool_servers.mcp import UrlServer
from antiphon.adapters.url_policy import UrlPolicy
from antiphon.application.ports import ToolSession
from antiphon.domain.offers.mcp import McpServerPolicy
from antiphon.domain.tools import McpTool

pytestmark = pytest.mark.slow

LOOPBACK = UrlPolicy(hosts=["127.0.0.1:*"], private=[ipaddress.ip_network("127.0.0.1")])
FOREVER_S = 10**9
NAMED = McpTool(server_label="s")

Tell = Callable[[Context[Any, Any]], Awaitable[None]]


async def tell_subscribers(context: Context[Any, Any]) -> None:
    await context.notify_tools_changed()


async def tell_clients(context: Context[Any, Any]) -> None:
    await context.session.send_tool_list_changed()


class ChangingServer(MCPServer):
    """A server that says when its tools change, which it may promise to earlier clients."""

    def __init__(self, tell: Tell, *, promises: bool) -> None:
        super().__init__("test")
        options = partial(
            self._lowlevel_server.create_initialization_options,
            NotificationOptions(tools_changed=promises),
        )
        self._lowlevel_server.create_initialization_options = options  # type: ignore[method-assign]
        self._tell = tell
        self._clients: list[Context[Any, Any]] = []

        @self.tool()
        async def learn(context: Context[Any, Any]) -> str:
            await self.change(context)
            return "said"

        @self.tool()
        async def stay(context: Context[Any, Any]) -> str:
            self._clients.append(context)
            return "here"

    async def change(self, client: Context[Any, Any] | None = None) -> None:
        """Have one tool more, and say so to a client: by default, to the one that stays."""
        self.add_tool(lambda: "learned", name="learned")
        await self._tell(client or self._clients[0])


def without_subscriptions(app: Any) -> Any:
    """Return the app as a server of an earlier version, which knows no `server/discover`."""

    async def earlier(scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers") or ())
        if headers.get(b"mcp-protocol-version", b"") >= b"2026":
            await send({"type": "http.response.start", "status": 400, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await app(scope, receive, send)

    return earlier


APPS: dict[str, tuple[Callable[[MCPServer], Any], str, Tell]] = {
    "2026": (lambda server: server.streamable_http_app(), "/mcp", tell_subscribers),
    "2025": (
        lambda server: without_subscriptions(server.streamable_http_app()),
        "/mcp",
        tell_clients,
    ),
    "sse": (lambda server: server.sse_app(), "/sse", tell_clients),
}


class Remote:
    """Configured servers, of which one is `server`."""

    def __init__(
        self, server: ChangingServer, running: RunningServer, servers: ConfiguredServers
    ) -> None:
        self.server = server
        self._running = running
        self._servers = servers
        self.aclose = servers.aclose

    def session(self) -> aclosing[ToolSession]:
        return aclosing(self._servers.session(NAMED))

    async def list(self) -> set[str]:
        async with self.session() as session:
            return {tool["name"] for tool in await session.tools()}

    async def until_connections_are(self, count: int) -> None:
        async with asyncio.timeout(20):
            while self._running.connections > count:  # noqa: ASYNC110 - uvicorn sets no event
                await asyncio.sleep(0.01)
        assert self._running.connections == count

    async def wait_for(self, name: str) -> None:
        async with asyncio.timeout(20):
            while name not in await self.list():  # noqa: ASYNC110 - a notice sets no event here
                await asyncio.sleep(0.01)


@asynccontextmanager
async def remote_with(kind: str, *, promises: bool = True) -> AsyncIterator[Remote]:
    make_app, path, tell = APPS[kind]
    server = ChangingServer(tell, promises=promises)
    async with serving(make_app(server)) as running:
        url = UrlServer(
            "s",
            url=f"http://127.0.0.1:{running.port}{path}",
            headers={},
            pools=GuardedPools(LOOPBACK),
            timeout_s=10,
            max_bytes=100_000,
        )
        configured = ConfiguredServer(terms=McpServerPolicy(label="s"), server=url)
        servers = ConfiguredServers([configured], None, keep_lists_s=FOREVER_S)
        try:
            yield Remote(server, running, servers)
        finally:
            await servers.aclose()


@pytest.fixture(params=APPS)
async def remote(request: pytest.FixtureRequest) -> AsyncIterator[Remote]:
    async with remote_with(request.param) as remote:
        yield remote


async def test_a_change_during_a_response_is_heard(remote: Remote) -> None:
    async with remote.session() as session:
        await session.tools()
        assert (await session.call("learn", {})).output == "said"
        await remote.wait_for("learned")


async def test_a_change_between_responses_is_heard(remote: Remote) -> None:
    async with remote.session() as session:
        await session.tools()
        assert (await session.call("stay", {})).output == "here"
    assert await remote.list() == {"learn", "stay"}
    await remote.server.change()
    await remote.wait_for("learned")


async def test_one_connection_listens_however_many_responses_there_were(remote: Remote) -> None:
    sessions = [remote.session() for _ in range(3)]
    async with AsyncExitStack() as responses:
        for each in sessions:
            session = await responses.enter_async_context(each)
            await session.tools()
            assert (await session.call("stay", {})).output == "here"
    await remote.until_connections_are(1)
    await remote.aclose()
    await remote.until_connections_are(0)


async def test_a_server_that_promises_nothing_keeps_no_connection() -> None:
    async with remote_with("2025", promises=False) as remote:
        assert await remote.list() == {"learn", "stay"}
        await remote.until_connections_are(0)
