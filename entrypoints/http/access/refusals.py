"""Refuse a request before it is routed: with the errors of the app, at a fraction of their cost."""

from __future__ import annotations

import re
from typing import Any

from litestar.connection import ASGIConnection
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from antiphon.application.responses.admission import Admission
from antiphon.domain import errors as er
from antiphon.entrypoints.http.api.requests import note_error, request_id, response_headers
from antiphon.entrypoints.http.errors import (
    RETRY_AFTER_S,
    RETRY_LATER,
    error_fields,
    error_headers,
    error_json,
)
from antiphon.entrypoints.http.wire.asgi_responses import send_json
from antiphon.entrypoints.http.wire.dialects import OPENAI, Dialect, dialect_or_default

ADMITTED = frozenset(
    {
        "/v1/responses",
        "/v1/responses/compact",
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/messages",
    }
)
"""Routes whose POST requests start a response, and so wait for admission."""


class RefuseEarly:
    """ASGI middleware, inside of authentication: it refuses requests that could not even wait.

    A server with too many requests spends most of its time on refusals, so these are cheap.
    """

    def __init__(self, app: ASGIApp, admission: Admission, *, dialect: Dialect = OPENAI) -> None:
        self._app = app
        self._admission = admission
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = admitted_route(scope)
        if route is not None:
            try:
                self._admission.runs.check_room(scope["auth"].tenant)
            except er.AntiphonError as exc:
                scope["path_template"] = route
                await refuse_request(scope, send, exc, self._dialect)
                return
        await self._app(scope, receive, send)


async def refuse_request(scope: Scope, send: Send, exc: Exception, dialect: Dialect) -> None:
    """Answer a request, or the handshake of a WebSocket, with this error."""
    scope.setdefault("state", {})
    connection: ASGIConnection[Any, Any, Any, Any] = ASGIConnection(scope)
    dialect = dialect_or_default(dialect, connection)
    status, message, param, code = error_fields(exc)
    status = dialect.status(status)
    body = error_json(status, message, param, code, dialect, request_id=request_id(connection))
    note_error(connection, code or dialect.error_type(status))
    headers = {**response_headers(connection), **error_headers(exc)}
    if status == 401:
        headers["www-authenticate"] = _challenge(exc)
    if status in RETRY_LATER:
        headers.setdefault("retry-after", str(RETRY_AFTER_S))
    await send_json(send, body, headers, status=status, to=scope["type"])


def admitted_route(scope: Scope) -> str | None:
    """Return the route of a request that waits for admission, or None."""
    if scope["type"] != ScopeType.HTTP or scope["method"] != "POST":
        return None
    path = scope["path"].rstrip("/")
    return path if path in ADMITTED else None


def _challenge(exc: Exception) -> str:
    """Return what a 401 tells clients of OAuth (RFC 6750, section 3)."""
    if not isinstance(exc, er.InvalidToken):
        return "Bearer"
    # The messages may quote names of settings, with any characters.
    description = re.sub(r'[^ -~]|["\\]', "?", exc.message)
    return f'Bearer error="invalid_token", error_description="{description}"'
