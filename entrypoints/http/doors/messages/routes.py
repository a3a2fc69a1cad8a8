"""`POST /v1/messages` and `POST /v1/messages/count_tokens`."""

from __future__ import annotations

from functools import partial

from litestar import Controller, handlers
from litestar.di import NamedDependency
from litestar.types import ASGIApp

from antiphon.application.model.models import Models
from antiphon.entrypoints.http.api.creation import count_tokens, create_response
from antiphon.entrypoints.http.api.requests import HttpRequest, caller_of
from antiphon.entrypoints.http.api.services import Services
from antiphon.entrypoints.http.doors.messages.message import counted_of
from antiphon.entrypoints.http.doors.messages.reading import read_counted, read_messages
from antiphon.entrypoints.http.pages.openapi import (
    IDEMPOTENCY_KEY,
    MESSAGE_EVENTS,
    SESSION,
    json_of,
    operation,
)


class Messages(Controller):
    """The handlers decode, call the same services as those of Responses, and encode."""

    path = "/v1/messages"
    tags = ("Messages",)

    @handlers.post(
        summary="Create a message",
        operation_class=operation(
            "The message, or its events if `stream` is true.",
            takes="MessagesRequest",
            gives={**json_of("AnswerMessage"), **MESSAGE_EVENTS},
            headers=[IDEMPOTENCY_KEY, SESSION],
            errors="MessagesError",
        ),
        status_code=200,
    )
    async def create(
        self,
        request: HttpRequest,
        services: NamedDependency[Services],
        models: NamedDependency[Models],
    ) -> ASGIApp:
        """Returns the whole message, or streams its events if `stream` is true."""
        models = models.allowed_by(caller_of(request).policy)
        return await create_response(request, services, partial(read_messages, models=models))

    @handlers.post(
        "/count_tokens",
        summary="Count the tokens of a message",
        operation_class=operation(
            "The count of input tokens.",
            takes="CountedMessages",
            gives="CountedTokens",
            headers=[SESSION],
            errors="MessagesError",
        ),
        status_code=200,
    )
    async def count(
        self,
        request: HttpRequest,
        services: NamedDependency[Services],
        models: NamedDependency[Models],
    ) -> ASGIApp:
        """Counts the tokens of the prompt that the same request to create a message would use."""
        models = models.allowed_by(caller_of(request).policy)
        read = partial(read_counted, models=models)
        return await count_tokens(request, services, read, counted_of)
