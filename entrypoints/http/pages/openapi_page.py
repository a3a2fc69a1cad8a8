"""The OpenAPI document as a plain HTML page, without scripts and without other servers' files."""

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
    """Part of a type's description. `schema` is the name of the schema that it links to."""

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
    """A request or response body. `status` is "" for a request."""

    status: str
    media_type: str
    type: Sequence[Piece]
    description: str


class DescribedOperation(NamedTuple):
    id: str
    method: str
    path: str
    summary: str
    description: str
    needs_key: bool
    parameters: Sequence[Row]
    bodies: Sequence[Body]


class OpenApiPage(OpenAPIRenderPlugin):
    """The page, rendered at the first request and cached, since the document does not change."""

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
        groups=[
            (tag, list(group)) for tag, group in groupby(_list_operations(document), key=_tag_of)
        ],
        schemas=[
            (name, schema.get("description", ""), list(rows_of(schema)), type_of(schema))
            for name, schema in sorted(document["components"]["schemas"].items())
        ],
    )


def _list_operations(document: Json) -> list[tuple[str, DescribedOperation]]:
    """Return all operations with their tags, sorted by tag."""
    operations = [
        (operation["tags"][0], _describe(method, path, operation))
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
    ]
    tags = list(dict.fromkeys(tag for tag, _ in operations))
    return sorted(operations, key=lambda each: (tags.index(each[0]), each[1].path, each[1].method))


def _tag_of(operation: tuple[str, DescribedOperation]) -> str:
    return operation[0]


def _describe(method: str, path: str, operation: Json) -> DescribedOperation:
    request_content = operation.get("requestBody", {}).get("content", {})
    bodies = [*_list_bodies("", "", request_content)]
    for status, answer in operation["responses"].items():
        if status.endswith("XX"):  # the same for all operations, so the page shows it once
            continue
        bodies += _list_bodies(status, answer["description"], answer.get("content", {}))
    return DescribedOperation(
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


def _list_bodies(status: str, description: str, content: Json) -> Iterator[Body]:
    for media_type, body in content.items():
        schema = body["schema"]
        yield Body(status, media_type, type_of(schema), schema.get("description") or description)


def rows_of(schema: Json) -> Iterator[Row]:
    """Yield the fields of an object."""
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        yield Row(name, "", name in required, type_of(field), notes_of(field))


def type_of(schema: Json) -> list[Piece]:
    """Return the description of a type.

    >>> "".join(piece.text for piece in type_of({"anyOf": [{"type": "string"}, {"type": "null"}]}))
    'string or null'
    """
    match schema:
        case {"$ref": reference}:
            name = reference.rpartition("/")[2]
            return [Piece(name, name)]
        case {"anyOf": choices} | {"oneOf": choices}:
            return _join_choices([type_of(choice) for choice in choices])
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


def _join_choices(choices: Sequence[Sequence[Piece]]) -> list[Piece]:
    joined: list[Piece] = []
    for position, pieces in enumerate(choices):
        joined += [Piece(" or "), *pieces] if position else pieces
    return joined


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
