"""Response bodies that handlers write as plain dicts, only for the OpenAPI document.

A test compares a real response of each kind with its schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

from antiphon.domain.batches.batch import Batch
from antiphon.domain.history.conversation import Conversation
from antiphon.domain.items import AnyItem
from antiphon.domain.requests.skills import Skill, SkillVersion
from antiphon.domain.responses.response_lists import ResponseSummary
from antiphon.domain.retrieval.vector_stores import StoreFile, VectorStore
from antiphon.entrypoints.http.api.model_entries import ModelEntry


class Shape(Struct, frozen=True, kw_only=True):
    """The base of all shapes. Every key is always present."""


# --- errors ---------------------------------------------------------------------------------------


class ErrorDetails(Shape, frozen=True, kw_only=True):
    """`param` is the path of the invalid field, for example `input[2].content[0]`."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorResponse(Shape, frozen=True, kw_only=True):
    """The body of every error."""

    error: ErrorDetails


class TaggedErrorDetails(Shape, frozen=True, kw_only=True):
    type: str
    message: str


class MessagesError(Shape, frozen=True, kw_only=True):
    """The body of every error for a client of the Messages API."""

    type: Literal["error"]
    error: TaggedErrorDetails
    request_id: str | None


# --- responses and conversations ------------------------------------------------------------------


class InputTokens(Shape, frozen=True, kw_only=True):
    object: Literal["response.input_tokens"]
    input_tokens: int


class ListOf(Shape, frozen=True, kw_only=True):
    """A page. If `has_more` is true, send `last_id` as `after` to get the next page."""

    object: Literal["list"]
    first_id: str | None
    last_id: str | None
    has_more: bool


class ItemList(ListOf, frozen=True, kw_only=True):
    data: list[AnyItem]


class SearchedList(ListOf, frozen=True, kw_only=True):
    """A page for which the server has read `searched` entries, matching or not."""

    searched: int


class ResponseList(SearchedList, frozen=True, kw_only=True):
    data: list[ResponseSummary]


class ConversationList(SearchedList, frozen=True, kw_only=True):
    data: list[Conversation]


class Deleted(Shape, frozen=True, kw_only=True):
    """`object` is the kind of object: `response`, `file`, `conversation.deleted`, and so on."""

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


# --- skills ---------------------------------------------------------------------------------------


class SkillList(ListOf, frozen=True, kw_only=True):
    data: list[Skill]


class SkillVersionList(ListOf, frozen=True, kw_only=True):
    data: list[SkillVersion]


class DeletedSkillVersion(Shape, frozen=True, kw_only=True):
    id: str
    object: Literal["skill.version.deleted"]
    deleted: Literal[True]
    version: str


# --- vector stores --------------------------------------------------------------------------------


class VectorStoreList(ListOf, frozen=True, kw_only=True):
    data: list[VectorStore]


class BatchList(ListOf, frozen=True, kw_only=True):
    data: list[Batch]


class StoreFileList(ListOf, frozen=True, kw_only=True):
    data: list[StoreFile]


class TextContent(Shape, frozen=True, kw_only=True):
    type: Literal["text"]
    text: str


class FileText(Shape, frozen=True, kw_only=True):
    """The indexed text of a file in a vector store."""

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


class Embedding(Shape, frozen=True, kw_only=True):
    """`embedding` is a vector of length 1: numbers, or the base64 of its float32 numbers."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class EmbeddingUsage(Shape, frozen=True, kw_only=True):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(Shape, frozen=True, kw_only=True):
    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


class Moderation(Shape, frozen=True, kw_only=True):
    """The result for one text, by category."""

    flagged: bool
    categories: dict[str, bool]
    category_scores: dict[str, float]
    category_applied_input_types: dict[str, list[str]]


class ModerationList(Shape, frozen=True, kw_only=True):
    id: str
    model: str
    results: list[Moderation]


class SearchResults(Shape, frozen=True, kw_only=True):
    """Results in order of their scores, the best first."""

    object: Literal["vector_store.search_results.page"]
    search_query: list[str]
    data: list[SearchResult]
    has_more: Literal[False]
    next_page: None


# --- models and health ----------------------------------------------------------------------------


class ModelList(Shape, frozen=True, kw_only=True):
    object: Literal["list"]
    data: list[ModelEntry]


class Alive(Shape, frozen=True, kw_only=True):
    status: Literal["live"]


class Readiness(Shape, frozen=True, kw_only=True):
    status: Literal["ready", "not ready"]
    server: str
    store: str
    engine: str
    models: dict[str, str]


ALL: Sequence[type[Shape]] = (
    ErrorResponse,
    MessagesError,
    InputTokens,
    ItemList,
    ResponseList,
    ConversationList,
    Deleted,
    FileList,
    ContainerList,
    ContainerFileList,
    SkillList,
    SkillVersionList,
    DeletedSkillVersion,
    BatchList,
    VectorStoreList,
    StoreFileList,
    FileText,
    SearchResults,
    EmbeddingList,
    ModerationList,
    ModelList,
    Alive,
    Readiness,
)
"""The shapes that are not part of another shape."""
