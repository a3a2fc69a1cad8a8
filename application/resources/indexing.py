"""Index the files of vector stores, as a background task of the server."""

from __future__ import annotations

import asyncio
import logging
import sys
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import nullcontext, suppress
from itertools import islice
from time import monotonic

from msgspec.structs import replace

from antiphon.application.ports import Embeddings, FileStore, IndexJob, ReadPdf, VectorStores
from antiphon.application.resources.file_texts import PDF, text_of
from antiphon.application.support.fair_queue import FairQueue
from antiphon.application.support.outages import Outages
from antiphon.application.support.tasks import work_for
from antiphon.application.support.threads import run_in_thread
from antiphon.domain.errors import (
    DocumentError,
    EmbeddingsError,
    NotFound,
    StoreError,
    UnsupportedDocument,
)
from antiphon.domain.retrieval.text_chunks import TextChunk, text_chunks
from antiphon.domain.retrieval.vector_stores import IndexingError

logger = logging.getLogger("antiphon.indexing")

MAX_CONCURRENT_FILES = 4
MAX_PER_TENANT = MAX_CONCURRENT_FILES - 1
"""A tenant with many or big files leaves a place to the others."""

MAX_REMEMBERED_TENANTS = 1000
MAX_BATCH_CHUNKS = 64
"""Chunks in one request for embeddings."""

MAX_WRITTEN_CHUNKS = 4
"""Chunks in one transaction of the store. Other writes wait for it, those of other tenants too, and
a file has about six: with 64 chunks they took 20 ms each. With 8, a file is indexed 10 % faster."""

CLAIM_S = 60.0
"""Seconds for which a server claims a file, unless it extends the claim."""

EXTEND_AFTER_S = 5.0
"""Seconds before a claim is extended, which is a write. Neither reading a PDF nor embedding
`MAX_BATCH_CHUNKS` chunks may take longer than what is left of `CLAIM_S` then."""

CHUNKING_COST = 3
"""Finding the words of a text takes as long as decoding so many times its length of JSON."""

RETRY_DELAY_S = 5.0
"""Seconds before another attempt after the embeddings have failed."""

MAX_ATTEMPTS = 4
MAX_CHUNKS = 20_000
POLL_S = 5.0
"""Seconds between looks for files that another server has left unindexed."""


