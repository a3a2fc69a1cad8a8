"""`/console/session`: sign in with a key, ask who is signed in, sign out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from litestar import Controller, Response, delete, get, post
from litestar.datastructures import Cookie
from litestar.di import NamedDependency
from msgspec import Struct

from antiphon.domain.access.callers import ANYBODY, Caller
from antiphon.domain.errors import BodyTooLarge, RequestError, Unauthenticated
from antiphon.entrypoints.http.access.identity import BearerIdentity, Identity, identify
from antiphon.entrypoints.http.api.requests import HttpRequest, header
from antiphon.entrypoints.http.console.pages import console_headers
from antiphon.entrypoints.http.console.sessions import (
    COOKIE,
    CROSS_SITE,
    SESSION_S,
    Sessions,
    is_same_origin,
)

PATH = "/console/session"
MAX_BODY_BYTES = 16 * 1024


class Console(Struct, frozen=True):
    """The parts of the server that the console needs. Without keys, `identities` is None."""

    identities: Sequence[Identity] | None
    bearer: BearerIdentity
    sessions: Sessions


class SignIn(Struct, frozen=True):
    key: str


class SessionEndpoint(Controller):
    """Public: it tells nothing but whose key or cookie was sent."""

    path = PATH
    include_in_schema = False

    @get()
    async def get(
        self, request: HttpRequest, console: NamedDependency[Console]
    ) -> Response[dict[str, Any]]:
        return _answer(request, console, await _caller_of(request, console))

    @post(status_code=200)
    async def create(
        self, request: HttpRequest, console: NamedDependency[Console]
    ) -> Response[dict[str, Any]]:
        _check_origin(request)
        if console.identities is None:
            return _answer(request, console, ANYBODY)
        key = _read(await body_of(request, MAX_BODY_BYTES))
        caller = await console.bearer.find(key)
        answer = _answer(request, console, caller)
        answer.set_cookie(_cookie(request, console.sessions.create(key), SESSION_S))
        return answer

    @delete(status_code=200)
    async def delete(
        self, request: HttpRequest, console: NamedDependency[Console]
    ) -> Response[dict[str, Any]]:
        _check_origin(request)
        answer = _answer(request, console, None)
        answer.set_cookie(_cookie(request, "", 0))
        return answer


async def _caller_of(request: HttpRequest, console: Console) -> Caller | None:
    if console.identities is None:
        return ANYBODY
    try:
        return await identify(console.identities, request.scope)
    except Unauthenticated:
        return None


def _answer(
    request: HttpRequest, console: Console, caller: Caller | None
) -> Response[dict[str, Any]]:
    content = {
        "needed": console.identities is not None,
        "valid": caller is not None,
        "key": caller.key_name if caller else None,
        "tenant": caller.tenant if caller else None,
    }
    return Response(content, headers=console_headers(request))


def _check_origin(request: HttpRequest) -> None:
    """Raises: Unauthenticated if another site's page may have sent the request."""
    if not is_same_origin(request.scope):
        raise Unauthenticated(CROSS_SITE)


def _cookie(request: HttpRequest, value: str, max_age_s: int) -> Cookie:
    # Behind a proxy that ends TLS, only the origin tells what the browser uses.
    is_secure = request.scope["scheme"] == "https" or header(request, b"origin").startswith(
        "https:"
    )
    return Cookie(
        COOKIE,
        path="/",
        value=value,
        max_age=max_age_s,
        secure=is_secure,
        httponly=True,
        samesite="strict",
    )


async def body_of(request: HttpRequest, max_bytes: int) -> bytes:
    """Return the body. Raises: BodyTooLarge, as soon as it has more bytes."""
    body = b""
    async for block in request.stream():
        body += block
        if len(body) > max_bytes:
            raise BodyTooLarge(f"The body has more than {max_bytes:,} bytes.")
    return body


def _read(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=SignIn).key.strip()
    except (msgspec.DecodeError, msgspec.ValidationError, UnicodeDecodeError):
        raise RequestError(
            "The body must be JSON with a string 'key'.", param="key", code="invalid_value"
        ) from None
