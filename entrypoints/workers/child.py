"""A process that the supervisor starts: its report, its end, and the pauses between its lives."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from typing import Any

from antiphon.entrypoints.workers.worker_spec import SIGNALS

StartContext = SpawnContext | ForkServerContext
SPAWN = multiprocessing.get_context("spawn")
FIRST_PAUSE_S = 0.5
MAX_PAUSE_S = 30.0
STABLE_S = 60.0
"""After so many seconds of life, the pause begins anew."""


class Child:
    """A new process that runs `target(*args, reports)`, and ends with this one.

    `context` says how it is started. It is never forked from this one: that would copy what threads
    and sockets of this process are at.
    """

    def __init__(
        self, name: str, target: Callable[..., None], *args: Any, context: StartContext = SPAWN
    ) -> None:
        loop = asyncio.get_running_loop()
        self._report: asyncio.Future[Any] = loop.create_future()
        self._exit_code: asyncio.Future[int] = loop.create_future()
        reports, sender = context.Pipe(duplex=False)
        self._process: BaseProcess = context.Process(target=target, args=(*args, sender), name=name)
        # Its mask is inherited. Without it, a signal would kill what cannot handle it yet.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        try:
            self._process.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
            sender.close()
        threading.Thread(
            target=self._follow, args=(loop, reports), name=f"{name} report", daemon=True
        ).start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def has_ended(self) -> bool:
        return self._exit_code.done()

    async def reported(self) -> Any:
        """Return what it sends when it is ready, or None if it ended before."""
        await asyncio.wait((self._report,))  # which does not cancel what others wait for, too
        return self._report.result()

    async def ended(self) -> int:
        """Return how it ended."""
        await asyncio.wait((self._exit_code,))
        return self._exit_code.result()

    def send(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if not self.has_ended and self._process.pid is not None:
            os.kill(self._process.pid, number)

    def _follow(self, loop: asyncio.AbstractEventLoop, reports: Connection) -> None:
        report = None
        try:
            report = reports.recv()
        except (EOFError, OSError):
            pass
        finally:
            reports.close()
        loop.call_soon_threadsafe(self._report.set_result, report)
        # Not its sentinel: processes that it started may hold that open.
        self._process.join()
        loop.call_soon_threadsafe(self._exit_code.set_result, self._process.exitcode or 0)


class Pauses:
    """How long to wait before a process is started again: longer each time, unless it lived."""

    def __init__(self) -> None:
        self._next_s = FIRST_PAUSE_S
        self._started_at = time.monotonic()

    def started(self) -> None:
        self._started_at = time.monotonic()

    def next_s(self) -> float:
        """Return the pause after the end of a life."""
        if time.monotonic() - self._started_at >= STABLE_S:
            self._next_s = FIRST_PAUSE_S
        pause_s, self._next_s = self._next_s, min(self._next_s * 2, MAX_PAUSE_S)
        return pause_s
