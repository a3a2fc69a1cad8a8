"""Authentication: the outermost ASGI layer. Only the paths listed here are public.

It reads only the request's head, and decides by `scope["path"]`, which also selects the route. Any
other path than exactly a public one needs a credential (`identity.py`), and is normalized here, as
the router would do: so both see the same path.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from ipaddress import IPv6Address
from typing import Any

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send
from litestar.utils.path import normalize_path
from websockets.frames import CloseCode

from antiphon.application.support.tasks import work_for
from antiphon.domain import errors as er
from antiphon.domain.access.callers import ANYBODY, Caller
from antiphon.domain.access.rights import check_scopes
from antiphon.entrypoints.http.access.credentials import HEALTH
from antiphon.entrypoints.http.access.identity import Identity, identify
from antiphon.entrypoints.http.access.refusals import refuse_request
from antiphon.entrypoints.http.access.sites import Sites
from antiphon.entrypoints.http.api.parameters import MAX_PATH_CHARS
from antiphon.entrypoints.http.console.pages import PUBLIC_PATHS
from antiphon.entrypoints.http.wire.dialects import OPENAI, Dialect

logger = logging.getLogger("antiphon.auth")

PAGES = frozenset({"/", "/schema", "/schema/", "/schema/openapi.json", "/schema/openapi.yaml"})
"""Documentation for people. The pages are the same on every server of a version, except for the
models' names, which are shown only if no keys are needed."""

CONSOLE = PUBLIC_PATHS | {"/console/session"}
"""The console's files, and where browsers sign in. They have no data of anybody."""

PUBLIC = HEALTH | PAGES | CONSOLE

FROM_BROWSERS = frozenset({b"origin", b"sec-fetch-site"})
"""Headers by which a request from a page is known."""

MAX_REASON_BYTES = 123
"""How long a close reason may be (RFC 6455, section 5.5)."""

REVOKED = "The API key was revoked."

MAX_PORT = 65_535

_HOST = re.compile(
    rb"(?:[\w\-.~%!$&'()*+,;=]{0,255}|\[([0-9A-Fa-f:.]+)\])(?::(\d{0,5}))?", re.ASCII
)


class Authentication:
    """ASGI middleware that sets the Caller of each request in `scope["auth"]`.

    `identities` are the kinds of credentials that are accepted, or None if none is needed.
    """

    def __init__(
        self,
        app: ASGIApp,
        identities: Sequence[Identity] | None,
        *,
        sites: Sites | None = None,
        dialect: Dialect = OPENAI,
    ) -> None:
        self._app = app
        self._identities = identities
        self._sites = sites or Sites()
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            receive = await self._authenticate(scope, receive, send)
        except Exception as exc:
            await self._refuse(scope, send, exc)
        else:
            await self._app(scope, receive, send)

    async def _authenticate(self, scope: Scope, receive: Receive, send: Send) -> Receive:
        """Set the caller, and return the app's `receive`. Raises: AntiphonError."""
        hosts, is_from_browser = [], False
        for name, value in scope["headers"]:
            if name == b"host":
                hosts.append(value)
            elif name in FROM_BROWSERS:
                is_from_browser = True
        if len(hosts) > 1 or not all(map(_is_host, hosts)):
            raise er.RequestError("The header 'Host' is malformed.", code="invalid_value")
        if scope["path"] in HEALTH:
            return receive
        if hosts and hosts[0] not in self._sites.known_hosts:
            self._sites.check_host(hosts[0])
        if is_from_browser:
            self._sites.check_page(scope, b"".join(hosts))
        if scope["path"] in PUBLIC:
            return receive
        if len(scope["path"]) > MAX_PATH_CHARS:
            raise er.RequestError("The path is too long.", code="invalid_value")
        scope["path"] = normalize_path(scope["path"])
        if self._identities is None:
            scope["auth"] = ANYBODY
            work_for(ANYBODY.tenant)
            return receive
        caller = await identify(self._identities, scope)
        scope["auth"] = caller
        work_for(caller.tenant)
        if scope["type"] != ScopeType.WEBSOCKET:
            check_scopes(caller.policy, scope["method"], scope["path"])
            return receive
        check_scopes(caller.policy, "POST")  # its messages create responses
        return self._receive_until_invalid(scope, receive, send)

    def _receive_until_invalid(self, scope: Scope, receive: Receive, send: Send) -> Receive:
        """Return a `receive` that closes the WebSocket when its credential becomes invalid."""

        async def receive_message() -> Any:
            message = await receive()
            if message["type"] != "websocket.receive":
                return message
            if reason := await self._renew(scope):
                closing: Any = {
                    "type": "websocket.close",
                    "code": CloseCode.POLICY_VIOLATION,
                    "reason": reason,
                }
                await send(closing)
                return {"type": "websocket.disconnect", "code": CloseCode.POLICY_VIOLATION}
            return message

        return receive_message

    async def _renew(self, scope: Scope) -> str:
        """Set the caller again. Return why the credential is not valid anymore, or ""."""
        assert self._identities is not None
        before: Caller = scope["auth"]
        try:
            caller = await identify(self._identities, scope)
            check_scopes(caller.policy, "POST")
        except er.InvalidToken as exc:
            return exc.message.encode()[:MAX_REASON_BYTES].decode(errors="ignore")
        except (er.Unauthenticated, er.Forbidden):
            return REVOKED
        except (er.KeysUnavailable, er.IssuerUnavailable):
            # It was valid when the connection started, and its runs would be lost for nothing.
            return ""
        if caller.tenant != before.tenant:
            return REVOKED
        scope["auth"] = caller
        return ""

    async def _refuse(self, scope: Scope, send: Send, exc: Exception) -> None:
        if not isinstance(exc, er.RequestError | er.IssuerUnavailable):  # its fetches are logged
            logger.error("an API key could not be checked", exc_info=exc)
        await refuse_request(scope, send, exc, self._dialect)


def _is_host(value: bytes) -> bool:
    """Whether a URL can be made with this header, which errors and pages do."""
    match = _HOST.fullmatch(value)
    if match is None or int(match[2] or 0) > MAX_PORT:
        return False
    return match[1] is None or _is_ipv6(match[1])


def _is_ipv6(text: bytes) -> bool:
    try:
        IPv6Address(text.decode())
    except ValueError:
        return False
    return True
