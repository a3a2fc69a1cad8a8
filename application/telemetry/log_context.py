"""The request and the response that a task works for: they are named in each line that it logs."""

from __future__ import annotations

from contextvars import ContextVar

REQUEST_ID: ContextVar[str] = ContextVar("request_id", default="")
RESPONSE_ID: ContextVar[str] = ContextVar("response_id", default="")


def log_as(*, request_id: str, response_id: str = "") -> None:
    """Name these in all lines that the current task, and those that it starts, log from now on."""
    REQUEST_ID.set(request_id)
    RESPONSE_ID.set(response_id)
