"""The built-in tools that a client runs: their functions for the model, and how a call becomes an
item and back (docs/reference/api.md#tools-with-items-of-their-own).

Models know only functions, so each tool is offered as one. A Struct decodes a call's arguments, and
the function's schema is generated from that Struct, so both agree. A call with arguments that do
not match does not become an item of its tool (docs/decisions/0017).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from operator import itemgetter
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from antiphon.domain import items as i
from antiphon.domain.json import Json


class Arguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base class of arguments that models write; omitted fields have their defaults."""


class ShellArguments(Arguments, frozen=True, kw_only=True):
    commands: Annotated[
        tuple[str, ...],
        Meta(min_length=1, description="Shell commands; each runs in a shell of its own."),
    ]
    timeout_ms: Annotated[int | None, Meta(description="Longest time for each command.")] = None
    max_output_length: Annotated[
        int | None, Meta(description="Characters of output to return at most, of each command.")
    ] = None


class LocalShellArguments(Arguments, frozen=True, kw_only=True):
    command: Annotated[
        tuple[str, ...],
        Meta(min_length=1, description="The program and its arguments, one string each."),
    ]
    env: Annotated[dict[str, str], Meta(description="Further environment variables.")] = {}
    timeout_ms: Annotated[int | None, Meta(description="Longest time for the command.")] = None
    user: Annotated[str | None, Meta(description="The user to run it as.")] = None
    working_directory: Annotated[str | None, Meta(description="The folder to run it in.")] = None


Path = Annotated[str, Meta(description="The file, relative to the workspace.")]


class CreateFile(Arguments, frozen=True, kw_only=True, tag_field="type", tag="create_file"):
    path: Path
    diff: Annotated[str, Meta(description="The new file, in the V4A format.")]


class UpdateFile(Arguments, frozen=True, kw_only=True, tag_field="type", tag="update_file"):
    path: Path
    diff: Annotated[str, Meta(description="The changes, in the V4A format.")]


class DeleteFile(Arguments, frozen=True, kw_only=True, tag_field="type", tag="delete_file"):
    path: Path


class ApplyPatchArguments(Arguments, frozen=True, kw_only=True):
    operation: CreateFile | UpdateFile | DeleteFile


class Action(Arguments, frozen=True, kw_only=True, tag_field="type"):
    """Base class of the actions on a computer's screen, mouse and keyboard."""


HeldKeys = tuple[str, ...] | None
"""Keys that are held down during an action."""


class Click(Action, frozen=True, kw_only=True, tag="click"):
    button: Literal["left", "right", "wheel", "back", "forward"]
    x: int
    y: int
    keys: HeldKeys = None


class DoubleClick(Action, frozen=True, kw_only=True, tag="double_click"):
    x: int
    y: int
    keys: HeldKeys = None


class Point(Arguments, frozen=True, kw_only=True):
    x: int
    y: int


class Drag(Action, frozen=True, kw_only=True, tag="drag"):
    path: tuple[Point, ...]
    keys: HeldKeys = None


class Keypress(Action, frozen=True, kw_only=True, tag="keypress"):
    keys: tuple[str, ...]


class Move(Action, frozen=True, kw_only=True, tag="move"):
    x: int
    y: int
    keys: HeldKeys = None


class Screenshot(Action, frozen=True, kw_only=True, tag="screenshot"):
    pass


class Scroll(Action, frozen=True, kw_only=True, tag="scroll"):
    x: int
    y: int
    scroll_x: int
    scroll_y: int
    keys: HeldKeys = None


class TypeText(Action, frozen=True, kw_only=True, tag="type"):
    text: str


class Wait(Action, frozen=True, kw_only=True, tag="wait"):
    pass


AnyAction = Click | DoubleClick | Drag | Keypress | Move | Screenshot | Scroll | TypeText | Wait


class ComputerArguments(Arguments, frozen=True, kw_only=True):
    actions: Annotated[
        tuple[AnyAction, ...],
        Meta(min_length=1, description="Done one after another; then the screen is shown."),
    ]


class ComputerPreviewArguments(Arguments, frozen=True, kw_only=True):
    action: Annotated[AnyAction, Meta(description="Done; then the screen is shown.")]


class SearchArguments(Arguments, frozen=True, kw_only=True):
    query: Annotated[str, Meta(description="Words that say what the tool should do.")]


def parameters_of(arguments: type[Any]) -> Json:
    """Return the JSON schema of arguments, with all references resolved.

    >>> parameters_of(SearchArguments)["required"]
    ['query']
    """
    (root,), components = msgspec.json.schema_components([arguments], ref_template="{name}")

    def resolve(schema: Any) -> Any:
        if isinstance(schema, list):
            return [resolve(each) for each in schema]
        if not isinstance(schema, dict):
            return schema
        if "$ref" in schema:
            siblings = {key: value for key, value in schema.items() if key != "$ref"}
            return resolve(components[schema["$ref"]]) | siblings
        omitted_keys = {"title", "default", "discriminator"}
        return {
            key: {name: resolve(each) for name, each in value.items()}
            if key == "properties"
            else resolve(value)
            for key, value in schema.items()
            if key not in omitted_keys
        }

    result: Json = resolve(root)
    return result


class ClientTool(Struct, frozen=True, kw_only=True):
    """A kind of tool, with functions that convert arguments to an item's fields and back."""

    name: str
    description: str
    arguments: type[Any]
    item: type[Any]
    to_fields: Callable[[Any], Json]
    to_arguments: Callable[[Json], Any]


V4A = """\
Create, change or delete one file. `diff` is written in the V4A format, which has no line numbers:
- create_file: every line of the new file, each after a "+".
- update_file: sections. A section begins with a line "@@", or "@@ " and the line of the file that
opens the class or function it is in. Then come the lines: after " " a line that stays, after "-" \
one that goes, after "+" one that is new. About three lines that stay, before and after each \
change, say where it is; they must be exactly as they are in the file.
- delete_file: no diff."""


