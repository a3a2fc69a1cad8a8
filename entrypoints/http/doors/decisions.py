"""`/v1/decisions`: answers of a model to questions about an input, with their probabilities."""

from __future__ import annotations

from functools import partial

from litestar import Controller, handlers
from litestar.di import NamedDependency
from litestar.types import ASGIApp

from antiphon.application.responses.decide import DecisionRequest
from antiphon.domain.requests.decisions import NewDecision
from antiphon.entrypoints.http.api.json_bodies import reading_json
from antiphon.entrypoints.http.api.requests import (
    HttpRequest,
    caller_of,
    request_context,
    response_headers,
)
from antiphon.entrypoints.http.api.services import Services
from antiphon.entrypoints.http.pages.openapi import operation
from antiphon.entrypoints.http.wire.asgi_responses import JsonResponse, wait_for_disconnect


class Decisions(Controller):
    """The handler decodes, calls one service, and encodes."""

    path = "/v1/decisions"
    tags = ("Decisions",)

    @handlers.post(
        summary="Answer questions about an input",
        operation_class=operation("The answers.", takes="NewDecision", gives="Decision"),
        status_code=200,
    )
    async def create(self, request: HttpRequest, services: NamedDependency[Services]) -> ASGIApp:
        """Returns an answer to each question, in their order, with its probabilities."""
        async with reading_json(request, NewDecision, services.options) as decoded:
            made = await services.decide(
                DecisionRequest(
                    caller=caller_of(request),
                    decision=decoded.request,
                    context=request_context(request),
                    strict=services.options.strict,
                    ignored=decoded.ignored,
                    client_left=partial(wait_for_disconnect, request.receive),
                )
            )
        headers = response_headers(request, made.ignored, made.rate_limits)
        return JsonResponse(made.decision, headers)
