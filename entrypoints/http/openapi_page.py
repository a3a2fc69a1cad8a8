"""The OpenAPI document as a page of plain HTML: no script, and nothing from another server."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, NamedTuple

from litestar import Request
from litestar.openapi.plugins import OpenAPIRenderPlugin

from antiphon.entrypoints.http.pages import render

Json = Mapping[str, Any]


class Piece(NamedTuple):
    """A piece of a type's description; `schema` is the name of the schema that it links to."""

    text: str
    schema: str | None = None


class Row(NamedTuple):
    """A field of a body, or a parameter of an operation."""

    name: str
    where: str
    is_required: bool
    type: Sequence[Piece]
    notes: str


class Body(NamedTuple):
    """What is sent or answered: `status` is "" for a request."""

    status: str
    media_type: str
    type: Sequence[Piece]
    description: str


class Described(NamedTuple):
    id: str
    method: str
    path: str
    summary: str
    description: str
    needs_key: bool
    parameters: Sequence[Row]
    bodies: Sequence[Body]


class OpenApiPage(OpenAPIRenderPlugin):
    """Made at the first request, since the document does not change."""

    def __init__(self) -> None:
        super().__init__(path="/")
        self._page: bytes | None = None

    def render(
        self,
        request: Request[Any, Any, Any],  # noqa: ARG002 - the same page for everybody
        openapi_schema: dict[str, Any],
    ) -> bytes:
        self._page = self._page or page_of(openapi_schema)
        return self._page


def page_of(document: Json) -> bytes:
    return render(
        "schema.html",
        info=document["info"],
        groups=[(tag, list(found)) for tag, found in groupby(_operations(document), key=_tag)],
        schemas=[
            (name, schema.get("description", ""), list(rows_of(schema)), type_of(schema))
            for name, schema in sorted(document["components"]["schemas"].items())
        ],
    )


def _operations(document: Json) -> list[tuple[str, Described]]:
    """Return all operations with their tags, those of a tag in a row."""
    found = [
        (operation["tags"][0], _described(method, path, operation))
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    tags = list(dict.fromkeys(tag for tag, _ in found))
    return sorted(found, key=lambda each: (tags.index(each[0]), each[1].path, each[1].method))


def _tag(found: tuple[str, Described]) -> str:
    return found[0]


def _described(method: str, path: str, operation: Json) -> Described:
    taken = operation.get("requestBody", {}).get("content", {})
    bodies = [*_bodies("", "", taken)]
    for status, answer in operation["responses"].items():
        if status.endswith("XX"):  # the same for all: said once, above them
            continue
        bodies += _bodies(status, answer["description"], answer.get("content", {}))
    return Described(
        id=operation["operationId"],
        method=method.upper(),
        path=path,
        summary=operation["summary"],
        description=operation.get("description", ""),
        needs_key=bool(operation["security"]),
        parameters=[
            Row(
                each["name"],
                each["in"],
                bool(each.get("required")),
                type_of(each["schema"]),
                " ".join(filter(None, (each.get("description"), notes_of(each["schema"])))),
            )
            for each in operation.get("parameters", ())
        ],
        bodies=bodies,
    )


def _bodies(status: str, description: str, content: Json) -> Iterator[Body]:
    for media_type, body in content.items():
        schema = body["schema"]
        yield Body(status, media_type, type_of(schema), schema.get("description") or description)


def rows_of(schema: Json) -> Iterator[Row]:
    """Yield the fields of an object."""
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        yield Row(name, "", name in required, type_of(field), notes_of(field))


def type_of(schema: Json) -> list[Piece]:
    """Return what a value may be.

    >>> "".join(piece.text for piece in type_of({"anyOf": [{"type": "string"}, {"type": "null"}]}))
    'string or null'
    """
    match schema:
        case {"$ref": reference}:
            name = reference.rpartition("/")[2]
            return [Piece(name, name)]
        case {"anyOf": choices} | {"oneOf": choices}:
            return _joined([type_of(each) for each in choices])
        case {"enum": values}:
            return [Piece(" or ".join(map(json.dumps, values)))]
        case {"const": value}:
            return [Piece(json.dumps(value))]
        case {"type": "array", "items": dict() as items}:
            return [Piece("list of "), *type_of(items)]
        case {"type": "object", "additionalProperties": dict() as each} if each:
            return [Piece("map of "), *type_of(each)]
        case {"type": "object", "properties": fields}:
            return [Piece(f"object with {', '.join(fields)}")]
        case {"type": [*types]}:
            return [Piece(" or ".join(types))]
        case {"type": kind}:
            return [Piece(kind)]
    return [Piece("any value")]


def _joined(choices: Sequence[Sequence[Piece]]) -> list[Piece]:
    found: list[Piece] = []
    for position, pieces in enumerate(choices):
        found += [Piece(" or "), *pieces] if position else pieces
    return found


LIMITS = {
    "minimum": "at least {}",
    "exclusiveMinimum": "above {}",
    "maximum": "at most {}",
    "minLength": "at least {} long",
    "maxLength": "at most {} long",
    "minItems": "at least {} items",
    "maxItems": "at most {} items",
    "minProperties": "at least {} keys",
    "maxProperties": "at most {} keys",
    "pattern": "matches {}",
}


def notes_of(schema: Json) -> str:
    """Return the limits and the default of a value.

    >>> notes_of({"type": "integer", "minimum": 1, "maximum": 100, "default": 20})
    'at least 1, at most 100; default 20'
    """
    bounded = next((each for each in schema.get("anyOf", ()) if each.keys() & LIMITS), schema)
    limits = [words.format(bounded[key]) for key, words in LIMITS.items() if key in bounded]
    default = schema.get("default")
    notes = (", ".join(limits), "" if default is None else f"default {json.dumps(default)}")
    return "; ".join(filter(None, notes))
