"""The OpenAPI document: what each operation takes and gives, told beside its handler.

Bodies are read and written by ourselves, so Litestar cannot know them: handlers name them with
`operation(takes=…, gives=…)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from litestar import Router
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin, YamlRenderPlugin
from litestar.openapi.spec import (
    Components,
    OpenAPIMediaType,
    OpenAPIResponse,
    OpenAPIType,
    Operation,
    Parameter,
    Reference,
    RequestBody,
    Schema,
    SecurityScheme,
)

from antiphon.application.responses import idempotency
from antiphon.application.responses.compact import CompactedWindow
from antiphon.domain import vector_stores as v
from antiphon.domain.conversation import Conversation
from antiphon.domain.events import EVENT_TYPES
from antiphon.domain.items import AnyItem
from antiphon.domain.request import (
    CreateResponse,
    NewContainer,
    NewContainerFile,
    NewConversation,
    NewItems,
    NewMetadata,
)
from antiphon.domain.response import Response
from antiphon.entrypoints.http import pages, shapes
from antiphon.entrypoints.http.openapi_page import OpenApiPage

PATH = "/schema"
BEARER = "bearer"
_REF = "#/components/schemas/{name}"

Content = dict[str, OpenAPIMediaType]

DESCRIPTION = """\
The Responses API, for models that you run yourself. Its base URL ends with /v1.

Where the server asks for API keys, send yours as Authorization: Bearer KEY.

Every answer that is no success is an ErrorResponse. The header x-request-id of any answer names the
request in the log of the server; x-antiphon-ignored names what had no effect."""

_BODIES: Sequence[Any] = (
    CreateResponse,
    Response,
    CompactedWindow,
    NewConversation,
    NewMetadata,
    NewItems,
    Conversation,
    NewContainer,
    NewContainerFile,
    v.NewVectorStore,
    v.VectorStoreChanges,
    v.SearchRequest,
    v.NewStoreFile,
    v.NewAttributes,
    v.NewFileBatch,
    v.VectorStore,
    v.StoreFile,
    v.FileBatch,
    *shapes.ALL,
)
"""What has a schema of its own, beside what these are made of."""


class _Components(Components):
    """Adds the schemas that msgspec writes: Litestar fills `schemas` with its own alone."""

    def to_schema(self) -> dict[str, Any]:
        written = super().to_schema()
        written["schemas"] = {**_schemas(), **written.get("schemas", {})}
        return written


def _schemas() -> dict[str, Any]:
    """Return the schema of each body by its name; the union of all items is `Item`."""
    (union, *_), found = msgspec.json.schema_components(
        [AnyItem, *_BODIES], ref_template=_REF.format(name="{name}")
    )
    named = {name: _with_items_named(schema, union["anyOf"]) for name, schema in found.items()}
    return {**named, "Item": {"title": "Item", **union}}


def _with_items_named(schema: Any, union: list[Any]) -> Any:
    if isinstance(schema, list):
        return [_with_items_named(each, union) for each in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("anyOf") == union:
        return {"$ref": _REF.format(name="Item")}
    return {key: _with_items_named(value, union) for key, value in schema.items()}


def json_of(name: str) -> Content:
    """Return a JSON body that has the schema of this name."""
    return {"application/json": OpenAPIMediaType(schema=Reference(ref=_REF.format(name=name)))}


def _content(body: str | Content) -> Content:
    return json_of(body) if isinstance(body, str) else body


def form_of(**fields: Reference | Schema) -> Content:
    """Return a form with these fields, all of them required."""
    schema = Schema(type=OpenAPIType.OBJECT, properties=fields, required=list(fields))
    return {"multipart/form-data": OpenAPIMediaType(schema=schema)}


A_FILE = Schema(type=OpenAPIType.STRING, content_media_type="application/octet-stream")
A_STRING = Schema(type=OpenAPIType.STRING)
BYTES: Content = {"application/octet-stream": OpenAPIMediaType(schema=A_FILE)}

EVENTS: Content = {
    "text/event-stream": OpenAPIMediaType(
        schema=Schema(
            type=OpenAPIType.STRING,
            description=f"Frames of these events: {', '.join(sorted(EVENT_TYPES))}.",
        )
    )
}
"""The events of a response, where `stream` is true."""

IDEMPOTENCY_KEY = Parameter(
    name=idempotency.HEADER,
    param_in="header",
    required=False,
    description="The same key and body give the same response for a day: nothing runs twice.",
    schema=Schema(type=OpenAPIType.STRING, min_length=1, max_length=255),
)

_ERRORS = {
    "4XX": OpenAPIResponse(
        description="The request cannot be honored: 400 for what is wrong with it, 401 without a "
        "known API key, 404 for what is not there, 405, 413 and 415, 429 for too many or too much.",
        content=json_of("ErrorResponse"),
    ),
    "5XX": OpenAPIResponse(
        description="The server or the model failed: 500. Send it again later: 503.",
        content=json_of("ErrorResponse"),
    ),
}


def operation(
    answer: str,
    *,
    gives: str | Content,
    takes: str | Content | None = None,
    takes_always: bool = True,
    headers: Sequence[Parameter] = (),
    or_else: str | None = None,
    needs_key: bool = True,
) -> type[Operation]:
    """Return the class of an operation: the bodies that it takes and gives, and its errors. The
    name of a schema stands for JSON that has it.

    `answer` says what a 200 is, `or_else` what a 503 of the same body is.
    """
    given = _content(gives)
    answers = {"200": OpenAPIResponse(description=answer, content=given)}
    if or_else is not None:
        answers["503"] = OpenAPIResponse(description=or_else, content=given)

    @dataclass
    class Described(Operation):
        def __post_init__(self) -> None:
            if takes is not None:
                self.request_body = RequestBody(content=_content(takes), required=takes_always)
            self.parameters = [*(self.parameters or ()), *headers] or None
            self.responses = {**answers, **_ERRORS}
            self.security = [{BEARER: []}] if needs_key else []

    return Described


def openapi_config(version: str) -> OpenAPIConfig:
    bearer = SecurityScheme(
        type="http",
        scheme="bearer",
        description="An API key, where the server asks for keys: `antiphon keys create` makes one.",
    )
    return OpenAPIConfig(
        title="Antiphon",
        version=version,
        description=DESCRIPTION,
        path=PATH,
        openapi_router=Router(
            PATH, route_handlers=[], include_in_schema=False, response_headers=pages.HEADERS
        ),
        components=_Components(security_schemes={BEARER: bearer}),
        render_plugins=[OpenApiPage(), JsonRenderPlugin(), YamlRenderPlugin()],
    )
