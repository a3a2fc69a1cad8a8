"""Errors of the HTTP API: one table of exceptions and statuses, and one shape.

No client input causes a 5xx: those are the fault of the server or the engine.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Mapping
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
from antiphon.entrypoints.http.api.requests import (
    HttpRequest,
    header,
    is_accepted,
    note_error,
    request_id,
    response_headers,
)
from antiphon.entrypoints.http.pages import signposts
from antiphon.entrypoints.http.wire.dialects import OPENAI, Dialect, dialect_or_default

logger = logging.getLogger("antiphon.http")

STATUS: Mapping[type[er.AntiphonError], int] = {
    er.InvalidToken: 401,
    er.Unauthenticated: 401,
    er.Forbidden: 403,
    er.ForeignSite: 403,
    er.NotFound: 404,
    er.ContainerElsewhere: 409,
    er.AlreadyAnswered: 409,
    er.BodyTooLarge: 413,
    er.UnsupportedMediaType: 415,
    er.ConcurrencyLimitExceeded: 429,
    er.QuotaExceeded: 429,
    er.LimitExceeded: 429,
    er.ServerOverloaded: 503,
    er.ServerShuttingDown: 503,
    er.ServerUnreachable: 503,
    er.GuardFailed: 503,
    er.IdempotencyKeyInUse: 503,
    er.EmbeddingsRefused: 400,
    er.EmbeddingsError: 503,
    er.RequestError: 400,
    er.EngineDead: 503,
    er.EngineError: 500,
    er.KeysUnavailable: 503,
    er.IssuerUnavailable: 503,
    er.StoreError: 500,
    er.AntiphonError: 500,
}
"""The first matching type counts, so subclasses come before their bases."""

RETRY_LATER = (429, 503, 529)
HEADERS: Mapping[type[Exception], Mapping[str, str]] = {
    # So that the client's next request goes to another server.
    er.ServerShuttingDown: {"connection": "close"},
    # Clients would retry it because of its status, without success.
    er.QuotaExceeded: {"x-should-retry": "false"},
}

STORE_FAILED = "The server's store cannot be read or written at the moment."
"""The message for clients. The reason names machines and files, so it goes only to the log."""

TOO_LONG = "prompt is too long"
"""How the message begins by which clients of the Messages API know that they have to compact. Some
read how long it is and may be: `prompt is too long: 9000 tokens > 8192 maximum`."""

_LENGTHS = re.compile(r"(\d{1,12}) tokens of at most (\d{1,12})")

THREADS_UNSUPPORTED = "thread_unsupported_request"
"""The code by which clients of the Messages API know that they have to send all messages."""

RETRY_AFTER_S = 1
RETRY_HEADERS = frozenset({"retry-after", "x-should-retry"})
MAX_CLIENT_WAIT_S = 60.0
"""Official clients ignore a longer `retry-after` and would ask again much sooner."""

MAX_MESSAGE_LENGTH = 1000
"""In characters. A message may repeat client input, which may be megabytes."""


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
    if len(message) > MAX_MESSAGE_LENGTH:
        message = f"{message[: MAX_MESSAGE_LENGTH - 1]}…"
    return ErrorBody(message=message, type=kind, param=param, code=code)


def error_json(
    status: int,
    message: str,
    param: str | None,
    code: str | None,
    dialect: Dialect = OPENAI,
    *,
    request_id: str | None = None,
) -> bytes:
    """Return the body of an error. It always has all four keys, or those that its dialect has."""
    error = error_body(status, message, param, code, dialect)
    if not dialect.tags_errors:
        return msgspec.json.encode({"error": error})
    tagged: dict[str, Any] = {"type": error.type, "message": _self_contained(error)}
    if error.code == THREADS_UNSUPPORTED:
        tagged["details"] = {"error_code": error.code}
    return msgspec.json.encode({"type": "error", "error": tagged, "request_id": request_id})


def _self_contained(error: ErrorBody) -> str:
    """Return a message that also says what has keys of its own elsewhere."""
    if error.code == er.CONTEXT_EXCEEDED:
        lengths = _LENGTHS.search(error.message)
        return f"{TOO_LONG}: {lengths[1]} tokens > {lengths[2]} maximum" if lengths else TOO_LONG
    if error.param is None or repr(error.param) in error.message:
        return error.message
    return f"{error.param}: {error.message}"


def error_fields(exc: Exception) -> tuple[int, str, str | None, str | None]:
    """Return the status, message, param, and code of an error for the client."""
    if not isinstance(exc, er.AntiphonError):
        return 500, "The server had an error.", None, "server_error"
    if isinstance(exc, er.StoreError) and not isinstance(exc, er.KeysUnavailable):
        return STATUS[er.StoreError], STORE_FAILED, None, "server_error"
    status = next(status for kind, status in STATUS.items() if isinstance(exc, kind))
    if isinstance(exc, er.RequestError):
        return status, exc.message, exc.param, exc.code

    return status, str(exc), None, "server_error"


def error_headers(exc: Exception) -> Mapping[str, str]:
    """Return the headers that belong to this error, and no other of its status."""
    if isinstance(exc, er.UnsupportedContentEncoding):
        return {"accept-encoding": exc.accepted}  # RFC 9110, section 15.5.16
    if not isinstance(exc, er.LimitExceeded):
        return HEADERS.get(type(exc), {})
    wait_s = exc.retry_after_s
    retry: dict[str, str] = {}
    if wait_s is not None:
        retry["retry-after"] = str(max(math.ceil(wait_s), 1))
    if wait_s is None or wait_s > MAX_CLIENT_WAIT_S:
        retry["x-should-retry"] = "false"
    return {**exc.headers, **retry}


Handler = Callable[[HttpRequest, Any], Response[bytes]]


def _then_forget_frames(handle: Handler) -> Handler:
    """Return a handler that frees the frames of the error, and with them the request's body.

    Request and error refer to each other, so the body, perhaps megabytes, would stay until the
    interpreter next looks for such cycles.
    """

    def handle_and_forget(request: HttpRequest, exc: BaseException) -> Response[bytes]:
        response = handle(request, exc)
        forget_frames(exc)
        return response

    return handle_and_forget


def _choices_of(request: HttpRequest, name: str | None) -> str:
    """Return what a parameter of the address may be, as a sentence; "" if it has no list."""
    signature = request.scope["route_handler"].parsed_fn_signature
    field = signature.parameters.get(str(name))
    if field is None or not field.is_literal:
        return ""
    return f". Supported values are: {', '.join(map(repr, field.args))}."


def forget_frames(exc: BaseException | None) -> None:
    """Take the stack traces from an error that needs none anymore, and from its causes."""
    while exc is not None and exc.__traceback__ is not None:
        exc.__traceback__ = None
        exc = exc.__cause__ or exc.__context__


class ExceptionHandlers:
    """The app's exception handlers. `stacks` logs the stack trace of every error response."""

    def __init__(self, *, dialect: Dialect = OPENAI, stacks: bool = False) -> None:
        self._dialect = dialect
        self._stacks = stacks

    @property
    def handlers(self) -> dict[Any, Any]:
        return {
            er.AntiphonError: _then_forget_frames(self.handle_antiphon_error),
            HTTPException: _then_forget_frames(self.handle_http_exception),
            Exception: _then_forget_frames(self.handle_unexpected_error),
        }

    def handle_antiphon_error(self, request: HttpRequest, exc: er.AntiphonError) -> Response[bytes]:
        self._log(request, exc)
        return self._answer(request, *error_fields(exc), error_headers(exc))

    def handle_http_exception(self, request: HttpRequest, exc: HTTPException) -> Response[bytes]:
        self._log(request, exc)
        param, message = None, exc.detail
        if isinstance(exc, ValidationException) and isinstance(exc.extra, list) and exc.extra:
            first: Any = exc.extra[0]
            param = str(first.get("key") or "") or None
            message = str(first.get("message") or message)
            message = f"Invalid {param!r}: {message}{_choices_of(request, param)}"
        if isinstance(exc, NotFoundException):
            message = signposts.not_found(
                request.method, request.url.path, host=header(request, b"host")
            )
        if isinstance(exc, MethodNotAllowedException):
            message = signposts.not_allowed(request.method, request.url.path)
        code = "invalid_value" if isinstance(exc, ValidationException) else None
        return self._answer(request, exc.status_code, message, param, code, dict(exc.headers or {}))

    def handle_unexpected_error(self, request: HttpRequest, exc: Exception) -> Response[bytes]:
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
        all_headers = {**(headers or {}), **response_headers(request)}
        dialect = dialect_or_default(self._dialect, request)  # an unknown one is itself an error
        status = dialect.status(status)
        note_error(request, code or dialect.error_type(status))
        if is_accepted(request):
            all_headers["x-should-retry"] = "false"
        if status in RETRY_LATER and not RETRY_HEADERS.intersection(all_headers):
            all_headers["retry-after"] = str(RETRY_AFTER_S)
        return Response(
            error_json(status, message, param, code, dialect, request_id=request_id(request)),
            status_code=status,
            media_type="application/json",
            headers=all_headers,
        )

    def _log(self, request: HttpRequest, exc: Exception) -> None:
        if self._stacks:
            logger.warning("%s %s", request.method, request.url.path, exc_info=exc)
        elif isinstance(exc, er.StoreError):
            logger.error("%s %s: %s", request.method, request.url.path, exc)
        elif isinstance(exc, er.ModelBusy):  # not a limit of this server, whose code it has
            wait = "" if exc.retry_after_s is None else f", for {exc.retry_after_s:g} s"
            logger.warning("the model's server takes no more requests now%s", wait)
