"""Configured servers: their policy, cached tool lists, secrets and limits."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from antiphon.adapters.tool_servers.configured import ConfiguredServer, ConfiguredServers
from antiphon.adapters.tool_servers.in_process import LimitedServer
from antiphon.application.ports import Json, ToolResult, ToolServer, ToolSession
from antiphon.domain.errors import RequestError, ToolServerError
from antiphon.domain.offers.mcp import McpServerPolicy
from antiphon.domain.tools import McpTool

SECRET = "hunter2-hunter2"
REQUEST_TOOL = McpTool(server_label="mine")


class FakeServer(ToolServer, ToolSession):
    """A server that records requests and answers with its fields."""

    label = "server"

    def __init__(self) -> None:
        self.lists = 0
        self.calls: list[str] = []
        self.closes = 0
        self.error: Exception | None = None
        self.result: Any = ToolResult(output="ok")
        self.said = ""
        self.on_list: Callable[[], None] = lambda: None
        self.change: Any = None
        self.tool_list: Any = ({"name": "take"}, {"name": "burn"}, {"nonsense": 1})

    def session(self) -> ToolSession:
        return self

    async def tools(self) -> tuple[Json, ...]:
        self.lists += 1
        self.on_list()
        if self.error is not None:
            raise self.error
        return self.tool_list

    async def instructions(self) -> str:
        return self.said

    def watch(self, changed: Any) -> None:
        self.change = changed

    async def call(self, name: str, arguments: Json) -> ToolResult:
        self.calls.append(name)
        if name == "wait":
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        return self.result

    async def aclose(self) -> None:
        self.closes += 1


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


def make_servers(server: ToolServer, *, keep_s: float = 60, now: Any = None, **policy: Any) -> Any:
    configured = ConfiguredServer(
        terms=McpServerPolicy(label="mine", **policy), server=server, secrets=(SECRET,)
    )
    options = {"now": now} if now else {}
    return ConfiguredServers([configured], None, keep_lists_s=keep_s, **options)


def limited(server: FakeServer, **limits: Any) -> ToolServer:
    return LimitedServer(server, "mine", **{"timeout_s": 5, "max_bytes": 100, **limits})


def limited_session(server: FakeServer, **limits: Any) -> ToolSession:
    return limited(server, **limits).session()


# --- policy ---


async def test_a_tool_that_is_not_allowed_is_not_listed_and_not_called(server: FakeServer) -> None:
    session = make_servers(server, allowed_tools=("take",)).session(REQUEST_TOOL)
    assert await session.tools() == ({"name": "take"},)
    result = await session.call("burn", {})
    assert "no tool 'burn'" in result.error["content"]
    assert (await session.call("take", {})).output == "ok"
    assert server.calls == ["take"]


@pytest.mark.parametrize(
    ("in_request", "in_policy", "expected"),
    [
        (None, "never", "never"),
        (None, "always", "always"),
        ("always", "never", "always"),
        ("never", "always", "always"),
        ({"never": {"tool_names": ["take"]}}, "always", "always"),
        ({"never": {"tool_names": ["take"]}}, "never", {"never": {"tool_names": ["take"]}}),
        ("never", {"always": {"tool_names": ["drop"]}}, {"always": {"tool_names": ["drop"]}}),
        ("always", {"never": {"tool_names": ["take"]}}, "always"),
        ({"always": {}}, {"never": {"tool_names": ["take"]}}, "always"),
    ],
)
def test_a_request_can_require_more_approval_than_the_operator_but_not_less(
    server: FakeServer, in_request: Any, in_policy: Any, expected: Any
) -> None:
    servers = make_servers(server, require_approval=in_policy)
    fields = {} if in_request is None else {"require_approval": in_request}
    tool = McpTool(server_label="mine", **fields)
    assert servers.resolve(tool, "tools[0]").require_approval == expected


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("server_url", "https://evil.example/mcp"),
        ("authorization", "token"),
        ("headers", {"a": "b"}),
        ("connector_id", "connector_dropbox"),
        ("tunnel_id", "tunnel_x"),
    ],
)
def test_a_request_cannot_redirect_a_configured_server(
    server: FakeServer, field: str, value: Any
) -> None:
    servers = make_servers(server)
    with pytest.raises(RequestError) as raised:
        servers.resolve(McpTool(server_label="mine", **{field: value}), "tools[3]")
    assert raised.value.param == f"tools[3].{field}"
    other = McpTool(server_label="theirs", **{field: value})
    assert servers.resolve(other, "tools[3]") is None


# --- lists ---


async def test_all_responses_share_a_cached_list_until_it_expires(server: FakeServer) -> None:
    clock = [0.0]
    servers = make_servers(server, keep_s=60, now=lambda: clock[0])
    lists = [await servers.session(REQUEST_TOOL).tools() for _ in range(3)]
    assert (server.lists, len(set(map(str, lists)))) == (1, 1)
    clock[0] = 60
    await servers.session(REQUEST_TOOL).tools()
    assert server.lists == 2


async def test_a_failed_list_is_not_cached(server: FakeServer) -> None:
    servers = make_servers(server)
    server.error = ToolServerError("not yet")
    with pytest.raises(ToolServerError):
        await servers.session(REQUEST_TOOL).tools()
    server.error = None
    assert await servers.session(REQUEST_TOOL).tools()


async def test_zero_seconds_turn_the_cache_off(server: FakeServer) -> None:
    servers = make_servers(server, keep_s=0)
    for _ in range(2):
        await servers.session(REQUEST_TOOL).tools()
    assert server.lists == 2


async def test_a_server_that_says_that_its_tools_changed_is_asked_again(server: FakeServer) -> None:
    servers = make_servers(server)
    await servers.session(REQUEST_TOOL).tools()
    server.tool_list = ({"name": "mend"},)
    server.change()
    assert await servers.session(REQUEST_TOOL).tools() == ({"name": "mend"},)
    assert server.lists == 2


async def test_a_list_that_changed_while_it_was_asked_for_is_not_cached(server: FakeServer) -> None:
    servers = make_servers(limited(server))
    changing = servers.session(REQUEST_TOOL)
    server.on_list = lambda: server.change()
    await changing.tools()
    server.on_list = lambda: None
    await servers.session(REQUEST_TOOL).tools()
    assert server.lists == 2


async def test_what_a_server_says_of_its_tools_is_kept_with_their_list(server: FakeServer) -> None:
    servers = make_servers(limited(server))
    server.said = f"Take before you burn, says {SECRET}."
    told = []
    for _ in range(2):
        session = servers.session(REQUEST_TOOL)
        await session.tools()
        told.append(await session.instructions())
        server.said = "something else"
    assert told == ["Take before you burn, says <redacted>."] * 2


# --- secrets ---


async def test_errors_contain_no_secrets(server: FakeServer) -> None:
    session = make_servers(server).session(REQUEST_TOOL)
    server.error = ToolServerError(f"401 for {SECRET}")
    with pytest.raises(ToolServerError) as failure:
        await session.tools()
    assert str(failure.value) == "401 for <redacted>"
    server.error = None
    server.result = ToolResult(error={"type": "x", "content": [{"text": f"bad {SECRET}"}]})
    assert SECRET not in str(await session.call("take", {}))
    assert SECRET not in repr(
        ConfiguredServer(terms=McpServerPolicy(label="a"), server=server, secrets=(SECRET,))
    )


# --- limits ---


async def test_a_call_that_hangs_times_out(server: FakeServer) -> None:
    result = await limited_session(server, timeout_s=0.05).call("wait", {})
    assert result.error is not None
    assert "0.05 seconds" in result.error["message"]


@pytest.mark.parametrize("error", [ValueError("at 10.0.0.1"), TimeoutError(), KeyError("x")])
async def test_an_exception_is_a_failure_whose_details_are_only_logged(
    server: FakeServer, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    server.error = error
    session = limited_session(server)
    result = await session.call("take", {})
    assert result.error == {
        "type": "mcp_tool_execution_error",
        "content": "The tool 'take' failed.",
    }
    with pytest.raises(ToolServerError, match="It failed") as failure:
        await session.tools()
    assert "10.0.0.1" not in str(failure.value)
    assert caplog.text.count("Traceback") == 2


@pytest.mark.parametrize(
    "result",
    [
        None,
        "text",
        ToolResult(output="\ud800"),
        ToolResult(output=b"bytes"),  # type: ignore[arg-type]
        ToolResult(error={"content": object()}),
    ],
)
async def test_an_invalid_result_is_a_failed_call(server: FakeServer, result: Any) -> None:
    server.result = result
    checked_result = await limited_session(server).call("take", {})
    assert checked_result.error is not None
    assert checked_result.error["content"] == "The tool 'take' failed."


@pytest.mark.parametrize("tools", [None, "take", [1], [{"name": object()}], [{"name": "\ud800"}]])
async def test_an_invalid_list_of_tools_is_a_failed_list(server: FakeServer, tools: Any) -> None:
    server.tool_list = tools
    with pytest.raises(ToolServerError, match="It failed"):
        await limited_session(server).tools()


async def test_clients_get_the_message_of_a_tool_server_error(server: FakeServer) -> None:
    server.error = ToolServerError("The server is empty.")
    result = await limited_session(server).call("take", {})
    assert result.error is not None
    assert result.error["content"] == "The server is empty."


async def test_an_output_that_is_too_long_is_an_error(server: FakeServer) -> None:
    server.result = ToolResult(output="ü" * 51)
    result = await limited_session(server).call("take", {})
    assert result.output is None
    assert result.error is not None
    assert "100 bytes" in result.error["content"]


async def test_closing_closes_every_server(server: FakeServer, caplog: Any) -> None:
    caplog.set_level(logging.DEBUG)
    await make_servers(LimitedServer(server, "mine", timeout_s=1, max_bytes=1)).aclose()
    assert server.closes == 1
