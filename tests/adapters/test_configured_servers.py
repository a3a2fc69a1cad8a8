"""Servers of the operator's under their labels: his terms, kept lists, limits and secrets."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest

from antiphon.adapters.tool_servers.configured import ConfiguredServer, ConfiguredServers
from antiphon.adapters.tool_servers.in_process import LimitedServer
from antiphon.application.ports import Json, ToolResult, ToolServer, ToolSession
from antiphon.domain.errors import RequestError, ToolServerError
from antiphon.domain.mcp import McpServerPolicy
from antiphon.domain.tools import McpTool

SECRET = "hunter2-hunter2"
ASKED = McpTool(server_label="mine")


class Shelf(ToolServer, ToolSession):
    """A server that notes what it is asked, and does what its fields say."""

    label = "shelf"

    def __init__(self) -> None:
        self.listed = 0
        self.called: list[str] = []
        self.closed = 0
        self.error: Exception | None = None
        self.result: Any = ToolResult(output="ok")
        self.tools_listed: Any = ({"name": "take"}, {"name": "burn"}, {"nonsense": 1})

    def session(self) -> ToolSession:
        return self

    async def tools(self) -> tuple[Json, ...]:
        self.listed += 1
        if self.error is not None:
            raise self.error
        return self.tools_listed

    async def call(self, name: str, arguments: Json) -> ToolResult:
        self.called.append(name)
        if name == "wait":
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        return self.result

    async def aclose(self) -> None:
        self.closed += 1


@pytest.fixture
def shelf() -> Shelf:
    return Shelf()


def configured_servers(
    shelf: ToolServer, *, keep_s: float = 60, now: Any = None, **terms: Any
) -> Any:
    own = ConfiguredServer(
        terms=McpServerPolicy(label="mine", **terms), server=shelf, secrets=(SECRET,)
    )
    given = {"now": now} if now else {}
    return ConfiguredServers([own], None, keep_lists_s=keep_s, **given)


def limited(shelf: Shelf, **limits: Any) -> ToolSession:
    return LimitedServer(shelf, "mine", **{"timeout_s": 5, "max_bytes": 100, **limits}).session()


# --- terms ---


async def test_what_the_operator_does_not_allow_is_not_listed_and_not_called(shelf: Shelf) -> None:
    session = configured_servers(shelf, allowed_tools=("take",)).session(ASKED)
    assert await session.tools() == ({"name": "take"},)
    refused = await session.call("burn", {})
    assert "no tool 'burn'" in refused.error["content"]
    assert (await session.call("take", {})).output == "ok"
    assert shelf.called == ["take"]


@pytest.mark.parametrize(
    ("said", "operator", "holds"),
    [
        (None, "never", "never"),
        (None, "always", "always"),
        ("always", "never", "always"),
        ("never", "always", "never"),
        ({"never": {"tool_names": ["take"]}}, "always", {"never": {"tool_names": ["take"]}}),
    ],
)
def test_a_request_decides_on_approval_if_it_says_anything(
    shelf: Shelf, said: Any, operator: str, holds: Any
) -> None:
    servers = configured_servers(shelf, require_approval=operator)
    given = {} if said is None else {"require_approval": said}
    asked = McpTool(server_label="mine", **given)
    assert servers.resolve(asked, "tools[0]").require_approval == holds


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
def test_no_request_says_where_a_server_of_the_operators_is(
    shelf: Shelf, field: str, value: Any
) -> None:
    servers = configured_servers(shelf)
    with pytest.raises(RequestError) as refused:
        servers.resolve(McpTool(server_label="mine", **{field: value}), "tools[3]")
    assert refused.value.param == f"tools[3].{field}"
    other = McpTool(server_label="theirs", **{field: value})
    assert servers.resolve(other, "tools[3]") is None


# --- lists ---


async def test_a_list_is_kept_for_all_responses_for_a_while(shelf: Shelf) -> None:
    passed = [0.0]
    servers = configured_servers(shelf, keep_s=60, now=lambda: passed[0])
    lists = [await servers.session(ASKED).tools() for _ in range(3)]
    assert (shelf.listed, len(set(map(str, lists)))) == (1, 1)
    passed[0] = 60
    await servers.session(ASKED).tools()
    assert shelf.listed == 2


async def test_a_list_that_failed_is_asked_for_again(shelf: Shelf) -> None:
    servers = configured_servers(shelf)
    shelf.error = ToolServerError("not yet")
    with pytest.raises(ToolServerError):
        await servers.session(ASKED).tools()
    shelf.error = None
    assert await servers.session(ASKED).tools()


async def test_no_list_is_kept_for_no_seconds(shelf: Shelf) -> None:
    servers = configured_servers(shelf, keep_s=0)
    for _ in range(2):
        await servers.session(ASKED).tools()
    assert shelf.listed == 2


# --- secrets ---


async def test_secrets_are_in_no_error(shelf: Shelf) -> None:
    session = configured_servers(shelf).session(ASKED)
    shelf.error = ToolServerError(f"401 for {SECRET}")
    with pytest.raises(ToolServerError) as failure:
        await session.tools()
    assert str(failure.value) == "401 for <redacted>"
    shelf.error = None
    shelf.result = ToolResult(error={"type": "x", "content": [{"text": f"bad {SECRET}"}]})
    assert SECRET not in str(await session.call("take", {}))
    assert SECRET not in repr(
        ConfiguredServer(terms=McpServerPolicy(label="a"), server=shelf, secrets=(SECRET,))
    )


# --- limits ---


async def test_what_is_written_here_ends_in_time_too(shelf: Shelf) -> None:
    result = await limited(shelf, timeout_s=0.05).call("wait", {})
    assert result.error is not None
    assert "0.05 seconds" in result.error["message"]


@pytest.mark.parametrize("error", [ValueError("at 10.0.0.1"), TimeoutError(), KeyError("x")])
async def test_whatever_is_raised_is_a_failed_use_that_tells_clients_nothing(
    shelf: Shelf, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    shelf.error = error
    session = limited(shelf)
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
async def test_what_is_no_result_is_a_failed_call(shelf: Shelf, result: Any) -> None:
    shelf.result = result
    given = await limited(shelf).call("take", {})
    assert given.error is not None
    assert given.error["content"] == "The tool 'take' failed."


@pytest.mark.parametrize("listed", [None, "take", [1], [{"name": object()}], [{"name": "\ud800"}]])
async def test_what_is_no_list_of_tools_is_a_failed_list(shelf: Shelf, listed: Any) -> None:
    shelf.tools_listed = listed
    with pytest.raises(ToolServerError, match="It failed"):
        await limited(shelf).tools()


async def test_what_is_raised_to_be_told_is_told(shelf: Shelf) -> None:
    shelf.error = ToolServerError("The shelf is empty.")
    result = await limited(shelf).call("take", {})
    assert result.error is not None
    assert result.error["content"] == "The shelf is empty."


async def test_an_output_that_is_too_long_is_none(shelf: Shelf) -> None:
    shelf.result = ToolResult(output="ü" * 51)
    result = await limited(shelf).call("take", {})
    assert result.output is None
    assert result.error is not None
    assert "100 bytes" in result.error["content"]


async def test_all_are_closed_with_the_server(shelf: Shelf, caplog: Any) -> None:
    caplog.set_level(logging.DEBUG)
    await configured_servers(LimitedServer(shelf, "mine", timeout_s=1, max_bytes=1)).aclose()
    assert shelf.closed == 1
