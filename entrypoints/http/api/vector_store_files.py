"""`/v1/vector_stores/{id}/files` and `file_batches`: the files in a vector store."""

from __future__ import annotations

from typing import Any, Literal

from litestar import Controller, handlers
from litestar.params import FromQuery
from litestar.types import ASGIApp

from antiphon.domain.retrieval.vector_stores import (
    FileBatch,
    NewAttributes,
    NewFileBatch,
    NewStoreFile,
    StoreFile,
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
from antiphon.entrypoints.http.api.vector_stores import Services
from antiphon.entrypoints.http.pages.openapi import operation
from antiphon.entrypoints.http.wire.asgi_responses import JsonResponse

POLL_AFTER = {"openai-poll-after-ms": "200"}
"""The default poll interval for clients that wait for files."""

StatusFilter = FromQuery[Literal["in_progress", "completed", "failed", "cancelled"] | None]


class VectorStoreFiles(Controller):
    """Handlers decode, call one service, and encode."""

    path = "/v1/vector_stores/{vector_store_id:str}/files"
    tags = ("Vector stores",)

    @handlers.post(
        summary="Add a file to a vector store",
        operation_class=operation(
            "The file. It is indexed in the background.", takes="NewStoreFile", gives="StoreFile"
        ),
        status_code=200,
    )
    async def create(
        self, request: HttpRequest, vector_stores: Services, vector_store_id: PathId
    ) -> ASGIApp:
        decoded = await read_json(request, NewStoreFile, vector_stores.options)
        file = await vector_stores.create_file(tenant_of(request), vector_store_id, decoded.request)
        return _respond(file, response_headers(request, decoded.ignored))

    @handlers.get(
        summary="List a vector store's files",
        operation_class=operation("A page of files.", gives="StoreFileList"),
    )
    async def list(
        self,
        request: HttpRequest,
        vector_stores: Services,
        vector_store_id: PathId,
        after: After = None,
        before: Before = None,
        limit: Limit = 20,
        order: Order = "desc",
        filter: StatusFilter = None,
    ) -> ASGIApp:
        query = vector_page_query(limit, after, before, order)
        page = await vector_stores.list_files(
            tenant_of(request), vector_store_id, query, status=filter
        )
        return JsonResponse(as_objects(page), response_headers(request))

    @handlers.get(
        "/{file_id:str}",
        summary="Retrieve a vector store file",
        operation_class=operation("The file.", gives="StoreFile"),
    )
    async def get(
        self,
        request: HttpRequest,
        vector_stores: Services,
        vector_store_id: PathId,
        file_id: PathId,
    ) -> ASGIApp:
        file = await vector_stores.stores.get_file(tenant_of(request), vector_store_id, file_id)
        return _respond(file, response_headers(request))

    @handlers.post(
        "/{file_id:str}",
        summary="Replace a vector store file's attributes",
        operation_class=operation("The file.", takes="NewAttributes", gives="StoreFile"),
        status_code=200,
    )
    async def update(
        self,
        request: HttpRequest,
        vector_stores: Services,
        vector_store_id: PathId,
        file_id: PathId,
    ) -> ASGIApp:
        decoded = await read_json(request, NewAttributes, vector_stores.options)
        attributes = dict(decoded.request.attributes or {})
        file = await vector_stores.stores.update_attributes(
            tenant_of(request), vector_store_id, file_id, attributes
        )
        return _respond(file, response_headers(request, decoded.ignored))

    @handlers.delete(
        "/{file_id:str}",
        summary="Remove a file from a vector store",
        operation_class=operation("Confirmation of the removal.", gives="Deleted"),
        status_code=200,
    )
    async def delete(
        self,
        request: HttpRequest,
        vector_stores: Services,
        vector_store_id: PathId,
        file_id: PathId,
    ) -> ASGIApp:
        """The uploaded file itself is not deleted."""
        await vector_stores.stores.delete_file(tenant_of(request), vector_store_id, file_id)
        answer = {"id": file_id, "object": "vector_store.file.deleted", "deleted": True}
        return JsonResponse(answer, response_headers(request))

    @handlers.get(
        "/{file_id:str}/content",
        summary="Retrieve a vector store file's text",
        operation_class=operation("The text.", gives="FileText"),
    )
    async def content(
        self,
        request: HttpRequest,
        vector_stores: Services,
        vector_store_id: PathId,
        file_id: PathId,
    ) -> ASGIApp:
        texts = await vector_stores.stores.get_texts(tenant_of(request), vector_store_id, file_id)
        answer: dict[str, Any] = {
            "object": "vector_store.file_content.page",
            "data": [{"type": "text", "text": text} for text in texts],
            "has_more": False,
            "next_page": None,
        }
        return JsonResponse(answer, response_headers(request))


class FileBatches(Controller):
    """Handlers decode, call one service, and encode."""

    path = "/v1/vector_stores/{vector_store_id:str}/file_batches"
    tags = ("Vector stores",)

    @handlers.post(
        summary="Add files to a vector store",
        operation_class=operation(
            "The batch. Its files are indexed in the background.",
            takes="NewFileBatch",
            gives="FileBatch",
        ),
        status_code=200,
    )
    async def create(
        self, request: HttpRequest, vector_stores: Services, vector_store_id: PathId
    ) -> ASGIApp:
        decoded = await read_json(request, NewFileBatch, vector_stores.options)
        batch = await vector_stores.create_batch(
            tenant_of(request), vector_store_id, decoded.request
        )
        return _respond(batch, response_headers(request, decoded.ignored))

    @handlers.get(
        "/{batch_id:str}",
        summary="Retrieve a file batch",
        operation_class=operation("The batch.", gives="FileBatch"),
    )
    async def get(
        self,
        request: HttpRequest,
        vector_stores: Services,
        vector_store_id: PathId,
        batch_id: PathId,
    ) -> ASGIApp:
        batch = await vector_stores.stores.get_batch(tenant_of(request), vector_store_id, batch_id)
        return _respond(batch, response_headers(request))

    @handlers.post(
        "/{batch_id:str}/cancel",
        summary="Cancel a file batch",
        operation_class=operation("The batch.", gives="FileBatch"),
        status_code=200,
    )
    async def cancel(
        self,
        request: HttpRequest,
        vector_stores: Services,
        vector_store_id: PathId,
        batch_id: PathId,
    ) -> ASGIApp:
        """Files that are already indexed stay in the vector store."""
        batch = await vector_stores.stores.cancel_batch(
            tenant_of(request), vector_store_id, batch_id
        )
        return _respond(batch, response_headers(request))

    @handlers.get(
        "/{batch_id:str}/files",
        summary="List a file batch's files",
        operation_class=operation("A page of files.", gives="StoreFileList"),
    )
    async def files(
        self,
        request: HttpRequest,
        vector_stores: Services,
        vector_store_id: PathId,
        batch_id: PathId,
        after: After = None,
        before: Before = None,
        limit: Limit = 20,
        order: Order = "desc",
        filter: StatusFilter = None,
    ) -> ASGIApp:
        query = vector_page_query(limit, after, before, order)
        page = await vector_stores.list_files(
            tenant_of(request), vector_store_id, query, status=filter, batch_id=batch_id
        )
        return JsonResponse(as_objects(page), response_headers(request))


def _respond(content: StoreFile | FileBatch, headers: dict[str, str]) -> ASGIApp:
    poll_headers = POLL_AFTER if content.status == "in_progress" else {}
    return JsonResponse(content, {**headers, **poll_headers})
