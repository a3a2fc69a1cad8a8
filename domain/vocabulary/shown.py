"""Calls and their results as a model is shown them, in a form that every format can write."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from msgspec import Struct

from antiphon.domain.content import Part
from antiphon.domain.json import Json
from antiphon.domain.vocabulary.item import Item
from antiphon.domain.vocabulary.tool import ToolSpec

NO_ARGUMENTS = "{}"
"""Clients and templates read arguments as JSON, so those of a call without any are an object."""


class Call(Struct, frozen=True, kw_only=True):
    """A call of the tool `name`, whose kind is `kind`.

    `text` is what the model wrote: JSON arguments or, if the kind has TextArguments, a text.
    """

    kind: str
    name: str
    text: str


class JsonBody(Struct, frozen=True):
    """A result that is not text; a format writes it as its models know JSON."""

    value: Any


Body = str | Sequence[Part] | JsonBody


class Result(Struct, frozen=True, kw_only=True):
    """The result of a call; without a `body`, `status` says how it ended.

    `name` is the tool's, if the call is not in the conversation. `fields` is the same result for
    formats whose models read an object, and `is_error` is whether the body says why there is no
    result.
    """

    body: Body | None = None
    name: str = "tool"
    status: str = ""
    fields: Json | None = None
    is_error: bool = False


class View(Struct, frozen=True, kw_only=True):
    """The conversation that an item is shown in, and the tools of the turn.

    `tools` are the turn's, `calls` has the call that each output answers, and `numbers` counts the
    items of each type from 0; both are by the `id()` of the item.
    """

    tools: Sequence[ToolSpec] = ()
    calls: Mapping[int, Item] = {}
    numbers: Mapping[int, int] = {}


def name_of_kind(kind: str, tools: Iterable[ToolSpec]) -> str:
    """Return the name that the model writes for the tool of this kind, offered or not."""
    return next((tool.name for tool in tools if tool.kind == kind), kind)


def json_arguments(text: str) -> str:
    """Return the JSON arguments of a call; one without arguments has an empty object.

    >>> json_arguments(""), json_arguments('{"a": 1}')
    ('{}', '{"a": 1}')
    """
    return text if text and not text.isspace() else NO_ARGUMENTS


def to_json_text(arguments: Any) -> str:
    """Return arguments as the JSON text that a model would write."""
    return json.dumps(arguments, ensure_ascii=False)
