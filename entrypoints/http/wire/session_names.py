"""The session that a request names: in a header, in `metadata`, or in a header of its client's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from antiphon.domain.history.sessions import NAME_KEY, NamedSession, read_session
from antiphon.domain.requests.decoding import DecodedRequest
from antiphon.domain.requests.request import CreateResponse

SESSION_HEADER = "x-antiphon-session"
"""Of a request, it names the session. Of an answer, it tells whether the response is part of it."""

CONVERSATION_HEADER = "x-antiphon-conversation"
"""Of an answer: the conversation that its response is in."""

_SESSION = SESSION_HEADER.encode()


def unheeded_session(request: CreateResponse) -> Sequence[str]:
    """Return where a request names a session, if it comes in a way that knows none."""
    return (f"metadata.{NAME_KEY}",) if NAME_KEY in (request.metadata or {}) else ()


class Named(Protocol):
    """A request that may name a session. `is_stateless`: its API knows no conversations."""

    @property
    def decoded(self) -> DecodedRequest[CreateResponse]: ...
    @property
    def is_stateless(self) -> bool: ...


def session_in(
    headers: Mapping[bytes, bytes], request: Named, client_headers: Sequence[str] = ()
) -> NamedSession | None:
    """Return the session of a request, None if it has none.

    `client_headers` are those in which clients send names of their own. Raises: RequestError.
    """
    if _SESSION in headers:
        name = headers[_SESSION].decode("latin-1")
        return read_session(name, SESSION_HEADER, is_stateless=request.is_stateless)
    metadata = request.decoded.request.metadata
    if metadata and (named := metadata.get(NAME_KEY)) is not None:
        return read_session(named, f"metadata.{NAME_KEY}", is_stateless=request.is_stateless)
    for each in client_headers:
        if name := headers.get(each.lower().encode(), b"").decode("latin-1"):
            return read_session(name, each, is_stateless=request.is_stateless)
    return None
