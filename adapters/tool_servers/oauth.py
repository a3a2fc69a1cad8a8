"""Access tokens for an MCP server of the operator's: OAuth client credentials (RFC 6749, 4.4).

A token is kept in memory until shortly before it expires, and fetched anew if the MCP server does
not accept it. No message and no log line has the token or the secret.
"""

from __future__ import annotations

import asyncio
import http
import logging
import re
import time
from base64 import b64encode
from collections.abc import Callable, Mapping, Sequence
from typing import Literal
from urllib.parse import quote, urlencode

import msgspec
from msgspec import Struct

from antiphon.adapters.tool_servers.mcp import CallFailed, protocol_error
from antiphon.application.ports import Fetcher
from antiphon.domain.errors import FetchError
from antiphon.domain.offers.mcp import LOST

logger = logging.getLogger("antiphon.tools")

DEFAULT_LIFE_S = 300.0
"""For a token whose server does not say how long it is valid."""
MAX_LIFE_S = 24 * 3600.0
EARLY_S = 30.0
"""A token is fetched anew so long before it expires, or halfway if it lives for less than twice."""

_TOKEN = re.compile(r"[!-~]{1,16384}")
_ERROR_CODE = re.compile(r"[a-z_]{1,64}")
"""The codes of RFC 6749, section 5.2. Descriptions could repeat what was sent."""


class OauthClient(Struct, frozen=True, kw_only=True):
    """This server as a client of an authorization server."""

    token_url: str
    client_id: str
    client_secret: str
    scopes: Sequence[str] = ()
    audience: str | None = None
    auth: Literal["basic", "post"] = "basic"

    def __repr__(self) -> str:
        return f"OauthClient({self.client_id!r})"

    def request(self) -> tuple[Mapping[str, str], bytes]:
        """Return the headers and the body of a request for a token.

        >>> client = OauthClient(token_url="", client_id="a:b", client_secret="s", scopes="xy")
        >>> headers, body = client.request()
        >>> headers["authorization"], body
        ('Basic YSUzQWI6cw==', b'grant_type=client_credentials&scope=x+y')
        """
        fields = {"grant_type": "client_credentials"}
        if self.scopes:
            fields["scope"] = " ".join(self.scopes)
        if self.audience is not None:
            fields["audience"] = self.audience
        headers = {
            "content-type": "application/x-www-form-urlencoded",
            "accept": "application/json",
        }
        if self.auth == "post":
            fields |= {"client_id": self.client_id, "client_secret": self.client_secret}
        else:
            login = f"{quote(self.client_id, safe='')}:{quote(self.client_secret, safe='')}"
            headers["authorization"] = f"Basic {b64encode(login.encode()).decode()}"
        return headers, urlencode(fields).encode()


class _Answer(Struct, frozen=True):
    access_token: str
    token_type: str = "bearer"
    expires_in: float | str | None = None


class _Refusal(Struct, frozen=True):
    error: str = ""


class AccessTokens:
    """The tokens of one server: one at a time, which all sessions use."""

    def __init__(
        self,
        label: str,
        client: OauthClient,
        fetcher: Fetcher,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._label = label
        self._client = client
        self._fetcher = fetcher
        self._now = now
        self._token = ""
        self._fetch_at = 0.0
        self._fetching = asyncio.Lock()

    def secrets(self) -> Sequence[str]:
        """Return what no message may contain."""
        return [self._client.client_secret, *([self._token] if self._token else [])]

    async def get(self) -> str:
        """Return a token that should be valid. Raises: CallFailed."""
        async with self._fetching:
            if not self._token or self._now() >= self._fetch_at:
                self._token, life_s = await self._fetch()
                self._fetch_at = self._now() + max(life_s - EARLY_S, life_s / 2)
            return self._token

    def drop(self, token: str) -> None:
        """Have the next token fetched, unless another one has come meanwhile."""
        if token == self._token:
            self._token = ""

    async def _fetch(self) -> tuple[str, float]:
        headers, body = self._client.request()
        try:
            answer = await self._fetcher.fetch(
                self._client.token_url, tenant="", method="POST", headers=headers, content=body
            )
        except FetchError:
            raise self._failure("the authorization server could not be reached") from None
        if answer.status != http.HTTPStatus.OK:
            raise self._failure(f"status {answer.status}{_code_in(answer.content)}")
        try:
            found = msgspec.json.decode(answer.content, type=_Answer)
            life_s = DEFAULT_LIFE_S if found.expires_in is None else float(found.expires_in)
        except (msgspec.MsgspecError, ValueError, RecursionError):
            raise self._failure("the answer has no token") from None
        if found.token_type.lower() != "bearer" or not _TOKEN.fullmatch(found.access_token):
            raise self._failure("the answer has no bearer token")
        return found.access_token, min(max(life_s, 0.0), MAX_LIFE_S)

    def _failure(self, reason: str) -> CallFailed:
        logger.warning("no access token for the MCP server %r: %s", self._label, reason)
        return protocol_error(LOST, "No access token could be fetched for the MCP server.")


def _code_in(body: bytes) -> str:
    try:
        code = msgspec.json.decode(body, type=_Refusal).error
    except (msgspec.MsgspecError, ValueError, RecursionError):
        return ""
    return f", {code}" if _ERROR_CODE.fullmatch(code) else ""
