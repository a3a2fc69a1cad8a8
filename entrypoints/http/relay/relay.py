"""Relay requests to the server that has their container.

A container's id begins with the tag of its server. The server that gets a request checks the
client's credential, buffers the body within the limits of all bodies, and passes the answer on as
it arrives. What was relayed once is answered there, whatever the answer is: there are no loops.
Workers share the port that other machines know, so one of them passes such a request on to the one
that it is for.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Container, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Any

import httpx
from litestar import Request
from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send
from msgspec.structs import replace

from antiphon.adapters.ids import new_id
from antiphon.application.runs.active_runs import ActiveRuns
from antiphon.application.support.threads import run_in_thread
from antiphon.domain.errors import AntiphonError, ContainerElsewhere, RequestError
from antiphon.entrypoints.http.api.requests import (
    TRACE_HEADERS,
    HttpRequest,
    caller_of,
    header_values,
    is_relayed,
    note_error,
    request_id,
    response_headers,
)
from antiphon.entrypoints.http.errors import (
    RETRY_AFTER_S,
    RETRY_LATER,
    error_fields,
    error_json,
)
from antiphon.entrypoints.http.relay.relayed_requests import (
    CONTAINERS,
    HEADER,
    STOPPING_HEADER,
    Voucher,
    Vouchers,
    can_be_relayed,
    check_digest,
    tag_in,
    target_of,
)
from antiphon.entrypoints.http.relay.server_client import ServerClient, ServerRequest
from antiphon.entrypoints.http.wire.asgi_responses import run_while_connected, send_json
from antiphon.entrypoints.http.wire.bodies import BodyLimits, receive_bytes
from antiphon.entrypoints.http.wire.dialects import OPENAI, Dialect, dialect_or_default
from antiphon.entrypoints.http.wire.session_names import SESSION_HEADER

logger = logging.getLogger("antiphon.servers")

SERVER_HEADER = "x-antiphon-server"
"""Tells a load balancer which server has the container, to send it the next request directly."""

REQUEST_HEADERS = frozenset(
    {
        b"accept",
        b"content-type",
        b"idempotency-key",
        b"x-antiphon-dialect",
        SESSION_HEADER.encode(),
        *(name.encode() for name in TRACE_HEADERS),
    }
)
"""The headers that are passed on. No credential is among them."""

HOP_HEADERS = frozenset({b"connection", b"date", b"keep-alive", b"server", b"transfer-encoding"})
"""The headers of an answer that are not passed on."""

SERVER_HEADERS = frozenset({STOPPING_HEADER.encode()})
"""The headers of an answer that are for servers, not for clients."""

SILENCE_S = 60.0
"""Between two parts of an answer. No answer about a container or its files takes longer."""


class RelayedAnswer:
    """An ASGI app that relays one request, whose body has been received, to the server `tag`."""

    def __init__(
        self,
        servers: ServerClient,
        tag: str,
        body: bytes,
        *,
        param: str = "container_id",
        silence_s: float | None = SILENCE_S,
    ) -> None:
        self._servers = servers
        self._tag = tag
        self._body = body
        self._param = param
        self._silence_s = silence_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Raises: ServerUnreachable, StoreError."""
        assert scope["type"] == ScopeType.HTTP
        if not await run_while_connected(receive, self._relay(Request(scope), send)):
            scope["state"]["client_left"] = True

    async def _relay(self, request: HttpRequest, send: Send) -> bool:
        """Send the whole answer, and return True."""
        body, self._body = self._body, b""
        outgoing = ServerRequest(
            method=request.scope["method"],
            target=target_of(request.scope),
            caller=replace(caller_of(request), is_counted=True),
            receiver=self._tag,
            headers=[
                *(each for each in request.scope["headers"] if each[0] in REQUEST_HEADERS),
                (b"x-request-id", request_id(request).encode()),
            ],
            body=body,
            silence_s=self._silence_s,
        )
        del body
        try:
            answer = await self._servers.open(outgoing)
        except RequestError as exc:
            exc.param = self._param
            raise
        del outgoing
        try:
            hidden = HOP_HEADERS if is_relayed(request) else HOP_HEADERS | SERVER_HEADERS
            await _pass_on(answer, hidden, send)
        except httpx.HTTPError as exc:
            # The client must notice: without the last part, its connection is closed.
            logger.warning("a relayed answer of the server %s broke off: %r", self._tag, exc)
        finally:
            await answer.aclose()
        return True


class RelayResponses:
    """Relays requests for responses whose container is elsewhere."""

    def __init__(self, servers: ServerClient, runs: ActiveRuns) -> None:
        self._servers = servers
        self._runs = runs

    def __call__(self, request: HttpRequest, body: bytes, elsewhere: ContainerElsewhere) -> ASGIApp:
        """Return the app that answers the request. Raises: ContainerElsewhere if it was relayed."""
        if is_relayed(request):
            raise elsewhere
        answer = RelayedAnswer(
            self._servers, elsewhere.server, body, param=str(elsewhere.param), silence_s=None
        )

        async def relay(scope: Scope, receive: Receive, send: Send) -> None:
            # A server that stops waits for it, as for a run of its own.
            with self._runs.mark_active(new_id("relay")):
                self._runs.check_not_drained()
                await answer(scope, receive, send)

        return relay


