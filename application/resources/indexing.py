"""Index the files that were added to vector stores, beside the requests."""

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

FILES_AT_ONCE = 4
CHUNKS_AT_ONCE = 64
"""What is embedded by one request and written in one transaction."""

HOLD_S = 60.0
"""How long a server that gives no sign of life keeps a file from others; reading a PDF, or vectors
for `CHUNKS_AT_ONCE` chunks, must not take longer."""

RETRY_DELAY_S = 5.0
"""How soon a file is tried again whose vectors were not to be had."""

MAX_ATTEMPTS = 4
MAX_CHUNKS = 20_000
LOOK_S = 5.0
"""How often a server looks for files that another one has left."""


class IndexFiles:
    """`embeddings` makes vectors of chunks; without, files are searched by words alone.

    `quota_bytes` is what the files of a tenant may take together: past it none is indexed.
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
        self._again_s = retry_delay_s
        self._wanted = asyncio.Event()

    def wake(self) -> None:
        """Say that there are new files."""
        self._wanted.set()

    async def run_forever(self) -> None:
        """Index files as they come, until cancelled."""
        outages = Outages(logger, "files of vector stores are not indexed")
        while True:
            self._wanted.clear()
            done = 0
            with outages.log_outages():
                done = await self.run_once()
            if not done:
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(LOOK_S, self._again_s)):
                        await self._wanted.wait()

    async def run_once(self) -> int:
        """Index some of the files that are due, and return how many those were.

        Raises: StoreError.
        """
        jobs = await self._stores.claim_due(limit=FILES_AT_ONCE, claim_s=HOLD_S)
        async with asyncio.TaskGroup() as group:
            for job in jobs:
                group.create_task(self._index(job))
        return len(jobs)

    async def _index(self, job: IndexJob) -> None:
        """Index a file; what goes wrong with it is its `last_error`, not an error here."""
        try:
            error = await self._attempt(job)
        except EmbeddingsError as why:
            if job.attempt < MAX_ATTEMPTS:
                await self._stores.extend_claim(job, self._again_s)
                return
            error = IndexingError(code="server_error", message=str(why))
        except UnsupportedDocument as why:
            error = IndexingError(code="unsupported_file", message=str(why))
        except DocumentError as why:
            error = IndexingError(code="invalid_file", message=str(why))
        except NotFound:
            error = IndexingError(code="invalid_file", message="The file was deleted.")
        except StoreError:
            raise
        except Exception:  # one file is not to end the indexing of those beside it
            logger.exception("a file of a vector store cannot be indexed")
            error = IndexingError(code="server_error", message="The file could not be indexed.")
        await self._stores.finish(job, error)

    async def _attempt(self, job: IndexJob) -> IndexingError | None:
        if job.attempt > MAX_ATTEMPTS:  # it may be what ended the servers that had it
            return IndexingError(code="server_error", message="The file could not be indexed.")
        if await self._stores.usage_bytes(job.tenant) >= self._quota_bytes:
            return IndexingError(
                code="invalid_file",
                message=f"All vector stores together may take {self._quota_bytes} bytes, and these "
                "are taken. Delete what is no longer needed.",
            )
        content = await self._files.content(job.tenant, job.file_id)
        text = await text_of(job.filename, content, self._read_pdf)
        cut = text_chunks(
            text,
            size=job.sizes.max_chunk_size_tokens,
            overlap=job.sizes.chunk_overlap_tokens,
        )
        count = 0
        while some := await asyncio.to_thread(_some, cut):
            count += len(some)
            if count > MAX_CHUNKS:
                return IndexingError(
                    code="invalid_file", message=f"The file has more than {MAX_CHUNKS} chunks."
                )
            if not await self._add(job, some, first=count == len(some)):
                break
        return None

    async def _add(self, job: IndexJob, some: Sequence[TextChunk], *, first: bool) -> bool:
        vectors = None
        if self._embeddings is not None:
            vectors = await self._embeddings.embed([chunk.text for chunk in some])
        await self._stores.extend_claim(job, HOLD_S)
        return await self._stores.add_chunks(job, some, vectors, first=first)


def _some(cut: Iterator[TextChunk]) -> list[TextChunk]:
    return list(islice(cut, CHUNKS_AT_ONCE))
