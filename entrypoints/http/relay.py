"""Relay requests for a container to the server that has it.

A container's id begins with the tag of its server. The server that gets the request checks the
client's credential, buffers the body within the limits of all bodies, and passes the answer on as
it arrives. What was relayed once is answered there, whatever the answer is: there are no loops.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Sequence
from typing import Any

import httpx
from litestar import Request
from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send

from antiphon.application.resources.server_addresses import TAG_DIGITS, ServerAddresses
from antiphon.domain.callers import Caller
from antiphon.domain.errors import AntiphonError, RequestError, ServerUnreachable
from antiphon.entrypoints.http.asgi_responses import run_while_connected, send_json
from antiphon.entrypoints.http.bodies import BodyLimits, receive_bytes
from antiphon.entrypoints.http.dialects import OPENAI, Dialect, dialect_or_default
from antiphon.entrypoints.http.errors import RETRY_AFTER_S, error_fields, error_json
from antiphon.entrypoints.http.relayed_requests import (
    HEADER,
    Voucher,
    Vouchers,
    check_digest,
    digest_of,
    target_of,
)
from antiphon.entrypoints.http.requests import (
    HttpRequest,
    header_values,
    note_error,
    request_id,
    response_headers,
)

CONTAINERS = "/v1/containers"
SERVER_HEADER = "x-antiphon-server"
"""Tells a load balancer which server has the container, to send it the next request directly."""

_CONTAINER = re.compile(rf"{CONTAINERS}/cntr_(?P<tag>[0-9a-f]{{{TAG_DIGITS}}})[0-9a-f]{{32}}(/|\Z)")

REQUEST_HEADERS = (b"accept", b"content-type", b"x-antiphon-dialect")
"""The headers that are passed on. No credential is among them."""

HOP_HEADERS = frozenset({b"connection", b"date", b"keep-alive", b"server", b"transfer-encoding"})
"""The headers of an answer that are not passed on."""

TIMEOUTS = httpx.Timeout(60.0, connect=3.0, pool=10.0)
"""Between two parts of an answer. Nothing of a container takes longer."""


class Relay:
    """ASGI middleware inside of authentication: it relays requests for containers of others."""

    def __init__(
        self,
        app: ASGIApp,
        addresses: ServerAddresses,
        vouchers: Vouchers,
        *,
        tag: str,
        limits: BodyLimits,
        dialect: Dialect = OPENAI,
    ) -> None:
        self._app = app
        self._addresses = addresses
        self._vouchers = vouchers
        self._tag = tag
        self._limits = limits
        self._dialect = dialect
        # Proxies of the environment are for the world outside, and redirects for nobody.
        self._client = httpx.AsyncClient(timeout=TIMEOUTS, trust_env=False)

    async def aclose(self) -> None:
        await self._client.aclose()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP or not scope["path"].startswith(CONTAINERS):
            await self._app(scope, receive, send)
            return
        request: HttpRequest = Request(scope, receive, send)
        try:
            url = await self._url_of(scope)
            if url is None:
                await self._app(scope, receive, self._naming_server(send))
                return
            async with receive_bytes(request, self._limits) as body:
                await self._relay(request, url, body, receive, send)
        except AntiphonError as exc:
            await send_error(request, send, exc, self._dialect)

    async def _url_of(self, scope: HTTPScope) -> str | None:
        """Return where the request goes, or None if it is answered here."""
        found = _CONTAINER.match(scope["path"])
        if found is None or found["tag"] == self._tag or "relayed" in scope["state"]:
            return None
        return await self._addresses.find(found["tag"])

    async def _relay(
        self, request: HttpRequest, url: str, body: bytes, receive: Receive, send: Send
    ) -> None:
        outgoing = self._client.build_request(
            request.method,
            httpx.URL(url).copy_with(raw_path=target_of(request.scope).encode("latin-1")),
            content=body,
            headers=self._headers_for(request, body),
        )
        try:
            answer = await self._client.send(outgoing, stream=True)
        except httpx.HTTPError:
            raise ServerUnreachable(
                "The server that has this container does not answer. If it has stopped, the "
                "container and its files are lost.",
                param="container_id",
                code="container_unreachable",
            ) from None
        try:
            await run_while_connected(receive, _pass_on(answer, send))
        finally:
            await answer.aclose()

    def _headers_for(self, request: HttpRequest, body: bytes) -> list[tuple[bytes, bytes]]:
        found = _CONTAINER.match(request.scope["path"])
        assert found is not None
        voucher = Voucher(
            method=request.scope["method"],
            target=target_of(request.scope),
            digest=digest_of(body),
            tenant=request.scope["auth"].tenant,
            receiver=found["tag"],
            signed_at=time.time(),
            nonce=secrets.token_hex(16),
        )
        passed_on = [each for each in request.scope["headers"] if each[0] in REQUEST_HEADERS]
        return [
            *passed_on,
            (b"accept-encoding", b"identity"),
            (b"x-request-id", request_id(request).encode()),
            (HEADER.encode(), self._vouchers.encode(voucher).encode()),
        ]

    def _naming_server(self, send: Send) -> Send:
        async def send_naming_server(message: Message) -> None:
            if message["type"] == "http.response.start":
                named = (SERVER_HEADER.encode(), self._tag.encode())
                message["headers"] = [*message["headers"], named]
            await send(message)

        return send_naming_server


async def _pass_on(answer: httpx.Response, send: Send) -> None:
    headers = [each for each in answer.headers.raw if each[0].lower() not in HOP_HEADERS]
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

    Only requests for containers can be relayed.
    """

    def __init__(
        self,
        authenticated: ASGIApp,
        app: ASGIApp,
        vouchers: Vouchers,
        *,
        limits: BodyLimits,
        dialect: Dialect = OPENAI,
    ) -> None:
        self._authenticated = authenticated
        self._app = app
        self._vouchers = vouchers
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
            scope["auth"] = Caller(tenant=voucher.tenant)
            scope["state"]["relayed"] = True
            async with receive_bytes(request, self._limits) as body:
                check_digest(voucher, body)
                await self._app(scope, _replay(body, receive), send)
        except AntiphonError as exc:
            await send_error(request, send, exc, self._dialect)

    def _check(self, values: Sequence[bytes], scope: HTTPScope) -> Voucher:
        if len(values) > 1 or _CONTAINER.match(scope["path"]) is None:
            raise RequestError(f"The header {HEADER!r} is for servers.", code="invalid_value")
        return self._vouchers.check(values[0].decode("latin-1"), scope)


def _replay(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that begins with a body that has been received."""
    is_sent = False

    async def receive_again() -> Any:
        nonlocal is_sent
        if is_sent:
            return await receive()
        is_sent = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive_again


async def send_error(request: HttpRequest, send: Send, exc: Exception, default: Dialect) -> None:
    dialect = dialect_or_default(default, request)
    status, message, param, code = error_fields(exc)
    note_error(request, code or dialect.error_type(status))
    headers = response_headers(request)
    if status == 503:
        headers["retry-after"] = str(RETRY_AFTER_S)
    body = error_json(status, message, param, code, dialect)
    await send_json(send, body, headers, status=status)
