"""Calls of MCP servers' tools within a response, whatever the model and the servers do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from msgspec import convert

from antiphon.application.ports import ModelTurn
from antiphon.application.tools.calls import ToolCaller, ToolCallingTurn, ToolCalls
from antiphon.application.tools.mcp import McpSessions
from antiphon.application.tools.work import Given
from antiphon.domain import deltas as d
from antiphon.domain import events as e
from antiphon.domain import items as i
from antiphon.domain.errors import RequestError, ToolServerError
from antiphon.domain.tools import McpTool

STOP = d.TurnEnd("stop", d.TurnUsage(input=3, output=2))
LENGTH = d.TurnEnd("length", d.TurnUsage(input=3, output=2))
ANSWER = [[d.TextDelta("Hello")], [STOP]]
SERVER = {
    "type": "mcp",
    "server_label": "calc",
    "server_url": "https://example.org/mcp",
    "require_approval": "never",
}


def call(name: str, *arguments: str) -> list[d.Delta]:
    texts = [d.ArgumentsDelta(text) for text in arguments]
    return [d.CallStart(name, namespace="calc", kind="mcp"), *texts]


def types(response: Any) -> list[type]:
    return [type(item) for item in response.output]


async def test_what_follows_a_call_comes_after_its_result(house: Any) -> None:
    house.model.played = [
        [d.TextDelta("Let me.")],
        call("add", '{"a":', " 1}"),
        call("add", "{}"),
        [d.TextDelta("Done."), STOP],
    ]
    house.model.later = [ANSWER]
    response = await house.whole(tools=[SERVER])
    assert types(response) == [
        i.McpListTools,
        i.Message,
        i.McpCall,
        i.McpCall,
        i.Message,
        i.Message,
    ]
    assert house.tools.called == [("add", {"a": 1}), ("add", {})]
    assert [item.arguments for item in response.output[2:4]] == ['{"a": 1}', "{}"]
    assert house.tools.open == 0


async def test_the_next_turn_has_the_tools_and_the_results(house: Any) -> None:
    house.model.played = [call("add", "{}"), [STOP]]
    house.model.later = [ANSWER]
    response = await house.whole(tools=[SERVER], tool_choice="required")
    first, second = house.model.turns
    assert [tool.name for tool in first.tools] == ["calc__add", "calc__wait"]
    assert first.tools == second.tools
    assert (first.choice.mode, second.choice.mode) == ("required", "auto")
    assert second.items[-1].output == "add 1"
    assert response.usage.input_tokens == 6


@pytest.mark.parametrize("written", ["{", "[1]", "1", '"text"', "\\ud800", 5000 * "["])
async def test_arguments_that_are_no_object_are_not_sent(house: Any, written: str) -> None:
    house.model.played = [call("add", written), [STOP]]
    house.model.later = [ANSWER]
    response = await house.whole(tools=[SERVER])
    assert response.output[1].status == "failed"
    assert "JSON object" in response.output[1].error["content"]
    assert types(response)[-1] is i.Message
    assert house.tools.called == []


async def test_a_turn_that_was_cut_runs_nothing(house: Any) -> None:
    house.model.played = [call("add", "{}"), call("add", "{"), [LENGTH]]
    response = await house.whole(tools=[SERVER])
    assert response.status == "incomplete"
    assert [item.status for item in response.output[1:]] == ["incomplete", "incomplete"]
    assert house.tools.called == []


async def test_half_a_call_is_nothing_to_approve_of(house: Any) -> None:
    start = d.CallStart("add", namespace="calc", kind="mcp_approval")
    house.model.played = [[start, d.ArgumentsDelta("{")], [LENGTH]]
    response = await house.whole(tools=[SERVER])
    assert types(response) == [i.McpListTools, i.McpCall]
    assert (response.output[1].status, response.output[1].arguments) == ("incomplete", "{")


async def test_a_list_that_fails_leaves_an_answer_without_the_tools(house: Any) -> None:
    house.tools.error = ToolServerError("no way")
    response = await house.whole(tools=[SERVER], tool_choice="required")
    assert response.status == "completed"
    assert response.output[0].error == "no way"
    (turn,) = house.model.turns
    assert (turn.tools, turn.choice.mode) == ((), "auto")


@pytest.mark.parametrize(
    "listed",
    [
        [{}],
        [{"name": 5}],
        [{"name": "a", "input_schema": 5}],
        [{"name": "a", "description": {}}],
        [{"name": "a", "annotations": []}],
        [{"name": "a"}, {"name": "a"}],
        [{"name": "a.b"}, {"name": "a_b"}],
        [{"name": "x" * 500}],
    ],
)
async def test_whatever_a_server_lists_does_no_harm(house: Any, listed: list[Any]) -> None:
    house.tools.listed = listed
    response = await house.whole(tools=[{**SERVER, "require_approval": {"never": {}}}])
    assert response.status == "completed"
    names = [tool.name for tool in house.model.turns[0].tools]
    assert len(set(names)) == len(names)
    assert all(0 < len(name) <= 64 for name in names)


async def test_a_label_may_be_any_text(house: Any) -> None:
    await house.whole(tools=[{**SERVER, "server_label": "Über allem / 1"}])
    assert house.model.turns[0].tools[0].name == "_ber_allem___1__add"


async def test_who_leaves_stops_the_calls(house: Any) -> None:
    house.model.played = [call("wait", "{}"), [STOP]]
    created = await house.create(tools=[SERVER], stream=True)
    async for batch in created.events:
        if any(isinstance(event, e.McpArgumentsDone) for event in batch):
            break
    await house.tools.waits.wait()
    await created.leave()
    await asyncio.wait([created.task])
    assert house.tools.stopped == ["wait"]
    assert house.tools.open == 0
    assert (await house.get("t", created.id)).status == "cancelled"


async def test_what_is_wrong_is_told_before_a_server_is_asked(house: Any) -> None:
    async def refuse(_: Any) -> int:
        message = "no"
        raise RequestError(message, param="input")

    house.model.count = refuse
    with pytest.raises(RequestError):
        await house.create(tools=[SERVER])
    assert house.tools.open == 0


@pytest.mark.parametrize("arguments", ["{}", '{"a": 1}'])
async def test_an_approval_without_its_server_is_a_failed_call(house: Any, arguments: str) -> None:
    asked = {
        "type": "mcp_approval_request",
        "id": "mcpr_1",
        "server_label": "gone",
        "name": "add",
        "arguments": arguments,
    }
    given = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    response = await house.whole(input=[asked, given])
    assert types(response) == [i.McpCall, i.Message]
    assert "'gone'" in response.output[0].error["content"]
    said = {"role": "assistant", "content": "Well."}
    again = await house.whole(input=[asked, given, said, {"role": "user", "content": "And?"}])
    assert types(again) == [i.Message]


async def test_a_compacted_conversation_has_its_servers_listed_next(house: Any) -> None:
    house.model.context_length = 2
    house.model.played = [[d.TextDelta("They talked.")], [STOP]]
    house.model.later = [[call("add", "{}"), [STOP]], ANSWER]
    said = [{"role": role, "content": "x"} for role in ("user", "assistant", "user")]
    response = await house.whole(
        input=said, tools=[SERVER], context_management=[{"type": "compaction"}]
    )
    assert types(response) == [i.Compaction, i.McpListTools, i.McpCall, i.Message]
    assert response.usage.input_tokens == 9


async def test_no_call_is_made_before_it_is_written_that_it_is_made(house: Any) -> None:
    house.model.played = [[d.CallStart("add", namespace="calc", kind="mcp_approval"), STOP]]
    asks = {**SERVER, "require_approval": "always"}
    asked = await house.whole(tools=[asks])
    request = next(item for item in asked.output if isinstance(item, i.McpApprovalRequest))
    approval = {
        "type": "mcp_approval_response",
        "approval_request_id": request.id,
        "approve": True,
    }
    house.store.failing = {"append"}
    created = await house.create(
        tools=[asks], previous_response_id=asked.id, input=[approval], background=True
    )
    await asyncio.wait([created.task])
    # Nothing of it is in the log: another server would begin it again.
    assert house.tools.called == []


async def test_sessions_are_closed_also_for_who_is_cancelled_meanwhile(house: Any) -> None:
    sessions = McpSessions(house.tools, [convert(SERVER, McpTool)])
    assert [batch async for batch in sessions.listing("calc").given]
    closing = asyncio.create_task(sessions.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    assert house.tools.open == 0


class Streaming(ToolCaller):
    """A tool whose calls give an item of their own, piece by piece, after that of the call."""

    step = "calling"

    def __init__(self) -> None:
        self.goes_on = asyncio.Event()
        self.begun: list[str] = []

    def open_item(self, start: d.CallStart) -> d.Delta:
        return start

    async def call(self, start: d.CallStart, arguments: str) -> Given:
        self.begun.append(start.name)
        yield [d.ToolEnd("completed", {"output": start.name})]
        yield [d.TextDelta(f"{start.name} 1")]
        await self.goes_on.wait()
        yield [d.TextDelta(f"{start.name} 2"), d.ItemEnd()]

    def refused(self, start: d.CallStart, arguments: str, why: str) -> list[d.Delta]:
        return [d.ToolEnd("failed", {"error": why})]


class Written(ModelTurn):
    """A turn in which the model writes these batches."""

    def __init__(self, *batches: list[d.Delta]) -> None:
        self._batches = batches

    async def __aiter__(self) -> AsyncGenerator[list[d.Delta]]:
        for batch in self._batches:
            yield batch

    async def aclose(self) -> None:
        pass

    def messages(self) -> tuple[list[Any], list[Any]]:
        return [], []


async def test_what_a_call_gives_is_shown_while_it_runs_and_in_the_order_of_the_calls() -> None:
    tool = Streaming()
    turn = ToolCallingTurn(
        Written(call("one"), call("two"), [STOP]), ToolCalls({"mcp": tool}, most=None)
    )
    batches = aiter(turn)
    texts: list[str] = []
    async for batch in batches:
        texts += [delta.text for delta in batch if isinstance(delta, d.TextDelta)]
        if texts == ["one 1"]:
            assert tool.begun == ["one", "two"]
            tool.goes_on.set()
    assert texts == ["one 1", "one 2", "two 1", "two 2"]


async def test_a_call_that_breaks_after_it_gave_something_is_cut_and_the_next_is_shown() -> None:
    class Broken(Streaming):
        async def call(self, start: d.CallStart, arguments: str) -> Given:
            yield [d.ToolEnd("completed", {"output": arguments})]
            yield [d.TextDelta(start.name)]
            if start.name == "one":
                raise ToolServerError(start.name)

    turn = ToolCallingTurn(
        Written(call("one"), call("two"), [STOP]), ToolCalls({"mcp": Broken()}, most=None)
    )
    given = [delta for batch in [batch async for batch in turn] for delta in batch]
    shown = [delta for delta in given if isinstance(delta, d.TextDelta | d.ItemEnd)]
    assert shown == [d.TextDelta("one"), d.ItemEnd(), d.TextDelta("two")]
    assert given[-1] == STOP
