"""Built-in client tools: schemas, arguments to items and back, streamed commands."""

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
from antiphon.domain.builders import BuilderContext, open_call
from antiphon.domain.kinds import CALL_KINDS
from antiphon.domain.offers.client_tools import CLIENT_TOOLS, item_fields_of
from antiphon.domain.offers.tool_search import search
from antiphon.domain.tools import CustomTool, FunctionTool, NamespaceTool, UnknownTool
from antiphon.domain.vocabulary.command_reader import CommandReader
from antiphon.domain.vocabulary.typed_call import parameters_of

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


def arguments_of(kind: str, item: i.Item) -> str:
    return CLIENT_TOOLS[kind].arguments_of(msgspec.to_builtins(item))


def item_of(kind: str, arguments: str) -> Any:
    """Return the item that a complete call with these arguments becomes."""
    return call(kind, [arguments])[-1].item


def call(kind: str, fragments: list[str], status: str = "completed") -> list[Any]:
    """Return the events of a call whose arguments arrive in these fragments."""
    numbers = count(1)
    builder = open_call(
        d.CallStart("name", "call_own", kind=kind),
        BuilderContext(0, lambda prefix: f"{prefix}_{next(numbers)}", e.ItemAdded, e.ItemDone),
    )
    events = [*builder.open()]
    for fragment in fragments:
        events += builder.add(d.ArgumentsDelta(fragment))
    return [*events, *builder.close(status)]


@pytest.mark.parametrize("kind", CLIENT_TOOLS)
def test_an_item_gives_back_the_arguments_that_it_was_made_from(kind: str) -> None:
    compact = json.dumps(ARGUMENTS[kind])
    item = item_of(kind, compact)
    assert isinstance(item, CALL_KINDS[kind].item)
    assert json.loads(arguments_of(kind, item)) == ARGUMENTS[kind]
    indented = json.dumps(ARGUMENTS[kind], indent=2)
    assert (
        CLIENT_TOOLS[kind].normalize(indented)
        == CLIENT_TOOLS[kind].normalize(compact)
        == arguments_of(kind, item)
    )


@pytest.mark.parametrize("kind", CLIENT_TOOLS)
def test_an_item_sent_back_with_nulls_has_the_same_arguments(kind: str) -> None:
    item = item_of(kind, json.dumps(ARGUMENTS[kind]))
    fields = msgspec.to_builtins(item)
    for value in fields.values():
        if isinstance(value, dict) and kind in ("shell", "local_shell"):
            value |= {"timeout_ms": None}
    assert arguments_of(kind, msgspec.convert(fields, type(item))) == arguments_of(kind, item)


@pytest.mark.parametrize(
    "kind", ["shell", "local_shell", "apply_patch", "computer", "computer_use_preview"]
)
def test_a_schema_has_no_references_and_is_closed(kind: str) -> None:
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
def test_invalid_arguments_become_a_function_call_that_keeps_them(arguments: str) -> None:
    item = item_of("apply_patch", arguments)
    assert isinstance(item, i.FunctionCall)
    kept = arguments or "{}"  # as of every function call without arguments
    assert (item.arguments, item.call_id, item.status) == (kept, "call_own", "completed")


def test_a_partial_call_is_never_completed() -> None:
    for kind in CLIENT_TOOLS:
        item = call(kind, [json.dumps(ARGUMENTS[kind])], "incomplete")[-1].item
        assert item.status == "incomplete"
        assert isinstance(item, i.ShellCall if kind in ("shell", "container") else i.FunctionCall)


def hosted(arguments: str, *, runs: bool, status: str = "completed") -> Any:
    """Return the item of a hosted call; `runs` says whether the server still runs it."""
    start = d.HostedCallStart("shell", "call_own", kind="container", fields={"environment": PLACE})
    builder = open_call(
        start, BuilderContext(0, lambda prefix: f"{prefix}_1", e.ItemAdded, e.ItemDone)
    )
    events = [*builder.open(), *builder.add(d.ArgumentsDelta(arguments))]
    if runs:
        assert builder.accepts(d.ToolProgress("running"))
        events += builder.add(d.ToolProgress("running"))
    return [*events, *builder.close(status)][-1].item


PLACE = {"type": "container_reference", "container_id": "cntr_1"}


@pytest.mark.parametrize(
    "arguments", ['{"commands": ["ls"]}', '{"timeout_ms": 9, "commands": ["ls"]}', "{}", "", "[["]
)
def test_a_hosted_call_is_a_shell_call_with_any_arguments(
    arguments: str,
) -> None:
    for runs in (True, False):
        item = hosted(arguments, runs=runs)
        assert isinstance(item, i.ShellCall)
        assert (item.call_id, item.environment) == ("call_own", PLACE)
    is_valid = "ls" in arguments
    assert hosted(arguments, runs=True).status == ("completed" if is_valid else "incomplete")
    assert hosted(arguments, runs=False).status == "incomplete"


def test_invalid_json_after_the_commands_is_kept() -> None:
    item = item_of("shell", '{"commands": ["ls"] nonsense')
    assert item.action["commands"] == ["ls"]
    assert item.action["unread"] == " nonsense"
    assert item.status == "completed"


def test_a_list_with_something_other_than_commands_is_incomplete_and_kept() -> None:
    item = item_of("shell", '{"commands": ["cd /", {"a": 1}, "rm"]}')
    assert (item.status, item.action["commands"]) == ("incomplete", ["cd /"])
    assert item.action["unread"] == ', {"a": 1}, "rm"]}'


