"""Cross-origin requests: which web sites' pages may call this server (the Fetch standard, CORS).

Only origins that the settings name may. They may send keys, but never cookies, which are for the
console's own pages (`console/sessions.py`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from antiphon.entrypoints.http.api.requests import header_values

MAX_AGE_S = 600
"""Seconds that a browser may remember a preflight's answer."""
METHODS = "GET, POST, DELETE"
EXPOSED = (
    "x-request-id, request-id, retry-after, x-should-retry, idempotent-replayed, "
    "x-antiphon-ignored, x-antiphon-session, x-antiphon-conversation, openai-poll-after-ms, "
    "x-ratelimit-limit-requests, x-ratelimit-limit-tokens, x-ratelimit-remaining-requests, "
    "x-ratelimit-remaining-tokens, x-ratelimit-reset-requests, x-ratelimit-reset-tokens"
)
Headers = list[tuple[bytes, bytes]]


class Cors:
    """ASGI middleware outside of authentication: browsers send preflights without a key."""

    def __init__(self, app: ASGIApp, origins: Collection[str]) -> None:
        self._app = app
        self._origins = normalize_origins(origins)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
            return
        origins = header_values(scope, b"origin")
        is_allowed = len(origins) == 1 and origins[0].decode("latin-1") in self._origins
        headers = _allow(origins[0]) if is_allowed else [(b"vary", b"origin")]
        if is_allowed and _is_preflight(scope):
            await _answer_preflight(scope, headers, send)
        else:
            await self._app(scope, receive, _adding(headers, send))


def normalize_origins(origins: Collection[str]) -> frozenset[str]:
    """Return origins as browsers write them.

    >>> sorted(normalize_origins(["https://Chat.example:443", "http://localhost:3000"]))
    ['http://localhost:3000', 'https://chat.example']
    """
    ports: Mapping[str, str] = {"http": ":80", "https": ":443"}
    lowered = [origin.lower() for origin in origins]
    return frozenset(each.removesuffix(ports[each.partition(":")[0]]) for each in lowered)


def _allow(origin: bytes) -> Headers:
    return [
        (b"access-control-allow-origin", origin),
        (b"access-control-expose-headers", EXPOSED.encode()),
        (b"vary", b"origin"),
    ]


def _is_preflight(scope: Any) -> bool:
    return scope["method"] == "OPTIONS" and bool(
        header_values(scope, b"access-control-request-method")
    )


async def _answer_preflight(scope: Scope, headers: Headers, send: Any) -> None:
    asked = header_values(scope, b"access-control-request-headers")
    answer = [
        *headers,
        (b"access-control-allow-methods", METHODS.encode()),
        (b"access-control-max-age", str(MAX_AGE_S).encode()),
        *((b"access-control-allow-headers", names) for names in asked[:1]),
    ]
    await send({"type": "http.response.start", "status": 204, "headers": answer})
    await send({"type": "http.response.body", "body": b"", "more_body": False})


def _adding(headers: Headers, send: Any) -> Any:
    # Not a coroutine: it returns that of `send`, so that a token costs only one more call.
    def send_with_headers(message: Any) -> Any:
        if message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], *headers]}
        return send(message)

    return send_with_headers
