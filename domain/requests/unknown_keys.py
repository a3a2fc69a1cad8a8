"""Name the keys of a body that have no effect, at any depth, by their paths
(docs/reference/api.md#fields-without-effect).

The types of the request say which objects it has, and an object is walked beside its Struct. Open
mappings (metadata, schemas, headers, arguments) may have any keys, and nothing in them is walked.

It looks at each object once, takes about a microsecond for it, and decodes no text.
"""

from __future__ import annotations

import types
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Annotated, Any, TypeAlias, Union, get_args, get_origin

import msgspec
from msgspec import Meta, Raw, Struct

from antiphon.domain.content import OutputText
from antiphon.domain.items import AnyItem
from antiphon.domain.kinds.additional_tools import AdditionalTools
from antiphon.domain.kinds.function import FunctionCall
from antiphon.domain.kinds.message import Message
from antiphon.domain.kinds.program import Program
from antiphon.domain.kinds.tool_search import ToolSearchOutput
from antiphon.domain.requests.request import CreateResponse, NewConversation, NewItems
from antiphon.domain.tools import AnyTool
from antiphon.domain.vocabulary.item import Item

MAX_NAMES = 20
"""How many keys are named; the others are only counted."""

MAX_KEY_CHARS = 64

WITHOUT_EFFECT = frozenset({"prompt_cache_breakpoint"})
"""Keys below the top level that the API has, and that do nothing here."""

MEANINGLESS: Mapping[type[Struct], frozenset[str]] = {
    Item: frozenset({"created_by", "status"}),
    FunctionCall: frozenset({"parsed_arguments"}),
    OutputText: frozenset({"parsed"}),
    Program: frozenset({"caller_id"}),
}
"""Keys of objects that servers and SDKs make, and that clients send back: they ask for nothing."""

RAW: Mapping[tuple[type[Struct], str], Any] = {
    (CreateResponse, "input"): tuple[AnyItem, ...],
    (CreateResponse, "tools"): tuple[AnyTool, ...],
    (NewConversation, "items"): tuple[AnyItem, ...],
    (NewItems, "items"): tuple[AnyItem, ...],
    (AdditionalTools, "tools"): tuple[AnyTool, ...],
    (ToolSearchOutput, "tools"): tuple[AnyTool, ...],
}
"""What is in the fields that are decoded later, one entry after the other."""

ENTRIES = "entries"
"""In `Meta.extra` of such a field outside of the domain: the type of its entries."""

Path: TypeAlias = "tuple[Path, str | int] | None"
"""The path of the outer value, and the key or the index in it: made into a text when it is named.
"""

_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_entries = msgspec.json.Decoder(list[Raw]).decode
_OBJECT, _ARRAY = b"{["


class UnusedKeys:
    """The paths of keys: the first ones, and how many more there are."""

    def __init__(self) -> None:
        self._paths: list[str] = []
        self._more = 0

    def add(self, path: Path) -> None:
        if len(self._paths) < MAX_NAMES:
            self._paths.append(_text_of(path))
        else:
            self._more += 1

    def names(self) -> tuple[str, ...]:
        return (*self._paths, f"and {self._more} more") if self._more else tuple(self._paths)


class Found:
    """The keys that the API does not have, and those that it has and that do nothing here."""

    def __init__(self) -> None:
        self.unknown = UnusedKeys()
        self.without_effect = UnusedKeys()


class _Shape(Struct, frozen=True):
    """An object: its keys, those without effect left out, and the values in which objects are."""

    keys: frozenset[str]
    without_effect: frozenset[str]
    inner: tuple[tuple[str, _Place], ...]


class _Place(Struct, frozen=True):
    """Where a value stands: the objects that it may be, by the JSON of their type, and what a list
    may hold. `default` is the object without a type."""

    by_type: Mapping[bytes, _Shape]
    default: _Shape | None
    entries: _Place | None


def find_unused_keys(
    fields: Mapping[str, Raw], kind: type[Struct], *, envelope: frozenset[str] = frozenset()
) -> Found:
    """Return the keys without effect in a body of valid JSON, of which `fields` are the top level.

    `envelope` names fields that the transport adds. What a type forbids is not looked at: the body
    is refused anyway.
    """
    found = Found()
    if envelope:
        fields = {name: raw for name, raw in fields.items() if name not in envelope}
    _walk_object(fields, _shape_of(kind), None, found)
    return found


