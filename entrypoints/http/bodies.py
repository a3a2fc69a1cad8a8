"""Request bodies: refused at the door when they are no JSON, too deep or have too many values.

What passes here costs a bounded amount to read, to keep and to send back.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.application.support.threads import run_in_thread
from antiphon.domain.decoding import DecodedRequest, decode_any, decode_request
from antiphon.domain.errors import BodyTooLarge, RequestError, UnsupportedMediaType
from antiphon.domain.mcp import redact_secrets
from antiphon.domain.request import CreateResponse
from antiphon.entrypoints.http.requests import HttpRequest, header

_STRINGS = re.compile(rb'"[^"]*"')
_OPENING = b"[{"
_STRUCTURE = b'"[]{},'
_AFTER_BACKSLASH = b"\\/bfnrtu"
_ALL_BUT_STRUCTURE = bytes(sorted(set(range(256)) - set(_STRUCTURE)))
_ALL_BUT_ESCAPES_TOO = bytes(sorted(set(range(256)) - set(_STRUCTURE + _AFTER_BACKSLASH)))


class BodyLimits(Struct, frozen=True, kw_only=True):
    """`max_nodes` bounds values: memory grows by some hundred bytes for each of them."""

    max_bytes: int = 32 * 1024 * 1024
    max_depth: int = 64
    max_nodes: int = 200_000


async def read_body(request: HttpRequest, limits: BodyLimits) -> bytes:
    """Return the body of a JSON request.

    Raises: RequestError, UnsupportedMediaType, BodyTooLarge.
    """
    kind = header(request, b"content-type").partition(";")[0].strip().lower()
    if kind not in ("", "application/json") and not kind.endswith("+json"):
        raise UnsupportedMediaType(
            f"Send the request as 'application/json', not as {kind[:100]!r}."
        )
    body = await _received(request, limits.max_bytes)
    await run_in_thread(len(body), check_complexity, body, limits)
    return body


def decode_body(
    body: bytes, *, strict: bool, envelope: frozenset[str] = frozenset()
) -> DecodedRequest[CreateResponse]:
    """Read a request to create; `envelope` are fields that the transport adds to it.

    Raises: RequestError, also for an unknown field if `strict`.
    """
    decoded = decode_request(body)
    unknown = tuple(name for name in decoded.unknown if name not in envelope)
    decoded = DecodedRequest(request=decoded.request, unknown=unknown)
    if strict:
        reject_unknown_fields(decoded)
    return decoded


def redact_body(body: bytes) -> str:
    """Return a body that was read, without the secrets of the MCP servers that it names."""
    return msgspec.json.encode(_without_secrets(decode_any(body))).decode()


def _without_secrets(value: Any) -> Any:
    if isinstance(value, list):
        return [_without_secrets(each) for each in value]
    if isinstance(value, dict):
        return {name: _without_secrets(each) for name, each in redact_secrets(value).items()}
    return value


def reject_unknown_fields(decoded: DecodedRequest[Any]) -> None:
    """Raises: RequestError for the first field that the API does not have."""
    for name in decoded.unknown:
        raise RequestError(f"Unknown parameter: {name!r}.", param=name, code="unknown_parameter")


async def _received(request: HttpRequest, max_bytes: int) -> bytes:
    # Not `request.body()`, which does the same at twice the cost, most of it for a map of headers.
    length = header(request, b"content-length")
    if length.isdecimal() and int(length) > max_bytes:
        raise _too_large(max_bytes)  # before any of it is taken in
    parts: list[bytes] = []
    size = 0
    while True:
        message: Any = await request.receive()
        if message["type"] == "http.disconnect":
            raise RequestError("The client left before its request had arrived.")
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > max_bytes:
            raise _too_large(max_bytes)
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"The request body has more than {max_bytes} bytes.")


def check_complexity(body: bytes, limits: BodyLimits) -> None:
    """Raises: RequestError when the body is too deep or has too many values.

    >>> check_complexity(b'{"a": "[[[["}', BodyLimits(max_depth=1))
    """
    opened = body.count(b"[") + body.count(b"{")
    if opened <= limits.max_depth and body.count(b",") <= limits.max_nodes:
        return
    # Megabytes are only touched by what runs in C. First goes what is neither structure nor may
    # follow a backslash: removing it is cheap, and makes the rest short. Then escapes, since an
    # escaped quote ends no string; then the strings, of which only quotes are left.
    plain = body
    if b"\\" in body:
        plain = body.translate(None, _ALL_BUT_ESCAPES_TOO)
        plain = plain.replace(b"\\\\", b"").replace(b'\\"', b"")
    bare = _STRINGS.sub(b"", plain.translate(None, _ALL_BUT_STRUCTURE))
    if bare.count(b"[") + bare.count(b"{") + bare.count(b",") > limits.max_nodes:
        raise RequestError(
            f"The request body has more than {limits.max_nodes} values.", code="invalid_value"
        )
    depth = 0
    for byte in bare.replace(b",", b""):
        depth += 1 if byte in _OPENING else -1
        if depth > limits.max_depth:
            raise RequestError(
                f"The request body is nested more than {limits.max_depth} levels deep.",
                code="invalid_value",
            )
