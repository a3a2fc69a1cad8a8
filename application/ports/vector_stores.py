"""Vector stores, what indexes their files, and embeddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from antiphon.domain.file_filters import Filter
from antiphon.domain.json import Json
from antiphon.domain.ranking import Passage
from antiphon.domain.text_chunks import TextChunk
from antiphon.domain.vector_stores import (
    ChunkSizes,
    FileBatch,
    IndexingError,
    StoreFile,
    VectorStore,
)


class FileToAdd(Struct, frozen=True, kw_only=True):
    """A file as it is added to a vector store; its id is that of the uploaded file."""

    id: str
    filename: str
    created_at: int
    attributes: Json
    sizes: ChunkSizes


class IndexJob(Struct, frozen=True, kw_only=True):
    """A file that is to be indexed. `attempt` counts from 1; a job is void once there is a later
    one, and once its file is removed, cancelled or done with.
    """

    key: int
    attempt: int
    tenant: str
    file_id: str
    filename: str
    sizes: ChunkSizes


class Vectors(Struct, frozen=True, kw_only=True):
    """Vectors of length 1, each as the bytes of its float32s; those of other models are no use."""

    model: str
    each: Sequence[bytes]


class VectorStores(Protocol):
    """Vector stores, the files in them and the chunks of those, by tenant.

    Every id of another tenant is unknown, and what one tenant has changes no result of another.
    What is removed is never found again, and erased by `sweep`. Raises: StoreError, from any
    method, when the store fails; NotFound for a vector store, file or batch that is not there.
    """

    async def start(self) -> None:
        """Open. Raises: SettingsError."""

    async def aclose(self) -> None: ...

    async def create(self, tenant: str, store: VectorStore) -> None:
        """Keep a new vector store; its counts are those of its files, whatever it says."""

    async def list_all(self, tenant: str) -> list[VectorStore]:
        """Return all vector stores in the order in which they were created here."""

    async def get(self, tenant: str, store_id: str) -> VectorStore: ...

    async def update(self, tenant: str, store: VectorStore) -> None:
        """Let the vector store of this id be as described, its files apart."""

    async def touch(self, tenant: str, store: VectorStore) -> None:
        """Let its `last_active_at` and `expires_at` be these, and nothing else change."""

    async def delete(self, tenant: str, store_id: str) -> None: ...

    async def usage_bytes(self, tenant: str) -> int:
        """Return what all files of the tenant take together, as far as they are indexed."""

    async def add_files(
        self,
        tenant: str,
        store_id: str,
        files: Sequence[FileToAdd],
        *,
        batch: FileBatch | None = None,
    ) -> None:
        """Add files, as due; one that is there already is replaced. All of them, or none."""

    async def files(
        self, tenant: str, store_id: str, *, batch_id: str | None = None
    ) -> list[StoreFile]:
        """Return the files, or those of a batch, oldest first."""

    async def file(self, tenant: str, store_id: str, file_id: str) -> StoreFile: ...

    async def set_attributes(
        self, tenant: str, store_id: str, file_id: str, attributes: Json
    ) -> StoreFile: ...

    async def remove_file(self, tenant: str, store_id: str, file_id: str) -> None: ...

    async def forget_file(self, tenant: str, file_id: str) -> None:
        """Take the file out of all vector stores of the tenant; it may be in none."""

    async def texts(self, tenant: str, store_id: str, file_id: str) -> list[str]:
        """Return the file's text, in pieces: what chunks repeat of the one before is left out."""

    async def batch(self, tenant: str, store_id: str, batch_id: str) -> FileBatch: ...

    async def cancel_batch(self, tenant: str, store_id: str, batch_id: str) -> FileBatch:
        """Cancel those of its files that are still to be indexed; their jobs are void."""

    async def claim_due(self, *, limit: int, claim_s: float) -> list[IndexJob]:
        """Return jobs whose time has come, longest due first; that of a new file has come at once.

        Of several that ask, one gets a job. Nobody is given it again for `claim_s`; then it is due
        once more.
        """

    async def extend_claim(self, job: IndexJob, seconds: float) -> bool:
        """Let nobody else have the job for so long from now: False if it is void."""

    async def add_chunks(
        self, job: IndexJob, chunks: Sequence[TextChunk], vectors: Vectors | None, *, first: bool
    ) -> bool:
        """Add chunks of the job's file, which are found once it is done; the `first` replace
        those of earlier attempts. False, and nothing added, if the job is void.
        """

    async def finish(self, job: IndexJob, error: IndexingError | None = None) -> bool:
        """Say that all chunks were added, or what went wrong: False if the job is void."""

    async def search(
        self,
        tenant: str,
        store_ids: Sequence[str],
        *,
        words: str,
        vectors: Vectors | None = None,
        fits: Filter | None = None,
        most: int,
    ) -> list[Passage]:
        """Return the passages that fit best, in no order: up to `most` by words, and as many by
        the meaning of the one vector, both scores known for each.

        Only files that were indexed without an error and whose attributes fit are searched. Any
        text may be `words`; scores by words are above 0, up to 1, and higher for passages that fit
        better. Words of scripts without spaces are found too. Vectors of another model have no
        score; a meaning that is opposite has 0. A store that is unknown has no passages.
        """

    async def sweep(self, now: float, *, limit: int) -> int:
        """Erase the files of stores that have expired and what was removed, up to about `limit`
        chunks; return how much there was, 0 when nothing is left to erase.
        """


class Embeddings(Protocol):
    """A model that makes vectors of texts. Raises: EmbeddingsError, from any method."""

    async def start(self) -> None:
        """Ask once, to see that it answers. Raises: SettingsError."""

    async def aclose(self) -> None: ...

    async def embed(self, texts: Sequence[str]) -> Vectors:
        """Return a vector for each of the texts."""
