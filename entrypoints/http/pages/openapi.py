"""The OpenAPI document: the request and response bodies of each operation.

Litestar cannot derive them, because handlers decode and encode bodies themselves. Handlers declare
them with `operation(takes=…, gives=…)`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from antiphon.domain.batches.batch import Batch, NewBatch
from antiphon.domain.events import EVENT_TYPES
from antiphon.domain.history.conversation import Conversation
from antiphon.domain.items import AnyItem
from antiphon.domain.requests.decisions import Decision, NewDecision
from antiphon.domain.requests.moderations import NewModeration
from antiphon.domain.requests.request import (
    CreateResponse,
    NewContainer,
    NewContainerFile,
    NewConversation,
    NewItems,
    NewMetadata,
)
from antiphon.domain.requests.skills import NewDefaultVersion, Skill, SkillVersion
from antiphon.domain.responses.response import Response
from antiphon.domain.responses.traces import Bundle
from antiphon.domain.retrieval import vector_stores as v
from antiphon.domain.retrieval.embeddings import NewEmbeddings
from antiphon.entrypoints.http import pages
from antiphon.entrypoints.http.api import shapes
from antiphon.entrypoints.http.api.codex.catalog import CodexCatalog
from antiphon.entrypoints.http.doors.chat.completion import ChatCompletion, ChatCompletionList
from antiphon.entrypoints.http.doors.chat.request import ChatRequest
from antiphon.entrypoints.http.doors.completions.completion import TextCompletion
from antiphon.entrypoints.http.doors.completions.request import CompletionRequest
from antiphon.entrypoints.http.doors.messages.message import AnswerMessage, CountedTokens
from antiphon.entrypoints.http.doors.messages.models import MessagesModel, MessagesModelList
from antiphon.entrypoints.http.doors.messages.request import CountedMessages, MessagesRequest
from antiphon.entrypoints.http.pages.openapi_page import OpenApiPage
from antiphon.entrypoints.http.wire.session_names import SESSION_HEADER

PATH = "/schema"
BEARER = "bearer"
_REF = "#/components/schemas/{name}"

Content = dict[str, OpenAPIMediaType]
NO_FIELDS: Mapping[str, Reference | Schema] = {}

DESCRIPTION = """\
The Responses API for self-hosted models. The base URL ends with /v1.

If the server requires API keys, send yours as Authorization: Bearer KEY.

Every error is an ErrorResponse, or a MessagesError for clients of the Messages API. The
x-request-id header of every answer identifies the request in the server's log. The
x-antiphon-ignored header names fields and tools that had no effect."""

_BODIES: Sequence[Any] = (
    CreateResponse,
    Response,
    CompactedWindow,
    Bundle,
    NewConversation,
    NewMetadata,
    NewItems,
    Conversation,
    NewContainer,
    NewContainerFile,
    NewDefaultVersion,
    Skill,
    SkillVersion,
    v.NewVectorStore,
    v.VectorStoreChanges,
    v.SearchRequest,
    NewDecision,
    Decision,
    NewEmbeddings,
    NewModeration,
    NewBatch,
    Batch,
    v.NewStoreFile,
    v.NewAttributes,
    v.NewFileBatch,
    v.VectorStore,
    v.StoreFile,
    v.FileBatch,
    CodexCatalog,
    ChatRequest,
    ChatCompletion,
    MessagesRequest,
    CountedMessages,
    AnswerMessage,
    CountedTokens,
    MessagesModel,
    MessagesModelList,
    ChatCompletionList,
    CompletionRequest,
    TextCompletion,
    *shapes.ALL,
)
"""The types with their own schemas, in addition to the types that they contain."""


class _Components(Components):
    """Components with msgspec's schemas, since Litestar adds only its own."""

    def to_schema(self) -> dict[str, Any]:
        components = super().to_schema()
        components["schemas"] = {**_build_schemas(), **components.get("schemas", {})}
        return components


def _build_schemas() -> dict[str, Any]:
    """Return the schema of each body by name. The union of all items is named `Item`."""
    (union, *_), schemas = msgspec.json.schema_components(
        [AnyItem, *_BODIES], ref_template=_REF.format(name="{name}")
    )
    named = {name: _replace_union(schema, union["anyOf"]) for name, schema in schemas.items()}
    return {**named, "Item": {"title": "Item", **union}}


def _replace_union(schema: Any, union: list[Any]) -> Any:
    """Return the schema with a reference to `Item` in place of each union of all items."""
    if isinstance(schema, list):
        return [_replace_union(element, union) for element in schema]
    if not isinstance(schema, dict):
        return schema
    if schema.get("anyOf") == union:
        return {"$ref": _REF.format(name="Item")}
    return {key: _replace_union(value, union) for key, value in schema.items()}


