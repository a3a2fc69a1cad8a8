"""The lanes of a connection: which of its requests run now, and which wait
(docs/reference/api.md#lanes).

Three rules, and nothing else:
1. Within a lane requests run one after the other, in the order in which they came.
2. Lanes run side by side, up to `running` requests of one connection; the rest waits.
3. Names of lanes, waiting requests and their bytes are bounded. What is over a bound is refused,
and changes nothing.
"""

from __future__ import annotations

import re
from typing import Any, Generic, TypeVar

from msgspec import Struct

from antiphon.domain.errors import QueueFull, RequestError

T = TypeVar("T")

Lane = str | None
"""A lane's name; None is the lane of requests that name none."""

STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}")


class LaneLimits(Struct, frozen=True, kw_only=True):
    """The lane without a name is not counted among the `named` ones."""

    named: int = 32
    running: int = 16
    waiting: int = 64
    waiting_bytes: int = 64 * 1024 * 1024


class _Waiting(Struct, Generic[T], frozen=True):
    lane: Lane
    request: T
    size: int


def lane_of(stream_id: Any) -> Lane:
    """Return the lane that a message's `stream_id` names. Raises: RequestError.

    >>> lane_of("main.1"), lane_of(None)
    ('main.1', None)
    """
    if stream_id is None:
        return None
    if isinstance(stream_id, str) and STREAM_ID.fullmatch(stream_id):
        return stream_id
    raise RequestError(
        "The 'stream_id' field must be a non-empty string with at most 256 characters and may only "
        "contain letters, numbers, underscores, hyphens, and periods.",
        param="stream_id",
        code="invalid_stream_id",
    )


class Lanes(Generic[T]):
    """Requests come in by `add`, go out by `take`, and free their lane by `leave`."""

    def __init__(self, limits: LaneLimits) -> None:
        self._limits = limits
        self._names: set[str] = set()
        self._busy: set[Lane] = set()
        self._waiting: list[_Waiting[T]] = []

    def add(self, lane: Lane, request: T, *, size: int = 0) -> None:
        """Let a request of `size` bytes wait for its lane. Raises: RequestError, QueueFull."""
        self._check_name(lane)
        if not self._is_free(lane):
            self._check_room(size)
        if lane is not None:
            self._names.add(lane)
        self._waiting.append(_Waiting(lane, request, size))

    def take(self) -> tuple[Lane, T] | None:
        """Return the oldest request that may run now: its lane is busy until `leave`."""
        for position, each in enumerate(self._waiting):
            if self._is_free(each.lane):
                del self._waiting[position]
                self._busy.add(each.lane)
                return each.lane, each.request
        return None

    def leave(self, lane: Lane) -> None:
        self._busy.discard(lane)

    def clear(self) -> list[Lane]:
        """Forget all that wait, and return their lanes."""
        lanes = [each.lane for each in self._waiting]
        self._waiting.clear()
        return lanes

    def _is_free(self, lane: Lane) -> bool:
        return lane not in self._busy and len(self._busy) < self._limits.running

    def _check_name(self, lane: Lane) -> None:
        most = self._limits.named
        if lane is None or lane in self._names or len(self._names) < most:
            return
        raise RequestError(
            f"This connection has the maximum number of distinct stream IDs ({most}). Reuse an "
            "existing stream_id or open a new WebSocket connection.",
            param="stream_id",
            code="websocket_stream_limit_reached",
        )

    def _check_room(self, size: int) -> None:
        waiting, limits = self._waiting, self._limits
        held = sum(each.size for each in waiting)
        if len(waiting) < limits.waiting and held + size <= limits.waiting_bytes:
            return
        raise QueueFull(
            f"{len(waiting)} requests ({held} bytes) are waiting on this connection, which is all "
            "that may wait. Send the next one when a response is complete.",
            code="rate_limit_exceeded",
        )
