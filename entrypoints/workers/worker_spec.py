"""The exchange between the supervisor and a worker, and how both of them end."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from msgspec import Struct

from antiphon.entrypoints.process.exits import STOP_SIGNALS, ending_with_a_sentence
from antiphon.entrypoints.server.listener import Listeners
from antiphon.entrypoints.settings import Settings

SIGNALS = STOP_SIGNALS
"""The signals that the supervisor blocks in a new process until it can take them."""
END_S = 15.0
"""How long a worker has to end, beyond the time of its runs, before it is killed."""


class WorkerSpec(Struct, frozen=True, kw_only=True):
    """The part of a server that a worker is started with.

    `folder` is for the sockets of the workers, and `server_id` for all of this server's workers.
    `predecessor` owned the runs of the worker that this one replaces. `shows_start` is for the
    worker that starts first, and alone.
    """

    number: int
    listeners: Listeners
    folder: Path
    server_id: str
    predecessor: str | None = None
    shows_start: bool = False


class Report(Struct, frozen=True, kw_only=True):
    """A worker's report to its supervisor when it is ready: who owns its runs, and the facts of
    `banner.ready`.
    """

    owner: str
    facts: Mapping[str, Any]


def work(settings: Settings, spec: WorkerSpec, reports: Connection) -> None:
    """Serve until the supervisor stops this process, or ends itself. The process ends with it."""
    # Imported late: the supervisor needs none of what a worker needs.
    from antiphon.entrypoints.workers.preload import end_with_fork_server
    from antiphon.entrypoints.workers.worker import serve

    end_with_fork_server()
    end_with_the_supervisor(stopping_s(settings))
    with ending_with_a_sentence():
        serve(settings, spec, reports)


def stopping_s(settings: Settings) -> float:
    """Return how long a worker that is told to stop may take."""
    return max(settings.graceful_shutdown_s, settings.drain_delay_s) + END_S


def _kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def end_with_the_supervisor(
    stopping_s: float, kill: Callable[[], None] = _kill_this_process
) -> None:
    """When the supervisor is gone, stop this process; kill it if it is still there later."""
    supervisor = multiprocessing.parent_process()
    assert supervisor is not None

    def follow() -> None:
        supervisor.join()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(stopping_s)
        kill()

    threading.Thread(target=follow, name="supervisor", daemon=True).start()
