"""Requests that the server sends to itself, for the lines of batches: they take the way of all
others through the app, but for the socket and the check of a credential.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any

from litestar.types import ASGIApp
from msgspec.structs import replace

from antiphon.application.ports import AnswerRequest
from antiphon.application.resources.keys import RefreshCaller
from antiphon.domain.access.callers import Caller
from antiphon.domain.batches.lines import LineAnswer
from antiphon.domain.errors import AntiphonError, ServerShuttingDown
from antiphon.entrypoints.http.access.refusals import refuse_request
from antiphon.entrypoints.http.api.requests import REQUEST_ID_HEADER
from antiphon.entrypoints.http.errors import RETRY_AFTER_S, RETRY_LATER
from antiphon.entrypoints.http.wire.dialects import OPENAI, Dialect

logger = logging.getLogger("antiphon.batches")

_RETRY_AFTER, _SHOULD_RETRY = b"retry-after", b"x-should-retry"


class InProcessRequests(AnswerRequest):
    """Sends requests to `app` once it is set: the app is made of services that send them."""

    def __init__(self, refresh: RefreshCaller, *, dialect: Dialect = OPENAI) -> None:
        self._refresh = refresh
        self._dialect = dialect
        self.app: ASGIApp | None = None

    async def __call__(self, caller: Caller, url: str, body: bytes) -> LineAnswer:
        if self.app is None:
            raise ServerShuttingDown
        exchange = _Exchange(body)
        scope = _scope(url, body)
        try:
            scope["auth"] = lowest(await self._refresh(caller))
            await self.app(scope, exchange.receive, exchange.send)
        except AntiphonError as error:
            await refuse_request(scope, exchange.send, error, self._dialect)
        except Exception as error:  # one request must not stop the others of its batch
            logger.exception("POST %s of a batch failed", url)
            exchange = _Exchange(b"")
            await refuse_request(scope, exchange.send, error, self._dialect)
        return exchange.answer()


def lowest(caller: Caller) -> Caller:
    """Return the caller with the lowest priority, and no other right less or more."""
    return replace(caller, policy=replace(caller.policy, service_tier="flex"))


def _scope(url: str, body: bytes) -> Any:
    headers = [
        (b"host", b"localhost"),
        (b"content-type", b"application/json"),
        (b"content-length", b"%d" % len(body)),
    ]
    return {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": "POST",
        "scheme": "http",
        "server": ("localhost", None),
        "client": None,
        "root_path": "",
        "path": url,
        "raw_path": url.encode(),
        "query_string": b"",
        "headers": headers,
        "state": {},
    }


class _Exchange:
    """One request and its answer. The client never disconnects: it stops its task instead."""

    def __init__(self, body: bytes) -> None:
        self._body: bytes | None = body
        self._status = 0
        self._headers: Mapping[bytes, bytes] = {}
        self._answer = bytearray()

    async def receive(self) -> Any:
        if self._body is None:
            await asyncio.Event().wait()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._status, self._headers = message["status"], dict(message["headers"])
        else:
            self._answer += message.get("body", b"")

    def answer(self) -> LineAnswer:
        headers = self._headers
        if not self._status:  # a client that has left gets no answer
            return LineAnswer(status_code=500, request_id="", body=b"{}", retry_after_s=1.0)
        may_retry = self._status in RETRY_LATER and headers.get(_SHOULD_RETRY) != b"false"
        return LineAnswer(
            status_code=self._status,
            request_id=headers.get(REQUEST_ID_HEADER.encode(), b"").decode("latin-1"),
            # In JSON, a line ends only where a space could stand as well.
            body=bytes(self._answer).replace(b"\n", b" "),
            retry_after_s=float(headers.get(_RETRY_AFTER, RETRY_AFTER_S)) if may_retry else None,
        )
