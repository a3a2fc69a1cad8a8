"""`/v1/models`: the models of this server."""

from __future__ import annotations

from litestar import Controller, handlers
from litestar.di import NamedDependency
from litestar.types import ASGIApp

from antiphon.application.model.models import Models
from antiphon.entrypoints.http.asgi_responses import JsonResponse
from antiphon.entrypoints.http.openapi import operation
from antiphon.entrypoints.http.parameters import PathId
from antiphon.entrypoints.http.requests import HttpRequest, caller_of, response_headers


class ModelList(Controller):
    path = "/v1/models"
    tags = ("Models",)

    @handlers.get(
        summary="List models", operation_class=operation("All models.", gives="ModelList")
    )
    async def list(
        self,
        request: HttpRequest,
        models: NamedDependency[Models],
        started_at: NamedDependency[int],
    ) -> ASGIApp:
        allowed = models.allowed_by(caller_of(request).policy)
        entries = [_entry(name, started_at) for name in allowed.by_name]
        return JsonResponse({"object": "list", "data": entries}, response_headers(request))

    @handlers.get(
        "/{name:path}",
        summary="Retrieve a model",
        operation_class=operation("The model.", gives="Model"),
    )
    async def get(
        self,
        request: HttpRequest,
        models: NamedDependency[Models],
        started_at: NamedDependency[int],
        name: PathId,
    ) -> ASGIApp:
        """A model's name may contain slashes."""
        name = name.removeprefix("/")
        models.allowed_by(caller_of(request).policy).exists(name)
        return JsonResponse(_entry(name, started_at), response_headers(request))


def _entry(name: str, created: int) -> dict[str, str | int]:
    return {"id": name, "object": "model", "created": created, "owned_by": "antiphon"}
