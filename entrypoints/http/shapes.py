"""The bodies of answers that handlers write as plain objects: for the OpenAPI document alone.

A test asks a server for each of them and holds the answer against its schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

from antiphon.domain.items import AnyItem
from antiphon.domain.vector_stores import StoreFile, VectorStore


class Shape(Struct, frozen=True, kw_only=True):
    """Base of them all: every key is there."""


# --- errors ---------------------------------------------------------------------------------------


class ErrorDetails(Shape, frozen=True, kw_only=True):
    """`param` is the path of the field at fault, `input[2].content[0]` for example."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(Shape, frozen=True, kw_only=True):
    """Every answer that is no success."""

    error: ErrorDetails


# --- responses and conversations ------------------------------------------------------------------


class InputTokens(Shape, frozen=True, kw_only=True):
    object: Literal["response.input_tokens"]
    input_tokens: int


class ListOf(Shape, frozen=True, kw_only=True):
    """A page; `last_id` as `after` asks for the next one, if `has_more`."""

    object: Literal["list"]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ItemList(ListOf, frozen=True, kw_only=True):
    data: list[AnyItem]


class Deleted(Shape, frozen=True, kw_only=True):
    """`object` says what was deleted: `response`, `file`, `conversation.deleted` and so on."""

    id: str
    object: str
    deleted: Literal[True]


# --- files and containers -------------------------------------------------------------------------


class File(Shape, frozen=True, kw_only=True):
    id: str
    object: Literal["file"]
    bytes: int
    created_at: int
    filename: str
    purpose: str
    status: Literal["processed"]


class FileList(ListOf, frozen=True, kw_only=True):
    data: list[File]


class IdleExpiry(Shape, frozen=True, kw_only=True):
    anchor: Literal["last_active_at"]
    minutes: int


class NetworkPolicy(Shape, frozen=True, kw_only=True):
    type: Literal["disabled"]


class Container(Shape, frozen=True, kw_only=True):
    id: str
    object: Literal["container"]
    created_at: int
    status: Literal["running"]
    expires_after: IdleExpiry
    last_active_at: int
    memory_limit: str | None
    name: str
    network_policy: NetworkPolicy


class ContainerList(ListOf, frozen=True, kw_only=True):
    data: list[Container]


class ContainerFile(Shape, frozen=True, kw_only=True):
    id: str
    object: Literal["container.file"]
    created_at: int
    bytes: int
    container_id: str
    path: str
    source: Literal["user", "assistant"]


class ContainerFileList(ListOf, frozen=True, kw_only=True):
    data: list[ContainerFile]


# --- vector stores --------------------------------------------------------------------------------


class VectorStoreList(ListOf, frozen=True, kw_only=True):
    data: list[VectorStore]


class StoreFileList(ListOf, frozen=True, kw_only=True):
    data: list[StoreFile]


class TextContent(Shape, frozen=True, kw_only=True):
    type: Literal["text"]
    text: str


class FileText(Shape, frozen=True, kw_only=True):
    """The text of a file of a vector store, as it was indexed."""

    object: Literal["vector_store.file_content.page"]
    data: list[TextContent]
    has_more: Literal[False]
    next_page: None


class SearchResult(Shape, frozen=True, kw_only=True):
    file_id: str
    filename: str
    score: float
    attributes: dict[str, Any]
    content: list[TextContent]


class SearchResults(Shape, frozen=True, kw_only=True):
    """The best first."""

    object: Literal["vector_store.search_results.page"]
    search_query: list[str]
    data: list[SearchResult]
    has_more: Literal[False]
    next_page: None


# --- models and health ----------------------------------------------------------------------------


class Model(Shape, frozen=True, kw_only=True):
    id: str
    object: Literal["model"]
    created: int
    owned_by: str


class ModelList(Shape, frozen=True, kw_only=True):
    object: Literal["list"]
    data: list[Model]


class Alive(Shape, frozen=True, kw_only=True):
    status: Literal["live"]


class Readiness(Shape, frozen=True, kw_only=True):
    status: Literal["ready", "not ready"]
    server: str
    store: str
    engine: str


ALL: Sequence[type[Shape]] = (
    ErrorResponse,
    InputTokens,
    ItemList,
    Deleted,
    FileList,
    ContainerList,
    ContainerFileList,
    VectorStoreList,
    StoreFileList,
    FileText,
    SearchResults,
    ModelList,
    Alive,
    Readiness,
)
"""Those that others are not made of."""
