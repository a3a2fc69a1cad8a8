"""Built-in tools that a client runs: their functions for the model, and how a call becomes an item
and back (docs/reference/api.md#tools-with-items-of-their-own).

Models know only functions, so each tool is offered as one. A Struct decodes a call's arguments, and
the function's schema is generated from that Struct, so both agree. A call whose arguments are cut
off or invalid becomes a `function_call` with the arguments as the model wrote them, so nothing is
lost and no client runs half a call (docs/decisions/0017).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.domain import deltas as d
from antiphon.domain.json import Json
from antiphon.domain.vocabulary.builder import BuilderContext
from antiphon.domain.vocabulary.event import Event
from antiphon.domain.vocabulary.item import Item
from antiphon.domain.vocabulary.shown import Call, View
from antiphon.domain.vocabulary.tool import ToolSpec


class Arguments(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Base class of arguments that models write; omitted fields have their defaults."""


def parameters_of(arguments: type[Any]) -> Json:
    """Return the JSON schema of arguments, with all references resolved.

    >>> class Look(Arguments, frozen=True):
    ...     query: str
    >>> parameters_of(Look)["required"]
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
    to_fields: Callable[[Any], Json]
    to_arguments: Callable[[Json], Any]

    def fields_of(self, arguments: str) -> Json | None:
        """Return the item's fields for a call with these arguments, None if they are invalid."""
        try:
            return self.to_fields(msgspec.json.decode(arguments, type=self.arguments))
        except (msgspec.DecodeError, UnicodeError, RecursionError):
            return None

    def arguments_of(self, fields: Json) -> str:
        """Return the arguments of a call whose item has these fields."""
        arguments = self.to_arguments(fields)
        # A client may have made the arguments invalid; the model is shown them anyway.
        with suppress(msgspec.ValidationError):
            arguments = msgspec.to_builtins(msgspec.convert(arguments, self.arguments))
        return json.dumps(arguments, ensure_ascii=False)

    def normalize(self, arguments: str) -> str | None:
        """Return arguments in the form that `arguments_of` writes, None if they are invalid."""
        fields = self.fields_of(arguments)
        return None if fields is None else self.arguments_of(fields)

    def call(self, item: Item, view: View, *kinds: str) -> Call:
        """Return the call that the item was, of the tool of `kinds` that is offered."""
        offered = ((tool.kind, tool.name) for tool in view.tools if tool.kind in kinds)
        kind, name = next(offered, (kinds[0], self.name))
        return Call(kind=kind, name=name, text=self.arguments_of(msgspec.to_builtins(item)))

    def spec(self, kind: str, note: str = "") -> ToolSpec:
        """Return the spec of the tool for the model."""
        return ToolSpec(
            name=self.name,
            kind=kind,
            description=self.description + note,
            parameters=parameters_of(self.arguments),
            strict=True,
        )


def to_builtins(arguments: Any) -> Json:
    fields: Json = msgspec.to_builtins(arguments)
    return fields


EventsAndItem = tuple[Sequence[Event], Any]
"""All events of an item, and the item."""


ItemFactory = Callable[[d.CallStart, str, str, BuilderContext], EventsAndItem]
"""(start, arguments, status, context) -> the item of a call, with its events."""


class BufferedCallBuilder:
    """Shows nothing until the call is complete; then `make_item` decides which item it is."""

    def __init__(self, start: d.CallStart, context: BuilderContext, make_item: ItemFactory) -> None:
        self._start = start
        self._context = context
        self._make_item = make_item
        self._arguments: list[str] = []
        self.item: Any = None

    @property
    def arguments(self) -> str:
        return "".join(self._arguments)

    def open(self) -> Sequence[Event]:
        return ()

    def accepts(self, delta: d.Delta) -> bool:
        return isinstance(delta, d.ArgumentsDelta)

    def add(self, delta: d.Delta) -> Sequence[Event]:
        if isinstance(delta, d.ArgumentsDelta):
            self._arguments.append(delta.text)
        return ()

    def close(self, status: str) -> Sequence[Event]:
        events, self.item = self._make_item(self._start, self.arguments, status, self._context)
        return events


def make_typed_call(
    tool: ClientTool, item: type[Item], prefix: str, otherwise: ItemFactory
) -> ItemFactory:
    """Return a function that makes the tool's item, or what `otherwise` makes of half a call."""

    def make(
        start: d.CallStart, arguments: str, status: str, context: BuilderContext
    ) -> EventsAndItem:
        fields = tool.fields_of(arguments) if status == "completed" else None
        if fields is None:
            return otherwise(start, arguments, status, context)
        call_id = start.call_id or context.new_id("call")
        common_fields: Json = {"id": context.new_id(prefix), "call_id": call_id, "status": status}
        if start.caller is not None:
            common_fields["caller"] = start.caller
        call: Any = item(**common_fields | fields)
        added = replace(call, status="in_progress")
        return (context.added(added), context.done(call)), call

    return make
