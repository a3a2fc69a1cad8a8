"""`/v1/models`: what can be asked for."""

from __future__ import annotations

from litestar import Controller, get
from litestar.di import NamedDependency
from litestar.params import FromPath
from litestar.types import ASGIApp

from antiphon.application.models import Models
from antiphon.entrypoints.http.answers import JsonAnswer
from antiphon.entrypoints.http.openapi import operation
from antiphon.entrypoints.http.requests import HttpRequest, answer_headers


class ModelList(Controller):
    path = "/v1/models"
    tags = ("Models",)

    @get(summary="List the models", operation_class=operation("All models.", gives="ModelList"))
    async def index(
        self,
        request: HttpRequest,
        models: NamedDependency[Models],
        started_at: NamedDependency[int],
    ) -> ASGIApp:
        entries = [_entry(name, started_at) for name in models.by_name]
        return JsonAnswer({"object": "list", "data": entries}, answer_headers(request))

    @get(
        "/{name:path}",
        summary="Retrieve one model",
        operation_class=operation("The model.", gives="Model"),
    )
    async def one(
        self,
        request: HttpRequest,
        models: NamedDependency[Models],
        started_at: NamedDependency[int],
        name: FromPath[str],
    ) -> ASGIApp:
        """Model names may hold slashes."""
        name = name.removeprefix("/")
        models.exists(name)
        return JsonAnswer(_entry(name, started_at), answer_headers(request))


def _entry(name: str, created: int) -> dict[str, str | int]:
    return {"id": name, "object": "model", "created": created, "owned_by": "antiphon"}
