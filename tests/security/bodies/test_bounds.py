"""Every text, list, map and number of a request has a bound: a new field without one fails here.

Walked are the types of all bodies, items and tools, and the parameters of the OpenAPI document.
What may be any JSON (`Any`, `Raw`) is bounded by the body's bytes, depth and values (bodies.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from msgspec import Struct
from msgspec import inspect as mi

from antiphon.domain.batches.batch import NewBatch
from antiphon.domain.batches.lines import RequestLine
from antiphon.domain.items import ITEM_TYPES
from antiphon.domain.requests import request as r
from antiphon.domain.requests.decisions import NewDecision
from antiphon.domain.requests.decoding import Head
from antiphon.domain.requests.moderations import NewModeration
from antiphon.domain.requests.skills import NewDefaultVersion
from antiphon.domain.retrieval import vector_stores as v
from antiphon.domain.retrieval.embeddings import NewEmbeddings
from antiphon.domain.tools import TOOL_TYPES
from antiphon.entrypoints.http.api import shapes
from antiphon.entrypoints.http.doors.chat.request import (
    ChatCustomTool,
    ChatFunctionTool,
    ChatMessage,
    ChatRequest,
)
from antiphon.entrypoints.http.doors.completions.request import CompletionRequest
from antiphon.entrypoints.http.doors.messages.request import (
    CodeTool,
    CountedMessages,
    McpToolset,
    MessagesRequest,
    MessagesTool,
    SearchTool,
    SentMessage,
    TypedMessagesTool,
)
from antiphon.entrypoints.http.pages import openapi
from antiphon.entrypoints.http.websocket.endpoint import MessageHead

Json = dict[str, Any]

ANSWERS = frozenset(
    {
        "AnswerMessage",
        "Batch",
        "Bundle",
        "ChatCompletion",
        "ChatCompletionList",
        "CodexCatalog",
        "CompactedWindow",
        "Conversation",
        "CountedTokens",
        "Decision",
        "FileBatch",
        "MessagesModel",
        "MessagesModelList",
        "Response",
        "Skill",
        "SkillVersion",
        "StoreFile",
        "TextCompletion",
        "VectorStore",
    }
)
"""Types of the OpenAPI document that the server writes, and reads only from its own store."""

BODIES: list[type[Struct]] = [
    r.CreateResponse,
    r.NewConversation,
    r.NewMetadata,
    r.NewItems,
    r.NewContainer,
    r.NewContainerFile,
    v.NewVectorStore,
    v.VectorStoreChanges,
    v.SearchRequest,
    NewDecision,
    NewDefaultVersion,
    NewModeration,
    NewEmbeddings,
    NewBatch,
    RequestLine,
    v.NewStoreFile,
    v.NewAttributes,
    v.NewFileBatch,
    CompletionRequest,
    ChatRequest,
    ChatMessage,
    ChatFunctionTool,
    ChatCustomTool,
    MessagesRequest,
    CountedMessages,
    SentMessage,
    MessagesTool,
    TypedMessagesTool,
    SearchTool,
    CodeTool,
    McpToolset,
    Head,
    MessageHead,
    *ITEM_TYPES.values(),
    *TOOL_TYPES.values(),
]


def unbounded(kind: mi.Type, path: str, seen: frozenset[type] = frozenset()) -> Iterator[str]:
    """Yield the path of each leaf without a bound."""
    match kind:
        case mi.Metadata():
            yield from unbounded(kind.type, path, seen)
        case mi.UnionType():
            for each in kind.types:
                yield from unbounded(each, path, seen)
        case mi.StrType():
            if kind.max_length is None:
                yield f"{path}: string"
        case mi.IntType() | mi.FloatType():
            if (kind.ge is None and kind.gt is None) or (kind.le is None and kind.lt is None):
                yield f"{path}: number"
        case mi.VarTupleType() | mi.ListType() | mi.SetType() | mi.FrozenSetType():
            if kind.max_length is None:
                yield f"{path}: list"
            yield from unbounded(kind.item_type, f"{path}[]", seen)
        case mi.DictType():
            if kind.max_length is None:
                yield f"{path}: map"
            if not isinstance(kind.value_type, mi.AnyType):  # an object of any shape
                yield from unbounded(kind.key_type, f"{path}.KEY", seen)
            yield from unbounded(kind.value_type, f"{path}.VALUE", seen)
        case mi.StructType():
            if kind.cls not in seen:
                for field in kind.fields:
                    name = f"{path}.{field.encode_name}"
                    yield from unbounded(field.type, name, seen | {kind.cls})
        case _:
            assert isinstance(
                kind,
                mi.AnyType
                | mi.RawType
                | mi.BoolType
                | mi.NoneType
                | mi.LiteralType
                | mi.CustomType,
            ), (path, kind)


@pytest.mark.parametrize("body", BODIES, ids=lambda body: body.__name__)
def test_every_leaf_of_a_request_has_a_bound(body: type[Struct]) -> None:
    assert list(unbounded(mi.type_info(body), body.__name__)) == []


def test_every_body_of_the_openapi_document_is_walked() -> None:
    described = {
        kind.__name__
        for kind in openapi._BODIES
        if kind.__name__ not in ANSWERS and kind.__module__ != shapes.__name__
    }
    assert described <= {body.__name__ for body in BODIES}


def test_every_parameter_of_the_openapi_document_has_a_bound(server: Any) -> None:
    document: Json = httpx.get(f"{server.url}/schema/openapi.json").json()
    found = [
        f"{method} {path}: {parameter['name']}"
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
        for parameter in operation.get("parameters", ())
        if not is_bounded(parameter["schema"])
    ]
    assert found == []


def is_bounded(schema: Json) -> bool:
    """Whether a schema of the document has a bound wherever it needs one."""
    if "oneOf" in schema:  # the bound stands beside the choices
        kinds = ("max", "min", "exclusive")
        limits = {key: value for key, value in schema.items() if key.startswith(kinds)}
        return all(is_bounded({**choice, **limits}) for choice in schema["oneOf"])
    if "enum" in schema or "const" in schema:
        return True
    match schema.get("type"):
        case "string":
            return "maxLength" in schema
        case "integer" | "number":
            has_min = {"minimum", "exclusiveMinimum"} & schema.keys()
            has_max = {"maximum", "exclusiveMaximum"} & schema.keys()
            return bool(has_min and has_max)
        case "array":
            return "maxItems" in schema  # and its entries fit into a head
    return schema.get("type") in ("boolean", "null")


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/responses/{}"),
        ("DELETE", "/conversations/{}"),
        ("GET", "/files?after={}"),
        ("GET", "/vector_stores?before={}"),
        ("GET", "/models/{}"),
    ],
)
def test_a_parameter_beyond_its_bound_is_refused(server: Any, method: str, path: str) -> None:
    answer = httpx.request(method, server.api + path.format("x" * 5000))
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["type"] == "invalid_request_error"
    assert len(answer.content) < 1000


@pytest.mark.parametrize(
    ("field", "value", "param", "code"),
    [
        ("model", "x" * 1025, "model", "string_above_max_length"),
        ("previous_response_id", "x" * 4097, "previous_response_id", "string_above_max_length"),
        ("input", [{}] * 10_001, "input", "array_above_max_length"),
        ("tools", [{}] * 10_001, "tools", "array_above_max_length"),
        ("logit_bias", {str(n): 1 for n in range(10_001)}, "logit_bias", None),
        ("logit_bias", {"1": 1001}, "logit_bias.1", "decimal_above_max_value"),
        ("repetition_penalty", 1001, "repetition_penalty", "decimal_above_max_value"),
        (
            "tools",
            [{"type": "mcp", "server_label": "x" * 1025, "server_url": "http://x"}],
            "tools[0].server_label",
            "string_above_max_length",
        ),
    ],
)
def test_a_field_beyond_its_bound_is_named(
    server: Any, field: str, value: Any, param: str, code: str | None
) -> None:
    body = {"model": "scripted-chat", "input": "hi", field: value}
    answer = httpx.post(f"{server.api}/responses", json=body, timeout=30)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert error["param"] == param
    assert error["code"] == (code or "object_above_max_properties")
