"""`/v1/vector_stores`: create, list, retrieve, modify, delete, search."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from litestar import Controller, handlers
from litestar.di import NamedDependency
from litestar.types import ASGIApp

from antiphon.application.ports import Clock, Embeddings, FileStore, NewId
from antiphon.application.ports import VectorStores as StoresPort
from antiphon.application.resources import vector_stores as v
from antiphon.application.resources.indexing import IndexFiles
from antiphon.domain.requests.ignored import refuse_ignored
from antiphon.domain.retrieval.file_filters import parse_filter
from antiphon.domain.retrieval.ranking import RankedPassage, check_weights
from antiphon.domain.retrieval.vector_stores import (
    NewVectorStore,
    SearchRequest,
    VectorStoreChanges,
)
from antiphon.entrypoints.http.api.json_bodies import read_json
from antiphon.entrypoints.http.api.pagination import (
    After,
    Before,
    Limit,
    Order,
    as_objects,
    vector_page_query,
)
from antiphon.entrypoints.http.api.parameters import PathId
from antiphon.entrypoints.http.api.requests import HttpRequest, response_headers, tenant_of
from antiphon.entrypoints.http.options import HttpOptions
from antiphon.entrypoints.http.pages.openapi import operation
from antiphon.entrypoints.http.wire.asgi_responses import JsonResponse


class VectorStoreServices:
    """The services that the handlers of vector stores and their files call."""

    def __init__(
        self,
        stores: StoresPort,
        files: FileStore,
        index_files: IndexFiles,
        embeddings: Embeddings | None,
        options: HttpOptions,
        *,
        new_id: NewId,
        now: Clock,
    ) -> None:
        limits = v.VectorStoreLimits()
        add = v.AddFiles(stores, files, index_files, limits=limits, now=now)
        self.stores = stores
        self.create = v.CreateVectorStore(stores, add, limits=limits, new_id=new_id, now=now)
        self.find = v.FindVectorStore(stores, now=now)
        self.list = v.ListVectorStores(self.find)
        self.update = v.UpdateVectorStore(stores, self.find)
        self.delete = v.DeleteVectorStore(stores)
        self.search = v.SearchVectorStores(stores, embeddings)
        self.create_file = v.CreateStoreFile(stores, self.find, add)
        self.create_batch = v.CreateFileBatch(stores, self.find, add, new_id=new_id, now=now)
        self.list_files = v.ListStoreFiles(stores)
        self.options = options


Services = NamedDependency[VectorStoreServices]


class VectorStoreRoutes(Controller):
    """Handlers decode, call one service, and encode."""

    path = "/v1/vector_stores"
    tags = ("Vector stores",)

    @handlers.post(
        summary="Create a vector store",
        operation_class=operation(
            "The vector store.", takes="NewVectorStore", takes_always=False, gives="VectorStore"
        ),
        status_code=200,
    )
    async def create(self, request: HttpRequest, vector_stores: Services) -> ASGIApp:
        """A new vector store can contain files, which are indexed in the background."""
        decoded = await read_json(request, NewVectorStore, vector_stores.options)
        created = await vector_stores.create(tenant_of(request), decoded.request)
        return JsonResponse(created, response_headers(request, decoded.ignored))

    @handlers.get(
        summary="List vector stores",
        operation_class=operation("A page of vector stores.", gives="VectorStoreList"),
    )
    async def list(
        self,
        request: HttpRequest,
        vector_stores: Services,
        after: After = None,
        before: Before = None,
        limit: Limit = 20,
        order: Order = "desc",
    ) -> ASGIApp:
        query = vector_page_query(limit, after, before, order)
        page = await vector_stores.list(tenant_of(request), query)
        return JsonResponse(as_objects(page), response_headers(request))

    @handlers.get(
        "/{vector_store_id:str}",
        summary="Retrieve a vector store",
        operation_class=operation("The vector store.", gives="VectorStore"),
    )
    async def get(
        self, request: HttpRequest, vector_stores: Services, vector_store_id: PathId
    ) -> ASGIApp:
        vector_store = await vector_stores.find(tenant_of(request), vector_store_id)
        return JsonResponse(vector_store, response_headers(request))

    @handlers.post(
        "/{vector_store_id:str}",
        summary="Modify a vector store",
        operation_class=operation(
            "The vector store.", takes="VectorStoreChanges", gives="VectorStore"
        ),
        status_code=200,
    )
    async def update(
        self, request: HttpRequest, vector_stores: Services, vector_store_id: PathId
    ) -> ASGIApp:
        decoded = await read_json(request, VectorStoreChanges, vector_stores.options)
        updated = await vector_stores.update(tenant_of(request), vector_store_id, decoded.request)
        return JsonResponse(updated, response_headers(request, decoded.ignored))

    @handlers.delete(
        "/{vector_store_id:str}",
        summary="Delete a vector store",
        operation_class=operation("Confirmation of the deletion.", gives="Deleted"),
        status_code=200,
    )
    async def delete(
        self, request: HttpRequest, vector_stores: Services, vector_store_id: PathId
    ) -> ASGIApp:
        """Uploaded files are not deleted."""
        await vector_stores.delete(tenant_of(request), vector_store_id)
        answer = {"id": vector_store_id, "object": "vector_store.deleted", "deleted": True}
        return JsonResponse(answer, response_headers(request))

    @handlers.post(
        "/{vector_store_id:str}/search",
        summary="Search a vector store",
        operation_class=operation(
            "The search results.", takes="SearchRequest", gives="SearchResults"
        ),
        status_code=200,
    )
    async def search(
        self, request: HttpRequest, vector_stores: Services, vector_store_id: PathId
    ) -> ASGIApp:
        decoded = await read_json(request, SearchRequest, vector_stores.options)
        query, tenant = decoded.request, tenant_of(request)
        ignored_fields = ("rewrite_query",) if query.rewrite_query else ()
        if vector_stores.options.strict:
            refuse_ignored(ignored_fields)
        file_filter = parse_filter(query.filters, "filters")
        check_weights(query.ranking_options, "ranking_options")
        await vector_stores.find.get_usable(tenant, vector_store_id, "vector_store_id")
        texts = (query.query,) if isinstance(query.query, str) else query.query
        passages = await vector_stores.search(
            tenant,
            [vector_store_id],
            texts,
            file_filter=file_filter,
            options=query.ranking_options,
            limit=query.max_num_results or v.DEFAULT_RESULTS,
        )
        ignored = [*decoded.ignored, *ignored_fields]
        return JsonResponse(_to_json(texts, passages), response_headers(request, ignored))


def _to_json(queries: Sequence[str], results: Sequence[RankedPassage]) -> dict[str, Any]:
    return {
        "object": "vector_store.search_results.page",
        "search_query": queries,
        "data": [
            {
                "file_id": result.passage.file_id,
                "filename": result.passage.filename,
                "score": result.score,
                "attributes": result.passage.attributes,
                "content": [{"type": "text", "text": result.passage.text}],
            }
            for result in results
        ],
        "has_more": False,
        "next_page": None,
    }
