"""Circuit breakers: a server that does not answer is left alone for a while, then tried again."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct

MAX_FAILURES = 3
"""Calls in a row that got no answer, after which the response leaves that tool's server alone."""
FIRST_PAUSE_S = 5.0
MAX_PAUSE_S = 60.0
"""Each pause takes twice as long as the one before. A server that was restarted is back in seconds;
one that is gone costs a long response one call a minute."""


class _State(Struct):
    failures: int = 0
    pause_s: float = FIRST_PAUSE_S
    retry_at: float = 0.0


class CircuitBreakers:
    """One for each server of a response, by any key."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._states: dict[object, _State] = {}

    def lets_pass(self, server: object) -> bool:
        """Whether a call may be made now. After a pause, one may; its end decides."""
        state = self._states.get(server)
        if state is None or state.failures < MAX_FAILURES:
            return True
        if self._now() < state.retry_at:
            return False
        state.pause_s = min(2 * state.pause_s, MAX_PAUSE_S)
        state.retry_at = self._now() + state.pause_s
        return True

    def record(self, server: object, *, is_unreachable: bool) -> None:
        """Record the end of a call."""
        if not is_unreachable:
            self._states.pop(server, None)
            return
        state = self._states.setdefault(server, _State())
        state.failures += 1
        state.retry_at = max(state.retry_at, self._now() + state.pause_s)
