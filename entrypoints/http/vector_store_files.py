"""`/v1/vector_stores/{id}/files` and `file_batches`: what is in a vector store."""

from __future__ import annotations

from typing import Any, Literal

from litestar import Controller, handlers
from litestar.params import FromPath, FromQuery
from litestar.types import ASGIApp

from antiphon.application.support.paging import PageQuery
from antiphon.domain.vector_stores import (
    FileBatch,
    NewAttributes,
    NewFileBatch,
    NewStoreFile,
    StoreFile,
)
from antiphon.entrypoints.http.asgi_responses import JsonResponse
from antiphon.entrypoints.http.json_bodies import read_json
from antiphon.entrypoints.http.openapi import operation
from antiphon.entrypoints.http.pagination import After, Before, Limit, Order, as_objects
from antiphon.entrypoints.http.requests import HttpRequest, response_headers, tenant_of
from antiphon.entrypoints.http.vector_stores import Services

POLL_AFTER = {"openai-poll-after-ms": "200"}
"""When a client that waits for files should ask again, where it has no time of its own."""

OfStatus = FromQuery[Literal["in_progress", "completed", "failed", "cancelled"] | None]


class VectorStoreFiles(Controller):
    """Handlers decode, call one service, and encode."""

    path = "/v1/vector_stores/{vector_store_id:str}/files"
    tags = ("Vector stores",)

    @handlers.post(
        summary="Add a file to a vector store",
        operation_class=operation(
            "The file, soon to be indexed.", takes="NewStoreFile", gives="StoreFile"
        ),
        status_code=200,
    )
    async def create(
        self, request: HttpRequest, vector_stores: Services, vector_store_id: FromPath[str]
    ) -> ASGIApp:
        decoded = await read_json(request, NewStoreFile, vector_stores.options)
        file = await vector_stores.add_file(tenant_of(request), vector_store_id, decoded.request)
        return _shown(file, response_headers(request, decoded.unknown))

    @handlers.get(
        summary="List the files of a vector store",
        operation_class=operation("A page of files.", gives="StoreFileList"),
    )
    async def list(
        self,
        request: HttpRequest,
        vector_stores: Services,
        vector_store_id: FromPath[str],
        after: After = None,
        before: Before = None,
        limit: Limit = 20,
        order: Order = "desc",
        filter: OfStatus = None,
    ) -> ASGIApp:
        cut = PageQuery(after=after, before=before, limit=limit, order=order)
        page = await vector_stores.list_files(
            tenant_of(request), vector_store_id, cut, status=filter
        )
        return JsonResponse(as_objects(page), response_headers(request))

    @handlers.get(
        "/{file_id:str}",
        summary="Retrieve a file of a vector store",
        operation_class=operation("The file.", gives="StoreFile"),
    )
    async def get(
        self,
        request: HttpRequest,
        vector_stores: Services,
        vector_store_id: FromPath[str],
        file_id: FromPath[str],
    ) -> ASGIApp:
        file = await vector_stores.stores.file(tenant_of(request), vector_store_id, file_id)
        return _shown(file, response_headers(request))

    @handlers.post(
        "/{file_id:str}",
        summary="Replace the attributes of a file of a vector store",
        operation_class=operation("The file.", takes="NewAttributes", gives="StoreFile"),
        status_code=200,
    )
    async def update(
        self,
        request: HttpRequest,
        vector_stores: Services,
        vector_store_id: FromPath[str],
        file_id: FromPath[str],
    ) -> ASGIApp:
        decoded = await read_json(request, NewAttributes, vector_stores.options)
        attributes = dict(decoded.request.attributes or {})
        file = await vector_stores.stores.set_attributes(
            tenant_of(request), vector_store_id, file_id, attributes
        )
        return _shown(file, response_headers(request, decoded.unknown))

    @handlers.delete(
        "/{file_id:str}",
        summary="Take a file out of a vector store",
        operation_class=operation("It is taken out.", gives="Deleted"),
        status_code=200,
    )
    async def delete(
        self,
        request: HttpRequest,
        vector_stores: Services,
        vector_store_id: FromPath[str],
        file_id: FromPath[str],
    ) -> ASGIApp:
        """The uploaded file stays."""
        await vector_stores.stores.remove_file(tenant_of(request), vector_store_id, file_id)
        answer = {"id": file_id, "object": "vector_store.file.deleted", "deleted": True}
        return JsonResponse(answer, response_headers(request))

    @handlers.get(
        "/{file_id:str}/content",
        summary="Retrieve the text of a file of a vector store",
        operation_class=operation("Its text.", gives="FileText"),
    )
    async def content(
        self,
        request: HttpRequest,
        vector_stores: Services,
        vector_store_id: FromPath[str],
        file_id: FromPath[str],
    ) -> ASGIApp:
        texts = await vector_stores.stores.texts(tenant_of(request), vector_store_id, file_id)
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
            "The batch, soon to be indexed.", takes="NewFileBatch", gives="FileBatch"
        ),
        status_code=200,
    )
    async def create(
        self, request: HttpRequest, vector_stores: Services, vector_store_id: FromPath[str]
    ) -> ASGIApp:
        decoded = await read_json(request, NewFileBatch, vector_stores.options)
        batch = await vector_stores.add_batch(tenant_of(request), vector_store_id, decoded.request)
        return _shown(batch, response_headers(request, decoded.unknown))

    @handlers.get(
        "/{batch_id:str}",
        summary="Retrieve a batch of files",
        operation_class=operation("The batch.", gives="FileBatch"),
    )
    async def get(
        self,
        request: HttpRequest,
        vector_stores: Services,
        vector_store_id: FromPath[str],
        batch_id: FromPath[str],
    ) -> ASGIApp:
        batch = await vector_stores.stores.batch(tenant_of(request), vector_store_id, batch_id)
        return _shown(batch, response_headers(request))

    @handlers.post(
        "/{batch_id:str}/cancel",
        summary="Cancel a batch of files",
        operation_class=operation("The batch.", gives="FileBatch"),
        status_code=200,
    )
    async def cancel(
        self,
        request: HttpRequest,
        vector_stores: Services,
        vector_store_id: FromPath[str],
        batch_id: FromPath[str],
    ) -> ASGIApp:
        """Files that are indexed already stay."""
        batch = await vector_stores.stores.cancel_batch(
            tenant_of(request), vector_store_id, batch_id
        )
        return _shown(batch, response_headers(request))

    @handlers.get(
        "/{batch_id:str}/files",
        summary="List the files of a batch",
        operation_class=operation("A page of files.", gives="StoreFileList"),
    )
    async def files(
        self,
        request: HttpRequest,
        vector_stores: Services,
        vector_store_id: FromPath[str],
        batch_id: FromPath[str],
        after: After = None,
        before: Before = None,
        limit: Limit = 20,
        order: Order = "desc",
        filter: OfStatus = None,
    ) -> ASGIApp:
        cut = PageQuery(after=after, before=before, limit=limit, order=order)
        page = await vector_stores.list_files(
            tenant_of(request), vector_store_id, cut, status=filter, batch_id=batch_id
        )
        return JsonResponse(as_objects(page), response_headers(request))


def _shown(shown: StoreFile | FileBatch, headers: dict[str, str]) -> ASGIApp:
    waits = POLL_AFTER if shown.status == "in_progress" else {}
    return JsonResponse(shown, {**headers, **waits})