class Relay:
    """ASGI middleware inside of authentication: it relays requests for containers of others."""

    def __init__(
        self,
        app: ASGIApp,
        servers: ServerClient,
        *,
        tag: str,
        stopping: asyncio.Event,
        limits: BodyLimits,
        dialect: Dialect = OPENAI,
    ) -> None:
        self._app = app
        self._servers = servers
        self._tag = tag
        self._stopping = stopping
        self._limits = limits
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        request: HttpRequest = Request(scope, receive, send)
        if not scope["path"].startswith(CONTAINERS) and not is_relayed(request):
            await self._app(scope, receive, send)
            return
        try:
            tag = await self._relayed_to(request)
            if tag is None:
                await self._app(scope, receive, self._naming_server(request, send))
                return
            async with receive_bytes(request, self._limits) as body:
                await RelayedAnswer(self._servers, tag, body)(scope, receive, send)
        except AntiphonError as exc:
            await send_error(request, send, exc, self._dialect)

    async def _relayed_to(self, request: HttpRequest) -> str | None:
        """Return the tag of the server that gets the request, or None if it is answered here."""
        tag = tag_in(request.scope["path"])
        if tag is None or tag == self._tag or is_relayed(request):
            return None
        return tag if await self._servers.knows(tag) else None

    def _naming_server(self, request: HttpRequest, send: Send) -> Send:
        async def send_naming_server(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message["headers"], (SERVER_HEADER.encode(), self._tag.encode())]
                if self._stopping.is_set() and is_relayed(request):
                    headers.append((STOPPING_HEADER.encode(), b"true"))
                message["headers"] = headers
            await send(message)

        return send_naming_server


async def _pass_on(answer: httpx.Response, hidden: Container[bytes], send: Send) -> None:
    headers = [each for each in answer.headers.raw if each[0].lower() not in hidden]
    start: Any = {
        "type": "http.response.start",
        "status": answer.status_code,
        "headers": [(name.lower(), value) for name, value in headers],
    }
    await send(start)
    async for part in answer.aiter_raw():
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


class AcceptRelayed:
    """ASGI middleware around authentication: requests that another server has relayed pass by it.

    Only some requests can be relayed (`relayed_requests.py`).
    """

    def __init__(
        self,
        authenticated: ASGIApp,
        app: ASGIApp,
        vouchers: Vouchers,
        servers: ServerClient,
        *,
        tag: str,
        limits: BodyLimits,
        dialect: Dialect = OPENAI,
    ) -> None:
        self._authenticated = authenticated
        self._app = app
        self._vouchers = vouchers
        self._servers = servers
        self._tag = tag
        self._limits = limits
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        values = header_values(scope, HEADER.encode())
        if not values or scope["type"] != ScopeType.HTTP:
            await self._authenticated(scope, receive, send)
            return
        scope.setdefault("state", {})
        request: HttpRequest = Request(scope, receive, send)
        try:
            voucher = self._check(values, scope)
            scope["auth"] = voucher.caller
            scope["state"]["relayed"] = True
            async with self._checked(request, voucher) as replay:
                await self._app_for(voucher)(scope, replay, send)
        except AntiphonError as exc:
            await send_error(request, send, exc, self._dialect)

    def _check(self, values: Sequence[bytes], scope: HTTPScope) -> Voucher:
        if len(values) > 1 or not can_be_relayed(scope["method"], scope["path"]):
            raise RequestError(f"The header {HEADER!r} is for servers.", code="invalid_value")
        return self._vouchers.check(values[0].decode("latin-1"), scope)

    def _app_for(self, voucher: Voucher) -> ASGIApp:
        is_here = voucher.receiver == self._tag
        return self._app if is_here else partial(self._pass_on, voucher.receiver)

    async def _pass_on(self, tag: str, scope: Scope, receive: Receive, send: Send) -> None:
        """Relay the request once more, to the worker with this tag."""
        assert scope["type"] == ScopeType.HTTP
        silence_s = SILENCE_S if tag_in(scope["path"]) else None  # a model may think
        message: Any = await receive()
        body = message.pop("body")
        answer = RelayedAnswer(self._servers, tag, body, silence_s=silence_s)
        del body  # a large one need not be kept until the answer is complete
        await answer(scope, receive, send)

    @asynccontextmanager
    async def _checked(self, request: HttpRequest, voucher: Voucher) -> AsyncIterator[Receive]:
        """Yield a `receive` that begins with the request's body, which has been compared."""
        async with AsyncExitStack() as stack:
            body = await stack.enter_async_context(receive_bytes(request, self._limits))
            await run_in_thread(len(body), check_digest, voucher, body)
            bodies = [body]
            del body

            async def receive_again() -> Any:
                if not bodies:
                    return await request.receive()
                if tag_in(request.scope["path"]) is None:
                    await stack.aclose()  # whoever reads JSON counts its bytes from now on
                return {"type": "http.request", "body": bodies.pop(), "more_body": False}

            yield receive_again


async def send_error(request: HttpRequest, send: Send, exc: Exception, default: Dialect) -> None:
    dialect = dialect_or_default(default, request)
    status, message, param, code = error_fields(exc)
    status = dialect.status(status)
    note_error(request, code or dialect.error_type(status))
    headers = response_headers(request)
    if status in RETRY_LATER:
        headers.setdefault("retry-after", str(RETRY_AFTER_S))
    body = error_json(status, message, param, code, dialect, request_id=request_id(request))
    await send_json(send, body, headers, status=status)
