"""Build calls of tools that the client runs: functions (JSON) and custom tools (free text)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec import UNSET, Struct

from antiphon.domain import deltas as d
from antiphon.domain import events as e
from antiphon.domain.builders.builder_context import BuilderContext
from antiphon.domain.items import CustomToolCall, FunctionCall

Place = dict[str, Any]


class CallKind(Struct, frozen=True):
    """What differs between the kinds of call: the item, and the field and events of its text."""

    prefix: str
    item: type[FunctionCall] | type[CustomToolCall]
    text_field: str
    delta_event: type[e.ArgumentsDelta] | type[e.CustomInputDelta]
    done_event: Callable[[Place, str, str], e.Event]


KINDS: Mapping[str, CallKind] = {
    "function": CallKind(
        "fc",
        FunctionCall,
        "arguments",
        e.ArgumentsDelta,
        lambda place, name, text: e.ArgumentsDone(name=name, arguments=text, **place),
    ),
    "custom": CallKind(
        "ctc",
        CustomToolCall,
        "input",
        e.CustomInputDelta,
        lambda place, _name, text: e.CustomInputDone(input=text, **place),
    ),
}


class CallBuilder:
    """Builds a call; one without arguments closes like any other, with empty text."""

    def __init__(self, delta: d.Delta, context: BuilderContext) -> None:
        assert isinstance(delta, d.CallStart)
        self._kind = KINDS[delta.kind]
        self._start = delta
        self._index = context.output_index
        self._id = context.new_id(self._kind.prefix)
        self._call_id = delta.call_id or context.new_id("call")
        self._text: list[str] = []
        self.item = self._build("in_progress", "")

    def open(self) -> Sequence[e.Event]:
        return (e.ItemAdded(output_index=self._index, item=self.item),)

    def accepts(self, delta: d.Delta) -> bool:
        return type(delta) is d.ArgumentsDelta

    def add(self, delta: d.Delta) -> Sequence[e.Event]:
        if type(delta) is not d.ArgumentsDelta:
            return ()  # the CallStart itself, which has no text
        self._text.append(delta.text)
        return (
            self._kind.delta_event(item_id=self._id, output_index=self._index, delta=delta.text),
        )

    def close(self, status: str) -> Sequence[e.Event]:
        text = "".join(self._text)
        self.item = self._build(status, text)
        place: Place = {"item_id": self._id, "output_index": self._index}
        return (
            self._kind.done_event(place, self._start.name, text),
            e.ItemDone(output_index=self._index, item=self.item),
        )

    def _build(self, status: str, text: str) -> FunctionCall | CustomToolCall:
        text_fields: dict[str, Any] = {self._kind.text_field: text}
        return self._kind.item(
            id=self._id,
            status=status,
            call_id=self._call_id,
            name=self._start.name,
            namespace=self._start.namespace or UNSET,
            **text_fields,
        )
