"""Vector stores and their files: create, list, get, update, delete, search."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.application.ports import (
    Clock,
    Embeddings,
    FileStore,
    FileToAdd,
    NewId,
    VectorPageQuery,
    VectorStores,
)
from antiphon.application.resources.indexing import IndexFiles
from antiphon.application.support.paging import Page, read_page
from antiphon.application.support.periodic import run_periodically
from antiphon.domain.errors import NotFound, RequestError
from antiphon.domain.retrieval.file_filters import Filter
from antiphon.domain.retrieval.ranking import RankedPassage, rank_passages, weights_of
from antiphon.domain.retrieval.vector_stores import (
    AnyChunking,
    ChunkSizes,
    FileBatch,
    NewFileBatch,
    NewStoreFile,
    NewVectorStore,
    RankingOptions,
    Status,
    StoreFile,
    VectorStore,
    VectorStoreChanges,
    expiry_of,
    sizes_of,
)

DEFAULT_RESULTS = 10
"""Passages that a search returns unless it asks for another number."""

MIN_CANDIDATES = 50
"""Passages that each kind of search, by words and by meaning, adds to the ranking, at least."""

ACTIVITY_RESOLUTION_S = 60
"""The least number of seconds between two updates of a vector store's `last_active_at`."""

MAX_SWEPT_CHUNKS = 200
"""Chunks that one transaction erases, since new files wait for it."""


class VectorStoreLimits(Struct, frozen=True, kw_only=True):
    """`stores` limits the vector stores of a tenant, `files` the files of each vector store."""

    stores: int = 10_000
    files: int = 10_000


class FindVectorStore:
    """Finds vector stores and marks those that have expired."""

    def __init__(self, stores: VectorStores, *, now: Clock) -> None:
        self._stores = stores
        self._now = now

    async def __call__(self, tenant: str, store_id: str) -> VectorStore:
        """Raises: NotFound."""
        return self._with_status(await self._stores.get_store(tenant, store_id))

    async def get_usable(self, tenant: str, store_id: str, path: str) -> VectorStore:
        """Return a vector store to use now, and record the use.

        `path` is where the request names it. Raises: NotFound; RequestError if it has expired.
        """
        try:
            store = await self(tenant, store_id)
        except NotFound as error:
            raise NotFound(error.message, param=path) from None
        if store.status == "expired":
            raise RequestError(
                f"Vector store with id {store_id[:100]!r} has expired.",
                param=path,
                code="vector_store_expired",
            )
        now = int(self._now())
        if now - store.last_active_at >= ACTIVITY_RESOLUTION_S:
            expires_at = expiry_of(store.expires_after, now)
            store = replace(store, last_active_at=now, expires_at=expires_at)
            await self._stores.touch_store(tenant, store)
        return store

    async def page(self, tenant: str, query: VectorPageQuery) -> list[VectorStore]:
        """Raises: NotInList."""
        return [self._with_status(store) for store in await self._stores.list_stores(tenant, query)]

    def _with_status(self, store: VectorStore) -> VectorStore:
        if store.expires_at is None or store.expires_at > self._now():
            return store
        return replace(store, status="expired")


class RequestedFile(Struct, frozen=True, kw_only=True):
    """A file to add to a vector store; `path` is where the request names it."""

    path: str
    file: NewStoreFile
    sizes: ChunkSizes


def to_requested_files(
    file_ids: Sequence[str],
    chunking: AnyChunking | None = None,
    attributes: dict[str, str | bool | int | float] | None = None,
) -> list[RequestedFile]:
    """Return these files, all with the same options. Raises: RequestError."""
    sizes = sizes_of(chunking)
    return [
        RequestedFile(
            path=f"file_ids[{position}]",
            file=NewStoreFile(file_id=file_id, attributes=attributes),
            sizes=sizes,
        )
        for position, file_id in enumerate(file_ids)
    ]


