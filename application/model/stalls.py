"""End a turn whose engine generates nothing for too long."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import AsyncGeneratorType, TracebackType
from typing import Any

from msgspec import Struct

from antiphon.domain.errors import EngineError

CHECKS_PER_DEADLINE = 4
"""A stall is noticed at most a quarter of the deadline late."""


class TokenDeadlines(Struct, frozen=True, kw_only=True):
    """The longest time, in seconds, until the first token of a turn, and from token to token."""

    first_token_s: float = 300.0
    between_tokens_s: float = 120.0


class StallWatch:
    """Watches a turn's generator while its code is in this block.

    A timer looks a few times in each deadline whether `count_tokens` has changed, so that a token
    costs nothing. Only the time counts in which the generator waits for the engine, not that in
    which its reader does something else.
    """

    def __init__(
        self,
        generator: AsyncGeneratorType[Any, None],
        deadlines: TokenDeadlines,
        count_tokens: Callable[[], int],
    ) -> None:
        self._generator = generator
        self._deadlines = deadlines
        self._count_tokens = count_tokens
        shortest_s = min(deadlines.first_token_s, deadlines.between_tokens_s)
        self._interval_s = shortest_s / CHECKS_PER_DEADLINE
        self._token_count = 0
        self._has_stalled = False

    def __enter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._cancelling = task.cancelling()
        self._loop = asyncio.get_running_loop()
        self._progress_at = self._loop.time()
        self._timer = self._loop.call_later(self._interval_s, self._check)

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        """Raises: EngineError instead of the cancellation by this watch."""
        self._timer.cancel()
        if not self._has_stalled:
            return
        is_only_ours = self._task.uncancel() <= self._cancelling
        if is_only_ours and exc_type is asyncio.CancelledError:
            raise EngineError(
                f"The engine generated no token for {self._limit_s:g} seconds."
            ) from exc

    @property
    def _limit_s(self) -> float:
        deadlines = self._deadlines
        return deadlines.between_tokens_s if self._token_count else deadlines.first_token_s

    def _check(self) -> None:
        now, token_count = self._loop.time(), self._count_tokens()
        # A generator is also running while it awaits something.
        if token_count != self._token_count or not self._generator.ag_running:
            self._token_count, self._progress_at = token_count, now
        elif now - self._progress_at >= self._limit_s:
            self._has_stalled = True
            self._task.cancel()
            return
        self._timer = self._loop.call_later(self._interval_s, self._check)
