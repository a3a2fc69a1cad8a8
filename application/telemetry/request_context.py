"""The facts of a request that its run knows, besides its body."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

DOOR = "responses"
"""The API of which all others are dialects."""


class RequestContext(Struct, frozen=True, kw_only=True):
    """`request_id` is the client's or a new one. `trace_headers` are those of W3C Trace Context.
    `received_at` (seconds since the epoch) is when the request had arrived; None means now.
    `shares_connection`: it is one of many requests on a WebSocket. `door` is the API that the
    client speaks: `responses`, `chat_completions`, `messages` or `completions`.
    """

    request_id: str = ""
    trace_headers: Mapping[str, str] = {}
    received_at: float | None = None
    shares_connection: bool = False
    door: str = DOOR


NO_CONTEXT = RequestContext()
