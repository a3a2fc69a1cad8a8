"""What a client sees of items that are kept whole (docs/reference/api.md#include).

Without its `include` value, a field of the table is null or absent in answers, streams and lists;
the store and the log have it. Whoever sends such an item back gets the field filled in again, so
that the model reads what it read before. Nothing is hidden that could not be found again: a
response that is not stored shows all, and what a client sent itself (pictures, screenshots) is
always shown, as are logprobs and sealed reasoning, which exist only where they were asked for.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from antiphon.domain import events as e
from antiphon.domain import items as i
from antiphon.domain.json import Json
from antiphon.domain.response import Response


class Field(Struct, frozen=True):
    """A field of an item, or, with `key`, a key of the object in that field."""

    item: type[i.Item]
    name: str
    key: str | None = None

    def of(self, value: Any) -> Any:
        """Return what is hidden, where `value` is the field's."""
        return value.get(self.key) if self.key and value else value

    def without(self, value: Any) -> Any:
        """Return the field's value with that hidden."""
        if self.key is None:
            return None
        return {name: each for name, each in value.items() if name != self.key}

    def filled(self, value: Any, kept: Any) -> Any:
        """Return the field's value with that taken from `kept`."""
        return kept if self.key is None else {**(value or {}), self.key: kept[self.key]}


INCLUDABLE_FIELDS: Mapping[str, Field] = {
    "web_search_call.action.sources": Field(i.WebSearchCall, "action", "sources"),
    "web_search_call.results": Field(i.WebSearchCall, "results"),
    "code_interpreter_call.outputs": Field(i.CodeInterpreterCall, "outputs"),
    "file_search_call.results": Field(i.FileSearchCall, "results"),
}
"""What each value of `include` shows. Values that are not here hide nothing when left out."""

_FIELDS_OF: Mapping[type[i.Item], Sequence[Field]] = {
    kind: [field for field in INCLUDABLE_FIELDS.values() if field.item is kind]
    for kind in {field.item for field in INCLUDABLE_FIELDS.values()}
}

REASONING = "reasoning.encrypted_content"
"""Shows reasoning sealed, also where nobody asked for that when it was written."""

WITH_ITEMS = frozenset({e.ItemAdded, e.ItemDone})
WITH_RESPONSE = frozenset({e.Created, e.Queued, e.InProgress, e.Completed, e.Incomplete, e.Failed})
SHOWING = WITH_ITEMS | WITH_RESPONSE
"""Events that show items."""


class IncludeFilter:
    """The view of a client that asked for `include`; `seal` seals a text for its tenant."""

    def __init__(
        self, include: Collection[str] = (), *, seal: Callable[[str], str] | None = None
    ) -> None:
        self._hidden = [field for value, field in INCLUDABLE_FIELDS.items() if value not in include]
        self._seal = seal if REASONING in include else None
        self._sealed: dict[str, str] = {}

    def events(self, events: Sequence[e.Event]) -> Sequence[e.Event]:
        if SHOWING.isdisjoint(map(type, events)):
            return events  # nearly always: every token passes here
        return [self._event(event) if type(event) in SHOWING else event for event in events]

    def response(self, response: Response) -> Response:
        if not response.output or not response.store:
            return response
        return replace(response, output=tuple(self._item(item) for item in response.output))

    def raw(self, raw: Raw) -> Raw:
        """Return an item of a list."""
        fields: Json = msgspec.json.decode(raw)
        kind = i.ITEM_TYPES.get(fields["type"])
        changed = self._changes(kind, fields)
        return Raw(msgspec.json.encode(fields | changed)) if changed else raw

    def _event(self, event: Any) -> e.Event:
        told: e.Event
        if type(event) in WITH_ITEMS:
            told = replace(event, item=self._item(event.item))
        else:
            told = replace(event, response=self.response(event.response))
        return told

    def _item(self, item: Any) -> Any:
        kind = type(item)
        if kind is not i.Reasoning and kind not in _FIELDS_OF:
            return item
        fields = {name: getattr(item, name) for name in kind.__struct_fields__}
        changed = self._changes(kind, fields)
        return replace(item, **changed) if changed else item

    def _changes(self, kind: type[i.Item] | None, fields: Json) -> Json:
        if kind is i.Reasoning and self._seal is not None:
            return self._with_seal(fields, self._seal)
        changed: Json = {}
        for field in self._hidden:
            value = changed.get(field.name, fields.get(field.name))
            if field.item is kind and field.of(value):
                changed[field.name] = field.without(value)
        return changed

    def _with_seal(self, fields: Json, seal: Callable[[str], str]) -> Json:
        parts = msgspec.to_builtins(fields.get("content") or ())
        text = "".join(part["text"] for part in parts)
        if fields.get("encrypted_content") or not text:
            return {}
        if text not in self._sealed:  # an item is the same in each event that shows it
            self._sealed[text] = seal(text)
        return {"encrypted_content": self._sealed[text]}


def may_have_hidden_fields(item: i.Item) -> bool:
    """Whether a client that sends `item` back may have got it with a field hidden."""
    fields = _FIELDS_OF.get(type(item), ())
    return not all(field.of(getattr(item, field.name)) for field in fields)


def restore_hidden_fields(came: Raw, kept: Raw) -> Raw:
    """Return the item that came, with what was hidden from the client filled in from `kept`.

    Only if it is the same item otherwise: clients make up ids, and may do so twice.
    """
    fields, whole = msgspec.json.decode(came), msgspec.json.decode(kept)
    kind = i.ITEM_TYPES[fields["type"]]
    if whole["type"] != fields["type"] or not _agree(kind, fields, whole):
        return came
    for field in _FIELDS_OF[kind]:
        value, known = fields.get(field.name), whole.get(field.name)
        if not field.of(value) and field.of(known):
            fields[field.name] = field.filled(value, known)
    return Raw(msgspec.json.encode(fields))


def _agree(kind: type[i.Item], fields: Json, whole: Json) -> bool:
    """Whether what can be seen of both is the same; unknown keys and nulls say nothing."""
    hiding = {field.name: field for field in _FIELDS_OF[kind]}

    def seen(of: Json, name: str) -> Any:
        value = of.get(name)
        return hiding[name].without(value or {}) if name in hiding else value

    given = [name for name in kind.__struct_fields__ if fields.get(name) is not None]
    return all(seen(fields, name) == seen(whole, name) for name in given)
