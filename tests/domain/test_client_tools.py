"""Tools of a fixed shape: schemas, arguments to items and back, commands that stream."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.domain import deltas as d
from antiphon.domain import events as e
from antiphon.domain import items as i
from antiphon.domain.builders.builder_context import BuilderContext
from antiphon.domain.builders.commands import CommandReader
from antiphon.domain.builders.typed_call import open_call
from antiphon.domain.client_tools import (
    CLIENT_TOOLS,
    call_arguments_of,
    item_fields_of,
    normalize_arguments,
    parameters_of,
)
from antiphon.domain.tool_search import search
from antiphon.domain.tools import CustomTool, FunctionTool, NamespaceTool, UnknownTool

ARGUMENTS = {
    "shell": {"commands": ["ls"]},
    "container": {"commands": ["ls"]},
    "local_shell": {"command": ["ls"], "env": {"A": "b"}, "working_directory": "/tmp"},
    "apply_patch": {"operation": {"type": "create_file", "path": "a", "diff": "+x\n"}},
    "computer": {"actions": [{"type": "drag", "path": [{"x": 1, "y": 2}], "keys": ["CTRL"]}]},
    "computer_use_preview": {
        "action": {"type": "scroll", "x": 1, "y": 2, "scroll_x": 0, "scroll_y": 9}
    },
    "tool_search": {"query": "x", "limit": None},
    "server_tool_search": {"query": "x"},
}


def item_of(kind: str, arguments: str) -> Any:
    """Return the item that a complete call with these arguments becomes."""
    return call(kind, [arguments])[-1].item


def call(kind: str, pieces: list[str], status: str = "completed") -> list[Any]:
    """Return the events of a call whose arguments come in these pieces."""
    numbers = count(1)
    builder = open_call(
        d.CallStart("name", "call_own", kind=kind),
        BuilderContext(0, lambda prefix: f"{prefix}_{next(numbers)}"),
    )
    events = [*builder.open()]
    for piece in pieces:
        events += builder.add(d.ArgumentsDelta(piece))
    return [*events, *builder.close(status)]


@pytest.mark.parametrize("kind", CLIENT_TOOLS)
def test_what_is_asked_for_comes_back_in_the_same_words(kind: str) -> None:
    written = json.dumps(ARGUMENTS[kind])
    item = item_of(kind, written)
    assert isinstance(item, CLIENT_TOOLS[kind].item)
    assert json.loads(call_arguments_of(kind, item)) == ARGUMENTS[kind]
    spaced = json.dumps(ARGUMENTS[kind], indent=2)
    assert (
        normalize_arguments(kind, spaced)
        == normalize_arguments(kind, written)
        == call_arguments_of(kind, item)
    )


@pytest.mark.parametrize("kind", CLIENT_TOOLS)
def test_an_item_that_a_client_dumped_with_all_its_nulls_asks_for_the_same(kind: str) -> None:
    item = item_of(kind, json.dumps(ARGUMENTS[kind]))
    dumped = msgspec.to_builtins(item)
    for inner in dumped.values():
        if isinstance(inner, dict) and kind in ("shell", "local_shell"):
            inner |= {"timeout_ms": None}
    assert call_arguments_of(kind, msgspec.convert(dumped, type(item))) == call_arguments_of(
        kind, item
    )


@pytest.mark.parametrize(
    "kind", ["shell", "local_shell", "apply_patch", "computer", "computer_use_preview"]
)
def test_a_schema_stands_for_itself_and_is_closed(kind: str) -> None:
    schema = json.dumps(parameters_of(CLIENT_TOOLS[kind].arguments))
    assert "$ref" not in schema
    assert '"additionalProperties": false' in schema
    assert item_fields_of(kind, json.dumps(ARGUMENTS[kind])) is not None
    assert item_fields_of(kind, json.dumps({**ARGUMENTS[kind], "surprise": 1})) is None


def test_every_action_names_its_type_first() -> None:
    actions = parameters_of(CLIENT_TOOLS["computer"].arguments)["properties"]["actions"]
    kinds = [next(iter(each["properties"])) for each in actions["items"]["anyOf"]]
    assert kinds == ["type"] * 9


@pytest.mark.parametrize(
    "arguments",
    ["", "{", "[]", "null", '{"operation": null}', '{"operation": {}}', "\ud800", "[" * 9999],
)
def test_garbage_is_a_plain_function_call_with_all_of_it(arguments: str) -> None:
    item = item_of("apply_patch", arguments)
    assert isinstance(item, i.FunctionCall)
    assert (item.arguments, item.call_id, item.status) == (arguments, "call_own", "completed")


def test_a_cut_call_is_never_handed_out_as_whole() -> None:
    for kind in CLIENT_TOOLS:
        item = call(kind, [json.dumps(ARGUMENTS[kind])], "incomplete")[-1].item
        assert item.status == "incomplete"
        assert isinstance(item, i.ShellCall if kind in ("shell", "container") else i.FunctionCall)


def hosted(arguments: str, *, runs: bool, status: str = "completed") -> Any:
    """Return the item of a call that the server runs, or not any more."""
    start = d.HostedCallStart("shell", "call_own", kind="container", fields={"environment": PLACE})
    builder = open_call(start, BuilderContext(0, lambda prefix: f"{prefix}_1"))
    events = [*builder.open(), *builder.add(d.ArgumentsDelta(arguments))]
    if runs:
        assert builder.accepts(d.ToolProgress("running"))
        events += builder.add(d.ToolProgress("running"))
    return [*events, *builder.close(status)][-1].item


PLACE = {"type": "container_reference", "container_id": "cntr_1"}


@pytest.mark.parametrize(
    "arguments", ['{"commands": ["ls"]}', '{"timeout_ms": 9, "commands": ["ls"]}', "{}", "", "[["]
)
def test_a_call_that_the_server_runs_is_a_shell_call_whatever_its_arguments(
    arguments: str,
) -> None:
    for runs in (True, False):
        item = hosted(arguments, runs=runs)
        assert isinstance(item, i.ShellCall)
        assert (item.call_id, item.environment) == ("call_own", PLACE)
    whole = "ls" in arguments
    assert hosted(arguments, runs=True).status == ("completed" if whole else "incomplete")
    assert hosted(arguments, runs=False).status == "incomplete"


def test_what_follows_the_commands_and_is_no_json_is_kept() -> None:
    item = item_of("shell", '{"commands": ["ls"] nonsense')
    assert item.action["commands"] == ["ls"]
    assert item.action["unread"] == " nonsense"
    assert item.status == "completed"


def test_commands_that_go_on_with_something_else_are_incomplete_and_all_kept() -> None:
    item = item_of("shell", '{"commands": ["cd /", {"a": 1}, "rm"]}')
    assert (item.status, item.action["commands"]) == ("incomplete", ["cd /"])
    assert item.action["unread"] == ', {"a": 1}, "rm"]}'


def test_a_missing_bracket_at_the_end_loses_nothing() -> None:
    item = item_of("shell", '{"commands": ["ls"]')
    assert (item.status, item.action["commands"]) == ("completed", ["ls"])
    assert "unread" not in item.action


# --- commands that stream -------------------------------------------------------------------------

COMMANDS = st.lists(st.text(max_size=12), min_size=1, max_size=4)
WRITTEN = st.builds(
    lambda commands, ascii_only, indent: json.dumps(
        {"commands": commands, "timeout_ms": 5}, ensure_ascii=ascii_only, indent=indent
    ),
    COMMANDS,
    st.booleans(),
    st.sampled_from([None, 0, 2]),
)
ANY_TEXT = st.one_of(
    WRITTEN,
    st.builds(lambda text, cut: text[:cut], WRITTEN, st.integers(0, 60)),
    st.text('{}[]",:\\ u0d8ecommands1', max_size=40),
    st.builds(lambda text: '{"commands": ["' + text, st.text('",]}\\ud83e09 ', max_size=30)),
)


def pieces_of(text: str, cuts: list[int]) -> Iterator[str]:
    start = 0
    for cut in sorted(cut % (len(text) + 1) for cut in cuts):
        yield text[start:cut]
        start = cut
    yield text[start:]


def joined(events: list[Any]) -> list[tuple[str, str]]:
    """Return the events by type, with the deltas of a command as one."""
    out: list[tuple[str, str]] = []
    for event in events:
        text = ""
        if isinstance(event, e.CommandDelta):
            text = event.delta
            if out and out[-1][0] == "CommandDelta":
                out[-1] = ("CommandDelta", out[-1][1] + text)
                continue
        elif isinstance(event, e.CommandDone):
            text = event.command
        elif isinstance(event, e.ItemAdded | e.ItemDone):
            text = msgspec.json.encode(event.item).decode("utf-8", "replace")
        out.append((type(event).__name__, text))
    return out


@settings(max_examples=400)
@given(
    ANY_TEXT,
    st.lists(st.integers(0, 200), max_size=12),
    st.sampled_from(["completed", "incomplete"]),
)
def test_in_however_many_pieces_arguments_come_the_call_is_the_same(
    text: str, cuts: list[int], status: str
) -> None:
    whole = call("shell", [text], status)
    assert joined(call("shell", list(pieces_of(text, cuts)), status)) == joined(whole)
    assert joined(call("shell", list(text), status)) == joined(whole)


@settings(max_examples=200)
@given(COMMANDS, st.booleans())
def test_commands_are_read_as_json_means_them(commands: list[str], ascii_only: bool) -> None:
    text = json.dumps({"commands": commands}, ensure_ascii=ascii_only)
    events = call("shell", list(text))
    assert [event.command for event in events if isinstance(event, e.CommandDone)] == commands
    assert events[-1].item.action["commands"] == commands


def test_a_command_is_shown_before_the_next_one_is_written() -> None:
    reader = CommandReader()
    seen = list(reader.feed('{"commands": ["ls -l", "rm'))
    assert seen == [
        d.ToolProgress("command"),
        d.ArgumentsDelta("ls -l"),
        d.ToolProgress("command"),
        d.ArgumentsDelta("rm"),
    ]


# --- searching ------------------------------------------------------------------------------------


def tool(name: str, description: str = "", *, deferred: bool = True) -> FunctionTool:
    return FunctionTool(name=name, description=description, defer_loading=deferred)


def found(query: Any, *tools: Any) -> list[str]:
    return [each.name for each in search({"query": query}, tools)]  # type: ignore[union-attr]


def test_names_count_more_than_descriptions() -> None:
    about = tool("archive", "Moves an invoice away.")
    assert found("invoice", about, tool("pay_invoice"), tool("send_mail")) == [
        "pay_invoice",
        "archive",
    ]


def test_what_is_not_deferred_or_unknown_is_not_found() -> None:
    assert found("pay", tool("pay", deferred=False), UnknownTool(raw={"type": "pay"})) == []


def test_words_are_told_apart_in_every_spelling_of_a_name() -> None:
    names = [tool("sendMail"), tool("send-mail"), tool("send.mail"), tool("mailbox2")]
    assert found("Mail", *names) == ["sendMail", "send-mail", "send.mail", "mailbox2"]


def test_a_namespace_is_found_by_its_own_words_with_the_tools_that_fit() -> None:
    free = CustomTool(name="note", defer_loading=True)
    crm = NamespaceTool(name="crm", description="Orders.", tools=(tool("find"), free))
    assert search("orders", [crm]) == [crm]
    [part] = search({"any": ["note"]}, [crm])
    assert isinstance(part, NamespaceTool)
    assert [each.name for each in part.tools] == ["note"]


def test_a_search_finds_only_the_best() -> None:
    tools = [tool(f"pay_{n}") for n in range(20)]
    assert found("pay", *tools) == [f"pay_{n}" for n in range(8)]


@pytest.mark.parametrize("arguments", [None, {}, [], 5, {"query": ""}, {"query": {"a": [1]}}])
def test_a_search_for_nothing_finds_nothing(arguments: Any) -> None:
    assert search(arguments, [tool("pay")]) == []
