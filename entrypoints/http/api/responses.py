"""`/v1/responses`: create, retrieve, stream, cancel, delete, and list input items."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

from litestar import Controller, handlers
from litestar.di import NamedDependency
from litestar.params import QueryParameter
from litestar.types import ASGIApp

from antiphon.application.ports import EventBatches
from antiphon.application.responses.count_tokens import TokenCount
from antiphon.application.runs.until_shutdown import UntilShutdown
from antiphon.domain.errors import ContainerElsewhere
from antiphon.domain.history.include_filter import IncludeFilter
from antiphon.domain.responses.response_lists import ResponseFilter
from antiphon.domain.responses.text_search import search_of
from antiphon.entrypoints.http.api.creation import (
    IncomingRequest,
    count_tokens,
    create_response,
    receive,
    relay,
    submission_of,
    whole,
)
from antiphon.entrypoints.http.api.pagination import (
    After,
    Include,
    IncludePlain,
    Limit,
    Order,
    encode_list,
    values_of,
    view_of,
)
from antiphon.entrypoints.http.api.parameters import PathId, QueryFlag, QueryText
from antiphon.entrypoints.http.api.requests import (
    HttpRequest,
    note_response,
    response_headers,
    tenant_of,
)
from antiphon.entrypoints.http.api.response_lists import (
    RESPONSE_PARAMETERS,
    SearchText,
    Time,
    as_page,
    metadata_of,
    page_query,
    show_metrics,
    statuses_of,
)
from antiphon.entrypoints.http.api.services import Services
from antiphon.entrypoints.http.pages.openapi import (
    EVENTS,
    IDEMPOTENCY_KEY,
    SESSION,
    json_of,
    operation,
)
from antiphon.entrypoints.http.wire.asgi_responses import (
    EventStreamResponse,
    FinalResponse,
    JsonResponse,
    StoredItems,
)
from antiphon.entrypoints.http.wire.bodies import (
    decode_body,
)
from antiphon.entrypoints.http.wire.dialects import DIALECT_HEADER, Dialect, dialect_of
from antiphon.entrypoints.http.wire.sse import ClientEncoder


class Responses(Controller):
    """Handlers decode, call one service, and encode."""

    path = "/v1/responses"
    tags = ("Responses",)

    @handlers.post(
        summary="Create a response",
        operation_class=operation(
            "The response, or its events if `stream` is true.",
            takes="CreateResponse",
            gives={**json_of("Response"), **EVENTS},
            headers=[IDEMPOTENCY_KEY, SESSION],
        ),
        status_code=200,
    )
    async def create(self, request: HttpRequest, services: NamedDependency[Services]) -> ASGIApp:
        """Returns the whole response, or streams its events if `stream` is true."""
        dialect = services.options.dialect
        if DIALECT_HEADER in dict(request.scope["headers"]):
            dialect = dialect_of(request, dialect)
        return await create_response(request, services, partial(_read, dialect=dialect))

    @handlers.post(
        "/input_tokens",
        summary="Count input tokens",
        operation_class=operation(
            "The count of input tokens.",
            takes="CreateResponse",
            gives="InputTokens",
            headers=[SESSION],
        ),
        status_code=200,
    )
    async def count(self, request: HttpRequest, services: NamedDependency[Services]) -> ASGIApp:
        """Counts the tokens of the prompt that the same request to create a response would use."""
        read = partial(_read, dialect=services.options.dialect)
        return await count_tokens(request, services, read, _counted)

    @handlers.post(
        "/compact",
        summary="Compact a conversation",
        operation_class=operation(
            "The items that replace the conversation.",
            takes="CreateResponse",
            gives="CompactedWindow",
        ),
        status_code=200,
    )
    async def compact(self, request: HttpRequest, services: NamedDependency[Services]) -> ASGIApp:
        """Returns items that a client sends instead of the conversation to continue it."""
        encoder = ClientEncoder(dialect_of(request, services.options.dialect))
        async with receive(request, services, decode_body) as (body, decoded):
            try:
                compacting = await services.compact(submission_of(request, services, decoded, body))
            except ContainerElsewhere as elsewhere:
                return relay(services, request, body, elsewhere)
        created = compacting.created
        note_response(request, created.id)
        headers = response_headers(request, created.ignored, created.rate_limits)
        return FinalResponse(
            created.events,
            headers,
            leave=created.leave,
            encoder=encoder,
            shape=compacting.window,
        )

    @handlers.get(
        summary="List responses",
        operation_class=operation("A page of responses, in short.", gives="ResponseList"),
    )
    async def list(
        self,
        request: HttpRequest,
        services: NamedDependency[Services],
        include_bracketed: Include = None,
        include_plain: IncludePlain = None,
        after: After = None,
        limit: Limit = 20,
        order: Order = "desc",
        status: QueryText = None,
        model: QueryText = None,
        key: QueryText = None,
        door: QueryText = None,
        conversation: QueryText = None,
        previous_response_id: QueryText = None,
        tool: QueryText = None,
        error: QueryText = None,
        created_after: Time = None,
        created_before: Time = None,
        awaits_approval: QueryFlag = "",
        search: SearchText = None,
    ) -> ASGIApp:
        """Each without its input, output, instructions and tools. `metadata[NAME]` filters, too.
        `search` finds words that were said."""
        _view(request, services, include_bracketed, include_plain)  # checks the values
        metadata = metadata_of(request, RESPONSE_PARAMETERS)
        wanted = ResponseFilter(
            statuses=statuses_of(status),
            model=model,
            key=key,
            door=door,
            conversation=conversation,
            previous_response_id=previous_response_id,
            tool=tool,
            error=error,
            created_after=created_after,
            created_before=created_before,
            metadata=metadata,
            awaits_approval=None if awaits_approval == "" else _is_true(awaits_approval),
        )
        query = page_query(limit, after, order)
        page = await services.list(tenant_of(request), query, wanted, search_of(search))
        include = values_of(include_bracketed, include_plain)
        return JsonResponse(as_page(show_metrics(page, include)), response_headers(request))

    @handlers.get(
        "/{response_id:str}",
        summary="Retrieve a response, or stream its events",
        operation_class=operation(
            "The response, or its events if `stream` is true.",
            gives={**json_of("Response"), **EVENTS},
        ),
    )
    async def get(
        self,
        request: HttpRequest,
        services: NamedDependency[Services],
        response_id: PathId,
        include_bracketed: Include = None,
        include_plain: IncludePlain = None,
        stream: QueryFlag = "false",
        starting_after: Annotated[int, QueryParameter(ge=-1, le=2**53)] = -1,
        include_obfuscation: QueryFlag = "false",
    ) -> ASGIApp:
        """With `stream=true`, streams the events after `starting_after`, then live events."""
        encoder = ClientEncoder(
            dialect_of(request, services.options.dialect),
            view=_view(request, services, include_bracketed, include_plain),
            obfuscates=_is_true(include_obfuscation),
        )
        headers = response_headers(request)
        if _is_true(stream):
            events: EventBatches = await services.follow(
                tenant_of(request), response_id, after=starting_after
            )
            events = UntilShutdown(events, services.drained)
            return EventStreamResponse(
                events,
                headers,
                leave=events.aclose,
                keepalive=services.keepalive,
                encoder=encoder,
            )
        return whole(await services.get(tenant_of(request), response_id), headers, encoder)

    @handlers.get(
        "/{response_id:str}/explain",
        summary="Explain a response",
        operation_class=operation("The bundle of the response.", gives="Bundle"),
    )
    async def explain(
        self, request: HttpRequest, services: NamedDependency[Services], response_id: PathId
    ) -> ASGIApp:
        """Returns everything that the server has of the response in one document, which `antiphon
        replay` reads. This is an extension of the API."""
        bundle = await services.explain(tenant_of(request), response_id)
        return JsonResponse(bundle, response_headers(request))

    @handlers.delete(
        "/{response_id:str}",
        summary="Delete a response",
        operation_class=operation("Confirmation of the deletion.", gives="Deleted"),
        status_code=200,
    )
    async def delete(
        self, request: HttpRequest, services: NamedDependency[Services], response_id: PathId
    ) -> ASGIApp:
        await services.delete(tenant_of(request), response_id)
        answer = {"id": response_id, "object": "response", "deleted": True}
        return JsonResponse(answer, response_headers(request))

    @handlers.post(
        "/{response_id:str}/cancel",
        summary="Cancel a background response",
        operation_class=operation("The response, cancelled or already finished.", gives="Response"),
        status_code=200,
    )
    async def cancel(
        self, request: HttpRequest, services: NamedDependency[Services], response_id: PathId
    ) -> ASGIApp:
        encoder = ClientEncoder(dialect_of(request, services.options.dialect), view=IncludeFilter())
        cancelled = await services.cancel(tenant_of(request), response_id)
        return JsonResponse(encoder.encode_response(cancelled), response_headers(request))

    @handlers.get(
        "/{response_id:str}/input_items",
        summary="List a response's input items",
        operation_class=operation("A page of its input items.", gives="ItemList"),
    )
    async def input_items(
        self,
        request: HttpRequest,
        services: NamedDependency[Services],
        response_id: PathId,
        include_bracketed: Include = None,
        include_plain: IncludePlain = None,
        after: After = None,
        limit: Limit = 20,
        order: Order = "desc",
    ) -> ASGIApp:
        view = _view(request, services, include_bracketed, include_plain)
        query = page_query(limit, after, order)

        async def read() -> bytes:
            page = await services.input_items(tenant_of(request), response_id, query)
            return await encode_list(page, view)

        return StoredItems(read, response_headers(request))


def _read(body: bytes, *, strict: bool, dialect: Dialect) -> IncomingRequest:
    decoded = decode_body(body, strict=strict)
    encoder = ClientEncoder.of(decoded.request, dialect)
    return IncomingRequest(decoded=decoded, encoder=encoder, job_body=lambda: body)


def _counted(count: TokenCount) -> Any:
    return {"object": "response.input_tokens", "input_tokens": count.tokens}


def _is_true(text: str) -> bool:
    return text.lower() in ("true", "1")


def _view(request: HttpRequest, services: Services, *include: list[str] | None) -> IncludeFilter:
    return view_of(*include, seal=partial(services.seal, tenant_of(request)))
