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


class Shown(Struct, frozen=True):
    """How a model is shown an item: as a call of a tool, as a result, as both, or as a text that a
    user says."""

    call: Callable[[Any, View], Call] | None = None
    result: Callable[[Any, View], Result] | None = None
    text: Callable[[Any], str] | None = None


NOT_SHOWN = Shown()
"""The item is no tool's: formats write messages and reasoning, and leave out the others."""

Next = Literal["nobody", "model", "client"] | type[Item]
"""Who acts after an item. The model has another turn after what this server did; the client decides
or, with an item of this type, answers a call; after anything else, the response may end."""


@dataclass(frozen=True, kw_only=True)
class ItemKind(Declaration):
    """A type of item.

    `prefix` is that of its ids, `next` is who acts after it, and `shown` is how a model is shown
    it. `include` are the fields that are hidden without their value of `include`.
    """

    item: type[Item]
    prefix: str | None
    events: Events
    next: Next
    shown: Shown
    include: Mapping[str, IncludableField]

    @property
    def answered_by(self) -> type[Item] | None:
        """The type of item with which the client answers this one."""
        return self.next if isinstance(self.next, type) else None

    def event_table(self) -> EventTable | None:
        """Return the events of the item and their order, None if it is never output."""
        if isinstance(self.events, ItemSteps):
            return self.events.table(self.item, str(self.prefix))
        return self.events if isinstance(self.events, EventTable) else None


class TextArguments(Struct, frozen=True):
    """The input is a text, which models that only know JSON wrap as this property."""

    property: str


class JsonArguments(Struct, frozen=True):
    """The input is a JSON object, as the tool's schema says."""


JSON_ARGUMENTS = JsonArguments()


@dataclass(frozen=True, kw_only=True)
class CallKind(Declaration):
    """A kind of call: `name` is the `kind` of the specs that models are given.

    `tool_type` is the type of the tool in requests. `item` is what a call becomes, and `open`
    returns its builder. A ClientTool converts `arguments` to the fields of a typed item.
    """

    name: str
    tool_type: str
    item: type[Item]
    open: BuilderFactory
    arguments: JsonArguments | TextArguments | ClientTool


Specs = Callable[[Any, str], tuple[ToolSpec, ...]]
"""(tool, path) -> the specs for the model. Raises: RequestError with the path."""


class Echo(Struct, frozen=True):
    """How the Response shows a tool.

    `ignored` yields the paths of fields without effect. `echo` returns the tool as it was
    understood. `redact` returns its JSON without secrets, to show or store.
    """

    ignored: Callable[[Any, str], Iterator[str]] | None = None
    echo: Callable[[Any], Tool] | None = None
    redact: Callable[[Json], Json] | None = None


AS_SENT = Echo()
"""The Response shows the tool as the client sent it: it has no secrets, and all has an effect."""


@dataclass(frozen=True, kw_only=True)
class ToolKind(Declaration):
    """A type of tool in requests.

    `client_specs` are its specs if the client runs it, `server_specs` if this server does. `chosen`
    are the kinds of calls that a tool_choice of this type selects: none if it is no type of
    tool_choice, None if it is one of a tool that only a server could run, and this one does not.
    `stand_in` is the name by which an operator lets an MCP server replace it.
    """

    tool: type[Tool]
    client_specs: Specs | None
    server_specs: Specs | None
    chosen: tuple[str, ...] | None
    stand_in: str | None
    echo: Echo


@dataclass(frozen=True, kw_only=True)
class Kind(Declaration):
    """All that is true of one kind of item or tool."""

    name: str
    items: tuple[ItemKind, ...]
    tools: tuple[ToolKind, ...]
    calls: tuple[CallKind, ...]