class AddFiles:
    """Adds files to vector stores; they are indexed later."""

    def __init__(
        self,
        stores: VectorStores,
        files: FileStore,
        index: IndexFiles,
        *,
        limits: VectorStoreLimits,
        now: Clock,
    ) -> None:
        self._stores = stores
        self._files = files
        self._index = index
        self._limits = limits
        self._now = now

    async def look_up(self, tenant: str, files: Sequence[RequestedFile]) -> list[FileToAdd]:
        """Return the files to add; if one occurs twice, the last counts.

        Raises: NotFound, with the path at which the request names the file.
        """
        files_by_id = {each.file.file_id: await self._look_up(tenant, each) for each in files}
        return list(files_by_id.values())

    async def __call__(
        self,
        tenant: str,
        store: VectorStore,
        files: Sequence[FileToAdd],
        *,
        batch: FileBatch | None = None,
    ) -> None:
        """Raises: RequestError."""
        if store.file_counts.total + len(files) > self._limits.files:
            raise RequestError(
                f"A vector store may have {self._limits.files} files.",
                param="file_ids" if len(files) > 1 else "file_id",
                code="vector_store_full",
            )
        await self._stores.create_files(tenant, store.id, files, batch=batch)
        self._index.wake()

    async def _look_up(self, tenant: str, requested: RequestedFile) -> FileToAdd:
        file_id = requested.file.file_id
        try:
            uploaded = await self._files.get_file(tenant, file_id)
        except NotFound:
            raise NotFound(f"File with id {file_id!r} not found.", param=requested.path) from None
        return FileToAdd(
            id=file_id,
            filename=uploaded.filename,
            created_at=int(self._now()),
            attributes=dict(requested.file.attributes or {}),
            sizes=requested.sizes,
        )


class CreateVectorStore:
    def __init__(
        self,
        stores: VectorStores,
        add_files: AddFiles,
        *,
        limits: VectorStoreLimits,
        new_id: NewId,
        now: Clock,
    ) -> None:
        self._stores = stores
        self._add_files = add_files
        self._limits = limits
        self._new_id = new_id
        self._now = now

    async def __call__(self, tenant: str, request: NewVectorStore) -> VectorStore:
        """Raises: RequestError; NotFound."""
        files = await self._add_files.look_up(
            tenant, to_requested_files(request.file_ids or (), request.chunking_strategy)
        )
        if await self._stores.count_stores(tenant) >= self._limits.stores:
            raise RequestError(
                f"You have {self._limits.stores} vector stores, which is the maximum. Delete those "
                "that you no longer need.",
                code="vector_store_quota_exceeded",
            )
        now = int(self._now())
        store = VectorStore(
            id=self._new_id("vs"),
            created_at=now,
            name=request.name or "",
            description=request.description,
            expires_after=request.expires_after,
            expires_at=expiry_of(request.expires_after, now),
            last_active_at=now,
            metadata=request.metadata or {},
        )
        await self._stores.create_store(tenant, store)
        if files:
            await self._add_files(tenant, store, files)
        return await self._stores.get_store(tenant, store.id)


class ListVectorStores:
    def __init__(self, find: FindVectorStore) -> None:
        self._find = find

    async def __call__(self, tenant: str, query: VectorPageQuery) -> Page[VectorStore]:
        """Raises: NotInList."""
        return await read_page(partial(self._find.page, tenant), query)


class UpdateVectorStore:
    def __init__(self, stores: VectorStores, find: FindVectorStore) -> None:
        self._stores = stores
        self._find = find

    async def __call__(
        self, tenant: str, store_id: str, changes: VectorStoreChanges
    ) -> VectorStore:
        """Raises: NotFound; RequestError."""
        store = await self._find.get_usable(tenant, store_id, "vector_store_id")
        if changes.name is not UNSET:
            store = replace(store, name=changes.name or "")
        if changes.metadata is not UNSET:
            store = replace(store, metadata=changes.metadata or {})
        if changes.expires_after is not UNSET:
            after = changes.expires_after or None
            expires_at = expiry_of(after, store.last_active_at)
            store = replace(store, expires_after=after, expires_at=expires_at)
        await self._stores.update_store(tenant, store)
        return await self._find(tenant, store_id)


class DeleteVectorStore:
    def __init__(self, stores: VectorStores) -> None:
        self._stores = stores

    async def __call__(self, tenant: str, store_id: str) -> None:
        """Delete the vector store but not the uploaded files. Raises: NotFound."""
        await self._stores.delete_store(tenant, store_id)


