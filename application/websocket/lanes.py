"""The lanes of a connection decide which of its requests run now and which wait
(docs/reference/api.md#lanes).

There are three rules:
1. The requests of one lane run one after another, in the order of their arrival.
2. Lanes run side by side, up to `max_running` requests of one connection; the others wait.
3. Lane names and waiting requests are limited, and the bytes of all requests count as work of the
tenant, until they are answered. A request over a limit is refused and changes nothing.
"""

from __future__ import annotations

import re
from typing import Any, Generic, TypeVar

from msgspec import Struct

from antiphon.application.support.bytes_in_work import HeldBytes
from antiphon.domain.errors import ConcurrencyLimitExceeded, RequestError

T = TypeVar("T")

Lane = str | None
"""A lane's name; None is the lane of the requests without a name."""

STREAM_ID = re.compile(r"[A-Za-z0-9_.-]{1,256}")


class LaneLimits(Struct, frozen=True, kw_only=True):
    """The limits of one connection; the lane without a name does not count toward `max_names`."""

    max_names: int = 32
    max_running: int = 16
    max_waiting: int = 64


class _WaitingRequest(Struct, Generic[T], frozen=True):
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
    """A queue of requests: `add` puts one in, `take` takes one out, `leave` frees its lane."""

    def __init__(self, limits: LaneLimits, held: HeldBytes) -> None:
        self._limits = limits
        self._held = held
        self._bytes = 0
        self._names: set[str] = set()
        self._busy: dict[Lane, int] = {}
        self._waiting: list[_WaitingRequest[T]] = []

    def add(self, lane: Lane, request: T, *, size: int = 0) -> None:
        """Queue a request of `size` bytes for its lane.

        Raises: RequestError, ConcurrencyLimitExceeded, ServerOverloaded.
        """
        self._check_name(lane)
        if not self._is_free(lane):
            self._check_room()
        self._held.resize(self._bytes + size)
        self._bytes += size
        if lane is not None:
            self._names.add(lane)
        self._waiting.append(_WaitingRequest(lane, request, size))

    def take(self) -> tuple[Lane, T] | None:
        """Return the oldest request that may run now. Its lane is busy until `leave`."""
        for position, waiting in enumerate(self._waiting):
            if self._is_free(waiting.lane):
                del self._waiting[position]
                self._busy[waiting.lane] = waiting.size
                return waiting.lane, waiting.request
        return None

    def leave(self, lane: Lane) -> None:
        self._give_back(self._busy.pop(lane, 0))

    def clear(self) -> list[Lane]:
        """Drop all waiting requests and return their lanes."""
        lanes = [each.lane for each in self._waiting]
        self._give_back(sum(each.size for each in self._waiting))
        self._waiting.clear()
        return lanes

    def _give_back(self, size: int) -> None:
        self._bytes -= size
        self._held.resize(self._bytes)

    def _is_free(self, lane: Lane) -> bool:
        return lane not in self._busy and len(self._busy) < self._limits.max_running

    def _check_name(self, lane: Lane) -> None:
        limit = self._limits.max_names
        if lane is None or lane in self._names or len(self._names) < limit:
            return
        raise RequestError(
            f"This connection has the maximum number of distinct stream IDs ({limit}). Reuse an "
            "existing stream_id or open a new WebSocket connection.",
            param="stream_id",
            code="websocket_stream_limit_reached",
        )

    def _check_room(self) -> None:
        if len(self._waiting) < self._limits.max_waiting:
            return
        raise ConcurrencyLimitExceeded(
            f"{len(self._waiting)} requests are waiting on this connection, and its queue is full. "
            "Send the next one when a response is complete.",
            code="rate_limit_exceeded",
        )
