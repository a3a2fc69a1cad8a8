"""Create a response for a request, whatever API it is written in: a door (`IncomingRequest`) says
how its client sees it. Checks, limits, keys, relays and answers are the same for all."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from functools import partial
from typing import Any, Protocol, TypeVar

import msgspec
from litestar.types import ASGIApp
from msgspec import Struct
from msgspec.structs import replace

from antiphon.adapters.ids import new_id
from antiphon.application.input.submission import IdempotencyKey, Submission
from antiphon.application.ports import EventBatches
from antiphon.application.responses.count_tokens import TokenCount
from antiphon.application.responses.idempotency import ExistingResponse
from antiphon.application.responses.start import AcceptedResponse
from antiphon.application.runs.until_shutdown import UntilShutdown
from antiphon.application.support.tasks import run_to_completion
from antiphon.application.telemetry.request_context import DOOR
from antiphon.domain.errors import ContainerElsewhere, NotFound, RequestError
from antiphon.domain.requests.decoding import DecodedRequest
from antiphon.domain.requests.ignored import refuse_ignored
from antiphon.domain.requests.request import CreateResponse
from antiphon.domain.responses.response import TERMINAL, Response
from antiphon.entrypoints.http.api.idempotency import (
    IDEMPOTENCY_HEADER,
    events_expired,
    idempotency_key_of,
)
from antiphon.entrypoints.http.api.requests import (
    REPLAYED_HEADER,
    HttpRequest,
    accept,
    headers_of,
    knows_agents,
    note_response,
    request_context,
    request_id,
    response_headers,
    tenant_of,
)
from antiphon.entrypoints.http.api.services import Services
from antiphon.entrypoints.http.wire.asgi_responses import (
    EventStreamResponse,
    FinalResponse,
    JsonResponse,
    final_response,
    wait_for_disconnect,
)
from antiphon.entrypoints.http.wire.bodies import (
    decode_in_thread,
    hold_body,
    receive_body,
    redact_body,
)
from antiphon.entrypoints.http.wire.session_names import (
    CONVERSATION_HEADER,
    SESSION_HEADER,
    session_in,
)
from antiphon.entrypoints.http.wire.several_runs import LastEvents, RunsTogether
from antiphon.entrypoints.http.wire.sse import EventEncoder

T = TypeVar("T")

_encode = msgspec.json.Encoder().encode

logger = logging.getLogger("antiphon.requests")

POLL_HEADER = "openai-poll-after-ms"
"""Official clients wait so long before they ask again."""
POLL_AFTER_MS = 1000


def _same(path: str) -> str:
    return path


def _ignore(_number: int) -> None:
    """There is one answer."""


class IncomingRequest(Struct, frozen=True, kw_only=True):
    """A request as its door has read it.

    `job_body` returns it as a body of `POST /v1/responses`, from which any server can start it.
    `name_of` returns the client's name of a field, which is at this path in the decoded request.
    `others` are the requests of further answers that the client wants. If there are any, `select`
    is called with the number of the one whose events the encoder gets next, and its
    `encode_response` gets all responses. `door` names it in records. `is_stateless`: its API knows
    no conversations, so its clients send their whole history. `may_store`: they have not said
    whether to store the response, and a session is reason enough.
    """

    decoded: DecodedRequest[CreateResponse]
    encoder: EventEncoder
    job_body: Callable[[], bytes]
    name_of: Callable[[str], str] = _same
    others: Sequence[CreateResponse] = ()
    select: Callable[[int], None] = _ignore
    door: str = DOOR
    is_stateless: bool = False
    may_store: bool = False

    def of_session(self) -> IncomingRequest:
        """Return the request as one of a session: its response is stored, unless the client has
        said that it is not. Raises: RequestError.
        """
        if self.others:
            raise RequestError(
                "A request for several answers cannot be of a session: a conversation has one.",
                param="n",
                code="unsupported_value",
            )
        if not self.may_store:
            return self
        request = replace(self.decoded.request, store=True)
        return replace(
            self,
            decoded=replace(self.decoded, request=request),
            job_body=lambda: _encode(request),
        )

    def rename(self, error: RequestError) -> None:
        """Let an error name the field that the client sent."""
        if error.param is not None and (name := self.name_of(error.param)) != error.param:
            error.message = error.message.replace(repr(error.param), repr(name))
            error.param = name


class ReadBody(Protocol):
    """How a door reads a body."""

    def __call__(self, body: bytes, *, strict: bool) -> IncomingRequest:
        """Raises: RequestError, also for an unknown key if `strict`."""


async def create_response(request: HttpRequest, services: Services, read: ReadBody) -> ASGIApp:
    """Return the app that answers the request: with a stream of events, or with one object.

    Raises: AntiphonError.
    """
    headers_in = headers_of(request.scope)
    # The bytes count until the prompt is ready: many requests may wait for their turn.
    async with receive(request, services, read) as (body, incoming):
        session = session_in(headers_in, incoming, services.options.session_headers)
        if session is not None:
            incoming = incoming.of_session()
        decoded, encoder = incoming.decoded, incoming.encoder
        if services.options.log_requests:
            logger.info("request %s: %s", request_id(request), redact_body(body))
        idempotency_key: IdempotencyKey | None = None
        ignored_fields: Sequence[str] = ()
        answers: list[AcceptedResponse] = []
        if IDEMPOTENCY_HEADER in headers_in:
            if incoming.others:
                raise RequestError(
                    "A request for several answers cannot have an Idempotency-Key.",
                    param="Idempotency-Key",
                    code="unsupported_value",
                )
            idempotency_key, ignored_fields = await idempotency_key_of(
                request, decoded.request, body
            )
            if services.options.strict:
                refuse_ignored(ignored_fields)
        request_in = decoded.request
        is_durable = request_in.background or request_in.has_agents or idempotency_key is not None
        job_body = incoming.job_body() if is_durable else None
        submission = submission_of(request, services, decoded, job_body, door=incoming.door)
        if session is not None:
            submission = replace(submission, session=session)
        try:
            created = await (
                services.create(submission)
                if idempotency_key is None
                else services.create_once(submission, idempotency_key)
            )
            if not isinstance(created, ExistingResponse):
                answers = await _create_others(services, submission, created, incoming.others)
        except ContainerElsewhere as elsewhere:
            if session is not None:  # it may be named by a header that is not passed on
                name = (SESSION_HEADER.encode(), session.value.encode())
                request.scope["headers"] = [*request.scope["headers"], name]
            return relay(services, request, body, elsewhere)
        except RequestError as error:
            incoming.rename(error)
            raise
    if isinstance(created, ExistingResponse):
        note_response(request, created.response_id)
        headers = {**response_headers(request, decoded.ignored), REPLAYED_HEADER: "true"}
        return await _repeat_response(
            tenant_of(request), created.response_id, decoded.request, headers, services, encoder
        )
    note_response(request, created.id)
    if idempotency_key is None:
        accept(request)
    ignored = [*map(incoming.name_of, created.ignored), *ignored_fields]
    headers = response_headers(request, ignored, answers[-1].rate_limits)
    if created.session is not None:
        headers[SESSION_HEADER] = created.session
        if created.response.conversation is not None:
            headers[CONVERSATION_HEADER] = created.response.conversation.id
    runs = [
        UntilShutdown(each.events, services.drained) if each.outlives_client else each.events
        for each in answers
    ]
    is_one = len(runs) == 1
    leave = created.leave if is_one else partial(_leave, answers)
    if decoded.request.stream:
        return EventStreamResponse(
            runs[0] if is_one else RunsTogether(runs, incoming.select),
            headers,
            leave=leave,
            keepalive=services.keepalive,
            encoder=encoder,
        )
    if created.background:
        # Return it as saved: reading it again could fail, and the client needs its id.
        await created.leave()
        return whole(created.response, headers, encoder)
    if is_one:
        return FinalResponse(runs[0], headers, leave=leave, encoder=encoder)
    last = LastEvents(runs)
    return FinalResponse(last, headers, leave=leave, encoder=encoder, shape=last.responses)


async def _create_others(
    services: Services,
    submission: Submission,
    first: AcceptedResponse,
    others: Sequence[CreateResponse],
) -> list[AcceptedResponse]:
    """Return `first`, and the answers to the other requests of its client.

    Raises: AntiphonError, if one of them cannot be created; then there is none.
    """
    created = [first]
    try:
        for request in others:
            other = replace(submission, response_id=new_id("resp"), request=request)
            created.append(await services.create(other))
    except BaseException:
        await run_to_completion(_leave(created))
        raise
    return created


async def _leave(created: Sequence[AcceptedResponse]) -> None:
    for each in created:
        await each.leave()


async def count_tokens(
    request: HttpRequest,
    services: Services,
    read: ReadBody,
    shape: Callable[[TokenCount], Any],
) -> ASGIApp:
    """Return the answer to a request to count its tokens; `shape` makes it of their count.

    Raises: AntiphonError.
    """
    async with receive(request, services, read) as (body, incoming):
        submission = submission_of(request, services, incoming.decoded, body)
        names = services.options.session_headers
        session = session_in(headers_of(request.scope), incoming, names)
        try:
            count = await services.count(replace(submission, session=session))
        except ContainerElsewhere as elsewhere:
            return relay(services, request, body, elsewhere)
        except RequestError as error:
            incoming.rename(error)
            raise
    ignored = [*map(incoming.name_of, count.ignored)]
    headers = response_headers(request, ignored, count.rate_limits)
    return JsonResponse(shape(count), headers)


@asynccontextmanager
async def receive(
    request: HttpRequest, services: Services, read: Callable[..., T]
) -> AsyncIterator[tuple[bytes, T]]:
    """Yield the body, and what `read` makes of it. Raises: RequestError."""
    limits, strict = services.options.limits, services.options.strict_unknown_fields
    with hold_body(request, limits) as held:
        body = await receive_body(request, limits, held)
        yield body, await decode_in_thread(body, read, strict=strict)


def submission_of(
    request: HttpRequest,
    services: Services,
    decoded: DecodedRequest[CreateResponse],
    body: bytes | None,
    *,
    door: str = DOOR,
) -> Submission:
    """Return a request with its sender; `body` is its job."""
    return Submission(
        caller=request.auth,
        request=decoded.request,
        response_id=new_id("resp"),
        body=body,
        context=request_context(request, door=door),
        strict=services.options.strict,
        ignored=decoded.ignored,
        client_left=partial(wait_for_disconnect, request.receive),
        may_have_agents=decoded.request.has_agents and knows_agents(request),
    )


def relay(
    services: Services, request: HttpRequest, body: bytes, elsewhere: ContainerElsewhere
) -> ASGIApp:
    """Return the app that answers the request from the server that has its container."""
    assert services.relay is not None, "only a server that relays looks for containers elsewhere"
    return services.relay(request, body, elsewhere)


def whole(response: Response, headers: Mapping[str, str], encoder: EventEncoder) -> ASGIApp:
    """Return a response as it is now, and when to ask for it again if it is not finished."""
    if response.background and response.status not in TERMINAL:
        headers = {**headers, POLL_HEADER: str(POLL_AFTER_MS)}
    return JsonResponse(encoder.encode_response(response), headers)


async def _repeat_response(
    tenant: str,
    response_id: str,
    request: CreateResponse,
    headers: Mapping[str, str],
    services: Services,
    encoder: EventEncoder,
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
        return whole(response, headers, encoder)
    if response.status in TERMINAL:
        return final_response(response, headers, encoder)
    events = UntilShutdown(await services.follow(tenant, response_id), services.drained)
    return FinalResponse(events, headers, leave=events.aclose, encoder=encoder)