class SearchVectorStores:
    """Searches by words and, if there are embeddings, by meaning (docs/decisions/0051)."""

    def __init__(self, stores: VectorStores, embeddings: Embeddings | None) -> None:
        self._stores = stores
        self._embeddings = embeddings

    async def __call__(
        self,
        tenant: str,
        store_ids: Sequence[str],
        queries: Sequence[str],
        *,
        file_filter: Filter | None = None,
        options: RankingOptions | None = None,
        limit: int = DEFAULT_RESULTS,
    ) -> list[RankedPassage]:
        """Return the best passages for any of the queries. Raises: EmbeddingsError, StoreError."""
        weights = weights_of(options, has_embeddings=self._embeddings is not None)
        vectors = None
        if self._embeddings is not None and weights.embedding_weight:
            vectors = await self._embeddings.embed(queries)
        passages = [
            await self._stores.search(
                tenant,
                store_ids,
                words=query if weights.text_weight else "",
                vectors=None
                if vectors is None
                else replace(vectors, each=[vectors.each[position]]),
                file_filter=file_filter,
                limit=max(limit, MIN_CANDIDATES),
            )
            for position, query in enumerate(queries)
        ]
        threshold = (options.score_threshold if options else None) or 0.0
        return rank_passages(passages, weights, limit=limit, threshold=threshold)


class CreateStoreFile:
    def __init__(self, stores: VectorStores, find: FindVectorStore, add_files: AddFiles) -> None:
        self._stores = stores
        self._find = find
        self._add_files = add_files

    async def __call__(self, tenant: str, store_id: str, request: NewStoreFile) -> StoreFile:
        """Raises: NotFound; RequestError."""
        store = await self._find.get_usable(tenant, store_id, "vector_store_id")
        sizes = sizes_of(request.chunking_strategy)
        file = RequestedFile(path="file_id", file=request, sizes=sizes)
        await self._add_files(tenant, store, await self._add_files.look_up(tenant, [file]))
        return await self._stores.get_file(tenant, store_id, request.file_id)


class CreateFileBatch:
    def __init__(
        self,
        stores: VectorStores,
        find: FindVectorStore,
        add_files: AddFiles,
        *,
        new_id: NewId,
        now: Clock,
    ) -> None:
        self._stores = stores
        self._find = find
        self._add_files = add_files
        self._new_id = new_id
        self._now = now

    async def __call__(self, tenant: str, store_id: str, request: NewFileBatch) -> FileBatch:
        """Raises: NotFound; RequestError."""
        store = await self._find.get_usable(tenant, store_id, "vector_store_id")
        files = await self._add_files.look_up(tenant, _requested_files_in(request))
        batch = FileBatch(
            id=self._new_id("vsfb"), created_at=int(self._now()), vector_store_id=store.id
        )
        await self._add_files(tenant, store, files, batch=batch)
        return await self._stores.get_batch(tenant, store_id, batch.id)


def _requested_files_in(request: NewFileBatch) -> list[RequestedFile]:
    if (request.file_ids is None) == (request.files is None):
        raise RequestError(
            "Send one of 'file_ids' and 'files'.",
            param="files" if request.files else "file_ids",
            code="mutually_exclusive_parameters" if request.files else "missing_required_parameter",
        )
    if request.files is None:
        return to_requested_files(
            request.file_ids or (), request.chunking_strategy, request.attributes
        )
    return [
        RequestedFile(
            path=f"files[{position}].file_id",
            file=file,
            sizes=sizes_of(file.chunking_strategy, f"files[{position}].chunking_strategy"),
        )
        for position, file in enumerate(request.files)
    ]


class ListStoreFiles:
    def __init__(self, stores: VectorStores) -> None:
        self._stores = stores

    async def __call__(
        self,
        tenant: str,
        store_id: str,
        query: VectorPageQuery,
        *,
        status: Status | None = None,
        batch_id: str | None = None,
    ) -> Page[StoreFile]:
        """Raises: NotFound; NotInList."""
        read = partial(self._stores.list_files, tenant, store_id, batch_id=batch_id, status=status)
        return await read_page(read, query)


class SweepVectorStores:
    """Erases removed and expired content, in small transactions."""

    def __init__(self, stores: VectorStores, *, now: Clock) -> None:
        self._stores = stores
        self._now = now

    async def __call__(self) -> None:
        """Raises: StoreError."""
        while await self._stores.sweep(self._now(), limit=MAX_SWEPT_CHUNKS):
            pass

    async def run_every(self, seconds: float) -> None:
        """Sweep about every `seconds`, until cancelled."""
        await run_periodically(
            "removed content is not erased from vector stores", self, every_s=seconds
        )
