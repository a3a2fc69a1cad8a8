"""`/v1/models`: the models of this server, for clients and operators."""

from __future__ import annotations

from typing import Annotated

from litestar import Controller, handlers
from litestar.di import NamedDependency
from litestar.params import QueryParameter
from litestar.types import ASGIApp

from antiphon.entrypoints.http.api.codex.catalog import codex_catalog
from antiphon.entrypoints.http.api.model_entries import embedding_entry, model_entry
from antiphon.entrypoints.http.api.parameters import PathId, QueryText
from antiphon.entrypoints.http.api.requests import (
    HttpRequest,
    caller_of,
    response_headers,
    speaks_messages,
)
from antiphon.entrypoints.http.api.services import Services
from antiphon.entrypoints.http.doors.messages.models import messages_model, page_of
from antiphon.entrypoints.http.pages.openapi import one_of, operation
from antiphon.entrypoints.http.wire.asgi_responses import JsonResponse

ModelLimit = Annotated[int, QueryParameter(ge=1, le=1000)]


class ModelRoutes(Controller):
    path = "/v1/models"
    tags = ("Models",)

    @handlers.get(
        summary="List models",
        operation_class=operation(
            "All models; with `client_version`, as the catalog that Codex asks for; with the "
            "header `anthropic-version`, as the Messages API has them.",
            gives=one_of("ModelList", "CodexCatalog", "MessagesModelList"),
            errors=one_of("ErrorResponse", "MessagesError"),
        ),
    )
    async def list(
        self,
        request: HttpRequest,
        services: NamedDependency[Services],
        started_at: NamedDependency[int],
        client_version: QueryText = None,
        limit: ModelLimit = 1000,
        after_id: QueryText = None,
        before_id: QueryText = None,
    ) -> ASGIApp:
        """Only Codex sends `client_version`, and it reads nothing but its own catalog. Only the
        Messages API has pages."""
        policy = caller_of(request).policy
        described = await services.describe_models(policy)
        headers = response_headers(request)
        if client_version is not None:
            return JsonResponse(codex_catalog(described), headers)
        if speaks_messages(request.scope):
            named = [
                messages_model(name, each, created=started_at)
                for each in described
                for name in each.names
            ]
            page = page_of(named, limit=limit, after=after_id, before=before_id)
            return JsonResponse(page, headers)
        entries = [
            model_entry(name, each, created=started_at) for each in described for name in each.names
        ]
        if services.embed.is_allowed(policy):
            entries.append(embedding_entry(services.embed.model, created=started_at))
        return JsonResponse({"object": "list", "data": entries}, headers)

    @handlers.get(
        "/{name:path}",
        summary="Retrieve a model",
        operation_class=operation(
            "The model; with the header `anthropic-version`, as the Messages API has it.",
            gives=one_of("ModelEntry", "MessagesModel"),
            errors=one_of("ErrorResponse", "MessagesError"),
        ),
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
        policy, embed = caller_of(request).policy, services.embed
        is_messages = speaks_messages(request.scope)
        if name == embed.model and embed.is_allowed(policy) and not is_messages:
            entry = embedding_entry(name, created=started_at)
            return JsonResponse(entry, response_headers(request))
        described = await services.describe_models.describe(name, policy)
        describe = messages_model if is_messages else model_entry
        shown = describe(name, described, created=started_at)
        return JsonResponse(shown, response_headers(request))
