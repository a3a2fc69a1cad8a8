"""`/v1/models`: the models of this server, for clients and operators."""

from __future__ import annotations

from litestar import Controller, handlers
from litestar.di import NamedDependency
from litestar.types import ASGIApp

from antiphon.entrypoints.http.api.codex_catalog import codex_catalog
from antiphon.entrypoints.http.api.model_entries import model_entry
from antiphon.entrypoints.http.api.parameters import PathId, QueryText
from antiphon.entrypoints.http.api.requests import HttpRequest, caller_of, response_headers
from antiphon.entrypoints.http.api.responses import Services
from antiphon.entrypoints.http.pages.openapi import one_of, operation
from antiphon.entrypoints.http.wire.asgi_responses import JsonResponse


class ModelRoutes(Controller):
    path = "/v1/models"
    tags = ("Models",)

    @handlers.get(
        summary="List models",
        operation_class=operation(
            "All models; with `client_version`, as the catalog that Codex asks for.",
            gives=one_of("ModelList", "CodexCatalog"),
        ),
    )
    async def list(
        self,
        request: HttpRequest,
        services: NamedDependency[Services],
        started_at: NamedDependency[int],
        client_version: QueryText = None,
    ) -> ASGIApp:
        """Only Codex sends `client_version`, and it reads nothing but its own catalog."""
        described = await services.describe_models(caller_of(request).policy)
        headers = response_headers(request)
        if client_version is not None:
            return JsonResponse(codex_catalog(described), headers)
        entries = [
            model_entry(name, each, created=started_at) for each in described for name in each.names
        ]
        return JsonResponse({"object": "list", "data": entries}, headers)

    @handlers.get(
        "/{name:path}",
        summary="Retrieve a model",
        operation_class=operation("The model.", gives="ModelEntry"),
    )
    async def get(
        self,
        request: HttpRequest,
        services: NamedDependency[Services],
        started_at: NamedDependency[int],
        name: PathId,
    ) -> ASGIApp:
        """A model's name may contain slashes."""
        name = name.removeprefix("/")
        described = await services.describe_models.describe(name, caller_of(request).policy)
        entry = model_entry(name, described, created=started_at)
        return JsonResponse(entry, response_headers(request))
