"""The settings for requests and streams that all handlers share."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from antiphon.application.websocket.lanes import LaneLimits
from antiphon.entrypoints.http.wire.bodies import BodyLimits
from antiphon.entrypoints.http.wire.dialects import OPENAI, Dialect


class HttpOptions(Struct, frozen=True, kw_only=True):
    """The settings for requests and streams. `session_headers` are those of clients that name their
    sessions, as this server's own one does."""

    limits: BodyLimits = BodyLimits()
    dialect: Dialect = OPENAI
    strict: bool = False
    strict_unknown_fields: bool = False
    log_requests: bool = False
    error_stacks: bool = False
    websocket_s: float = 3600.0
    lanes: LaneLimits = LaneLimits()
    session_headers: Sequence[str] = ()
