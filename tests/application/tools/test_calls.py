"""Calls of MCP servers' tools within a response, whatever the model and the servers do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from msgspec import convert

from antiphon.application.ports import ModelTurn
from antiphon.application.tools.approvals import ApprovalAnswers
from antiphon.application.tools.calls import ToolCaller, ToolCallingTurn, ToolCalls
from antiphon.application.tools.mcp import OpenMcpSessions
from antiphon.application.tools.work import WorkOutput
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


async def test_text_after_a_call_follows_its_result(house: Any) -> None:
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
async def test_arguments_that_are_not_an_object_are_not_sent(house: Any, written: str) -> None:
    house.model.played = [call("add", written), [STOP]]
    house.model.later = [ANSWER]
    response = await house.whole(tools=[SERVER])
    assert response.output[1].status == "failed"
    assert "JSON object" in response.output[1].error["content"]
    assert types(response)[-1] is i.Message
    assert house.tools.called == []


async def test_a_turn_that_was_cut_off_runs_no_calls(house: Any) -> None:
    house.model.played = [call("add", "{}"), call("add", "{"), [LENGTH]]
    response = await house.whole(tools=[SERVER])
    assert response.status == "incomplete"
    assert [item.status for item in response.output[1:]] == ["incomplete", "incomplete"]
    assert house.tools.called == []


async def test_an_incomplete_call_needs_no_approval(house: Any) -> None:
    start = d.CallStart("add", namespace="calc", kind="mcp_approval")
    house.model.played = [[start, d.ArgumentsDelta("{")], [LENGTH]]
    response = await house.whole(tools=[SERVER])
    assert types(response) == [i.McpListTools, i.McpCall]
    assert (response.output[1].status, response.output[1].arguments) == ("incomplete", "{")


async def test_a_listing_that_fails_leaves_an_answer_without_the_tools(house: Any) -> None:
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
async def test_a_malformed_list_of_tools_does_no_harm(house: Any, listed: list[Any]) -> None:
    house.tools.listed = listed
    response = await house.whole(tools=[{**SERVER, "require_approval": {"never": {}}}])
    assert response.status == "completed"
    names = [tool.name for tool in house.model.turns[0].tools]
    assert len(set(names)) == len(names)
    assert all(0 < len(name) <= 64 for name in names)


async def test_a_label_may_be_any_string(house: Any) -> None:
    await house.whole(tools=[{**SERVER, "server_label": "Über allem / 1"}])
    assert house.model.turns[0].tools[0].name == "_ber_allem___1__add"


async def test_a_client_that_disconnects_stops_the_calls(house: Any) -> None:
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


async def test_a_request_is_checked_before_a_server_is_called(house: Any) -> None:
    async def refuse(_: Any) -> int:
        message = "no"
        raise RequestError(message, param="input")

    house.model.count = refuse
    with pytest.raises(RequestError):
        await house.create(tools=[SERVER])
    assert house.tools.open == 0


@pytest.mark.parametrize("arguments", ["{}", '{"a": 1}'])
async def test_an_approval_without_its_server_is_a_failed_call(house: Any, arguments: str) -> None:
    approval_request = {
        "type": "mcp_approval_request",
        "id": "mcpr_1",
        "server_label": "gone",
        "name": "add",
        "arguments": arguments,
    }
    approval = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    response = await house.whole(input=[approval_request, approval])
    assert types(response) == [i.McpCall, i.Message]
    assert "'gone'" in response.output[0].error["content"]
    answer = {"role": "assistant", "content": "Well."}
    question = {"role": "user", "content": "And?"}
    again = await house.whole(input=[approval_request, approval, answer, question])
    assert types(again) == [i.Message]


async def test_a_compacted_conversation_lists_its_servers_again(house: Any) -> None:
    house.model.context_length = 2
    house.model.played = [[d.TextDelta("They talked.")], [STOP]]
    house.model.later = [[call("add", "{}"), [STOP]], ANSWER]
    said = [{"role": role, "content": "x"} for role in ("user", "assistant", "user")]
    response = await house.whole(
        input=said, tools=[SERVER], context_management=[{"type": "compaction"}]
    )
    assert types(response) == [i.Compaction, i.McpListTools, i.McpCall, i.Message]
    assert response.usage.input_tokens == 9


async def test_no_call_is_made_before_its_item_is_stored(house: Any) -> None:
    house.model.played = [[d.CallStart("add", namespace="calc", kind="mcp_approval"), STOP]]
    server = {**SERVER, "require_approval": "always"}
    first = await house.whole(tools=[server])
    request = next(item for item in first.output if isinstance(item, i.McpApprovalRequest))
    approval = {
        "type": "mcp_approval_response",
        "approval_request_id": request.id,
        "approve": True,
    }
    house.store.failing = {"append"}
    created = await house.create(
        tools=[server], previous_response_id=first.id, input=[approval], background=True
    )
    await asyncio.wait([created.task])
    # The log has nothing of it: another server would start it over.
    assert house.tools.called == []


async def test_sessions_are_closed_even_if_closing_them_is_cancelled(house: Any) -> None:
    open_sessions = OpenMcpSessions(house.tools, ApprovalAnswers(house.store))
    sessions = open_sessions("us", "resp_1", [convert(SERVER, McpTool)])
    assert [batch async for batch in sessions.list_tools("calc").output]
    closing = asyncio.create_task(sessions.aclose())
    await asyncio.sleep(0)
    closing.cancel()
    await asyncio.wait([closing])
    assert house.tools.open == 0


class Streaming(ToolCaller):
    """A tool whose calls stream an item of their own after the item of the call."""

    step = "calling"

    def __init__(self) -> None:
        self.may_continue = asyncio.Event()
        self.started: list[str] = []

    def open_item(self, start: d.CallStart) -> d.Delta:
        return start

    async def call(self, start: d.CallStart, arguments: str) -> WorkOutput:
        self.started.append(start.name)
        yield [d.ToolEnd("completed", {"output": start.name})]
        yield [d.TextDelta(f"{start.name} 1")]
        await self.may_continue.wait()
        yield [d.TextDelta(f"{start.name} 2"), d.ItemEnd()]

    def refuse(self, start: d.CallStart, arguments: str, reason: str) -> list[d.Delta]:
        return [d.ToolEnd("failed", {"error": reason})]


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


async def test_the_output_of_calls_is_streamed_in_the_order_of_the_calls() -> None:
    tool = Streaming()
    turn = ToolCallingTurn(
        Written(call("one"), call("two"), [STOP]), ToolCalls({"mcp": tool}, max_calls=None)
    )
    batches = aiter(turn)
    texts: list[str] = []
    async for batch in batches:
        texts += [delta.text for delta in batch if isinstance(delta, d.TextDelta)]
        if texts == ["one 1"]:
            assert tool.started == ["one", "two"]
            tool.may_continue.set()
    assert texts == ["one 1", "one 2", "two 1", "two 2"]


async def test_a_call_that_fails_midway_is_aborted_and_the_next_one_follows() -> None:
    class Broken(Streaming):
        async def call(self, start: d.CallStart, arguments: str) -> WorkOutput:
            yield [d.ToolEnd("completed", {"output": arguments})]
            yield [d.TextDelta(start.name)]
            if start.name == "one":
                raise ToolServerError(start.name)

    turn = ToolCallingTurn(
        Written(call("one"), call("two"), [STOP]), ToolCalls({"mcp": Broken()}, max_calls=None)
    )
    deltas = [delta for batch in [batch async for batch in turn] for delta in batch]
    texts_and_ends = [delta for delta in deltas if isinstance(delta, d.TextDelta | d.ItemEnd)]
    assert texts_and_ends == [d.TextDelta("one"), d.ItemEnd(), d.TextDelta("two")]
    assert deltas[-1] == STOP
