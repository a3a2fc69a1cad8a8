"""What every handler needs of a request: its type, its id, the headers of its answer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.types import Scope

from antiphon.adapters.ids import new_id

HttpRequest = Request[Any, Any, Any]
Connection = ASGIConnection[Any, Any, Any, Any]

REQUEST_ID_HEADER = "x-request-id"
REPLAYED_HEADER = "idempotent-replayed"
IGNORED_HEADER = "x-antiphon-ignored"
MAX_REQUEST_ID = 128
MAX_IGNORED = 1000
TRACE_HEADERS = ("traceparent", "tracestate")


def header_values(scope: Scope, name: bytes) -> list[bytes]:
    """Return what was sent under the name of a header, each time, be it empty."""
    return [value for key, value in scope["headers"] if key == name]


def header(request: Connection, name: bytes) -> str:
    """Return a header, or "". `request.headers` would first build a map of all of them."""
    for key, value in request.scope["headers"]:
        if key == name:
            return value.decode("latin-1")
    return ""


def tenant_of(request: Connection) -> str:
    """Return whose objects the request may see, as `auth.py` found out."""
    tenant: str = request.auth
    return tenant


def request_id(request: Connection) -> str:
    """Return the request's id: the client's own, if it sent a plain one, else a fresh one."""
    state = request.scope["state"]
    if "request_id" not in state:
        given = header(request, REQUEST_ID_HEADER.encode())
        plain = 0 < len(given) <= MAX_REQUEST_ID and given.isascii() and given.isprintable()
        state["request_id"] = given if plain else new_id("req")
    known: str = state["request_id"]
    return known


def accept(request: Connection) -> None:
    """Note that what fails from now on has begun: whoever sends it again, runs it twice."""
    request.scope["state"]["is_accepted"] = True


def is_accepted(request: Connection) -> bool:
    return "is_accepted" in request.scope["state"]


def trace_headers(request: Connection) -> dict[str, str]:
    """Return the headers by which the client's traces go on in the engine."""
    found = {name: header(request, name.encode()) for name in TRACE_HEADERS}
    return {name: value for name, value in found.items() if value}


def response_headers(request: Connection, ignored: Sequence[str] = ()) -> dict[str, str]:
    """Return the headers of an answer; `ignored` are fields
    that had no effect (docs/decisions/0018)."""
    headers = {REQUEST_ID_HEADER: request_id(request)}
    if ignored:
        # Field names are the client's own: only what a header can hold is repeated.
        shown = "".join(c if c.isascii() and c.isprintable() else "?" for c in ", ".join(ignored))
        headers[IGNORED_HEADER] = shown[:MAX_IGNORED]
    return headers
