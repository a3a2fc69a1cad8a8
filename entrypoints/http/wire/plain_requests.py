"""Requests as handlers know them: a HEAD is a GET without a body, and a body is not compressed."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Mapping
from typing import Any

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from antiphon.domain.access.rights import READING_METHODS
from antiphon.domain.errors import RequestError, UnsupportedContentEncoding
from antiphon.entrypoints.http.access.refusals import refuse_request
from antiphon.entrypoints.http.api.requests import header_values
from antiphon.entrypoints.http.wire.dialects import OPENAI, Dialect

PORTION_BYTES = 64 * 1024
"""How much of a body is decoded in one call, which takes some 0.2 ms."""

RAW, ZLIB, GZIP = -zlib.MAX_WBITS, zlib.MAX_WBITS, zlib.MAX_WBITS + 16
"""What zlib calls the formats."""

WINDOWS: Mapping[str, int] = {"gzip": GZIP, "x-gzip": GZIP, "deflate": ZLIB}
"""The codings of a body that are decoded (RFC 9110, section 8.4.1)."""

ACCEPTED = "gzip, deflate"

DESCRIBES_CODED = frozenset({b"content-encoding", b"content-length"})
"""Headers of a coded body that say nothing of the decoded one."""


class PlainRequests:
    """ASGI middleware inside of authentication: nothing is decoded for a client without a key."""

    def __init__(self, app: ASGIApp, *, dialect: Dialect = OPENAI) -> None:
        self._app = app
        self._dialect = dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != ScopeType.HTTP:
            await self._app(scope, receive, send)
        elif scope["method"] == "HEAD":
            await self._answer_head(scope, receive, send)
        elif scope["method"] in READING_METHODS or not (coding := _coding_of(scope)):
            await self._app(scope, receive, send)
        elif coding in WINDOWS:
            headers = [each for each in scope["headers"] if each[0] not in DESCRIBES_CODED]
            scope["headers"] = headers
            await self._app(scope, DecodedBody(receive, coding).receive, send)
        else:
            error = UnsupportedContentEncoding(coding, ACCEPTED)
            await refuse_request(scope, send, error, self._dialect)

    async def _answer_head(self, scope: Any, receive: Receive, send: Send) -> None:
        # The server below looks at the method of its own scope, and the log at the route.
        as_get: Any = {**scope, "method": "GET"}
        try:
            await self._app(as_get, receive, _without_body(send))
        finally:
            scope.update({**as_get, "method": "HEAD"})


def _without_body(send: Any) -> Any:
    async def send_head(message: Any) -> None:
        if message["type"] == "http.response.start":
            await send(message)
            # A stream ends here: its client counts as disconnected.
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    return send_head


def _coding_of(scope: Scope) -> str:
    """Return the codings of a request's body as they were sent, or "" if it is plain."""
    values = header_values(scope, b"content-encoding")
    if not values:
        return ""
    codings = [coding.strip() for coding in b",".join(values).decode("latin-1").lower().split(",")]
    return ", ".join(coding for coding in codings if coding not in ("", "identity"))


class DecodedBody:
    """The `receive` of a request whose body is decoded in portions, as somebody reads it.

    So whoever reads it applies the limits of all bodies, and nothing beyond them is decoded.
    """

    def __init__(self, receive: Receive, coding: str) -> None:
        self._receive = receive
        self._coding = coding
        self._decoder: Any = None
        self._coded = b""
        self._has_more = True
        self._is_over = False

    async def receive(self) -> Any:
        """Raises: RequestError."""
        if self._is_over:
            return await self._receive()
        if self._has_more and not self._coded:
            message: Any = await self._receive()
            if message["type"] != "http.request":
                return message
            self._coded, self._has_more = message["body"], message.get("more_body", False)
        else:
            await asyncio.sleep(0)  # others run between two portions
        part = self._decode()
        self._is_over = not self._has_more and not self._coded and len(part) < PORTION_BYTES
        if self._is_over and self._decoder is not None and not self._decoder.eof:
            raise self._malformed("it is cut off")
        return {"type": "http.request", "body": part, "more_body": not self._is_over}

    def _decode(self) -> bytes:
        if self._decoder is None:
            if not self._coded:
                return b""
            self._decoder = zlib.decompressobj(self._window())
        try:
            part: bytes = self._decoder.decompress(self._coded, PORTION_BYTES)
        except zlib.error as exc:
            raise self._malformed(str(exc)) from None
        self._coded = self._decoder.unconsumed_tail
        if self._decoder.unused_data:
            raise self._malformed("something follows its end")
        return part

    def _window(self) -> int:
        # Some clients send `deflate` without the header of zlib's format, as some servers do.
        is_raw = self._coding == "deflate" and self._coded[0] & 0x0F != zlib.DEFLATED
        return RAW if is_raw else WINDOWS[self._coding]

    def _malformed(self, why: str) -> RequestError:
        return RequestError(
            f"The request body is not valid {self._coding!r}, as its header 'Content-Encoding' "
            f"says: {why}.",
            code="invalid_value",
        )
