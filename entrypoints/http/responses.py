"""`/v1/responses`: create, retrieve (also as a stream), list its input, cancel, delete."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from functools import partial
from typing import Annotated, Any

from litestar import Controller, delete, get, post
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, QueryParameter
from litestar.types import ASGIApp
from msgspec import Struct

from antiphon.application.compact_conversation import CompactConversation
from antiphon.application.count_tokens import CountTokens
from antiphon.application.create_once import CreateOnce
from antiphon.application.create_response import CreateResponseService
from antiphon.application.follow_response import FollowResponse
from antiphon.application.lanes import LaneLimits
from antiphon.application.paging import Cut
from antiphon.application.pauses import in_turn
from antiphon.application.ports import Batches
from antiphon.application.repeats import Taken
from antiphon.application.stored_responses import (
    CancelResponse,
    DeleteResponse,
    GetResponse,
    ListInputItems,
)
from antiphon.application.turns import Seal
from antiphon.application.until import Moment, Until
from antiphon.domain.decoding import Decoded
from antiphon.domain.errors import NotFound, RequestError
from antiphon.domain.request import CreateResponse
from antiphon.domain.response import TERMINAL
from antiphon.domain.visible import Visible
from antiphon.domain.without_effect import refuse_without_effect
from antiphon.entrypoints.http.answers import JsonAnswer, StreamAnswer, WholeAnswer, ended
from antiphon.entrypoints.http.bodies import BodyLimits, as_logged, decode_body, read_body
from antiphon.entrypoints.http.dialects import OPENAI, Dialect, dialect_of
from antiphon.entrypoints.http.heartbeat import Heartbeat
from antiphon.entrypoints.http.lists import (
    After,
    Include,
    IncludePlain,
    InOrder,
    Limit,
    as_list,
    view_of,
)
from antiphon.entrypoints.http.openapi import EVENTS, IDEMPOTENCY_KEY, json_of, operation
from antiphon.entrypoints.http.repeats import no_longer_streamed, repeat_of
from antiphon.entrypoints.http.requests import (
    REPLAYED_HEADER,
    HttpRequest,
    accept,
    answer_headers,
    request_id,
    tenant_of,
    trace_headers,
)
from antiphon.entrypoints.http.sse import Telling

logger = logging.getLogger("antiphon.requests")


class HttpOptions(Struct, frozen=True, kw_only=True):
    """What the operator set about requests and streams."""

    limits: BodyLimits = BodyLimits()
    dialect: Dialect = OPENAI
    strict: bool = False
    strict_unknown_fields: bool = False
    log_requests: bool = False
    error_stacks: bool = False
    websocket_s: float = 3600.0
    lanes: LaneLimits = LaneLimits()


class Services(Struct, frozen=True, kw_only=True):
    """What the handlers of this controller call.

    `stopping` happens when the server is told to stop, `drained` when its runs are over.
    """

    create: CreateResponseService
    create_once: CreateOnce
    count: CountTokens
    compact: CompactConversation
    get: GetResponse
    follow: FollowResponse
    delete: DeleteResponse
    cancel: CancelResponse
    input_items: ListInputItems
    heartbeat: Heartbeat
    stopping: asyncio.Event
    drained: Moment
    seal: Seal
    options: HttpOptions


class Responses(Controller):
    """Handlers decode, call one service, and encode."""

    path = "/v1/responses"
    tags = ("Responses",)

    @post(
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
        """Answer with the whole response, or stream its events where `stream` is true."""
        dialect = dialect_of(request, services.options.dialect)
        body, decoded = await self._read(request, services)
        if services.options.log_requests:
            logger.info("request %s: %s", request_id(request), as_logged(body))
        telling = Telling.of(decoded.request, dialect)
        repeat, without_effect = await repeat_of(request, decoded.request, body)
        if services.options.strict:
            refuse_without_effect(without_effect)
        created = await services.create_once(
            decoded.request,
            repeat,
            tenant=tenant_of(request),
            body=body,
            trace_headers=trace_headers(request),
            strict=services.options.strict,
        )
        if isinstance(created, Taken):
            headers = {**answer_headers(request, decoded.unknown), REPLAYED_HEADER: "true"}
            return await self._again(
                tenant_of(request), created.response_id, decoded.request, headers, services, telling
            )
        if repeat is None:
            accept(request)
        headers = answer_headers(request, (*created.ignored, *without_effect, *decoded.unknown))
        events = created.events
        if created.outlives_client:
            events = Until(events, services.drained)
        if decoded.request.stream:
            return self._stream(events, headers, services, telling, leave=created.leave)
        if created.background:
            # As it was saved: a store that fails now would keep its id from who has to ask for it.
            await created.leave()
            return JsonAnswer(telling.whole(created.response), headers)
        return WholeAnswer(events, headers, leave=created.leave, telling=telling)

    @post(
        "/input_tokens",
        summary="Count input tokens",
        operation_class=operation(
            "The count of input tokens.", takes="CreateResponse", gives="InputTokens"
        ),
        status_code=200,
    )
    async def count(self, request: HttpRequest, services: NamedDependency[Services]) -> ASGIApp:
        """Render what `create` would render, and count it."""
        _, decoded = await self._read(request, services)
        counted = await services.count(
            decoded.request, tenant=tenant_of(request), strict=services.options.strict
        )
        answer = {"object": "response.input_tokens", "input_tokens": counted.tokens}
        headers = answer_headers(request, (*counted.ignored, *decoded.unknown))
        return JsonAnswer(answer, headers)

    @post(
        "/compact",
        summary="Compact a conversation",
        operation_class=operation(
            "The items to go on from.", takes="CreateResponse", gives="CompactedWindow"
        ),
        status_code=200,
    )
    async def compact(self, request: HttpRequest, services: NamedDependency[Services]) -> ASGIApp:
        """Answer with the items that a client goes on from in place of the conversation."""
        telling = Telling(dialect_of(request, services.options.dialect))
        _, decoded = await self._read(request, services)
        compacting = await services.compact(
            decoded.request,
            tenant=tenant_of(request),
            trace_headers=trace_headers(request),
            strict=services.options.strict,
        )
        created = compacting.created
        headers = answer_headers(request, (*created.ignored, *decoded.unknown))
        return WholeAnswer(
            created.events,
            headers,
            leave=created.leave,
            telling=telling,
            shape=compacting.window,
        )

    @get(
        "/{response_id:str}",
        summary="Retrieve a response, or stream its events",
        operation_class=operation(
            "The response, or its events if `stream` is true.",
            gives={**json_of("Response"), **EVENTS},
        ),
    )
    async def retrieve(
        self,
        request: HttpRequest,
        services: NamedDependency[Services],
        response_id: FromPath[str],
        include_bracketed: Include = None,
        include_plain: IncludePlain = None,
        stream: FromQuery[str] = "false",
        starting_after: Annotated[int, QueryParameter(ge=-1)] = -1,
        include_obfuscation: FromQuery[str] = "false",
    ) -> ASGIApp:
        """With `stream=true`, the events that follow `starting_after`, then live ones."""
        telling = Telling(
            dialect_of(request, services.options.dialect),
            view=_view(request, services, include_bracketed, include_plain),
            pads=_is_true(include_obfuscation),
        )
        headers = answer_headers(request)
        if _is_true(stream):
            events: Batches = await services.follow(
                tenant_of(request), response_id, after=starting_after
            )
            events = Until(events, services.drained)
            return self._stream(events, headers, services, telling, leave=events.aclose)
        return JsonAnswer(
            telling.whole(await services.get(tenant_of(request), response_id)), headers
        )

    @delete(
        "/{response_id:str}",
        summary="Delete a response",
        operation_class=operation("It is deleted.", gives="Deleted"),
        status_code=200,
    )
    async def delete(
        self, request: HttpRequest, services: NamedDependency[Services], response_id: FromPath[str]
    ) -> ASGIApp:
        await services.delete(tenant_of(request), response_id)
        answer = {"id": response_id, "object": "response", "deleted": True}
        return JsonAnswer(answer, answer_headers(request))

    @post(
        "/{response_id:str}/cancel",
        summary="Cancel a background response",
        operation_class=operation("The response, cancelled or ended before.", gives="Response"),
        status_code=200,
    )
    async def cancel(
        self, request: HttpRequest, services: NamedDependency[Services], response_id: FromPath[str]
    ) -> ASGIApp:
        telling = Telling(dialect_of(request, services.options.dialect), view=Visible())
        cancelled = await services.cancel(tenant_of(request), response_id)
        return JsonAnswer(telling.whole(cancelled), answer_headers(request))

    @get(
        "/{response_id:str}/input_items",
        summary="List what the model was given",
        operation_class=operation("A page of its input items.", gives="ItemList"),
    )
    async def input_items(
        self,
        request: HttpRequest,
        services: NamedDependency[Services],
        response_id: FromPath[str],
        include_bracketed: Include = None,
        include_plain: IncludePlain = None,
        after: After = None,
        limit: Limit = 20,
        order: InOrder = "desc",
    ) -> ASGIApp:
        view = _view(request, services, include_bracketed, include_plain)
        cut = Cut(after=after, limit=limit, order=order)
        page = await services.input_items(tenant_of(request), response_id, cut)
        return JsonAnswer(as_list(page, view), answer_headers(request))

    async def _read(
        self, request: HttpRequest, services: Services
    ) -> tuple[bytes, Decoded[CreateResponse]]:
        """Return the body, and the request that it is. Raises: RequestError."""
        body = await read_body(request, services.options.limits)
        strict = services.options.strict_unknown_fields
        return body, await in_turn(len(body), decode_body, body, strict=strict)

    def _stream(
        self,
        events: Batches,
        headers: Mapping[str, str],
        services: Services,
        telling: Telling,
        *,
        leave: Any,
    ) -> StreamAnswer:
        return StreamAnswer(
            events,
            headers,
            leave=leave,
            heartbeat=services.heartbeat,
            telling=telling,
        )

    async def _again(
        self,
        tenant: str,
        response_id: str,
        request: CreateResponse,
        headers: Mapping[str, str],
        services: Services,
        telling: Telling,
    ) -> ASGIApp:
        """Answer as the request that has the key was answered, or will be."""
        if request.stream:
            try:
                events: Batches = await services.follow(tenant, response_id)
            except NotFound:
                raise
            except RequestError:
                raise no_longer_streamed(response_id) from None
            events = Until(events, services.drained)
            return self._stream(events, headers, services, telling, leave=events.aclose)
        response = await services.get(tenant, response_id)
        if response.background:
            return JsonAnswer(telling.whole(response), headers)
        if response.status in TERMINAL:
            return ended(response, headers, telling)
        events = Until(await services.follow(tenant, response_id), services.drained)
        return WholeAnswer(events, headers, leave=events.aclose, telling=telling)


def _is_true(text: str) -> bool:
    return text.lower() in ("true", "1")


def _view(request: HttpRequest, services: Services, *given: list[str] | None) -> Visible:
    return view_of(*given, seal=partial(services.seal, tenant_of(request)))
