"""The OpenAPI page: the request body is read by ourselves, so its schema is told by ourselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from litestar.openapi.config import OpenAPIConfig
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
)

from antiphon.application.responses import idempotency
from antiphon.application.responses.compact import CompactedWindow
from antiphon.domain.conversation import Conversation
from antiphon.domain.events import EVENT_TYPES
from antiphon.domain.request import (
    CreateResponse,
    NewContainer,
    NewConversation,
    NewItems,
    NewMetadata,
)
from antiphon.domain.response import Response
from antiphon.domain.vector_stores import (
    NewAttributes,
    NewFileBatch,
    NewStoreFile,
    NewVectorStore,
    SearchRequest,
    VectorStoreChanges,
)

PATH = "/schema"
_REF = "#/components/schemas/{name}"


_REPEAT_KEY = Parameter(
    name=idempotency.HEADER,
    param_in="header",
    required=False,
    description="The same key and body give the same response for a day: nothing runs twice.",
    schema=Schema(type=OpenAPIType.STRING, min_length=1, max_length=255),
)


class _Components(Components):
    """Adds the schemas that msgspec wrote: Litestar fills `schemas` with its own alone."""

    def to_schema(self) -> dict[str, Any]:
        written = super().to_schema()
        _, ours = msgspec.json.schema_components(
            [
                CreateResponse,
                Response,
                CompactedWindow,
                NewConversation,
                NewMetadata,
                NewItems,
                Conversation,
                NewContainer,
                NewVectorStore,
                VectorStoreChanges,
                SearchRequest,
                NewStoreFile,
                NewAttributes,
                NewFileBatch,
            ],
            ref_template=_REF,
        )
        written["schemas"] = {**ours, **written.get("schemas", {})}
        return written


@dataclass
class CreateOperation(Operation):
    """`POST /v1/responses`, with its body and its two kinds of answer."""

    def __post_init__(self) -> None:
        self.request_body = RequestBody(content=_json("CreateResponse"), required=True)
        self.parameters = [_REPEAT_KEY]
        events = ", ".join(sorted(EVENT_TYPES))
        streamed = OpenAPIMediaType(schema=Schema(description=f"Frames of these events: {events}."))
        self.responses = {
            "200": OpenAPIResponse(
                description="The response, or its events if `stream` is true.",
                content={**_json("Response"), "text/event-stream": streamed},
            )
        }


@dataclass
class CountOperation(Operation):
    """`POST /v1/responses/input_tokens`."""

    def __post_init__(self) -> None:
        self.request_body = RequestBody(content=_json("CreateResponse"), required=True)
        self.responses = {"200": OpenAPIResponse(description="The count of input tokens.")}


@dataclass
class CompactOperation(Operation):
    """`POST /v1/responses/compact`."""

    def __post_init__(self) -> None:
        self.request_body = RequestBody(content=_json("CreateResponse"), required=True)
        self.responses = {
            "200": OpenAPIResponse(
                description="The items to go on from.", content=_json("CompactedWindow")
            )
        }


def operation_with_body(body: str, *, required: bool = True) -> type[Operation]:
    """Return the class of an operation with such a body."""

    @dataclass
    class Taking(Operation):
        def __post_init__(self) -> None:
            self.request_body = RequestBody(content=_json(body), required=required)

    return Taking


@dataclass
class CreateConversationOperation(Operation):
    """`POST /v1/conversations`."""

    def __post_init__(self) -> None:
        self.request_body = RequestBody(content=_json("NewConversation"))
        self.responses = {"200": _CONVERSATION}


@dataclass
class UpdateConversationOperation(Operation):
    """`POST /v1/conversations/{id}`."""

    def __post_init__(self) -> None:
        self.request_body = RequestBody(content=_json("NewMetadata"), required=True)
        self.responses = {"200": _CONVERSATION}


@dataclass
class AddItemsOperation(Operation):
    """`POST /v1/conversations/{id}/items`."""

    def __post_init__(self) -> None:
        self.request_body = RequestBody(content=_json("NewItems"), required=True)
        self.responses = {"200": OpenAPIResponse(description="The list of the new items.")}


@dataclass
class CreateContainerOperation(Operation):
    """`POST /v1/containers`."""

    def __post_init__(self) -> None:
        self.request_body = RequestBody(content=_json("NewContainer"), required=True)
        self.responses = {"200": OpenAPIResponse(description="The container.")}


def openapi_config(version: str) -> OpenAPIConfig:
    return OpenAPIConfig(
        title="Antiphon",
        version=version,
        description="The Responses API, for models that you run yourself.",
        path=PATH,
        components=_Components(),
    )


def _json(name: str) -> dict[str, OpenAPIMediaType]:
    reference = Reference(ref=_REF.format(name=name))
    return {"application/json": OpenAPIMediaType(schema=reference)}


_CONVERSATION = OpenAPIResponse(description="The conversation.", content=_json("Conversation"))