def _walk_object(fields: Mapping[str, Raw], shape: _Shape, path: Path, found: Found) -> None:
    if not shape.keys.issuperset(fields):
        for key in sorted(fields.keys() - shape.keys):
            if key not in shape.without_effect:
                found.unknown.add((path, key))
            elif bytes(fields[key]) != b"null":
                found.without_effect.add((path, key))
    for name, place in shape.inner:
        if name in fields:
            _walk(fields[name], place, (path, name), found)


def _walk(raw: Raw, place: _Place, path: Path, found: Found) -> None:
    opening = memoryview(raw)[0]
    if opening == _OBJECT:
        if place.default is None and not place.by_type:
            return
        fields = _decode_fields(raw)
        shape = _shape_in(place, fields.get("type"))
        if shape is not None:
            _walk_object(fields, shape, path, found)
    elif opening == _ARRAY and place.entries is not None:
        for index, entry in enumerate(_decode_entries(raw)):
            _walk(entry, place.entries, (path, index), found)


def _shape_in(place: _Place, kind: Raw | None) -> _Shape | None:
    if kind is None or not place.by_type:
        return place.default
    shape = place.by_type.get(bytes(kind))
    if shape is None:  # it may be written with escapes
        shape = place.by_type.get(msgspec.json.encode(msgspec.json.decode(kind)))
    return shape


@cache
def _shape_of(kind: type[Struct]) -> _Shape:
    fields = msgspec.structs.fields(kind)
    names = {field.encode_name for field in fields} | {str(kind.__struct_config__.tag_field)}
    for base, keys in MEANINGLESS.items():
        names |= keys if issubclass(kind, base) else set()
    places = (
        (each.encode_name, _place_of(RAW.get((kind, each.name), each.type))) for each in fields
    )
    return _Shape(
        keys=frozenset(names - WITHOUT_EFFECT),
        without_effect=frozenset(names & WITHOUT_EFFECT),
        inner=tuple((name, place) for name, place in places if place is not None),
    )


def _place_of(kind: Any) -> _Place | None:
    """Return what is walked in a value of this type, None if nothing is."""
    by_type: dict[bytes, _Shape] = {}
    default: _Shape | None = None
    entries: _Place | None = None
    for each in _alternatives(kind):
        if each in (Any, Raw, dict) or get_origin(each) is dict:  # an object may have any keys
            return None
        if get_origin(each) is tuple:
            entries = _place_of(get_args(each)[0])
        elif isinstance(each, type) and issubclass(each, Struct):
            tag = each.__struct_config__.tag
            if tag is not None:
                by_type[msgspec.json.encode(tag)] = _shape_of(each)
            if tag is None or each is Message:  # an easy message has no type
                default = _shape_of(each)
    return _Place(by_type, default, entries) if by_type or default or entries else None


def _alternatives(kind: Any) -> Iterator[Any]:
    origin = get_origin(kind)
    if origin is Annotated:
        bare, *notes = get_args(kind)
        extras = [note.extra for note in notes if isinstance(note, Meta) and note.extra]
        entries = next((extra[ENTRIES] for extra in extras if ENTRIES in extra), None)
        many: Any = tuple
        yield from _alternatives(bare if entries is None else many[entries, ...])
    elif origin in (Union, types.UnionType):
        for each in get_args(kind):
            yield from _alternatives(each)
    else:
        yield kind


def _text_of(path: Path) -> str:
    """Return a path as a text.

    >>> _text_of((((None, "tools"), 0), "parametrs"))
    'tools[0].parametrs'
    """
    steps: list[str] = []
    while path is not None:
        path, step = path
        if isinstance(step, int):
            steps.append(f"[{step}]")
        else:
            key = step if step.isprintable() else ascii(step)[1:-1]  # a log shows it
            steps.append(f".{key[:MAX_KEY_CHARS]}")
    return "".join(reversed(steps)).removeprefix(".")
