"""The base of all tools, the specs that a model is given of them, and their names."""

from __future__ import annotations

from hashlib import sha256
from typing import Annotated, Literal, TypeVar

import msgspec
from msgspec import Meta, Struct, UnsetType

from antiphon.domain.json import Json

T = TypeVar("T")

ToolName = Annotated[str, Meta(min_length=1, max_length=128, pattern="^[a-zA-Z0-9_.-]+$")]


class Tool(Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base class of all tools."""


def none_if_unset(value: T | None | UnsetType) -> T | None:
    """Return the value of a tool's field, None if the client did not send it."""
    return None if isinstance(value, UnsetType) else value


ToolCallerName = Literal["direct", "programmatic"]

DIRECT: ToolCallerName = "direct"
"""The caller in `allowed_callers` that is the model itself, and not a program that it wrote."""

PROGRAMMATIC: ToolCallerName = "programmatic"
"""The caller that is a program of the model's."""

ONLY_DIRECT: tuple[str, ...] = (DIRECT,)
"""The callers of a tool that does not name any."""


def callers_of(tool: object) -> tuple[str, ...]:
    """Return who may call a tool.

    >>> callers_of(Tool())
    ('direct',)
    """
    callers = getattr(tool, "allowed_callers", None)
    return callers if isinstance(callers, tuple) else ONLY_DIRECT


def is_called_directly(tool: object) -> bool:
    """Return whether the model itself may call a tool. If not, only programs may."""
    return DIRECT in callers_of(tool)


REDACTED = "<redacted>"
"""Stands for the value of a secret."""

NAMED_KINDS = ("function", "custom")
"""The kinds of tools that a client names; there is at most one tool of any other kind."""

NAMESPACE_MARK = "__"

MAX_FLAT_NAME_CHARS = 64

FUNCTIONS = "functions"
"""The namespace in which models know all functions. Names in it need no namespace for a model."""


def flat_name(namespace: str | None, name: str) -> str:
    """Return the name that models, which know no other namespaces, write for a tool.

    >>> flat_name("crm", "find"), flat_name("functions", "exec")
    ('crm__find', 'exec')
    """
    return name if namespace in (None, "", FUNCTIONS) else qualified_name(namespace, name)


def qualified_name(namespace: str, name: str) -> str:
    """Return the name with its namespace, as one word.

    A long name is cut off and gets a hash of the whole name, so that it stays unique.

    >>> qualified_name("crm", "find")
    'crm__find'
    >>> qualified_name("crm", "find_" + 70 * "x")
    'crm__find_xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx_df28e728'
    """
    full_name = f"{namespace}{NAMESPACE_MARK}{name}"
    if len(full_name) <= MAX_FLAT_NAME_CHARS:
        return full_name
    suffix = sha256(full_name.encode()).hexdigest()[:8]
    return f"{full_name[: MAX_FLAT_NAME_CHARS - len(suffix) - 1]}_{suffix}"


def parse_arguments(arguments: str) -> Json | None:
    """Return the arguments that a model wrote for a call, None if they are not a JSON object.

    >>> [parse_arguments(text) for text in ('{"a": 1}', "", "[1]", '{"a')]
    [{'a': 1}, {}, None, None]
    """
    try:
        value = msgspec.json.decode(arguments or "{}")
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


class ToolSpec(Struct, frozen=True, kw_only=True):
    """A tool as the model sees it, under the `name` that the model writes.

    `kind` is a CallKind (kind.py), which determines the item that a call becomes. `grammar` is the
    `(syntax, definition)` of a custom tool. `original_name` is the name that the client knows, if
    it differs. A `deferred` tool is shown only after a tool search has found it. `approval_key`
    identifies what the client approves with a call (mcp.py). `callers` are who may call it, and
    `output_schema` is that of its results, for programs. `note` is the end of the description that
    only this response has, for formats that have a description of their own.
    """

    name: str
    kind: str = "function"
    description: str = ""
    parameters: Json | None = None
    strict: bool = False
    grammar: tuple[str, str] | None = None
    namespace: str | None = None
    original_name: str | None = None
    deferred: bool = False
    approval_key: str | None = None
    callers: tuple[str, ...] = ONLY_DIRECT
    output_schema: Json | None = None
    note: str = ""

    @property
    def client_name(self) -> str:
        return self.original_name or self.name
