"""MCP servers that are not quite as the specification has them, on each transport."""

from __future__ import annotations

import ipaddress
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from tests.faults.support import faulty_mcp
from tests.faults.support.faulty_mcp import ODD_TOOLS, READABLE, FaultyServer

from antiphon.adapters.fetching import GuardedPools
from antiphon.adapters.tool_servers.mcp import McpServers, UrlServer
from antiphon.adapters.tool_servers.process import ProcessServer
from antiphon.adapters.url_policy import UrlPolicy
from antiphon.application.ports import ToolResult, ToolSession
from antiphon.domain.errors import ToolServerError
from antiphon.domain.tools import McpTool

REMOTE = ("/json", "/stream", "/sse")
LOOPBACK = UrlPolicy(hosts=["127.0.0.1:*"], private=[ipaddress.ip_network("127.0.0.1")])


def session_with(url: str) -> ToolSession:
    servers = McpServers(GuardedPools(LOOPBACK), timeout_s=10, max_bytes=1_000_000)
    return servers.session(McpTool(server_label="s", server_url=url))


@pytest.fixture(scope="module")
def faulty() -> Iterator[FaultyServer]:
    with faulty_mcp.serving("http://127.0.0.1:1") as server:
        yield server


@pytest.fixture(params=[*REMOTE, "stdio"])
async def session(
    request: pytest.FixtureRequest, faulty: FaultyServer
) -> AsyncIterator[ToolSession]:
    if request.param != "stdio":
        async with aclosing(session_with(f"{faulty.url}{request.param}")) as remote:
            yield remote
        return
    command = [sys.executable, str(Path(faulty_mcp.__file__))]
    async with aclosing(
        ProcessServer("s", command, env={}, timeout_s=10, max_bytes=1_000_000)
    ) as server:
        yield server.session()


async def test_an_odd_tool_hides_no_other_and_can_be_called(session: ToolSession) -> None:
    tools = {tool["name"]: tool for tool in await session.tools()}
    assert {"add", *ODD_TOOLS} <= tools.keys()
    for name in ODD_TOOLS:
        assert tools[name]["input_schema"]["type"] == "object"
        assert isinstance(tools[name]["input_schema"].get("properties", {}), dict)
    assert tools["object_or_null"]["input_schema"]["properties"] == {"a": {}}
    assert await session.call("root_any_of", {}) == ToolResult(output="42")


async def test_an_odd_answer_is_read(session: ToolSession) -> None:
    for name, (_, text) in READABLE.items():
        result = await session.call(name, {})
        assert result.error is None, name
        assert text in str(result.output), name


def of(transport: str, faulty: FaultyServer) -> set[str]:
    """The sessions, or the streams, that this server now knows."""
    if transport == "/sse":
        return {str(number) for number in range(len(faulty.streams))}
    return {f"s{number}" for number in range(len(faulty.asked) + 1)}


@pytest.mark.parametrize("transport", REMOTE)
@pytest.mark.parametrize("status", [404, 400])
async def test_a_session_that_the_server_forgot_is_begun_anew(
    faulty: FaultyServer, transport: str, status: int
) -> None:
    async with aclosing(session_with(f"{faulty.url}{transport}")) as session:
        assert await session.call("add", {}) == ToolResult(output="42")
        for _ in range(5):
            faulty.forgotten, faulty.forgets_with = of(transport, faulty), status
            assert await session.call("add", {}) == ToolResult(output="42")


@pytest.mark.parametrize("transport", REMOTE)
async def test_a_server_that_forgets_every_session_fails_the_call(
    faulty: FaultyServer, transport: str
) -> None:
    class Everything(set[str]):
        def __contains__(self, _: object) -> bool:
            return True

    async with aclosing(session_with(f"{faulty.url}{transport}")) as session:
        faulty.forgotten, faulty.forgets_with = Everything(), 400
        result = await session.call("add", {})
        faulty.forgotten = set()
    assert result.error is not None
    assert result.error["code"] == 400
    assert "No valid session ID provided." in result.error["message"]


@pytest.mark.parametrize("transport", ["/json", "/stream"])
async def test_a_server_that_failed_is_asked_again_by_the_next_call(
    faulty: FaultyServer, transport: str
) -> None:
    address = f"{faulty.url}{transport}?at=initialize&fault=reset"
    async with aclosing(session_with(address)) as session:
        assert (await session.call("add", {})).error is not None
        asked = len(faulty.asked)
        assert (await session.call("add", {})).error is not None
        assert len(faulty.asked) > asked


@pytest.fixture
def refusing() -> str:
    with faulty_mcp.serving("http://127.0.0.1:1") as server:
        return server.url  # where nobody listens afterwards


async def test_the_cause_of_a_lost_connection_is_said_and_logged(
    refusing: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A client that names a server learns nothing about the network: the log says it."""
    limits: dict[str, Any] = {"timeout_s": 10, "max_bytes": 1_000_000}
    url, pools = f"{refusing}/json", GuardedPools(LOOPBACK)
    configured = UrlServer("s", url=url, headers={}, pools=pools, **limits).session()
    async with aclosing(configured), aclosing(session_with(url)) as named:
        for _ in range(5):
            with pytest.raises(ToolServerError, match=r"not be made: it refused the connection\."):
                await configured.tools()
            with pytest.raises(ToolServerError, match=r"could not be made\."):
                await named.tools()
    assert caplog.text.count(f"the MCP server at {refusing}: it refused the connection") == 6
