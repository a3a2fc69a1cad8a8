"""`/v1/responses`: create, retrieve, stream, cancel, delete, and list input items."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated

from litestar import Controller, handlers
from litestar.di import NamedDependency
from litestar.params import QueryParameter
from litestar.types import ASGIApp
from msgspec import Struct

from antiphon.adapters.ids import new_id
from antiphon.application.input.submission import IdempotencyKey, Submission
from antiphon.application.model.describe_models import DescribeModels
from antiphon.application.ports import EventBatches, Seal
from antiphon.application.responses.admission import Admission
from antiphon.application.responses.cancel import CancelResponse
from antiphon.application.responses.compact import CompactConversation
from antiphon.application.responses.count_tokens import CountTokens
from antiphon.application.responses.create import CreateResponseService
from antiphon.application.responses.delete import DeleteResponse
from antiphon.application.responses.explain import ExplainResponse
from antiphon.application.responses.follow import FollowResponse
from antiphon.application.responses.get import GetResponse
from antiphon.application.responses.idempotency import CreateOnce, ExistingResponse
from antiphon.application.responses.list import ListResponses
from antiphon.application.responses.list_input_items import ListInputItems
from antiphon.application.runs.until_shutdown import ShutdownSignal, UntilShutdown
from antiphon.application.websocket.open_websockets import OpenWebSockets
from antiphon.domain.errors import ContainerElsewhere, NotFound, RequestError
from antiphon.domain.history.include_filter import IncludeFilter
from antiphon.domain.requests.decoding import DecodedRequest
from antiphon.domain.requests.ignored import refuse_ignored
from antiphon.domain.requests.request import CreateResponse
from antiphon.domain.responses.response import TERMINAL
from antiphon.domain.responses.response_lists import ResponseFilter
from antiphon.entrypoints.http.api.idempotency import (
    IDEMPOTENCY_HEADER,
    events_expired,
    idempotency_key_of,
)
from antiphon.entrypoints.http.api.pagination import (
    After,
    Include,
    IncludePlain,
    Limit,
    Order,
    as_list,
    values_of,
    view_of,
)
from antiphon.entrypoints.http.api.parameters import PathId, QueryFlag, QueryText
from antiphon.entrypoints.http.api.requests import (
    REPLAYED_HEADER,
    HttpRequest,
    accept,
    headers_of,
    note_response,
    request_context,
    request_id,
    response_headers,
    tenant_of,
)
from antiphon.entrypoints.http.api.response_lists import (
    RESPONSE_PARAMETERS,
    Time,
    as_page,
    metadata_of,
    page_query,
    show_metrics,
    statuses_of,
)
from antiphon.entrypoints.http.options import HttpOptions
from antiphon.entrypoints.http.pages.openapi import EVENTS, IDEMPOTENCY_KEY, json_of, operation
from antiphon.entrypoints.http.wire.asgi_responses import (
    EventStreamResponse,
    FinalResponse,
    JsonResponse,
    final_response,
    wait_for_disconnect,
)
from antiphon.entrypoints.http.wire.bodies import (
    decode_body,
    decode_in_thread,
    hold_body,
    receive_body,
    redact_body,
)
from antiphon.entrypoints.http.wire.dialects import DIALECT_HEADER, dialect_of
from antiphon.entrypoints.http.wire.sse import ClientEncoder, KeepAlive

logger = logging.getLogger("antiphon.requests")


Relay = Callable[[HttpRequest, bytes, ContainerElsewhere], ASGIApp]
"""Answers a request, with its body, from the server that has its container."""


class Services(Struct, frozen=True, kw_only=True):
    """The services that these handlers call.

    `stopping` is set when the server starts to shut down, `drained` when its runs have ended.
    """

    admission: Admission
    create: CreateResponseService
    create_once: CreateOnce
    count: CountTokens
    describe_models: DescribeModels
    compact: CompactConversation
    get: GetResponse
    explain: ExplainResponse
    list: ListResponses
    follow: FollowResponse
    delete: DeleteResponse
    cancel: CancelResponse
    input_items: ListInputItems
    keepalive: KeepAlive
    stopping: asyncio.Event
    drained: ShutdownSignal
    seal: Seal
    options: HttpOptions
    websockets: OpenWebSockets
    relay: Relay | None = None


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
            headers=[IDEMPOTENCY_KEY],
        ),
        status_code=200,
    )
    async def create(self, request: HttpRequest, services: NamedDependency[Services]) -> ASGIApp:
        """Returns the whole response, or streams its events if `stream` is true."""
        headers_in = headers_of(request.scope)
        dialect = services.options.dialect
        if DIALECT_HEADER in headers_in:
            dialect = dialect_of(request, dialect)
        body, decoded = await self._read(request, services)
        if services.options.log_requests:
            logger.info("request %s: %s", request_id(request), redact_body(body))
        encoder = ClientEncoder.of(decoded.request, dialect)
        idempotency_key: IdempotencyKey | None = None
        ignored_fields: Sequence[str] = ()
        if IDEMPOTENCY_HEADER in headers_in:
            idempotency_key, ignored_fields = await idempotency_key_of(
                request, decoded.request, body
            )
            if services.options.strict:
                refuse_ignored(ignored_fields)
        submission = _submission(request, services, decoded.request, body)
        try:
            created = await (
                services.create(submission)
                if idempotency_key is None
                else services.create_once(submission, idempotency_key)
            )
        except ContainerElsewhere as elsewhere:
            return _relay(services, request, body, elsewhere)
        if isinstance(created, ExistingResponse):
            note_response(request, created.response_id)
            headers = {**response_headers(request, decoded.unknown), REPLAYED_HEADER: "true"}
            return await self._repeat_response(
                tenant_of(request), created.response_id, decoded.request, headers, services, encoder
            )
        note_response(request, created.id)
        if idempotency_key is None:
            accept(request)
        headers = response_headers(
            request, (*created.ignored, *ignored_fields, *decoded.unknown), created.rate_limits
        )
        events = created.events
        if created.outlives_client:
            events = UntilShutdown(events, services.drained)
        if decoded.request.stream:
            return EventStreamResponse(
                events,
                headers,
                leave=created.leave,
                keepalive=services.keepalive,
                encoder=encoder,
            )
        if created.background:
            # Return it as saved: reading it again could fail, and the client needs its id.
            await created.leave()
            return JsonResponse(encoder.encode_response(created.response), headers)
        return FinalResponse(events, headers, leave=created.leave, encoder=encoder)

    @handlers.post(
        "/input_tokens",
        summary="Count input tokens",
        operation_class=operation(
            "The count of input tokens.", takes="CreateResponse", gives="InputTokens"
        ),
        status_code=200,
    )
    async def count(self, request: HttpRequest, services: NamedDependency[Services]) -> ASGIApp:
        """Counts the tokens of the prompt that the same request to create a response would use."""
        body, decoded = await self._read(request, services)
        try:
            count = await services.count(_submission(request, services, decoded.request, body))
        except ContainerElsewhere as elsewhere:
            return _relay(services, request, body, elsewhere)
        answer = {"object": "response.input_tokens", "input_tokens": count.tokens}
        headers = response_headers(request, (*count.ignored, *decoded.unknown), count.rate_limits)
        return JsonResponse(answer, headers)

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
        body, decoded = await self._read(request, services)
        try:
            compacting = await services.compact(
                _submission(request, services, decoded.request, body)
            )
        except ContainerElsewhere as elsewhere:
            return _relay(services, request, body, elsewhere)
        created = compacting.created
        note_response(request, created.id)
        headers = response_headers(
            request, (*created.ignored, *decoded.unknown), created.rate_limits
        )
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
        conversation: QueryText = None,
        previous_response_id: QueryText = None,
        tool: QueryText = None,
        error: QueryText = None,
        created_after: Time = None,
        created_before: Time = None,
    ) -> ASGIApp:
        """Each without its input, output, instructions and tools. `metadata[NAME]` filters, too."""
        _view(request, services, include_bracketed, include_plain)  # checks the values
        metadata = metadata_of(request, RESPONSE_PARAMETERS)
        wanted = ResponseFilter(
            statuses=statuses_of(status),
            model=model,
            key=key,
            conversation=conversation,
            previous_response_id=previous_response_id,
            tool=tool,
            error=error,
            created_after=created_after,
            created_before=created_before,
            metadata=metadata,
        )
        page = await services.list(tenant_of(request), page_query(limit, after, order), wanted)
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
        return JsonResponse(
            encoder.encode_response(await services.get(tenant_of(request), response_id)), headers
        )

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
        page = await services.input_items(tenant_of(request), response_id, query)
        return JsonResponse(as_list(page, view), response_headers(request))

    async def _read(
        self, request: HttpRequest, services: Services
    ) -> tuple[bytes, DecodedRequest[CreateResponse]]:
        """Return the body and the decoded request. Raises: RequestError."""
        limits, strict = services.options.limits, services.options.strict_unknown_fields
        with hold_body(request, limits) as held:
            body = await receive_body(request, limits, held)
            return body, await decode_in_thread(body, decode_body, strict=strict)

    async def _repeat_response(
        self,
        tenant: str,
        response_id: str,
        request: CreateResponse,
        headers: Mapping[str, str],
        services: Services,
        encoder: ClientEncoder,
    ) -> ASGIApp:
        """Return the response of the first request with the same idempotency key."""
        if request.stream:
            try:
                events: EventBatches = await services.follow(tenant, response_id)
            except NotFound:
                raise
            except RequestError:
                raise events_expired(response_id) from None
            events = UntilShutdown(events, services.drained)
            return EventStreamResponse(
                events,
                headers,
                leave=events.aclose,
                keepalive=services.keepalive,
                encoder=encoder,
            )
        response = await services.get(tenant, response_id)
        if response.background:
            return JsonResponse(encoder.encode_response(response), headers)
        if response.status in TERMINAL:
            return final_response(response, headers, encoder)
        events = UntilShutdown(await services.follow(tenant, response_id), services.drained)
        return FinalResponse(events, headers, leave=events.aclose, encoder=encoder)


def _submission(
    request: HttpRequest, services: Services, create_request: CreateResponse, body: bytes
) -> Submission:
    return Submission(
        caller=request.auth,
        request=create_request,
        response_id=new_id("resp"),
        body=body,
        context=request_context(request),
        strict=services.options.strict,
        client_left=partial(wait_for_disconnect, request.receive),
    )


def _relay(
    services: Services, request: HttpRequest, body: bytes, elsewhere: ContainerElsewhere
) -> ASGIApp:
    assert services.relay is not None, "only a server that relays looks for containers elsewhere"
    return services.relay(request, body, elsewhere)


def _is_true(text: str) -> bool:
    return text.lower() in ("true", "1")


def _view(request: HttpRequest, services: Services, *include: list[str] | None) -> IncludeFilter:
    return view_of(*include, seal=partial(services.seal, tenant_of(request)))
