"""Who asks: the outermost layer. Nothing is let in without an API key but the paths listed here.

It reads the head of a request alone, and decides on `scope["path"]`, which is what routes are
matched by: no rewriting of paths can come between the two. What is not exactly a public path needs
a key, whatever a router would make of it.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from litestar.connection import ASGIConnection
from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from antiphon.application.resources.keys import FindTenant
from antiphon.domain import errors as er
from antiphon.entrypoints.http.asgi_responses import send_json
from antiphon.entrypoints.http.dialects import OPENAI, Dialect, dialect_or_default
from antiphon.entrypoints.http.errors import RETRY_AFTER_S, error_fields, error_json
from antiphon.entrypoints.http.requests import header_values, response_headers

logger = logging.getLogger("antiphon.auth")

HEALTH = frozenset({"/livez", "/readyz", "/health/live", "/health/ready"})
"""For orchestrators, which have no keys. They tell nothing of what is served."""

PAGES = frozenset({"/", "/schema", "/schema/", "/schema/openapi.json", "/schema/openapi.yaml"})
"""For people who do not know yet how to ask. They are the same on every server of a version, but
for the names of the models, which are only told where no keys are asked for."""

PUBLIC = HEALTH | PAGES

DEFAULT_TENANT = "default"
"""Whose all requests are where no keys are asked for."""

POLICY_VIOLATION = 1008
"""The close code of a connection whose key was revoked."""

_BEARER = re.compile(rb"bearer +([\x21-\x7e]{1,512}) *", re.IGNORECASE)
_HOST = re.compile(rb"([\w\-.~%!$&'()*+,;=]*|\[[0-9A-Fa-f:.]+\])(:\d{0,5})?", re.ASCII)


class Authentication:
    """An ASGI app in front of another, which finds the tenant of each request in `scope["auth"]`.

    `find_tenant` is None where no keys are asked for.
    """

    def __init__(
        self, app: ASGIApp, find_tenant: FindTenant | None, *, dialect: Dialect = OPENAI
    ) -> None:
        self._app = app
        self._find_tenant = find_tenant
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            receive = await self._let_in(scope, receive, send)
        except Exception as exc:
            await self._refuse(scope, send, exc)
        else:
            await self._app(scope, receive, send)

    async def _let_in(self, scope: Scope, receive: Receive, send: Send) -> Receive:
        """Write down the tenant, and return what the app reads from. Raises: AntiphonError."""
        hosts = header_values(scope, b"host")
        if len(hosts) > 1 or not all(map(_HOST.fullmatch, hosts)):
            raise er.RequestError("The header 'Host' is malformed.", code="invalid_value")
        if scope["path"] in PUBLIC:
            return receive
        if self._find_tenant is None:
            scope["auth"] = DEFAULT_TENANT
            return receive
        key = _key(scope)
        tenant = await self._find_tenant(key)
        if tenant is None:
            raise er.Unauthenticated("Incorrect API key provided.")
        scope["auth"] = tenant
        if scope["type"] == ScopeType.WEBSOCKET:
            return self._while_known(key, tenant, receive, send)
        return receive

    def _while_known(self, key: str, tenant: str, receive: Receive, send: Send) -> Receive:
        """Return what a connection's messages come from, up to when its key is revoked."""

        async def received() -> Any:
            message = await receive()
            if message["type"] == "websocket.receive" and not await self._is_known(key, tenant):
                closing: Any = {
                    "type": "websocket.close",
                    "code": POLICY_VIOLATION,
                    "reason": "The API key was revoked.",
                }
                await send(closing)
                return {"type": "websocket.disconnect", "code": POLICY_VIOLATION}
            return message

        return received

    async def _is_known(self, key: str, tenant: str) -> bool:
        assert self._find_tenant is not None
        try:
            return await self._find_tenant(key) == tenant
        except er.KeysUnavailable:
            # It was known when the connection began, and what runs on it would be lost for nothing.
            return True

    async def _refuse(self, scope: Scope, send: Send, exc: Exception) -> None:
        if not isinstance(exc, er.RequestError):
            logger.error("an API key could not be checked", exc_info=exc)
        scope.setdefault("state", {})
        asked: ASGIConnection[Any, Any, Any, Any] = ASGIConnection(scope)
        status, message, param, code = error_fields(exc)
        body = error_json(status, message, param, code, dialect_or_default(self._dialect, asked))
        headers = response_headers(asked)
        if status == 401:
            headers["www-authenticate"] = "Bearer"
        if status == 503:
            headers["retry-after"] = str(RETRY_AFTER_S)
        await send_json(send, body, headers, status=status, to=scope["type"])


def _key(scope: Scope) -> str:
    """Return the key that a request bears. Raises: Unauthenticated."""
    given = header_values(scope, b"authorization")
    if not given:
        raise er.Unauthenticated(
            "You did not provide an API key. Send it in the header 'Authorization: Bearer KEY'."
        )
    found = _BEARER.fullmatch(given[0])
    if found is None or len(given) > 1:
        raise er.Unauthenticated(
            "The header 'Authorization' is malformed. It must be 'Authorization: Bearer KEY'."
        )
    return found[1].decode("ascii")
