"""Contract tests for the port `ToolServer`."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from antiphon.application.ports import Json, ToolResult, ToolServer, ToolSession

LABEL = re.compile(r"[A-Za-z0-9_-]{1,64}")


@pytest.mark.asyncio
class ToolServerContract:
    """Subclass it where pytest collects tests. `working_call` is a call that returns an output.

    class TestMyTools(ToolServerContract):
        working_call = ("look_up", {"word": "antiphon"})

        @pytest.fixture
        def server(self):
            return MyTools()
    """

    working_call: tuple[str, Json]

    @pytest.fixture
    def server(self) -> ToolServer:
        raise NotImplementedError("override this fixture: return your server")

    @pytest_asyncio.fixture
    async def session(self, server: ToolServer) -> AsyncIterator[ToolSession]:
        session = server.session()
        yield session
        await session.aclose()
        await server.aclose()

    async def test_its_label_is_a_short_name(self, server: ToolServer) -> None:
        assert LABEL.fullmatch(server.label)

    async def test_its_tools_have_unique_names_and_object_schemas(
        self, session: ToolSession
    ) -> None:
        tools = await session.tools()
        names = [tool["name"] for tool in tools]
        assert self.working_call[0] in names
        assert len(set(names)) == len(names)
        for tool in tools:
            assert tool["input_schema"].get("type", "object") == "object"
            assert msgspec.json.decode(msgspec.json.encode(tool)) == tool

    async def test_its_tools_are_the_same_for_every_session(
        self, server: ToolServer, session: ToolSession
    ) -> None:
        other = server.session()
        assert await other.tools() == await session.tools()
        await other.aclose()

    async def test_a_call_returns_text(self, session: ToolSession) -> None:
        check_text(await session.call(*self.working_call))

    async def test_a_session_may_call_before_it_lists(self, session: ToolSession) -> None:
        check_text(await session.call(*self.working_call))
        assert await session.tools()

    async def test_calls_run_side_by_side(self, session: ToolSession) -> None:
        for result in await asyncio.gather(*(session.call(*self.working_call) for _ in range(10))):
            check_text(result)

    async def test_an_unknown_tool_is_a_result_with_an_error(self, session: ToolSession) -> None:
        check_error(await session.call("no_such_tool", {}))
        check_text(await session.call(*self.working_call))

    @pytest.mark.parametrize("arguments", [{"no_such_argument": [None]}, {"": {}}])
    async def test_any_arguments_have_a_result(self, session: ToolSession, arguments: Json) -> None:
        result = await session.call(self.working_call[0], arguments)
        assert (result.output is None) != (result.error is None)
        check_text(await session.call(*self.working_call))

    async def test_a_cancelled_caller_does_not_affect_the_others(
        self, session: ToolSession
    ) -> None:
        leaving, staying = (asyncio.create_task(session.call(*self.working_call)) for _ in range(2))
        await asyncio.sleep(0)
        leaving.cancel()
        check_text(await staying)
        check_text(await session.call(*self.working_call))
        await asyncio.wait([leaving])

    async def test_closing_a_session_leaves_the_others_open(
        self, server: ToolServer, session: ToolSession
    ) -> None:
        other = server.session()
        check_text(await other.call(*self.working_call))
        await other.aclose()
        check_text(await session.call(*self.working_call))

    async def test_an_unused_server_can_be_closed(self, server: ToolServer) -> None:
        await server.session().aclose()
        await server.aclose()


def check_text(result: ToolResult) -> None:
    assert result.error is None
    assert isinstance(result.output, str)


def check_error(result: ToolResult) -> None:
    assert result.output is None
    error: Any = result.error
    assert isinstance(error["type"], str)
