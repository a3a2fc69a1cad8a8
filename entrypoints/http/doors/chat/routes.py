"""`/v1/chat/completions`: create, and read again what is stored.

Every stored response that has ended is a completion, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress

from litestar import Controller, handlers
from litestar.di import NamedDependency
from litestar.types import ASGIApp
from msgspec import Raw

from antiphon.domain.errors import NotFound, RequestError
from antiphon.domain.responses.response import TERMINAL, Response
from antiphon.domain.responses.response_lists import ResponseFilter
from antiphon.entrypoints.http.api.creation import create_response
from antiphon.entrypoints.http.api.pagination import After, Limit, Order
from antiphon.entrypoints.http.api.parameters import PathId, QueryText
from antiphon.entrypoints.http.api.requests import HttpRequest, response_headers, tenant_of
from antiphon.entrypoints.http.api.response_lists import PAGE_PARAMETERS, metadata_of, page_query
from antiphon.entrypoints.http.api.services import Services
from antiphon.entrypoints.http.doors.chat.chunks import ChatEncoder
from antiphon.entrypoints.http.doors.chat.completion import ChatView, completion_id, response_id_of
from antiphon.entrypoints.http.doors.chat.reading import read_chat
from antiphon.entrypoints.http.pages.openapi import (
    CHUNKS,
    IDEMPOTENCY_KEY,
    SESSION,
    json_of,
    operation,
)
from antiphon.entrypoints.http.wire.asgi_responses import JsonResponse

ENDED = TERMINAL - {"failed"}
"""A completion that failed has no form here."""

MAX_PAGE_BYTES = 4 * 1024 * 1024
"""A page ends after the completion that exceeds it, and says that there are more."""


class ChatCompletions(Controller):
    """The handler decodes, calls the same services as `POST /v1/responses`, and encodes."""

    path = "/v1/chat/completions"
    tags = ("Chat Completions",)

    @handlers.post(
        summary="Create a chat completion",
        operation_class=operation(
            "The completion, or its chunks if `stream` is true.",
            takes="ChatRequest",
            gives={**json_of("ChatCompletion"), **CHUNKS},
            headers=[IDEMPOTENCY_KEY, SESSION],
        ),
        status_code=200,
    )
    async def create(self, request: HttpRequest, services: NamedDependency[Services]) -> ASGIApp:
        """Returns the whole completion, or streams its chunks if `stream` is true."""
        return await create_response(request, services, read_chat)

    @handlers.get(
        summary="List chat completions",
        operation_class=operation(
            "A page of stored completions, whole.", gives="ChatCompletionList"
        ),
    )
    async def list(
        self,
        request: HttpRequest,
        services: NamedDependency[Services],
        after: After = None,
        limit: Limit = 20,
        order: Order = "asc",
        model: QueryText = None,
    ) -> ASGIApp:
        """`metadata[NAME]` filters, too."""
        metadata = metadata_of(request, PAGE_PARAMETERS | {"model"})
        wanted = ResponseFilter(statuses=ENDED, model=model, metadata=metadata)
        tenant = tenant_of(request)
        query = page_query(limit, None if after is None else response_id_of(after), order)
        with _naming(after):
            page = await services.list(tenant, query, wanted)
        shown: dict[str, Raw] = {}
        size, has_more = 0, page.has_more
        for summary in page.items:
            if size > MAX_PAGE_BYTES:
                has_more = True
                break
            with suppress(NotFound):  # deleted since
                found = await services.get(tenant, summary.id)
                shown[completion_id(found.id)] = Raw(_encoded(found))
                size += len(shown[completion_id(found.id)])
        body = {
            "object": "list",
            "data": [*shown.values()],
            "first_id": next(iter(shown), None),
            "last_id": next(reversed(shown), None),
            "has_more": has_more,
        }
        return JsonResponse(body, response_headers(request))

    @handlers.get(
        "/{completion_id:str}",
        summary="Retrieve a chat completion",
        operation_class=operation("The completion.", gives="ChatCompletion"),
    )
    async def get(
        self, request: HttpRequest, services: NamedDependency[Services], completion_id: PathId
    ) -> ASGIApp:
        """Also a response that was not created here, by its id with the other prefix."""
        with _naming(completion_id):
            response = await services.get(tenant_of(request), response_id_of(completion_id))
        if response.status not in ENDED:
            raise NotFound(
                f"The completion {completion_id[:100]!r} has no answer: its response is "
                f"{response.status}. GET /v1/responses/{response.id} shows it."
            )
        return JsonResponse(_encoded(response), response_headers(request))

    @handlers.delete(
        "/{completion_id:str}",
        summary="Delete a chat completion",
        operation_class=operation("Confirmation of the deletion.", gives="Deleted"),
        status_code=200,
    )
    async def delete(
        self, request: HttpRequest, services: NamedDependency[Services], completion_id: PathId
    ) -> ASGIApp:
        """Deletes the response."""
        with _naming(completion_id):
            await services.delete(tenant_of(request), response_id_of(completion_id))
        answer = {"id": completion_id, "object": "chat.completion.deleted", "deleted": True}
        return JsonResponse(answer, response_headers(request))


@contextmanager
def _naming(completion_id: str | None) -> Iterator[None]:
    """Let an error name the id that the client sent."""
    try:
        yield
    except RequestError as error:
        if completion_id is not None:
            error.message = error.message.replace(response_id_of(completion_id), completion_id)
        raise


def _encoded(response: Response) -> bytes:
    return ChatEncoder(ChatView()).encode_response(response)
