"""Vector stores, the jobs that index their files, and embeddings."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import Protocol

from msgspec import Struct

from antiphon.domain.errors import RequestError
from antiphon.domain.json import Json
from antiphon.domain.retrieval.file_filters import Filter
from antiphon.domain.retrieval.ranking import Passage
from antiphon.domain.retrieval.text_chunks import TextChunk
from antiphon.domain.retrieval.vector_stores import (
    ChunkSizes,
    FileBatch,
    IndexingError,
    Status,
    StoreFile,
    VectorStore,
)


class FileToAdd(Struct, frozen=True, kw_only=True):
    """A file to add to a vector store, with the id of the uploaded file."""

    id: str
    filename: str
    created_at: int
    attributes: Json
    sizes: ChunkSizes


class IndexJob(Struct, frozen=True, kw_only=True):
    """A file to index. `attempt` counts from 1.

    A job is void after a later attempt has started, and after its file was removed, cancelled or
    finished.
    """

    key: int
    attempt: int
    tenant: str
    file_id: str
    filename: str
    sizes: ChunkSizes


class Vectors(Struct, frozen=True, kw_only=True):
    """Vectors of length 1, each as the bytes of its float32 numbers.

    Vectors of different models cannot be compared. `tokens` counts those of all texts, None if the
    model does not.
    """

    model: str
    each: Sequence[bytes]
    tokens: int | None = None


class VectorPageQuery(Struct, frozen=True, kw_only=True):
    """A page of a list: up to `limit` entries after the one with the id `after`, or up to `limit`
    before the one with the id `before`, in the list's order. With both, the first between them.
    """

    limit: int
    after: str | None = None
    before: str | None = None
    is_descending: bool = False


class VectorStores(Protocol):
    """Vector stores, the files in them and the chunks of those, by tenant.

    Ids of other tenants are unknown, and the data of one tenant changes no result of another. Slow
    searches of one tenant do not keep the others waiting.
    Removed files and stores are never found again; `sweep` erases them. Raises: StoreError, from
    any method, when the store fails; NotFound for an unknown vector store, file or batch.
    """

    @abstractmethod
    async def start(self) -> None:
        """Open. Raises: SettingsError."""

    @abstractmethod
    async def aclose(self) -> None: ...

    @abstractmethod
    async def create_store(self, tenant: str, store: VectorStore) -> None:
        """Create a vector store. Its file counts are computed; those of `store` are ignored."""

    @abstractmethod
    async def list_stores(
        self, tenant: str, query: VectorPageQuery | None = None
    ) -> list[VectorStore]:
        """Return all vector stores in order of creation, or a page, which costs what it has.

        Raises: NotInList.
        """

    @abstractmethod
    async def count_stores(self, tenant: str) -> int: ...

    @abstractmethod
    async def get_store(self, tenant: str, store_id: str) -> VectorStore: ...

    @abstractmethod
    async def update_store(self, tenant: str, store: VectorStore) -> None:
        """Replace the vector store of this id, but not its files."""

    @abstractmethod
    async def touch_store(self, tenant: str, store: VectorStore) -> None:
        """Set its `last_active_at` and `expires_at`, and nothing else."""

    @abstractmethod
    async def delete_store(self, tenant: str, store_id: str) -> None: ...

    @abstractmethod
    async def get_usage_bytes(self, tenant: str) -> int:
        """Return the total size of the tenant's files, as far as they are indexed."""

    @abstractmethod
    async def create_files(
        self,
        tenant: str,
        store_id: str,
        files: Sequence[FileToAdd],
        *,
        batch: FileBatch | None = None,
    ) -> None:
        """Add all files or none, with due jobs. A file that the store already has is replaced."""

    @abstractmethod
    async def list_files(
        self,
        tenant: str,
        store_id: str,
        query: VectorPageQuery | None = None,
        *,
        batch_id: str | None = None,
        status: Status | None = None,
    ) -> list[StoreFile]:
        """Return the files, or those of a batch or with this status, oldest first; or a page.

        The files that a page begins after or ends before may have another status. Raises:
        NotInList.
        """

    @abstractmethod
    async def get_file(self, tenant: str, store_id: str, file_id: str) -> StoreFile: ...

    @abstractmethod
    async def update_attributes(
        self, tenant: str, store_id: str, file_id: str, attributes: Json
    ) -> StoreFile: ...

    @abstractmethod
    async def delete_file(self, tenant: str, store_id: str, file_id: str) -> None: ...

    @abstractmethod
    async def delete_file_everywhere(self, tenant: str, file_id: str) -> None:
        """Remove the file from all vector stores of the tenant; it may be in none."""

    @abstractmethod
    async def get_texts(self, tenant: str, store_id: str, file_id: str) -> list[str]:
        """Return the file's text in pieces, without the overlaps of its chunks."""

    @abstractmethod
    async def get_batch(self, tenant: str, store_id: str, batch_id: str) -> FileBatch: ...

    @abstractmethod
    async def cancel_batch(self, tenant: str, store_id: str, batch_id: str) -> FileBatch:
        """Cancel the files of the batch that are not indexed yet; their jobs become void."""

    @abstractmethod
    async def claim_due_jobs(
        self,
        *,
        limit: int,
        claim_s: float,
        skip: Collection[str] = (),
        last: Sequence[str] = (),
    ) -> list[IndexJob]:
        """Claim and return due jobs, those of each tenant in turn, and each tenant's longest due
        first. The job of a new file is due immediately.

        Tenants in `skip` get none now, and those in `last` come after all others, in this order.
        Only one of several concurrent callers gets a job. After `claim_s`, the job is due again.
        """

    @abstractmethod
    async def extend_claim(self, job: IndexJob, seconds: float) -> bool:
        """Extend the claim to `seconds` from now. Return False if the job is void."""

    @abstractmethod
    async def add_chunks(
        self, job: IndexJob, chunks: Sequence[TextChunk], vectors: Vectors | None, *, first: bool
    ) -> bool:
        """Add chunks of the job's file, which are found after `finish_job`.

        With `first`, they replace the chunks of earlier attempts. Return False, and add nothing, if
        the job is void.
        """

    @abstractmethod
    async def finish_job(self, job: IndexJob, error: IndexingError | None = None) -> bool:
        """Mark the file as indexed, or as failed with `error`. Return False if the job is void."""

    @abstractmethod
    async def search(
        self,
        tenant: str,
        store_ids: Sequence[str],
        *,
        words: str,
        vectors: Vectors | None = None,
        file_filter: Filter | None = None,
        limit: int,
    ) -> list[Passage]:
        """Return the best passages, in no order: up to `limit` by keywords, and up to `limit` by
        similarity to the one vector, each with both scores.

        The search covers files that were indexed without an error and whose attributes match
        `file_filter`. `words` may be any text, also in scripts without spaces. Keyword scores are
        above 0 and at most 1; better passages have higher scores. Vectors of another model have no
        score; an opposite vector has the score 0. An unknown store has no passages.
        """

    @abstractmethod
    async def sweep(self, now: float, *, limit: int) -> int:
        """Erase removed data and the files of expired stores, up to about `limit` chunks.

        Return how much was erased; 0 when nothing is left.
        """


class Embeddings(Protocol):
    """A model that makes vectors of texts. Raises: EmbeddingsError, from any method."""

    async def start(self) -> None:
        """Check with one request that it answers. Does nothing by default.

        Raises: SettingsError.
        """
        return

    async def aclose(self) -> None:
        """Release what it holds. Does nothing by default."""
        return

    @abstractmethod
    async def embed(self, texts: Sequence[str]) -> Vectors:
        """Return a vector for each of the texts."""

    async def embed_tokens(self, inputs: Sequence[Sequence[int]]) -> Vectors:  # noqa: ARG002
        """Return a vector for each list of the model's tokens. Raises: RequestError, by default:
        the model takes texts alone."""
        raise RequestError(
            "'input' must be texts: this server's embedding model takes no tokens.",
            param="input",
            code="unsupported_value",
        )
