"""Index the files of vector stores, as a background task of the server."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import islice

from antiphon.application.ports import Embeddings, FileStore, IndexJob, ReadPdf, VectorStores
from antiphon.application.resources.file_texts import text_of
from antiphon.application.support.outages import Outages
from antiphon.domain.errors import (
    DocumentError,
    EmbeddingsError,
    NotFound,
    StoreError,
    UnsupportedDocument,
)
from antiphon.domain.text_chunks import TextChunk, text_chunks
from antiphon.domain.vector_stores import IndexingError

logger = logging.getLogger("antiphon.indexing")

MAX_CONCURRENT_FILES = 4
MAX_BATCH_CHUNKS = 64
"""Chunks in one request for embeddings and in one transaction of the store."""

CLAIM_S = 60.0
"""Seconds for which a server claims a file, unless it extends the claim. Neither reading a PDF nor
embedding `MAX_BATCH_CHUNKS` chunks may take longer."""

RETRY_DELAY_S = 5.0
"""Seconds before another attempt after the embeddings have failed."""

MAX_ATTEMPTS = 4
MAX_CHUNKS = 20_000
POLL_S = 5.0
"""Seconds between looks for files that another server has left unindexed."""


class IndexFiles:
    """Indexes files: extracts their texts, splits them into chunks and embeds those.

    Without `embeddings`, files are searched by words alone. `quota_bytes` limits the indexed files
    of a tenant: beyond it none is indexed.
    """

    def __init__(
        self,
        stores: VectorStores,
        files: FileStore,
        read_pdf: ReadPdf,
        embeddings: Embeddings | None = None,
        *,
        quota_bytes: int = sys.maxsize,
        retry_delay_s: float = RETRY_DELAY_S,
    ) -> None:
        self._stores = stores
        self._files = files
        self._read_pdf = read_pdf
        self._embeddings = embeddings
        self._quota_bytes = quota_bytes
        self._retry_delay_s = retry_delay_s
        self._new_files = asyncio.Event()

    def wake(self) -> None:
        """Report that there are new files."""
        self._new_files.set()

    async def run_forever(self) -> None:
        """Index files as they arrive, until cancelled."""
        outages = Outages(logger, "files of vector stores are not indexed")
        while True:
            self._new_files.clear()
            count = 0
            with outages.log_outages():
                count = await self.run_once()
            if not count:
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(POLL_S, self._retry_delay_s)):
                        await self._new_files.wait()

    async def run_once(self) -> int:
        """Index some of the files that are due and return how many.

        Raises: StoreError.
        """
        jobs = await self._stores.claim_due(limit=MAX_CONCURRENT_FILES, claim_s=CLAIM_S)
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(self._index(job))
        return len(jobs)

    async def _index(self, job: IndexJob) -> None:
        """Index a file. An error becomes the file's `last_error`; only StoreError is raised."""
        try:
            error = await self._attempt(job)
        except EmbeddingsError as exc:
            if job.attempt < MAX_ATTEMPTS:
                await self._stores.extend_claim(job, self._retry_delay_s)
                return
            error = IndexingError(code="server_error", message=str(exc))
        except UnsupportedDocument as exc:
            error = IndexingError(code="unsupported_file", message=str(exc))
        except DocumentError as exc:
            error = IndexingError(code="invalid_file", message=str(exc))
        except NotFound:
            error = IndexingError(code="invalid_file", message="The file was deleted.")
        except StoreError:
            raise
        except Exception:  # one file must not stop the indexing of the others
            logger.exception("a file of a vector store cannot be indexed")
            error = IndexingError(code="server_error", message="The file could not be indexed.")
        await self._stores.finish(job, error)

    async def _attempt(self, job: IndexJob) -> IndexingError | None:
        if job.attempt > MAX_ATTEMPTS:  # the file may have crashed the servers that tried it
            return IndexingError(code="server_error", message="The file could not be indexed.")
        if await self._stores.usage_bytes(job.tenant) >= self._quota_bytes:
            return IndexingError(
                code="invalid_file",
                message=f"Your vector stores may take {self._quota_bytes} bytes together, and all "
                "of them are in use. Delete what you no longer need.",
            )
        content = await self._files.content(job.tenant, job.file_id)
        text = await text_of(job.filename, content, self._read_pdf, tenant=job.tenant)
        chunks = text_chunks(
            text,
            size=job.sizes.max_chunk_size_tokens,
            overlap=job.sizes.chunk_overlap_tokens,
        )
        count = 0
        while batch := await asyncio.to_thread(_next_batch, chunks):
            count += len(batch)
            if count > MAX_CHUNKS:
                return IndexingError(
                    code="invalid_file", message=f"The file has more than {MAX_CHUNKS} chunks."
                )
            if not await self._add(job, batch, first=count == len(batch)):
                break
        return None

    async def _add(self, job: IndexJob, batch: Sequence[TextChunk], *, first: bool) -> bool:
        vectors = None
        if self._embeddings is not None:
            vectors = await self._embeddings.embed([chunk.text for chunk in batch])
        await self._stores.extend_claim(job, CLAIM_S)
        return await self._stores.add_chunks(job, batch, vectors, first=first)


def _next_batch(chunks: Iterator[TextChunk]) -> list[TextChunk]:
    return list(islice(chunks, MAX_BATCH_CHUNKS))
