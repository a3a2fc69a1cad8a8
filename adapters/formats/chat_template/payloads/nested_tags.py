"""Values that are tags in tags: an object's properties and a list's items are tags of their own."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from msgspec import Struct

from antiphon.adapters.formats.chat_template.families.family import Tags
from antiphon.adapters.formats.chat_template.parsing.text_buffer import (
    MarkerFinder,
    Resumable,
    TextBuffer,
    Write,
)
from antiphon.adapters.formats.chat_template.payloads.calls import is_name
from antiphon.adapters.formats.chat_template.payloads.json_values import quote_json
from antiphon.adapters.formats.chat_template.payloads.schema_types import (
    ArgumentSchemas,
    resolve,
    types_of,
)
from antiphon.adapters.formats.chat_template.payloads.tag_types import value_to_json
from antiphon.domain.json import Json

LOOKAHEAD = 4000
"""How far a stray tag is followed by the one that tells whether it was part of a value."""

MAX_DEPTH = 64
ITEM = "item"
TEXT = "$text"
"""The property for text beside tags, which has no place in JSON."""


class _Element(Struct):
    """A tag's name, its text and the tags in it."""

    name: str
    text: str = ""
    children: list[_Element] = []


def read_nested_text(
    buffer: TextBuffer, tags: Tags, key: str, stops: Sequence[str], write: Write
) -> Resumable[bool]:
    """Write the markup of a value; return whether it has an end. Tags of its own name may nest.

    A missing end is excused at one of the `stops`: there is none after it. Before the end, a stop
    is a tag like any other.
    """
    begin, end = f"{tags.key}{key}{tags.key_end}", tags.value_end.replace("{key}", key)
    own, finder = MarkerFinder([begin, end]), MarkerFinder([begin, end, *stops])
    depth = 1
    while marker := (yield from buffer.read_until(finder, write)):
        if marker in stops:
            if (yield from _is_closed(buffer, own, begin, depth)):
                write(marker)
                continue
            buffer.unread(marker)
            return True
        depth += 1 if marker == begin else -1
        if depth == 0:
            return True
        write(marker)
    return False


def _is_closed(buffer: TextBuffer, own: MarkerFinder, begin: str, depth: int) -> Resumable[bool]:
    """Whether so many tags of a name are closed soon; read nothing."""
    start = buffer.pos
    while depth and (
        found := (
            yield from buffer.read_up_to(own, max(start + LOOKAHEAD - buffer.pos, 0), or_end=True)
        )
    ):
        if not found[1]:
            break
        depth += 1 if found[1] == begin else -1
    buffer.pos = start
    return depth == 0


def nested_to_json(markup: str, tags: Tags, schemas: ArgumentSchemas, key: str) -> str:
    """Return the value of an argument as JSON."""
    try:
        value = _value_of(_parse(markup, tags), schemas.properties.get(key), schemas.of_all)
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:  # from JSON in a tag
        return quote_json(markup)


def _parse(markup: str, tags: Tags) -> _Element:
    """Return the tree of tags; a closing tag that closes nothing is text."""
    root = _Element("")
    path = [root]
    pos = 0
    for match in _tag_pattern(tags.key).finditer(markup):
        path[-1].text += markup[pos : match.start()]
        pos = match.end()
        is_closing, name = match.groups()
        if is_closing:
            names = [element.name for element in path]
            if name in names[1:]:
                del path[len(names) - 1 - names[::-1].index(name) :]
                continue
        elif len(path) < MAX_DEPTH:
            child = _Element(name)
            path[-1].children.append(child)
            path.append(child)
            continue
        path[-1].text += match.group()
    path[-1].text += markup[pos:]
    return root


@lru_cache
def _tag_pattern(key: str) -> re.Pattern[str]:
    return re.compile(rf"{re.escape(key)}(/?)([^<>/][^<>]*)>")


def _value_of(element: _Element, schema: Any, root: Json) -> Any:
    container = _container(schema, root)
    kind, own = container or ("", {})
    if not element.children:
        if kind and not element.text.strip():
            return [] if kind == "array" else {}
        return json.loads(value_to_json(element.text, types_of(schema, root)))
    is_list = all(child.name == ITEM for child in element.children)
    if kind == "array" or (is_list and not kind):
        has_one_name = len({child.name for child in element.children}) == 1
        items = [
            _item_of(child, own.get("items"), root, is_named=not has_one_name)
            for child in element.children
        ]
        return [*items, element.text] if element.text.strip() else items
    return _object_of(element, own, root)


def _item_of(element: _Element, schema: Any, root: Json, *, is_named: bool) -> Any:
    """Return the value of an item; its tag has any name, but what tells items apart is kept."""
    value = _value_of(element, schema, root)
    is_plain = element.name == ITEM or (is_name(element.name) and not is_named)
    return value if is_plain else {element.name: value}


def _object_of(element: _Element, schema: Json, root: Json) -> Json:
    """Return the children by name; those of one name are a list."""
    properties = schema.get("properties")
    if not isinstance(properties, dict):
        properties = {}
    values: dict[str, list[Any]] = {}
    for child in element.children:
        own = properties.get(child.name, schema.get("additionalProperties"))
        values.setdefault(child.name, []).append(_value_of(child, own, root))
    if element.text.strip():
        values.setdefault(TEXT, []).append(element.text)
    return {name: each[0] if len(each) == 1 else each for name, each in values.items()}


def _container(
    schema: Any, root: Json, followed: frozenset[str] = frozenset()
) -> tuple[str, Json] | None:
    """Return "array" or "object", and the schema of it, if the schema allows one.

    A reference in `followed` leads nowhere.
    """
    if not isinstance(schema, dict):
        return None
    reference = schema.get("$ref")
    if isinstance(reference, str):
        if reference in followed:
            return None
        return _container(resolve(reference, root), root, followed | {reference})
    declared = schema.get("type")
    for kind, keyword in (("array", "items"), ("object", "properties")):
        if declared == kind or (isinstance(declared, list) and kind in declared):
            return kind, schema
        if declared is None and keyword in schema:
            return kind, schema
    for keyword in ("anyOf", "oneOf"):
        alternatives = schema.get(keyword)
        for alternative in alternatives if isinstance(alternatives, list) else ():
            if found := _container(alternative, root, followed):
                return found
    return None
