"""`POST /v1/completions`: create a completion of a prompt."""

from __future__ import annotations

from litestar import Controller, handlers
from litestar.di import NamedDependency
from litestar.types import ASGIApp

from antiphon.entrypoints.http.api.creation import create_response
from antiphon.entrypoints.http.api.requests import HttpRequest
from antiphon.entrypoints.http.api.services import Services
from antiphon.entrypoints.http.doors.completions.reading import read_completion
from antiphon.entrypoints.http.pages.openapi import TEXT_CHUNKS, json_of, operation


class Completions(Controller):
    """The handler decodes, calls the same services as `POST /v1/responses`, and encodes."""

    path = "/v1/completions"
    tags = ("Completions",)

    @handlers.post(
        summary="Create a completion of a prompt",
        operation_class=operation(
            "The completion, or its chunks if `stream` is true.",
            takes="CompletionRequest",
            gives={**json_of("TextCompletion"), **TEXT_CHUNKS},
        ),
        status_code=200,
    )
    async def create(self, request: HttpRequest, services: NamedDependency[Services]) -> ASGIApp:
        """Returns the whole completion, or streams its chunks if `stream` is true."""
        return await create_response(request, services, read_completion)
