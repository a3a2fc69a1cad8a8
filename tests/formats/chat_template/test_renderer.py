"""Conversations as chat messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from antiphon.adapters.formats.chat_template.renderer import chat_messages
from antiphon.adapters.formats.chat_template.template_capabilities import (
    REASONING_KEYS,
    TemplateCapabilities,
)
from antiphon.application.ports import Turn
from antiphon.domain import content as c
from antiphon.domain import items as i
from antiphon.domain.errors import RequestError


def messages(*items: i.Item, **turn: Any) -> list[dict[str, Any]]:
    return chat_messages(Turn(model="m", items=items, **turn))


def said(role: Any, text: str) -> i.Message:
    return i.Message(role=role, content=text)


def call(call_id: str, arguments: str = "{}", **fields: Any) -> i.FunctionCall:
    return i.FunctionCall(call_id=call_id, name="look", arguments=arguments, **fields)


def output(call_id: str, text: str = "ok") -> i.FunctionCallOutput:
    return i.FunctionCallOutput(call_id=call_id, output=text)


def thought(text: str) -> i.Reasoning:
    return i.Reasoning(content=(c.ReasoningText(text=text),))


def tool_call(call_id: str, arguments: Any, name: str = "look") -> dict[str, Any]:
    return {
        "id": call_id,
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


def test_instructions_and_leading_system_texts_are_one_message() -> None:
    items = [
        said("system", "B"),
        said("developer", "C"),
        said("user", "Hi"),
        said("developer", "D"),
    ]
    assert messages(*items, instructions="A") == [
        {"role": "system", "content": "A\n\nB\n\nC"},
        {"role": "user", "content": "Hi"},
        {"role": "system", "content": "D"},
    ]


def test_previous_messages_come_first_except_for_the_instructions() -> None:
    previous = [{"role": "system", "content": "Old"}, {"role": "user", "content": "Before"}]
    assert messages(said("user", "Now"), instructions="New", previous_messages=previous) == [
        {"role": "system", "content": "New\n\nOld"},
        {"role": "user", "content": "Before"},
        {"role": "user", "content": "Now"},
    ]
    assert previous[0]["content"] == "Old"


def test_one_turn_of_the_assistant_is_one_message() -> None:
    items = [thought("Hm."), said("assistant", "I look."), call("a", '{"x": 1}'), call("b", "oops")]
    assert messages(*items, output("a"), output("b", "no"), said("assistant", "Done.")) == [
        {
            "role": "assistant",
            "content": "I look.",
            **dict.fromkeys(REASONING_KEYS, "Hm."),
            "tool_calls": [tool_call("a", {"x": 1}), tool_call("b", {"arguments": "oops"})],
        },
        {"role": "tool", "tool_call_id": "a", "name": "look", "content": "ok"},
        {"role": "tool", "tool_call_id": "b", "name": "look", "content": "no"},
        {"role": "assistant", "content": "Done."},
    ]


def test_two_messages_in_a_row_stay_two() -> None:
    assert messages(said("assistant", "A"), said("assistant", "B")) == [
        {"role": "assistant", "content": "A"},
        {"role": "assistant", "content": "B"},
    ]


def test_a_message_after_calls_of_its_turn_stays_with_them() -> None:
    (message, _) = messages(call("a"), said("assistant", "Wait."), output("a"))
    assert message == {
        "role": "assistant",
        "content": "Wait.",
        "tool_calls": [tool_call("a", {})],
    }


def test_a_summary_replaces_missing_reasoning() -> None:
    item = i.Reasoning(summary=(c.SummaryText(text="A"), c.SummaryText(text="B")))
    (message,) = messages(item, said("assistant", "C"))
    assert [message[key] for key in REASONING_KEYS] == ["A\n\nB"] * len(REASONING_KEYS)


def test_custom_calls_are_functions_with_one_argument() -> None:
    items = [
        i.CustomToolCall(call_id="a", name="patch", input='x\n"y"'),
        i.CustomToolCallOutput(call_id="a", output="ok"),
    ]
    assert messages(*items)[0]["tool_calls"] == [tool_call("a", {"input": 'x\n"y"'}, "patch")]


def test_a_call_has_the_name_that_the_model_writes() -> None:
    (message,) = messages(call("a", namespace="crm"))
    assert message["tool_calls"][0]["function"]["name"] == "crm__look"


def test_hosted_calls_come_with_their_results() -> None:
    items = [
        i.McpCall(id="m", server_label="s", name="read", arguments='{"p": 1}', output="text"),
        i.CodeInterpreterCall(
            id="ci", code="1+1", container_id="x", outputs=({"type": "logs", "logs": "2"},)
        ),
    ]
    assert messages(*items) == [
        {"role": "assistant", "content": "", "tool_calls": [tool_call("m", {"p": 1}, "s__read")]},
        {"role": "tool", "tool_call_id": "m", "name": "s__read", "content": "text"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [tool_call("ci", {"code": "1+1"}, "python")],
        },
        {"role": "tool", "tool_call_id": "ci", "name": "python", "content": "2"},
    ]


@pytest.mark.parametrize("limits", [{}, {"call_id_length": 9}, {"call_id_form": "{name}:{index}"}])
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 3, 1), (1, 0, 2, 3)])
def test_calls_with_the_same_id_keep_their_results_apart(
    limits: dict[str, Any], order: tuple[int, ...]
) -> None:
    items = [
        i.FunctionCall(call_id="c", name="alpha", arguments="{}"),
        output("c", "of alpha"),
        i.CustomToolCall(call_id="c", name="beta", input=""),
        i.CustomToolCallOutput(call_id="c", output="of beta"),
    ]
    written = chat_messages(Turn(model="m", items=[items[n] for n in order]), **limits)
    calls = [call for each in written for call in each.get("tool_calls", ())]
    results = {each["content"]: each for each in written if each["role"] == "tool"}
    assert len({call["id"] for call in calls}) == 2
    for call in calls:
        result = results[f"of {call['function']['name']}"]
        assert result["name"] == call["function"]["name"]
        if not limits.get("call_id_form") or order != (1, 0, 2, 3):  # counted as they come
            assert result["tool_call_id"] == call["id"]


def test_the_model_is_told_that_a_call_was_declined() -> None:
    items = [
        i.McpApprovalRequest(id="r", server_label="s", name="drop", arguments="{}"),
        i.McpApprovalResponse(approval_request_id="r", approve=False, reason="no way"),
    ]
    assert messages(*items)[1]["content"] == "The user declined this call: no way"


def every_item() -> list[i.Item]:
    return [
        said("user", "Hi"),
        thought("t"),
        call("a"),
        output("a"),
        i.FunctionCallOutput(name="note", output="standalone"),
        i.CustomToolCall(call_id="b", name="p", input="x"),
        i.CustomToolCallOutput(call_id="b", output=(c.InputText(text="y"),)),
        i.WebSearchCall(id="ws", status="completed", action={"type": "search", "query": "q"}),
        i.FileSearchCall(id="fs", queries=("q",), results=({"text": "r"},)),
        i.CodeInterpreterCall(id="ci", container_id="c"),
        i.ImageGenerationCall(id="ig", status="completed"),
        i.ComputerCall(id="cu", call_id="c", action={"type": "click"}),
        i.ComputerCallOutput(call_id="c", output=c.ComputerScreenshot()),
        i.LocalShellCall(id="ls", call_id="d", action={"command": ["ls"]}),
        i.LocalShellCallOutput(id="d", output="{}"),
        i.ShellCall(call_id="e", action={"commands": ["ls"]}),
        i.ShellCallOutput(call_id="e", output=({"stdout": "x"},)),
        i.ApplyPatchCall(call_id="f", operation={"type": "delete_file", "path": "x"}),
        i.ApplyPatchCallOutput(call_id="f", status="completed"),
        i.McpListTools(id="l", server_label="s", tools=()),
        i.McpCall(id="m", server_label="s", name="n", arguments="{}"),
        i.McpApprovalRequest(id="r", server_label="s", name="n", arguments="{}"),
        i.McpApprovalResponse(approval_request_id="r", approve=True),
        i.ToolSearchCall(arguments={"q": 1}, call_id="g"),
        i.ToolSearchOutput(tools=(), call_id="g"),
        i.AgentMessage(author="/root", recipient="/root/a", content="Look."),
        i.MultiAgentCall(call_id="k", action="list_agents", arguments="{}"),
        i.MultiAgentCallOutput(call_id="k", action="list_agents", output=()),
        i.AdditionalTools(role="developer", tools=()),
        i.ConfigurationUpdate(),
        i.Compaction(encrypted_content="x"),
        i.CompactionTrigger(),
        i.ItemReference(id="x"),
        i.Program(call_id="h", code="1", fingerprint="x"),
        i.ProgramOutput(call_id="h", status="completed", result="1"),
    ]


def test_every_kind_of_item_can_be_rendered() -> None:
    assert {type(item) for item in every_item()} == set(i.ITEM_TYPES.values())
    rendered = messages(*every_item())
    answered = [m["tool_call_id"] for m in rendered if m["role"] == "tool"]
    asked = [tc["id"] for m in rendered for tc in m.get("tool_calls", ())]
    assert [call_id for call_id in asked if call_id not in answered] == []
    assert all(isinstance(m["content"], str) for m in rendered)


@pytest.mark.parametrize(
    ("part", "named"),
    [
        (c.InputImage(image_url="data:image/png;base64,AA=="), "images"),
        (c.InputImage(file_id="file_1"), "input_image"),
        (c.InputFile(file_id="file_1"), "input_file"),
    ],
)
def test_content_that_a_text_model_cannot_read_is_refused(part: c.MessagePart, named: str) -> None:
    with pytest.raises(RequestError, match=named) as raised:
        messages(i.Message(role="user", content=(part,)))
    assert raised.value.param == "input"


def test_call_ids_get_the_length_that_a_template_requires() -> None:
    turn = Turn(model="m", items=[call("call_123"), output("call_123"), call("abcdefghi")])
    first, result, second = chat_messages(turn, call_id_length=9)
    assert first["tool_calls"][0]["id"] == result["tool_call_id"]
    assert len(result["tool_call_id"]) == 9
    assert result["tool_call_id"].isalnum()
    assert second["tool_calls"][0]["id"] == "abcdefghi"


def test_call_ids_that_a_template_wants_counted_count_through_the_conversation() -> None:
    items = [
        *(call("call_b"), call("call_a"), output("call_a"), output("call_b")),
        *(said("user", "Again."), call("call_c"), output("call_c"), output("lost")),
    ]
    written = chat_messages(Turn(model="m", items=items), call_id_form="functions.{name}:{index}")
    calls = [each["id"] for message in written for each in message.get("tool_calls", ())]
    results = [message["tool_call_id"] for message in written if message["role"] == "tool"]
    assert calls == ["functions.look:0", "functions.look:1", "functions.look:2"]
    assert results == ["functions.look:1", "functions.look:0", "functions.look:2", "lost"]


@pytest.mark.parametrize("arguments", ["", " \n"])
@pytest.mark.parametrize("as_object", [True, False])
@pytest.mark.parametrize(
    "make",
    [
        lambda text: (call("c", text),),
        lambda text: (i.McpCall(id="m", server_label="s", name="f", arguments=text),),
        lambda text: (
            i.McpApprovalRequest(id="r", server_label="s", name="f", arguments=text),
            i.McpApprovalResponse(approval_request_id="r", approve=False),
        ),
    ],
)
def test_a_call_without_arguments_is_shown_with_an_empty_object(
    make: Callable[[str], tuple[i.Item, ...]], arguments: str, *, as_object: bool
) -> None:
    capabilities = TemplateCapabilities(object_arguments=as_object)
    turn = Turn(model="m", items=make(arguments))
    [written] = chat_messages(turn, capabilities=capabilities)[0]["tool_calls"]
    assert written["function"]["arguments"] == ({} if as_object else "{}")
