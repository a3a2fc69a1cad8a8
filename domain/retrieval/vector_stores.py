"""Vector stores: the bodies of requests, and the objects that the API returns."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from antiphon.domain.bounds import Int, Weight
from antiphon.domain.errors import RequestError
from antiphon.domain.requests.request import Key, Metadata, MetadataValue

DAY_S = 24 * 60 * 60
MAX_FILES_PER_BATCH = 2000
MAX_INITIAL_FILES = 500
MAX_FLOAT = 1.7976931348623157e308

Status = Literal["in_progress", "completed", "cancelled", "failed"]
Number = Annotated[float, Meta(ge=-MAX_FLOAT, le=MAX_FLOAT)]
Attribute = MetadataValue | bool | Int | Number
Attributes = Annotated[dict[Key, Attribute], Meta(max_length=16)]
Name = Annotated[str, Meta(max_length=256)]
FileId = Annotated[str, Meta(min_length=1, max_length=100)]


# --- how a file is cut into chunks ----------------------------------------------------------------


class ChunkSizes(Struct, frozen=True, kw_only=True):
    max_chunk_size_tokens: Annotated[int, Meta(ge=100, le=4096)] = 800
    chunk_overlap_tokens: Annotated[int, Meta(ge=0, le=2048)] = 400


class Chunking(Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base class of the chunking strategies."""


class AutoChunking(Chunking, frozen=True, kw_only=True, tag="auto"):
    pass


class StaticChunking(Chunking, frozen=True, kw_only=True, tag="static"):
    static: ChunkSizes


AnyChunking = AutoChunking | StaticChunking


def sizes_of(chunking: AnyChunking | None, path: str = "chunking_strategy") -> ChunkSizes:
    """Return the chunk sizes of a strategy. Raises: RequestError."""
    sizes = chunking.static if isinstance(chunking, StaticChunking) else ChunkSizes()
    if 2 * sizes.chunk_overlap_tokens > sizes.max_chunk_size_tokens:
        raise RequestError(
            "The overlap must not exceed half of 'max_chunk_size_tokens'.",
            param=f"{path}.static.chunk_overlap_tokens",
            code="invalid_value",
        )
    return sizes


# --- requests -------------------------------------------------------------------------------------


class ExpiresAfter(Struct, frozen=True, kw_only=True):
    anchor: Literal["last_active_at"]
    days: Annotated[int, Meta(ge=1, le=365)]


class NewVectorStore(Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/vector_stores`."""

    name: Name | None = None
    description: MetadataValue | None = None
    file_ids: Annotated[tuple[FileId, ...], Meta(max_length=MAX_INITIAL_FILES)] | None = None
    expires_after: ExpiresAfter | None = None
    chunking_strategy: AnyChunking | None = None
    metadata: Metadata | None = None


class VectorStoreChanges(Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/vector_stores/{id}`; fields that are left out do not change."""

    name: Name | None | UnsetType = UNSET
    expires_after: ExpiresAfter | None | UnsetType = UNSET
    metadata: Metadata | None | UnsetType = UNSET


class NewStoreFile(Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/vector_stores/{id}/files`, and an entry of a batch's `files`."""

    file_id: FileId
    attributes: Attributes | None = None
    chunking_strategy: AnyChunking | None = None


class NewAttributes(Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/vector_stores/{id}/files/{file_id}`."""

    attributes: Attributes | None


class NewFileBatch(Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/vector_stores/{id}/file_batches`.

    `file_ids` share the attributes and the chunking strategy; `files` have their own.
    """

    file_ids: (
        Annotated[tuple[FileId, ...], Meta(min_length=1, max_length=MAX_FILES_PER_BATCH)] | None
    ) = None
    files: (
        Annotated[tuple[NewStoreFile, ...], Meta(min_length=1, max_length=MAX_FILES_PER_BATCH)]
        | None
    ) = None
    attributes: Attributes | None = None
    chunking_strategy: AnyChunking | None = None


class HybridSearch(Struct, frozen=True, kw_only=True):
    """The weights of the two ways to search."""

    embedding_weight: Weight = 1.0
    text_weight: Weight = 1.0


class RankingOptions(Struct, frozen=True, kw_only=True):
    ranker: Literal["none", "auto", "default-2024-11-15", "default_2024_08_21"] | None = None
    score_threshold: Annotated[float, Meta(ge=0, le=1)] | None = None
    hybrid_search: HybridSearch | None = None


class SearchRequest(Struct, frozen=True, kw_only=True):
    """The body of `POST /v1/vector_stores/{id}/search`."""

    query: (
        Annotated[str, Meta(min_length=1, max_length=4096)]
        | Annotated[
            tuple[Annotated[str, Meta(min_length=1, max_length=4096)], ...],
            Meta(min_length=1, max_length=10),
        ]
    )
    filters: Any = None
    max_num_results: Annotated[int, Meta(ge=1, le=50)] | None = None
    ranking_options: RankingOptions | None = None
    rewrite_query: bool | None = None


# --- objects --------------------------------------------------------------------------------------


class FileCounts(Struct, frozen=True, kw_only=True):
    in_progress: int = 0
    completed: int = 0
    cancelled: int = 0
    failed: int = 0
    total: int = 0


def counts_of(by_status: Mapping[str, int]) -> FileCounts:
    return FileCounts(**by_status, total=sum(by_status.values()))


class VectorStore(Struct, frozen=True, kw_only=True):
    """A vector store. Times are Unix timestamps; `usage_bytes` is the size of its files' index."""

    id: str
    object: Literal["vector_store"] = "vector_store"
    created_at: int
    name: str
    description: str | None = None
    usage_bytes: int = 0
    file_counts: FileCounts = FileCounts()
    status: Literal["expired", "in_progress", "completed"] = "completed"
    expires_after: ExpiresAfter | None = None
    expires_at: int | None = None
    last_active_at: int
    metadata: Metadata = {}


def expiry_of(expires_after: ExpiresAfter | None, last_active_at: int) -> int | None:
    return None if expires_after is None else last_active_at + expires_after.days * DAY_S


class IndexingError(Struct, frozen=True, kw_only=True):
    code: Literal["server_error", "unsupported_file", "invalid_file"]
    message: str


class StoreFile(Struct, frozen=True, kw_only=True):
    """A file in a vector store; its id is that of the uploaded file."""

    id: str
    object: Literal["vector_store.file"] = "vector_store.file"
    created_at: int
    vector_store_id: str
    status: Status = "in_progress"
    last_error: IndexingError | None = None
    usage_bytes: int = 0
    attributes: dict[str, Any] = {}
    chunking_strategy: StaticChunking


class FileBatch(Struct, frozen=True, kw_only=True):
    """Files that were added together; the batch's status follows from theirs."""

    id: str
    object: Literal["vector_store.files_batch"] = "vector_store.files_batch"
    created_at: int
    vector_store_id: str
    status: Status = "in_progress"
    file_counts: FileCounts = FileCounts()
