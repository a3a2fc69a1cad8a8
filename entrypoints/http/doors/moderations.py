"""`/v1/moderations`: whether texts are flagged, and for what."""

from __future__ import annotations

import msgspec
from litestar import Controller, handlers
from litestar.di import NamedDependency
from litestar.types import ASGIApp

from antiphon.domain.requests.moderations import NewModeration
from antiphon.entrypoints.http.api.json_bodies import reading_json
from antiphon.entrypoints.http.api.requests import HttpRequest, caller_of, response_headers
from antiphon.entrypoints.http.api.services import Services
from antiphon.entrypoints.http.pages.openapi import operation
from antiphon.entrypoints.http.wire.asgi_responses import JsonResponse

RESULT = ("flagged", "categories", "category_scores", "category_applied_input_types")
"""The fields of a result; its model is said once."""


class ModerationRoutes(Controller):
    """The handler decodes, calls one service, and encodes."""

    path = "/v1/moderations"
    tags = ("Moderations",)

    @handlers.post(
        summary="Moderate texts",
        operation_class=operation("The results.", takes="NewModeration", gives="ModerationList"),
        status_code=200,
    )
    async def create(self, request: HttpRequest, services: NamedDependency[Services]) -> ASGIApp:
        """Returns a result for each text, in their order; parts are one text."""
        async with reading_json(request, NewModeration, services.options) as decoded:
            made = await services.moderate(caller_of(request), decoded.request)
        results = [{name: getattr(each, name) for name in RESULT} for each in made.results]
        body = msgspec.json.encode({"id": made.id, "model": made.model, "results": results})
        return JsonResponse(body, response_headers(request, decoded.ignored, made.rate_limits))
