"""`/v1/batches`: create, list, retrieve, cancel."""

from __future__ import annotations

from litestar import Controller, handlers
from litestar.di import NamedDependency
from litestar.types import ASGIApp
from msgspec import Struct

from antiphon.application.resources.batches import operations as o
from antiphon.domain.batches.batch import NewBatch
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
from antiphon.entrypoints.http.api.requests import (
    HttpRequest,
    caller_of,
    response_headers,
    tenant_of,
)
from antiphon.entrypoints.http.options import HttpOptions
from antiphon.entrypoints.http.pages.openapi import operation
from antiphon.entrypoints.http.wire.asgi_responses import JsonResponse


class BatchServices(Struct, frozen=True, kw_only=True):
    """The services that these handlers call."""

    create: o.CreateBatch
    list: o.ListBatches
    get: o.GetBatch
    cancel: o.CancelBatch
    options: HttpOptions


Services = NamedDependency[BatchServices]


class BatchRoutes(Controller):
    """Handlers decode, call one service, and encode."""

    path = "/v1/batches"
    tags = ("Batches",)

    @handlers.post(
        summary="Create a batch",
        operation_class=operation("The batch.", takes="NewBatch", gives="Batch"),
        status_code=200,
    )
    async def create(self, request: HttpRequest, batches: Services) -> ASGIApp:
        """Its requests are the lines of an uploaded file. They run in the background."""
        decoded = await read_json(request, NewBatch, batches.options)
        created = await batches.create(caller_of(request), decoded.request)
        return JsonResponse(created, response_headers(request, decoded.ignored))

    @handlers.get(
        summary="List batches", operation_class=operation("A page of batches.", gives="BatchList")
    )
    async def list(
        self,
        request: HttpRequest,
        batches: Services,
        after: After = None,
        before: Before = None,
        limit: Limit = 20,
        order: Order = "desc",
    ) -> ASGIApp:
        query = vector_page_query(limit, after, before, order)
        page = await batches.list(tenant_of(request), query)
        return JsonResponse(as_objects(page), response_headers(request))

    @handlers.get(
        "/{batch_id:str}",
        summary="Retrieve a batch",
        operation_class=operation("The batch.", gives="Batch"),
    )
    async def get(self, request: HttpRequest, batches: Services, batch_id: PathId) -> ASGIApp:
        batch = await batches.get(tenant_of(request), batch_id)
        return JsonResponse(batch, response_headers(request))

    @handlers.post(
        "/{batch_id:str}/cancel",
        summary="Cancel a batch",
        operation_class=operation("The batch.", gives="Batch"),
        status_code=200,
    )
    async def cancel(self, request: HttpRequest, batches: Services, batch_id: PathId) -> ASGIApp:
        """Requests that run are finished, and what was answered is written to the files."""
        batch = await batches.cancel(tenant_of(request), batch_id)
        return JsonResponse(batch, response_headers(request))