class IndexFiles:
    """Indexes files: extracts their texts, splits them into chunks and embeds those.

    Tenants take turns, file by file, and each batch of a file's chunks is a piece of work of its
    own: a small file waits neither for many files of another tenant nor for a big one.

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
        self._has_work = asyncio.Event()
        # One thread of each tenant at a time: more would only compete for the interpreter.
        self._threads = FairQueue(2, per_tenant=1)
        # One batch of each tenant at a time too, because every other write waits for it.
        self._writes = FairQueue(2, per_tenant=1)
        self._running: Counter[str] = Counter()
        # The tenants whose files were indexed lately, the latest at the end.
        self._latest: OrderedDict[str, None] = OrderedDict()

    def wake(self) -> None:
        """Report that there are new files."""
        self._has_work.set()

    async def run_forever(self) -> None:
        """Index files as they arrive, until cancelled."""
        outages = Outages(logger, "files of vector stores are not indexed")
        async with asyncio.TaskGroup() as files:
            while True:
                self._has_work.clear()
                with outages.log_outages():
                    while (job := await self._claim()) is not None:
                        files.create_task(self._index_claimed(job, outages))
                with suppress(TimeoutError):
                    async with asyncio.timeout(min(POLL_S, self._retry_delay_s)):
                        await self._has_work.wait()

    async def run_once(self) -> int:
        """Index the files that are due and return how many.

        Raises: StoreError.
        """
        count = 0
        async with asyncio.TaskGroup() as files:
            while (job := await self._claim()) is not None:
                files.create_task(self._index_claimed(job))
                count += 1
        return count

    async def _claim(self) -> IndexJob | None:
        """Claim the file whose turn it is, or return None: nothing is due, or all places are taken.

        `_index_claimed` frees the place. Raises: StoreError.
        """
        if self._running.total() >= MAX_CONCURRENT_FILES:
            return None
        jobs = await self._stores.claim_due_jobs(
            limit=1,
            claim_s=CLAIM_S,
            skip=[each for each, count in self._running.items() if count >= MAX_PER_TENANT],
            last=[*self._latest],
        )
        for job in jobs:
            self._running[job.tenant] += 1
            self._latest[job.tenant] = None
            self._latest.move_to_end(job.tenant)
            if len(self._latest) > MAX_REMEMBERED_TENANTS:
                self._latest.popitem(last=False)
        return jobs[0] if jobs else None

    async def _index_claimed(self, job: IndexJob, outages: Outages | None = None) -> None:
        """Index a file and free its place. Raises: StoreError, unless `outages` logs it."""
        try:
            work_for(job.tenant)
            with outages.log_outages() if outages is not None else nullcontext():
                await self._index(_Claim(self._stores, job))
                self._has_work.set()  # for the next file; after a failure it waits for a while
        finally:
            self._running[job.tenant] -= 1
            if not self._running[job.tenant]:
                del self._running[job.tenant]

    async def _index(self, claim: _Claim) -> None:
        """Index a file. An error becomes the file's `last_error`; only StoreError is raised."""
        job = claim.job
        try:
            error = await self._attempt(claim)
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
        await self._stores.finish_job(job, error)

    async def _attempt(self, claim: _Claim) -> IndexingError | None:
        job = claim.job
        if job.attempt > MAX_ATTEMPTS:  # the file may have crashed the servers that tried it
            return IndexingError(code="server_error", message="The file could not be indexed.")
        if await self._stores.get_usage_bytes(job.tenant) >= self._quota_bytes:
            return IndexingError(
                code="invalid_file",
                message=f"Your vector stores may take {self._quota_bytes} bytes together, and all "
                "of them are in use. Delete what you no longer need.",
            )
        content = await self._files.get_content(job.tenant, job.file_id)
        text = await self._text_of(job, content)
        chunks = text_chunks(
            text,
            size=job.sizes.max_chunk_size_tokens,
            overlap=job.sizes.chunk_overlap_tokens,
        )
        count = 0
        cost = CHUNKING_COST * len(text)
        while batch := await self._next_batch(job.tenant, chunks, cost=cost):
            count += len(batch)
            if count > MAX_CHUNKS:
                return IndexingError(
                    code="invalid_file", message=f"The file has more than {MAX_CHUNKS} chunks."
                )
            is_added = await self._add(claim, batch, first=count == len(batch))
            if not is_added or len(batch) < MAX_BATCH_CHUNKS:
                break
        return None

    async def _text_of(self, job: IndexJob, content: bytes) -> str:
        if content.startswith(PDF):  # a process reads it, not a thread
            return await text_of(job.filename, content, self._read_pdf, tenant=job.tenant)
        async with self._threads.slot(job.tenant):
            return await text_of(job.filename, content, self._read_pdf, tenant=job.tenant)

    async def _next_batch(
        self, tenant: str, chunks: Iterator[TextChunk], *, cost: int
    ) -> list[TextChunk]:
        async with self._threads.slot(tenant):
            return await run_in_thread(cost, list, islice(chunks, MAX_BATCH_CHUNKS))

    async def _add(self, claim: _Claim, batch: Sequence[TextChunk], *, first: bool) -> bool:
        job, vectors = claim.job, None
        if self._embeddings is not None:
            vectors = await self._embeddings.embed([chunk.text for chunk in batch])
        await claim.extend()
        for start in range(0, len(batch), MAX_WRITTEN_CHUNKS):
            written = slice(start, start + MAX_WRITTEN_CHUNKS)
            async with self._writes.slot(job.tenant):
                if not await self._stores.add_chunks(
                    job,
                    batch[written],
                    vectors and replace(vectors, each=vectors.each[written]),
                    first=first and start == 0,
                ):
                    return False
        return True


class _Claim:
    """A claimed file, and for how long it is claimed."""

    def __init__(self, stores: VectorStores, job: IndexJob) -> None:
        self.job = job
        self._stores = stores
        self._extended_at = monotonic()

    async def extend(self) -> None:
        now = monotonic()
        if now - self._extended_at > EXTEND_AFTER_S:
            await self._stores.extend_claim(self.job, CLAIM_S)
            self._extended_at = now
