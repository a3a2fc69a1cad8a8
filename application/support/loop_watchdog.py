"""Notice what blocks the event loop, and log where.

Everything that this server does for anyone waits while one callback runs. So a thread asks the
loop for a sign of life again and again, and logs the stack of the loop's thread when none comes in
time. It asks ten times a second with the default limit, which costs less than can be measured.

A call into C that keeps the interpreter's lock, as `re` does, stops this thread too. It wakes as
soon as the call is over, sees by the clock that it is late, and finds the loop's thread at the call
or close behind it. Of a call that never ends it cannot tell, so a stranger's pattern must not get
to `re` (docs/decisions/0137-clients-patterns-never-reach-re.md).
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading
import time
import traceback
from types import FrameType, TracebackType

from antiphon.application.support.garbage import without_collections

logger = logging.getLogger("antiphon.loop")

LOG_INTERVAL_S = 5.0
"""Between two warnings, so that a server under attack does not fill its disk."""

MAX_FRAMES = 12
"""The innermost frames of a stack that are logged: those below are of the loop itself."""


class LoopWatchdog:
    """Watches the running event loop in `with`. Does nothing if `limit_s` is 0."""

    def __init__(self, limit_s: float, *, log_interval_s: float = LOG_INTERVAL_S) -> None:
        self._limit_s = limit_s
        self._log_interval_s = log_interval_s
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._silent_until = 0.0
        self._unlogged = 0

    def __enter__(self) -> LoopWatchdog:
        if self._limit_s:
            watched = (asyncio.get_running_loop(), threading.get_ident())
            self._thread = threading.Thread(
                target=self._watch, args=watched, name="loop watchdog", daemon=True
            )
            self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._stopping.set()
        if self._thread is not None:
            self._thread.join()

    def _watch(self, loop: asyncio.AbstractEventLoop, loop_thread: int) -> None:
        while True:
            slept_at = time.monotonic()
            if self._stopping.wait(self._limit_s):
                return
            late_s = time.monotonic() - slept_at - self._limit_s
            if late_s > self._limit_s:
                self._report(late_s, _stacks(loop_thread))
            alive = threading.Event()
            asked_at = time.monotonic()
            try:
                loop.call_soon_threadsafe(alive.set)
            except RuntimeError:  # the loop is closed
                return
            if alive.wait(self._limit_s) and time.monotonic() - asked_at < 2 * self._limit_s:
                continue
            stacks = _stacks(loop_thread)
            while not alive.wait(self._limit_s) and not self._stopping.is_set():
                pass
            self._report(time.monotonic() - asked_at, stacks)

    def _report(self, duration_s: float, stacks: str) -> None:
        now = time.monotonic()
        if now < self._silent_until:
            self._unlogged += 1
            return
        before = f" ({self._unlogged} more since the last warning)" if self._unlogged else ""
        logger.warning(
            "the event loop did not run for %d ms%s, so every client waited:\n%s",
            duration_s * 1000,
            before,
            stacks,
        )
        self._silent_until = now + self._log_interval_s
        self._unlogged = 0


def _stacks(loop_thread: int) -> str:
    """Return the stack of the loop's thread, and where the other threads are.

    A call into C code that holds the interpreter's lock stops the loop from any thread.
    """
    # It holds a lock of the interpreter. A collection would run Python code meanwhile, and so let
    # another thread run, which then waits for that lock forever, as all do (CPython gh-106883).
    frames = without_collections(sys._current_frames)
    # Its own frame would be in a cycle with this map, and keep all that the other frames have, such
    # as long answers, until the collector finds it.
    frames.pop(threading.get_ident(), None)
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    others = [
        f"  thread {names.get(ident, str(ident))!r}: {_place(frame)}"
        for ident, frame in frames.items()
        if ident != loop_thread
    ]
    loop_frame = frames.get(loop_thread)
    stack = traceback.format_stack(loop_frame)[-MAX_FRAMES:] if loop_frame else []
    return "".join(stack) + "\n".join(others)


def _place(frame: FrameType) -> str:
    return f"{frame.f_code.co_filename}:{frame.f_lineno} in {frame.f_code.co_qualname}"
