"""Errors as the API shows them: one table from exception to status, one shape.

Nothing that a client sends ends as a 5xx; what does is our fault or the engine's.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import msgspec
from litestar import Response
from litestar.exceptions import (
    HTTPException,
    MethodNotAllowedException,
    NotFoundException,
    ValidationException,
)
from msgspec import UNSET, UnsetType

from antiphon.domain import errors as er
from antiphon.entrypoints.http import signposts
from antiphon.entrypoints.http.dialects import OPENAI, Dialect, dialect_or_default
from antiphon.entrypoints.http.requests import HttpRequest, header, is_accepted, response_headers

logger = logging.getLogger("antiphon.http")

STATUS: Mapping[type[er.AntiphonError], int] = {
    er.Unauthenticated: 401,
    er.NotFound: 404,
    er.BodyTooLarge: 413,
    er.UnsupportedMediaType: 415,
    er.QueueFull: 429,
    er.QuotaExceeded: 429,
    er.TooManyRequests: 503,
    er.ServerShuttingDown: 503,
    er.IdempotencyKeyInUse: 503,
    er.EmbeddingsError: 503,
    er.RequestError: 400,
    er.EngineDead: 503,
    er.EngineError: 500,
    er.KeysUnavailable: 503,
    er.StoreError: 500,
    er.AntiphonError: 500,
}
"""The first type that fits counts; subclasses stand before their bases."""

RETRY_LATER = (429, 503)
HEADERS: Mapping[type[Exception], Mapping[str, str]] = {
    # The next request of this connection is better sent to another server.
    er.ServerShuttingDown: {"connection": "close"},
    # Clients would send it again because of its status, to no avail.
    er.QuotaExceeded: {"x-should-retry": "false"},
}

STORE_FAILED = "What this server keeps cannot be read or written now."
"""In place of the reason, which names machines and files: that is for the log."""

RETRY_AFTER_S = 1
MOST_TOLD = 1000
"""Characters of a message: it may repeat what a client sent, which may be megabytes."""


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    message: str
    type: str
    param: str | None = None
    code: str | None = None
    headers: dict[str, str] | UnsetType = UNSET


def error_body(
    status: int, message: str, param: str | None, code: str | None, dialect: Dialect = OPENAI
) -> ErrorBody:
    kind = dialect.error_type(status)
    if len(message) > MOST_TOLD:
        message = f"{message[: MOST_TOLD - 1]}…"
    return ErrorBody(message=message, type=kind, param=param, code=code)


def error_json(
    status: int,
    message: str,
    param: str | None,
    code: str | None,
    dialect: Dialect = OPENAI,
) -> bytes:
    """Return the body of an error; all four keys are always there."""
    return msgspec.json.encode({"error": error_body(status, message, param, code, dialect)})


def error_fields(exc: Exception) -> tuple[int, str, str | None, str | None]:
    """Return what a client is told of an error: status, message, param and code."""
    if not isinstance(exc, er.AntiphonError):
        return 500, "The server had an error.", None, "server_error"
    if isinstance(exc, er.StoreError) and not isinstance(exc, er.KeysUnavailable):
        return STATUS[er.StoreError], STORE_FAILED, None, "server_error"
    status = next(status for kind, status in STATUS.items() if isinstance(exc, kind))
    if isinstance(exc, er.RequestError):
        return status, exc.message, exc.param, exc.code
    # An engine that is gone will not answer a retry any better on this connection.
    return status, str(exc), None, "server_error"


class ExceptionHandlers:
    """The app's exception handlers; `stacks` logs the stack of every error that is answered."""

    def __init__(self, *, dialect: Dialect = OPENAI, stacks: bool = False) -> None:
        self._dialect = dialect
        self._stacks = stacks

    @property
    def handlers(self) -> dict[Any, Any]:
        return {
            er.AntiphonError: self.handle_antiphon_error,
            HTTPException: self.of_framework,
            Exception: self.unexpected,
        }

    def handle_antiphon_error(self, request: HttpRequest, exc: er.AntiphonError) -> Response[bytes]:
        self._log(request, exc)
        return self._answer(request, *error_fields(exc), HEADERS.get(type(exc)))

    def of_framework(self, request: HttpRequest, exc: HTTPException) -> Response[bytes]:
        self._log(request, exc)
        param, message = None, exc.detail
        if isinstance(exc, ValidationException) and isinstance(exc.extra, list) and exc.extra:
            first: Any = exc.extra[0]
            param = str(first.get("key") or "") or None
            message = str(first.get("message") or message)
            message = f"Invalid {param!r}: {message}"
        if isinstance(exc, NotFoundException):
            message = signposts.not_found(
                request.method, request.url.path, host=header(request, b"host")
            )
        if isinstance(exc, MethodNotAllowedException):
            message = signposts.not_allowed(request.method, request.url.path)
        code = "invalid_value" if isinstance(exc, ValidationException) else None
        return self._answer(request, exc.status_code, message, param, code, dict(exc.headers or {}))

    def unexpected(self, request: HttpRequest, exc: Exception) -> Response[bytes]:
        logger.error("%s %s failed", request.method, request.url.path, exc_info=exc)
        return self._answer(request, *error_fields(exc))

    def _answer(
        self,
        request: HttpRequest,
        status: int,
        message: str,
        param: str | None,
        code: str | None,
        headers: Mapping[str, str] | None = None,
    ) -> Response[bytes]:
        sent = {**(headers or {}), **response_headers(request)}
        if is_accepted(request):
            sent["x-should-retry"] = "false"
        if status in RETRY_LATER and "x-should-retry" not in sent:
            sent["retry-after"] = str(RETRY_AFTER_S)
        return Response(
            # A wrong name of a dialect is an error itself, and is told like any other.
            error_json(status, message, param, code, dialect_or_default(self._dialect, request)),
            status_code=status,
            media_type="application/json",
            headers=sent,
        )

    def _log(self, request: HttpRequest, exc: Exception) -> None:
        if self._stacks:
            logger.warning("%s %s", request.method, request.url.path, exc_info=exc)
        elif isinstance(exc, er.StoreError):
            logger.error("%s %s: %s", request.method, request.url.path, exc)
