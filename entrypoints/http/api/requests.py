"""Parts of a request that every handler needs: its headers, its id, its tenant."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from litestar import Request
from litestar.connection import ASGIConnection
from litestar.types import Scope

from antiphon.adapters.ids import new_id
from antiphon.application.resources.limits import rate_limit_headers
from antiphon.application.telemetry.log_context import RESPONSE_ID
from antiphon.application.telemetry.request_context import DOOR, RequestContext
from antiphon.domain.access.callers import Caller
from antiphon.domain.access.limits import LimitState
from antiphon.domain.kinds.multi_agent import MULTI_AGENT_BETA

HttpRequest = Request[Any, Any, Any]
Connection = ASGIConnection[Any, Any, Any, Any]

REQUEST_ID_HEADER = "x-request-id"
MESSAGES = "/v1/messages"
MODELS = "/v1/models"
VERSION_HEADER = b"anthropic-version"
"""Each client of the Messages API sends it. Its value has no effect."""
REPLAYED_HEADER = "idempotent-replayed"
IGNORED_HEADER = "x-antiphon-ignored"
MAX_REQUEST_ID = 128
MAX_IGNORED = 1000
TRACE_HEADERS = ("traceparent", "tracestate")
_REQUEST_ID = REQUEST_ID_HEADER.encode()
_BETA_HEADER = b"openai-beta"
_TRACE_HEADERS = tuple((name, name.encode()) for name in TRACE_HEADERS)


def headers_of(scope: Scope) -> dict[bytes, bytes]:
    """Return the headers by name; the first one counts if there are several of a name."""
    return dict(reversed([*scope["headers"]]))


def header_values(scope: Scope, name: bytes) -> list[bytes]:
    """Return all values of a header, including empty ones."""
    return [value for key, value in scope["headers"] if key == name]


def header(request: Connection, name: bytes) -> str:
    """Return a header's value, or "". `request.headers` would first build a map of all headers."""
    for key, value in request.scope["headers"]:
        if key == name:
            return value.decode("latin-1")
    return ""


def tenant_of(request: Connection) -> str:
    """Return the tenant of the request, as set by `auth.py`."""
    return caller_of(request).tenant


def caller_of(request: Connection) -> Caller:
    """Return who sent the request, as set by `auth.py`."""
    caller: Caller = request.auth
    return caller


def speaks_messages(scope: Scope) -> bool:
    """Return whether a client of the Messages API sends the request, which gets its answers."""
    path = scope["path"]
    if path.startswith(MESSAGES):
        return path[len(MESSAGES) :][:1] in ("", "/")
    is_of_models = path.startswith(MODELS) and path[len(MODELS) :][:1] in ("", "/")
    return is_of_models and bool(header_values(scope, VERSION_HEADER))


def request_id(request: Connection) -> str:
    """Return the request's id: the client's own if it is valid, or a new one."""
    return request_id_in(request.scope)


def request_id_in(scope: Scope) -> str:
    """Return the id of the request with this scope."""
    state = scope["state"]
    if "request_id" not in state:
        client_id = headers_of(scope).get(_REQUEST_ID, b"").decode("latin-1")
        is_printable = client_id.isascii() and client_id.isprintable()
        is_valid = 0 < len(client_id) <= MAX_REQUEST_ID and is_printable
        state["request_id"] = client_id if is_valid else new_id("req")
    known_id: str = state["request_id"]
    return known_id


def accept(request: Connection) -> None:
    """Mark the request as accepted: from now on, a retry would run it twice."""
    request.scope["state"]["is_accepted"] = True


def note_response(request: Connection, response_id: str) -> None:
    """Name the response of the request in the log, and in all lines that the request logs now."""
    request.scope["state"]["response_id"] = response_id
    RESPONSE_ID.set(response_id)


def note_error(request: Connection, error: str) -> None:
    """Name the code, or the type, of the error that answers the request, for the log."""
    request.scope["state"]["error"] = error


def is_relayed(request: Connection) -> bool:
    """Whether another server has relayed the request, so that it is answered here."""
    return "relayed" in request.scope["state"]


def is_accepted(request: Connection) -> bool:
    return "is_accepted" in request.scope["state"]


def knows_agents(request: Connection) -> bool:
    """Return whether the client says that it knows responses with sub-agents."""
    values = header_values(request.scope, _BETA_HEADER)
    betas = (each.strip() for value in values for each in value.decode("latin-1").split(","))
    return MULTI_AGENT_BETA in betas


def request_context(
    request: Connection, *, shares_connection: bool = False, door: str = DOOR
) -> RequestContext:
    """Return what a run knows of the request, which has arrived now."""
    headers = headers_of(request.scope)
    trace_headers = {}
    for name, key in _TRACE_HEADERS:
        if value := headers.get(key):
            trace_headers[name] = value.decode("latin-1")
    return RequestContext(
        request_id=request_id_in(request.scope),
        trace_headers=trace_headers,
        received_at=time.time(),
        shares_connection=shares_connection,
        door=door,
    )


def response_headers(
    request: Connection, ignored: Sequence[str] = (), rate_limits: Sequence[LimitState] = ()
) -> dict[str, str]:
    """Return a response's headers. `ignored` names what had no effect (docs/decisions/0018);
    `rate_limits` is what the caller's key has used.
    """
    headers = {REQUEST_ID_HEADER: request_id_in(request.scope), "cache-control": "no-store"}
    if speaks_messages(request.scope):
        headers["request-id"] = headers[REQUEST_ID_HEADER]
    if ignored:
        # Clients choose field names, so characters that a header cannot hold are replaced.
        names = "".join(c if c.isascii() and c.isprintable() else "?" for c in ", ".join(ignored))
        headers[IGNORED_HEADER] = names[:MAX_IGNORED]
    if rate_limits:
        headers.update(rate_limit_headers(rate_limits))
    return headers