def json_of(name: str) -> Content:
    """Return a JSON body with the schema of this name."""
    return {"application/json": OpenAPIMediaType(schema=Reference(ref=_REF.format(name=name)))}


def one_of(*names: str) -> Content:
    """Return a JSON body with one of the schemas of these names."""
    schemas = [Reference(ref=_REF.format(name=name)) for name in names]
    return {"application/json": OpenAPIMediaType(schema=Schema(one_of=schemas))}


def _content(body: str | Content) -> Content:
    return json_of(body) if isinstance(body, str) else body


def form_of(
    optional: Mapping[str, Reference | Schema] = NO_FIELDS, /, **fields: Reference | Schema
) -> Content:
    """Return a form with these fields, which are required, and with the `optional` ones."""
    schema = Schema(
        type=OpenAPIType.OBJECT, properties={**fields, **optional}, required=list(fields)
    )
    return {"multipart/form-data": OpenAPIMediaType(schema=schema)}


A_FILE = Schema(type=OpenAPIType.STRING, content_media_type="application/octet-stream")
A_STRING = Schema(type=OpenAPIType.STRING)
A_FLAG = Schema(type=OpenAPIType.STRING, enum=["true", "false"])
SOME_FILES = Schema(one_of=[A_FILE, Schema(type=OpenAPIType.ARRAY, items=A_FILE)])
BYTES: Content = {"application/octet-stream": OpenAPIMediaType(schema=A_FILE)}

ZIP: Content = {"application/zip": OpenAPIMediaType(schema=A_FILE)}

EVENTS: Content = {
    "text/event-stream": OpenAPIMediaType(
        schema=Schema(
            type=OpenAPIType.STRING,
            description=f"Frames of these events: {', '.join(sorted(EVENT_TYPES))}.",
        )
    )
}
"""The events of a response if `stream` is true."""

CHUNKS: Content = {
    "text/event-stream": OpenAPIMediaType(
        schema=Schema(
            type=OpenAPIType.STRING,
            description="Frames of chat.completion.chunk objects, and at the end [DONE].",
        )
    )
}
"""The chunks of a chat completion if `stream` is true."""

TEXT_CHUNKS: Content = {
    "text/event-stream": OpenAPIMediaType(
        schema=Schema(
            type=OpenAPIType.STRING,
            description="Frames of text_completion objects, and at the end [DONE].",
        )
    )
}
"""The chunks of a completion if `stream` is true."""

MESSAGE_EVENTS: Content = {
    "text/event-stream": OpenAPIMediaType(
        schema=Schema(
            type=OpenAPIType.STRING,
            description="Frames of message_start, content_block_start, content_block_delta, "
            "content_block_stop, message_delta, message_stop, ping and error.",
        )
    )
}
"""The events of a message if `stream` is true."""

IDEMPOTENCY_KEY = Parameter(
    name=idempotency.HEADER,
    param_in="header",
    required=False,
    description="For one day, the same key and body return the same response without a second run.",
    schema=Schema(type=OpenAPIType.STRING, min_length=1, max_length=255),
)

SESSION = Parameter(
    name=SESSION_HEADER,
    param_in="header",
    required=False,
    description="The name of a session, whose conversation the request continues or begins.",
    schema=Schema(type=OpenAPIType.STRING, min_length=1, max_length=300),
)


def _errors(content: Content) -> dict[str, OpenAPIResponse]:
    return {
        "4XX": OpenAPIResponse(
            description="The request failed: 400 if it is invalid, 401 without a valid API key, "
            "404 if an object does not exist, 405, 413, and 415, 429 if a limit or quota is "
            "exceeded.",
            content=content,
        ),
        "5XX": OpenAPIResponse(
            description="500: the server or the model failed. 503 or 529: retry later.",
            content=content,
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
    errors: str | Content = "ErrorResponse",
    needs_key: bool = True,
) -> type[Operation]:
    """Return the class of an operation: its request and response bodies, and its errors.

    A string names the schema of a JSON body. `answer` describes the 200 response, `or_else` a 503
    response with the same body; `errors` are the bodies of all others.
    """
    response_body = _content(gives)
    responses = {"200": OpenAPIResponse(description=answer, content=response_body)}
    if or_else is not None:
        responses["503"] = OpenAPIResponse(description=or_else, content=response_body)

    @dataclass
    class DescribedOperation(Operation):
        def __post_init__(self) -> None:
            if takes is not None:
                self.request_body = RequestBody(content=_content(takes), required=takes_always)
            self.parameters = [*(self.parameters or ()), *headers] or None
            self.responses = {**responses, **_errors(_content(errors))}
            self.security = [{BEARER: []}] if needs_key else []

    return DescribedOperation


def openapi_config(version: str) -> OpenAPIConfig:
    bearer = SecurityScheme(
        type="http",
        scheme="bearer",
        description="An API key, if the server requires keys. `antiphon keys create` creates one.",
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