def test_a_missing_bracket_at_the_end_loses_nothing() -> None:
    item = item_of("shell", '{"commands": ["ls"]')
    assert (item.status, item.action["commands"]) == ("completed", ["ls"])
    assert "unread" not in item.action


# --- streamed commands ----------------------------------------------------------------------------

COMMANDS = st.lists(st.text(max_size=12), min_size=1, max_size=4)
ARGUMENT_TEXTS = st.builds(
    lambda commands, ascii_only, indent: json.dumps(
        {"commands": commands, "timeout_ms": 5}, ensure_ascii=ascii_only, indent=indent
    ),
    COMMANDS,
    st.booleans(),
    st.sampled_from([None, 0, 2]),
)
ANY_TEXT = st.one_of(
    ARGUMENT_TEXTS,
    st.builds(lambda text, cut: text[:cut], ARGUMENT_TEXTS, st.integers(0, 60)),
    st.text('{}[]",:\\ u0d8ecommands1', max_size=40),
    st.builds(lambda text: '{"commands": ["' + text, st.text('",]}\\ud83e09 ', max_size=30)),
)


def split_at(text: str, cuts: list[int]) -> Iterator[str]:
    start = 0
    for cut in sorted(cut % (len(text) + 1) for cut in cuts):
        yield text[start:cut]
        start = cut
    yield text[start:]


def merge_command_deltas(events: list[Any]) -> list[tuple[str, str]]:
    """Return the type and text of each event, with the deltas of a command merged into one."""
    merged: list[tuple[str, str]] = []
    for event in events:
        text = ""
        if isinstance(event, e.CommandDelta):
            text = event.delta
            if merged and merged[-1][0] == "CommandDelta":
                merged[-1] = ("CommandDelta", merged[-1][1] + text)
                continue
        elif isinstance(event, e.CommandDone):
            text = event.command
        elif isinstance(event, e.ItemAdded | e.ItemDone):
            text = msgspec.json.encode(event.item).decode("utf-8", "replace")
        merged.append((type(event).__name__, text))
    return merged


@settings(max_examples=400)
@given(
    ANY_TEXT,
    st.lists(st.integers(0, 200), max_size=12),
    st.sampled_from(["completed", "incomplete"]),
)
def test_the_call_is_the_same_however_its_arguments_are_split(
    text: str, cuts: list[int], status: str
) -> None:
    expected = merge_command_deltas(call("shell", [text], status))
    assert merge_command_deltas(call("shell", list(split_at(text, cuts)), status)) == expected
    assert merge_command_deltas(call("shell", list(text), status)) == expected


@settings(max_examples=200)
@given(COMMANDS, st.booleans())
def test_commands_are_decoded_as_json(commands: list[str], ascii_only: bool) -> None:
    text = json.dumps({"commands": commands}, ensure_ascii=ascii_only)
    events = call("shell", list(text))
    assert [event.command for event in events if isinstance(event, e.CommandDone)] == commands
    assert events[-1].item.action["commands"] == commands


def test_a_command_is_shown_before_the_next_one_is_written() -> None:
    reader = CommandReader()
    deltas = list(reader.feed('{"commands": ["ls -l", "rm'))
    assert deltas == [
        d.ToolProgress("command"),
        d.ArgumentsDelta("ls -l"),
        d.ToolProgress("command"),
        d.ArgumentsDelta("rm"),
    ]


# --- tool search ----------------------------------------------------------------------------------


def tool(name: str, description: str = "", *, deferred: bool = True) -> FunctionTool:
    return FunctionTool(name=name, description=description, defer_loading=deferred)


def search_names(query: Any, *tools: Any) -> list[str]:
    return [each.name for each in search({"query": query}, tools)]  # type: ignore[union-attr]


def test_names_count_more_than_descriptions() -> None:
    archive = tool("archive", "Moves an invoice away.")
    assert search_names("invoice", archive, tool("pay_invoice"), tool("send_mail")) == [
        "pay_invoice",
        "archive",
    ]


def test_tools_that_are_unknown_or_not_deferred_are_not_found() -> None:
    assert search_names("pay", tool("pay", deferred=False), UnknownTool(raw={"type": "pay"})) == []


def test_words_are_recognized_in_every_style_of_name() -> None:
    names = [tool("sendMail"), tool("send-mail"), tool("send.mail"), tool("mailbox2")]
    assert search_names("Mail", *names) == ["sendMail", "send-mail", "send.mail", "mailbox2"]


def test_a_namespace_is_found_by_its_own_words_or_with_its_matching_tools() -> None:
    note = CustomTool(name="note", defer_loading=True)
    crm = NamespaceTool(name="crm", description="Orders.", tools=(tool("find"), note))
    assert search("orders", [crm]) == [crm]
    [part] = search({"any": ["note"]}, [crm])
    assert isinstance(part, NamespaceTool)
    assert [each.name for each in part.tools] == ["note"]


def test_a_search_returns_only_the_best_tools() -> None:
    tools = [tool(f"pay_{n}") for n in range(20)]
    assert search_names("pay", *tools) == [f"pay_{n}" for n in range(8)]


@pytest.mark.parametrize("arguments", [None, {}, [], 5, {"query": ""}, {"query": {"a": [1]}}])
def test_a_search_for_nothing_finds_nothing(arguments: Any) -> None:
    assert search(arguments, [tool("pay")]) == []
