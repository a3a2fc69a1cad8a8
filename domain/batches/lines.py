"""The lines of a batch's files: requests in, answers and errors out, each a JSON object."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Raw, Struct

from antiphon.domain.batches.batch import MAX_LINES, BatchError
from antiphon.domain.bounds import Name
from antiphon.domain.errors import RequestError
from antiphon.domain.requests.decoding import read

MAX_ERRORS = 100
"""Errors that a batch lists; more would only repeat them."""

EXPIRED = "batch_expired"
FULL = "output_too_large"
SUCCESS_BELOW = 400

_encode = msgspec.json.Encoder().encode

CustomId = Annotated[str, Meta(min_length=1, max_length=512)]


class RequestLine(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A line of the input file."""

    custom_id: CustomId
    method: Name
    url: Name
    body: Raw


class _Unsupported(Struct, frozen=True):
    """Fields of a body that ask for what a batch cannot have."""

    stream: Any = None
    background: Any = None


class LineAnswer(Struct, frozen=True, kw_only=True):
    """The answer to one request: `body` is JSON.

    `retry_after_s`: the request was refused for now, and may be sent again after so many seconds.
    """

    status_code: int
    request_id: str
    body: bytes
    retry_after_s: float | None = None

    @property
    def is_failure(self) -> bool:
        return self.status_code >= SUCCESS_BELOW


class _AnsweredRequest(Struct, frozen=True):
    status_code: int
    request_id: str
    body: Raw


class LineError(Struct, frozen=True):
    code: str
    message: str


class _ResultLine(Struct, frozen=True):
    id: str
    custom_id: str
    response: _AnsweredRequest | None
    error: LineError | None


_decode_line = msgspec.json.Decoder(RequestLine).decode
_decode_body = msgspec.json.Decoder(_Unsupported).decode


def read_line(line: bytes) -> RequestLine:
    """Return the request of a line. Raises: RequestError."""
    request: RequestLine = read(_decode_line, line, "", what="The line")
    return request


def answered_line(line_id: str, custom_id: str, answer: LineAnswer) -> bytes:
    """Return the line of the output or error file for a request that was answered."""
    response = _AnsweredRequest(answer.status_code, answer.request_id, Raw(answer.body))
    return _encode(_ResultLine(line_id, custom_id, response, None)) + b"\n"


def error_line(line_id: str, custom_id: str, code: str, message: str) -> bytes:
    """Return the line of the error file for a request that was not sent."""
    return _encode(_ResultLine(line_id, custom_id, None, LineError(code, message))) + b"\n"


class CheckLines:
    """Checks the lines of an input file, one after another; `errors` says what is wrong."""

    def __init__(self, endpoint: str, *, max_lines: int = MAX_LINES) -> None:
        self._endpoint = endpoint
        self._max_lines = max_lines
        self._custom_ids: set[str] = set()
        self._errors: list[BatchError] = []
        self.count = 0

    @property
    def is_over(self) -> bool:
        """Whether more lines would change nothing."""
        return len(self._errors) >= MAX_ERRORS or self.count > self._max_lines

    @property
    def errors(self) -> Sequence[BatchError]:
        if self.count > self._max_lines:
            message = f"The file has more than {self._max_lines} requests."
            return [BatchError(code="too_many_requests", message=message)]
        if not self.count:
            return [BatchError(code="empty_file", message="The file has no requests.")]
        return self._errors

    def add(self, number: int, line: bytes) -> None:
        """Check the line with this number, from 1 on."""
        self.count += 1
        try:
            request = read_line(line)
            self._check(request)
        except RequestError as error:
            code = "invalid_json_line" if error.code == "invalid_json" else error.code
            self.add_error(number, code or "invalid_value", error.message, error.param)

    def add_error(self, number: int, code: str, message: str, param: str | None = None) -> None:
        self._errors.append(BatchError(code=code, message=message, param=param, line=number))

    def _check(self, request: RequestLine) -> None:
        if request.custom_id in self._custom_ids:
            raise _wrong(
                "custom_id",
                "duplicate_custom_id",
                f"The custom_id {request.custom_id[:100]!r} is that of an earlier line.",
            )
        self._custom_ids.add(request.custom_id)
        if request.method != "POST":
            raise _wrong(
                "method", "invalid_method", f"It must be 'POST', not {request.method[:100]!r}."
            )
        if request.url != self._endpoint:
            raise _wrong(
                "url",
                "invalid_url",
                f"It must be {self._endpoint!r}, as the batch says, not {request.url[:100]!r}.",
            )
        if not bytes(request.body).startswith(b"{"):
            raise _wrong("body", "invalid_type", "It must be an object.")
        unsupported = _unsupported_in(request.body)
        if unsupported is not None:
            raise _wrong(
                f"body.{unsupported}",
                "unsupported_value",
                f"{unsupported!r} cannot be true in a batch.",
            )


def _unsupported_in(body: Raw) -> Literal["stream", "background"] | None:
    asked: _Unsupported = read(_decode_body, body, "body")
    if asked.stream is True:
        return "stream"
    return "background" if asked.background is True else None


def _wrong(param: str, code: str, message: str) -> RequestError:
    return RequestError(message, param=param, code=code)
