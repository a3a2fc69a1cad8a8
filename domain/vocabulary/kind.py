"""Kinds, and the parts that each of them declares (docs/decisions/0135).

All parts are required: mypy refuses a declaration that lacks one, and so does the import, with a
sentence. A kind that has nothing to say of a part says so: None, an empty tuple, NO_EVENTS.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Self

from msgspec import Struct

from antiphon.domain.json import Json
from antiphon.domain.vocabulary.builder import BuilderFactory
from antiphon.domain.vocabulary.item import Item, type_of
from antiphon.domain.vocabulary.shown import Call, Result, View
from antiphon.domain.vocabulary.steps import Events, EventTable, ItemSteps
from antiphon.domain.vocabulary.tool import Tool, ToolSpec
from antiphon.domain.vocabulary.typed_call import ClientTool


class IncompleteKind(Exception):
    """A kind lacks a part, or two kinds claim the same."""


class Declaration:
    """Base class of declarations, which have all of their parts."""

    def __new__(cls, **parts: Any) -> Self:
        for field in dataclasses.fields(cls):  # type: ignore[arg-type]
            if field.name not in parts:
                part = field.name.replace("_", " ")
                raise IncompleteKind(
                    f"The {cls._noun(parts)} has no {part} ({cls.__name__}.{field.name})."
                )
        return super().__new__(cls)

    @classmethod
    def _noun(cls, parts: Mapping[str, Any]) -> str:
        """Return what is declared, by the parts that it has."""
        subject = parts.get("item") or parts.get("tool")
        name = parts.get("name", type_of(subject) if subject is not None else "")
        return f"{_NOUNS[cls.__name__]} {name!r}"


_NOUNS = {"ItemKind": "item", "CallKind": "kind of call", "ToolKind": "tool", "Kind": "kind"}


class IncludableField(Struct, frozen=True):
    """A field that a client must `include` to see or, with `key`, one key of the object in it."""

    name: str
    key: str | None = None

    def of(self, value: Any) -> Any:
        """Return the part of the field's `value` that may be hidden."""
        return value.get(self.key) if self.key and value else value

    def hide(self, value: Any) -> Any:
        """Return the field's `value` with that part hidden."""
        if self.key is None:
            return None
        return {name: each for name, each in value.items() if name != self.key}

    def restore(self, value: Any, stored_value: Any) -> Any:
        """Return the field's `value` with that part taken from `stored_value`."""
        if self.key is None:
            return stored_value
        return {**(value or {}), self.key: stored_value[self.key]}


ActsNext = Literal["model", "client", "nobody"]
"""Who acts after an item. The model has another turn after what this server did; the client answers
a call; after anything else, the response may end."""


@dataclass(frozen=True, kw_only=True)
class ItemKind(Declaration):
    """A type of item.

    `answered_by` is the type of item that answers a call. `call` and `result` are how a model is
    shown the item: as a call, as a result, as both or, if both are None, not as a tool's.
    `includable` are the fields that are hidden without their value of `include`.
    """

    item: type[Item]
    id_prefix: str | None
    events: Events
    answered_by: type[Item] | None
    acts_next: ActsNext
    call: Callable[[Any, View], Call] | None
    result: Callable[[Any, View], Result] | None
    includable: Mapping[str, IncludableField]

    def event_table(self) -> EventTable | None:
        """Return the events of the item and their order, None if it is never output."""
        if isinstance(self.events, ItemSteps):
            return self.events.table(self.item, str(self.id_prefix))
        return self.events if isinstance(self.events, EventTable) else None


@dataclass(frozen=True, kw_only=True)
class CallKind(Declaration):
    """A kind of call: `name` is the `kind` of the specs that models are given.

    `tool_type` is the type of the tool in requests. `item` is what a call becomes, and `open`
    returns its builder. `text_property` is the only property of the arguments if the input is a
    text. `client_tool` converts the arguments of tools that have typed items.
    """

    name: str
    tool_type: str
    item: type[Item]
    open: BuilderFactory
    text_property: str | None
    client_tool: ClientTool | None


Specs = Callable[[Any, str], tuple[ToolSpec, ...]]
"""(tool, path) -> the specs for the model. Raises: RequestError with the path."""


@dataclass(frozen=True, kw_only=True)
class ToolKind(Declaration):
    """A type of tool in requests.

    `client_specs` are its specs if the client runs it, `server_specs` if this server does. `chosen`
    are the kinds of calls that a tool_choice of this type selects: none if it is no type of
    tool_choice, None if it is one of a tool that only a server could run, and this one does not.
    `stand_in` is the name by which an operator lets an MCP server replace it. `ignored` yields the
    paths of fields without effect, and `echo` returns the tool as the Response
    shows it. `redact` returns its JSON without secrets, to show or store.
    """

    tool: type[Tool]
    client_specs: Specs | None
    server_specs: Specs | None
    chosen: tuple[str, ...] | None
    stand_in: str | None
    ignored: Callable[[Any, str], Iterator[str]] | None
    echo: Callable[[Any], Tool] | None
    redact: Callable[[Json], Json] | None


@dataclass(frozen=True, kw_only=True)
class Kind(Declaration):
    """All that is true of one kind of item or tool."""

    name: str
    items: tuple[ItemKind, ...]
    tools: tuple[ToolKind, ...]
    calls: tuple[CallKind, ...]