def _builtins(arguments: Any) -> Json:
    fields: Json = msgspec.to_builtins(arguments)
    return fields


def _shell_fields(arguments: ShellArguments) -> Json:
    limits = {"timeout_ms": None, "max_output_length": None}
    return {"action": limits | _builtins(arguments)}


def _local_shell_fields(arguments: LocalShellArguments) -> Json:
    return {"action": {"type": "exec", "env": {}} | _builtins(arguments)}


def _actions_of(fields: Json) -> list[Any]:
    return list(fields.get("actions") or ([fields["action"]] if fields.get("action") else []))


def _preview_arguments(fields: Json) -> Json:
    # The call may be one of the `computer` tool, which takes several actions.
    actions = _actions_of(fields)
    return {"action": actions[0]} if len(actions) == 1 else {"actions": actions}


_ACTIONS = "click, double_click, drag, keypress, move, screenshot, scroll, type and wait"

CLIENT_TOOLS: Mapping[str, ClientTool] = {
    "shell": ClientTool(
        name="shell",
        description="Run shell commands on the user's machine and return what they print.",
        arguments=ShellArguments,
        item=i.ShellCall,
        to_fields=_shell_fields,
        to_arguments=itemgetter("action"),
    ),
    "container": ClientTool(
        name="shell",
        description=(
            "Run shell commands in a container and return what they print. Files are in /mnt/data "
            "and stay from call to call; processes end with their command. There is no network."
        ),
        arguments=ShellArguments,
        item=i.ShellCall,
        to_fields=_shell_fields,
        to_arguments=itemgetter("action"),
    ),
    "local_shell": ClientTool(
        name="local_shell",
        description="Run a program on the user's machine and return what it prints.",
        arguments=LocalShellArguments,
        item=i.LocalShellCall,
        to_fields=_local_shell_fields,
        to_arguments=lambda fields: {k: v for k, v in fields["action"].items() if k != "type"},
    ),
    "apply_patch": ClientTool(
        name="apply_patch",
        description=V4A,
        arguments=ApplyPatchArguments,
        item=i.ApplyPatchCall,
        to_fields=_builtins,
        to_arguments=lambda fields: {"operation": fields["operation"]},
    ),
    "computer": ClientTool(
        name="computer",
        description=f"Use a computer by its screen, mouse and keys. Actions: {_ACTIONS}.",
        arguments=ComputerArguments,
        item=i.ComputerCall,
        to_fields=_builtins,
        to_arguments=lambda fields: {"actions": _actions_of(fields)},
    ),
    "computer_use_preview": ClientTool(
        name="computer_use_preview",
        description=f"Use a computer by its screen, mouse and keys. Actions: {_ACTIONS}.",
        arguments=ComputerPreviewArguments,
        item=i.ComputerCall,
        to_fields=_builtins,
        to_arguments=_preview_arguments,
    ),
    "tool_search": ClientTool(
        name="tool_search",
        description="Find further tools by what they do; those found can be called afterwards.",
        arguments=Json,
        item=i.ToolSearchCall,
        to_fields=lambda arguments: {"arguments": arguments, "execution": "client"},
        to_arguments=itemgetter("arguments"),
    ),
    "server_tool_search": ClientTool(
        name="tool_search",
        description="Find further tools by what they do; those found can be called afterwards.",
        arguments=Json,
        item=i.ToolSearchCall,
        # The server runs the search, so the client needs no call_id to answer it.
        to_fields=lambda arguments: {
            "arguments": arguments,
            "execution": "server",
            "call_id": None,
        },
        to_arguments=itemgetter("arguments"),
    ),
}
"""The built-in client tools by the kind of their ToolSpec."""

KINDS_OF: Mapping[type[i.Item], tuple[str, ...]] = {
    tool.item: tuple(kind for kind, other in CLIENT_TOOLS.items() if other.item is tool.item)
    for tool in CLIENT_TOOLS.values()
}
"""The kinds of tools that an item's call may belong to; the first is used if none is offered."""


def item_fields_of(kind: str, arguments: str) -> Json | None:
    """Return the item's fields for a call with these arguments, None if they are invalid.

    >>> item_fields_of("apply_patch", '{"operation": {"type": "delete_file", "path": "a.txt"}}')
    {'operation': {'type': 'delete_file', 'path': 'a.txt'}}
    >>> item_fields_of("apply_patch", '{"operation": {"type": "delete_f')
    """
    tool = CLIENT_TOOLS[kind]
    try:
        return tool.to_fields(msgspec.json.decode(arguments, type=tool.arguments))
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None


def normalize_arguments(kind: str, arguments: str) -> str | None:
    """Return arguments in the form that `call_arguments_of` writes, None if they are invalid.

    >>> normalize_arguments("shell", '{"timeout_ms":null,"commands":["ls"]}')
    '{"commands": ["ls"]}'
    """
    fields = item_fields_of(kind, arguments)
    return None if fields is None else _write_arguments(CLIENT_TOOLS[kind], fields)


def call_arguments_of(kind: str, item: i.Item) -> str:
    """Return the arguments of a call, as its tool takes them."""
    return _write_arguments(CLIENT_TOOLS[kind], msgspec.to_builtins(item))


def _write_arguments(tool: ClientTool, fields: Json) -> str:
    arguments = tool.to_arguments(fields)
    # A client may have made the arguments invalid; the model is shown them anyway.
    with suppress(msgspec.ValidationError):
        arguments = msgspec.to_builtins(msgspec.convert(arguments, tool.arguments))
    return json.dumps(arguments, ensure_ascii=False)
