"""Read request bodies, and refuse those that are not JSON, too deep, or have too many values.

A body that passes costs a bounded amount to decode, store, and send back.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext
from functools import partial
from io import BytesIO
from typing import Any, Concatenate, ParamSpec, TypeVar

import msgspec
from msgspec import Struct

from antiphon.application.support.bytes_in_work import FREE_BYTES, BytesInWork, HeldBytes
from antiphon.application.support.garbage import without_collections
from antiphon.application.support.threads import WALK_BYTES, run_in_thread
from antiphon.domain.access.redaction import without_secrets_and_files
from antiphon.domain.errors import BodyTooLarge, RequestError, UnsupportedMediaType
from antiphon.domain.requests.decoding import DecodedRequest, decode_any, decode_request
from antiphon.domain.requests.json_structure import count_values, structure_of
from antiphon.domain.requests.request import CreateResponse
from antiphon.entrypoints.http.api.requests import HttpRequest, header, tenant_of

P = ParamSpec("P")
T = TypeVar("T")

SHORT_BODY_BYTES = 16 * 1024
"""A shorter body is decoded at once: it needs no thread, and no collector that waits."""

_OPENING = b"[{"


class BodyLimits(Struct, frozen=True, kw_only=True):
    """Limits of a JSON body. `max_nodes` counts values; each takes some hundred bytes of memory.

    `bytes_in_work` counts the bytes of all bodies that are in work.
    """

    max_bytes: int = 32 * 1024 * 1024
    max_depth: int = 64
    max_nodes: int = 200_000
    bytes_in_work: BytesInWork = msgspec.field(default_factory=BytesInWork)


def hold_body(request: HttpRequest, limits: BodyLimits) -> AbstractContextManager[HeldBytes | None]:
    """Return what counts the bytes of a request's body, or nothing if it is announced as short."""
    length = header(request, b"content-length")
    if length.isdecimal() and int(length) <= FREE_BYTES:
        return nullcontext()
    return limits.bytes_in_work.hold(tenant_of(request), "requests")


async def receive_body(request: HttpRequest, limits: BodyLimits, held: HeldBytes | None) -> bytes:
    """Return the body of a JSON request, whose bytes are `held` until they are decoded.

    Raises: RequestError, UnsupportedMediaType, BodyTooLarge, ConcurrencyLimitExceeded,
    ServerOverloaded.
    """
    kind = header(request, b"content-type").partition(";")[0].strip().lower()
    if kind != "application/json" and not kind.endswith("+json"):
        given = f"as {kind[:100]!r}" if kind else "without a type"
        raise UnsupportedMediaType(
            f"Send the request with the header 'Content-Type: application/json', not {given}."
        )
    body = await _receive_body(request, limits.max_bytes, held)
    if len(body) < SHORT_BODY_BYTES:
        check_complexity(body, limits)
    else:
        await run_in_thread(len(body), check_complexity, body, limits)
    return body


@asynccontextmanager
async def receive_bytes(request: HttpRequest, limits: BodyLimits) -> AsyncIterator[bytes]:
    """Yield a body of any kind. Its bytes are in work until the block ends.

    Raises: RequestError, BodyTooLarge, ConcurrencyLimitExceeded, ServerOverloaded.
    """
    with hold_body(request, limits) as held:
        yield await _receive_body(request, limits.max_bytes, held)


async def decode_in_thread(
    body: bytes, decode: Callable[Concatenate[bytes, P], T], *args: P.args, **kwargs: P.kwargs
) -> T:
    """Return `decode(body, *args)`; run it in a thread if the body is long, or has many objects."""
    if len(body) < SHORT_BODY_BYTES:
        return decode(body, *args, **kwargs)
    work = partial(without_collections, decode, body, *args, **kwargs)
    return await run_in_thread(len(body) + WALK_BYTES * body.count(b"{"), work)


def decode_body(
    body: bytes, *, strict: bool, envelope: frozenset[str] = frozenset()
) -> DecodedRequest[CreateResponse]:
    """Decode a request to create a response. `envelope` names fields that the transport adds.

    Raises: RequestError, also for an unknown key if `strict`.
    """
    decoded = decode_request(body, envelope=envelope)
    if strict:
        reject_unknown_fields(decoded)
    return decoded


def redact_body(body: bytes) -> str:
    """Return a decodable body without the secrets of MCP servers, sealed texts and files."""
    return msgspec.json.encode(without_secrets_and_files(decode_any(body))).decode()


def reject_unknown_fields(decoded: DecodedRequest[Any]) -> None:
    """Raises: RequestError for the first key that the API does not have."""
    for name in decoded.unknown:
        raise RequestError(f"Unknown parameter: {name!r}.", param=name, code="unknown_parameter")


async def _receive_body(request: HttpRequest, max_bytes: int, held: HeldBytes | None) -> bytes:
    # `request.body()` costs twice as much, mostly to build a map of all headers.
    length = header(request, b"content-length")
    if length.isdecimal() and int(length) > max_bytes:
        raise _too_large(max_bytes)  # before reading any of it
    part, has_more = await _receive_part(request)
    if not has_more and len(part) <= max_bytes:
        return part
    # Unlike a joined list of parts, it never holds the bytes twice. An error keeps this frame until
    # the garbage collector runs, and would keep the bytes with it.
    with BytesIO() as body:
        while True:
            size = body.tell() + len(part)
            if size > max_bytes:
                raise _too_large(max_bytes)
            if held is not None:
                held.resize(size)
            body.write(part)
            if not has_more:
                return body.getvalue()
            part, has_more = await _receive_part(request)


async def _receive_part(request: HttpRequest) -> tuple[bytes, bool]:
    message: Any = await request.receive()
    if message["type"] == "http.disconnect":
        raise RequestError("The client disconnected before its request had arrived.")
    return message.get("body", b""), bool(message.get("more_body"))


def _too_large(max_bytes: int) -> BodyTooLarge:
    return BodyTooLarge(f"The request body has more than {max_bytes} bytes.")


def _opens_few(body: bytes, most: int) -> bool:
    """Return whether there are at most this many brackets, also those in strings.

    It looks no further than needed: to count all of them would take as long as all that follows.
    """
    for bracket in (b"[", b"{"):
        at = body.find(bracket)
        while at >= 0:
            most -= 1
            if most < 0:
                return False
            at = body.find(bracket, at + 1)
    return True


def check_complexity(body: bytes, limits: BodyLimits) -> None:
    """Check the limits of a body. Raises: RequestError if it is too deep or has too many values.

    >>> check_complexity(b'{"a": "[[[["}', BodyLimits(max_depth=1))
    """
    if _opens_few(body, limits.max_depth) and body.count(b",") <= limits.max_nodes:
        return
    bare = structure_of(body)
    if count_values(bare) > limits.max_nodes:
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
