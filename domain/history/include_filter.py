"""Hide the fields of items that a client did not `include` (docs/reference/api.md#include).

Stores and logs keep items whole. Without its `include` value, a field in the table is null or
absent in responses, streams and lists. When a client sends such an item back, the server fills the
field in again, so that the model reads what it read before. Only fields that can be restored are
hidden: a response that is not stored shows everything, and what a client sent itself (images,
screenshots) is always shown. Logprobs and sealed reasoning are always shown too, since they exist
only if they were requested.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import replace

from antiphon.domain import events as e
from antiphon.domain import items as i
from antiphon.domain.json import Json
from antiphon.domain.kinds import ITEM_KINDS
from antiphon.domain.responses.response import Response
from antiphon.domain.vocabulary.kind import IncludableField

INCLUDABLE_FIELDS: Mapping[str, tuple[type[i.Item], IncludableField]] = {
    value: (kind.item, field)
    for kind in ITEM_KINDS.values()
    for value, field in kind.include.items()
}
"""The field that each value of `include` shows. Other values hide nothing when left out."""

_FIELDS_OF: Mapping[type[i.Item], Sequence[IncludableField]] = {
    kind.item: tuple(kind.include.values()) for kind in ITEM_KINDS.values() if kind.include
}

METRICS = "metrics"
"""Shows `metrics` of the Response."""

REASONING = "reasoning.encrypted_content"
"""Shows sealed reasoning, even if it was not requested when the response was created."""

ITEM_EVENTS = frozenset({e.ItemAdded, e.ItemDone})
RESPONSE_EVENTS = frozenset(
    {e.Created, e.Queued, e.InProgress, e.Completed, e.Incomplete, e.Failed}
)
FILTERED_EVENTS = ITEM_EVENTS | RESPONSE_EVENTS
"""The events that show items."""


class IncludeFilter:
    """Shows a client what it included; `seal` seals a text for the client's tenant."""

    def __init__(
        self, include: Collection[str] = (), *, seal: Callable[[str], str] | None = None
    ) -> None:
        self._hidden = [field for value, field in INCLUDABLE_FIELDS.items() if value not in include]
        self._shows_metrics = METRICS in include
        self._seal = seal if REASONING in include else None
        self._sealed: dict[str, str] = {}

    def events(self, events: Sequence[e.Event]) -> Sequence[e.Event]:
        if FILTERED_EVENTS.isdisjoint(map(type, events)):
            return events  # the fast path: every token passes through here
        return [
            self._filter_event(event) if type(event) in FILTERED_EVENTS else event
            for event in events
        ]

    def response(self, response: Response) -> Response:
        has_record = response.metrics is not UNSET or response.preview is not UNSET
        if has_record and not self._shows_metrics:
            response = replace(response, metrics=UNSET, preview=UNSET)
        if not response.output or not response.store:
            return response
        return replace(response, output=tuple(self._filter_item(item) for item in response.output))

    def raw(self, raw: Raw) -> Raw:
        """Return an item of a list, as this client sees it."""
        fields: Json = msgspec.json.decode(raw)
        kind = i.ITEM_TYPES.get(fields["type"])
        changes = self._changes_to(kind, fields)
        return Raw(msgspec.json.encode(fields | changes)) if changes else raw

    def _filter_event(self, event: Any) -> e.Event:
        filtered: e.Event
        if type(event) in ITEM_EVENTS:
            filtered = replace(event, item=self._filter_item(event.item))
        else:
            filtered = replace(event, response=self.response(event.response))
        return filtered

    def _filter_item(self, item: Any) -> Any:
        kind = type(item)
        if kind is not i.Reasoning and kind not in _FIELDS_OF:
            return item
        fields = {name: getattr(item, name) for name in kind.__struct_fields__}
        changes = self._changes_to(kind, fields)
        return replace(item, **changes) if changes else item

    def _changes_to(self, kind: type[i.Item] | None, fields: Json) -> Json:
        if kind is i.Reasoning and self._seal is not None:
            return self._seal_reasoning(fields, self._seal)
        changes: Json = {}
        for item, field in self._hidden:
            value = changes.get(field.name, fields.get(field.name))
            if item is kind and field.of(value):
                changes[field.name] = field.hide(value)
        return changes

    def _seal_reasoning(self, fields: Json, seal: Callable[[str], str]) -> Json:
        parts = msgspec.to_builtins(fields.get("content") or ())
        text = "".join(part["text"] for part in parts)
        if fields.get("encrypted_content") or not text:
            return {}
        if text not in self._sealed:  # the same item is in several events
            self._sealed[text] = seal(text)
        return {"encrypted_content": self._sealed[text]}


def may_have_hidden_fields(item: i.Item) -> bool:
    """Return whether a field may have been hidden from a client that sends `item` back."""
    fields = _FIELDS_OF.get(type(item), ())
    return not all(field.of(getattr(item, field.name)) for field in fields)


def restore_hidden_fields(received: Raw, stored: Raw) -> Raw:
    """Return the received item with its hidden fields filled in from the stored one.

    This happens only if the two agree otherwise: clients may choose ids, and use one twice.
    """
    fields, stored_fields = msgspec.json.decode(received), msgspec.json.decode(stored)
    kind = i.ITEM_TYPES[fields["type"]]
    if stored_fields["type"] != fields["type"] or not _agree(kind, fields, stored_fields):
        return received
    for field in _FIELDS_OF[kind]:
        value, stored_value = fields.get(field.name), stored_fields.get(field.name)
        if not field.of(value) and field.of(stored_value):
            fields[field.name] = field.restore(value, stored_value)
    return Raw(msgspec.json.encode(fields))


def _agree(kind: type[i.Item], fields: Json, stored_fields: Json) -> bool:
    """Return whether the visible fields of both are equal, ignoring nulls and unknown keys."""
    hidden_fields = {field.name: field for field in _FIELDS_OF[kind]}

    def visible_value(of: Json, name: str) -> Any:
        value = of.get(name)
        return hidden_fields[name].hide(value or {}) if name in hidden_fields else value

    names = [name for name in kind.__struct_fields__ if fields.get(name) is not None]
    return all(visible_value(fields, name) == visible_value(stored_fields, name) for name in names)
