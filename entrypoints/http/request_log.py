"""One line of the log for each request, at its end."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import quote

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Receive, Scope, Send

from antiphon.application.telemetry.log_context import REQUEST_ID, RESPONSE_ID
from antiphon.application.telemetry.recorder import in_microseconds
from antiphon.entrypoints.http.access.credentials import HEALTH
from antiphon.entrypoints.http.api.requests import request_id_in
from antiphon.entrypoints.http.console.pages import PUBLIC_PATHS
from antiphon.entrypoints.process.log_format import FIELDS, LazyMessage, LazyRecord

logger = logging.getLogger("antiphon.access")

QUIET_PATHS = HEALTH | PUBLIC_PATHS | {"/metrics"}
"""What machines ask every few seconds, and the console's files: logged as `debug`."""

STARTS = frozenset({"http.response.start", "websocket.http.response.start"})
CLIENT_LEFT = 499
"""The status of a request whose client has left before the answer: nobody gets it."""

MAX_PATH = 200
"""Characters of a path that are logged."""

REPORT_INTERVAL_S = 1.0


class EndedRequest(LazyMessage, frozen=True, kw_only=True):
    """A request that has been answered. `route` is its path without ids, "" if there is none.

    `error` is the code of the error that answered it, or its type. `client_left`: before the end
    of a stream.
    `seconds` is its whole time, `first_byte_seconds` the time to the head of the answer.
    """

    method: str
    path: str
    route: str
    status: int
    seconds: float
    first_byte_seconds: float | None
    key: str
    tenant: str
    response_id: str
    request_id: str
    error: str = ""
    client_left: bool = False

    def __str__(self) -> str:
        """Return its line of the log."""
        status = str(self.status)
        if self.client_left or self.status == CLIENT_LEFT:
            status = f"{status} client left"
        path = quote(self.path[:MAX_PATH], safe="/:@!$&'()*+,;=~")
        parts = [self.method, path, status, f"{self.seconds:.3f} s"]
        if self.first_byte_seconds is not None:
            parts.append(f"first byte {self.first_byte_seconds:.3f} s")
        parts += [
            f"{name}={value}"
            for name, value in (
                ("error", self.error),
                ("key", self.key),
                ("response", self.response_id),
            )
            if value
        ]
        return " ".join(parts)

    def fields(self) -> Mapping[str, Any]:
        optional = (
            ("error", self.error),
            ("client_left", self.client_left),
            ("key", self.key),
            ("response_id", self.response_id),
        )
        fields: dict[str, Any] = {
            "method": self.method,
            "path": self.path[:MAX_PATH],
            "status": self.status,
            "seconds": in_microseconds(self.seconds),
        }
        if self.first_byte_seconds is not None:
            fields["first_byte_seconds"] = in_microseconds(self.first_byte_seconds)
        fields.update((name, value) for name, value in optional if value)
        return fields


OnRequestEnd = Callable[[EndedRequest], None]


class RequestLog:
    """ASGI middleware, outside of all others: it tells `on_end` of each request, and logs it."""

    def __init__(self, app: ASGIApp, on_end: OnRequestEnd | None = None) -> None:
        self._app = app
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started_at = time.perf_counter()
        answered_at: float | None = None
        status = 0
        has_left = False

        # Not a coroutine: each frame of a stream passes through here.
        def send_noting_status(message: Any) -> Any:
            nonlocal status, answered_at
            if message["type"] in STARTS:
                status, answered_at = message["status"], time.perf_counter()
            elif message["type"] == "websocket.accept":
                status, answered_at = 101, time.perf_counter()
            return send(message)

        # A handler that reads on may still answer, with an error that nobody gets.
        async def receive_noting_end() -> Any:
            nonlocal has_left
            message = await receive()
            has_left |= message["type"] == "http.disconnect" and answered_at is None
            return message

        scope.setdefault("state", {})
        REQUEST_ID.set(request_id_in(scope))
        RESPONSE_ID.set("")
        try:
            await self._app(scope, receive_noting_end, send_noting_status)
        finally:
            self._report(
                EndedRequest(
                    method=scope["method"] if scope["type"] == ScopeType.HTTP else "WEBSOCKET",
                    path=scope["path"],
                    route=str(scope.get("path_template") or ""),
                    status=CLIENT_LEFT if has_left else status or CLIENT_LEFT,
                    seconds=time.perf_counter() - started_at,
                    first_byte_seconds=None if answered_at is None else answered_at - started_at,
                    key=getattr(scope.get("auth"), "key_name", ""),
                    tenant=getattr(scope.get("auth"), "tenant", ""),
                    response_id=str(
                        scope["state"].get("response_id")
                        or scope.get("path_params", {}).get("response_id")
                        or ""
                    ),
                    request_id=scope["state"]["request_id"],
                    error=scope["state"].get("error") or "",
                    client_left=scope["state"].get("client_left", False),
                )
            )

    def _report(self, ended: EndedRequest) -> None:
        if self._on_end is not None:
            self._on_end(ended)
        level = _level_of(ended)
        if logger.isEnabledFor(level):
            logger.handle(LazyRecord(logger.name, level, ended))


def log_message(*, status: str, seconds: float, key: str, response_id: str) -> None:
    """Log the end of a response over a WebSocket; `status` is its own, or an error's code."""
    fields = {"method": "MESSAGE", "status": status, "seconds": round(seconds, 6), "key": key}
    shown = {name: value for name, value in (("key", key), ("response", response_id)) if value}
    parts = ["MESSAGE", status, f"{seconds:.3f} s", *(f"{n}={v}" for n, v in shown.items())]
    logger.info(" ".join(parts), extra={FIELDS: {**fields, "response_id": response_id}})


class RefusalLog:
    """Logs requests that were refused before the app saw them: some at once, the rest as a count.

    Anybody can send such requests, as fast as a connection can carry them.
    """

    def __init__(self) -> None:
        self._unlogged: dict[int, int] = {}
        self._timer: asyncio.TimerHandle | None = None

    def add(self, status: int, reason: str) -> None:
        if self._timer is not None:
            self._unlogged[status] = self._unlogged.get(status, 0) + 1
            return
        logger.info("refused: %d %s", status, reason, extra={FIELDS: {"status": status}})
        self._timer = asyncio.get_running_loop().call_later(REPORT_INTERVAL_S, self._report)

    def _report(self) -> None:
        unlogged, self._unlogged, self._timer = self._unlogged, {}, None
        for status, count in sorted(unlogged.items()):
            fields = {"status": status, "count": count}
            logger.info("refused: %d, %d times more", status, count, extra={FIELDS: fields})


def _level_of(ended: EndedRequest) -> int:
    if ended.path in QUIET_PATHS:
        return logging.DEBUG
    if ended.status < 500:
        return logging.INFO  # what clients do wrong must not fill the log with warnings
    # 503 is expected: the server is full, starting or stopping, or a model is not there.
    return logging.WARNING if ended.status == 503 else logging.ERROR
