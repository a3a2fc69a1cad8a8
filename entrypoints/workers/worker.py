"""A worker: a process that serves the port beside others, under a supervisor."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from msgspec import Struct

from antiphon.application.ports import Store
from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.container import Container
from antiphon.entrypoints.exits import ending_with_a_sentence
from antiphon.entrypoints.listener import Listeners
from antiphon.entrypoints.process import Process
from antiphon.entrypoints.server import run
from antiphon.entrypoints.settings import Settings
from antiphon.entrypoints.workers.peers import Peers
from antiphon.entrypoints.workers.turns import Turns

logger = logging.getLogger("antiphon.workers")

SIGNALS = (signal.SIGINT, signal.SIGTERM)
"""The signals that the supervisor blocks in a worker until it can take them."""
END_S = 15.0
"""How long a worker has to end, beyond the time of its runs, before it is killed."""
WITNESS = "antiphon workers"
"""In place of a tenant, whose name has no space: its only key shows that workers share a store."""
WITNESS_S = 600.0


class Place(Struct, frozen=True, kw_only=True):
    """What the supervisor gives a worker.

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
    """What a worker tells its supervisor when it is ready: who owns its runs, and the facts of
    `banner.ready`.
    """

    owner: str
    facts: Mapping[str, Any]


def work(settings: Settings, place: Place, reports: Connection) -> None:
    """Serve until the supervisor stops this process, or ends itself. The process ends with it."""
    end_with_the_supervisor(stopping_s(settings))
    peers = Peers(place.folder, number=place.number, count=settings.workers)
    with ending_with_a_sentence():
        run(settings, Worker(settings, place, reports), peers)


def stopping_s(settings: Settings) -> float:
    """Return how long a worker that is told to stop may take."""
    return max(settings.graceful_shutdown_s, settings.drain_delay_s) + END_S


def end_with_the_supervisor(stopping_s: float) -> None:
    """When the supervisor is gone, stop this process; kill it if it is still there later."""
    supervisor = multiprocessing.parent_process()
    assert supervisor is not None

    def follow() -> None:
        supervisor.join()
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(stopping_s)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=follow, name="supervisor", daemon=True).start()


class Worker(Process):
    """One of several processes of a server. The supervisor has bound its port, gets the signals of
    the terminal, and speaks to the operator.
    """

    stop_signals = (signal.SIGTERM,)

    def __init__(self, settings: Settings, place: Place, reports: Connection) -> None:
        super().__init__(settings)
        self._place = place
        self._reports = reports
        self._owner = ""
        self._turns = Turns(place.folder, count=settings.workers)

    def listening(self) -> AbstractContextManager[Listeners]:
        return closing(self._place.listeners)

    def is_turn(self, connections: int) -> bool:
        return self._turns.is_turn_of(self._place.number, connections)

    def take_signals(self) -> None:
        # A terminal sends it to all processes, and the supervisor says what it means. It is not
        # ignored, since the processes of tools would inherit that.
        signal.signal(signal.SIGINT, lambda *_: None)
        # They were blocked, so that none is lost while this process starts.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def starting(self, task: str) -> AbstractContextManager[object]:
        return super().starting(task) if self._place.shows_start else nullcontext()

    async def join(self, store: Store) -> None:
        if self._place.predecessor is not None:
            # It is gone for certain, so nobody needs to wait for the end of its lease.
            await store.leave(self._place.predecessor)

    async def check_store(self, container: Container) -> None:
        """Raises: SettingsError if the store does not have what the first worker wrote to it."""
        self._owner = container.owner()
        number = str(self._place.number)
        if self._place.predecessor is not None:
            return
        witness = await container.store().reserve(
            WITNESS,
            self._place.server_id,
            response_id=number,
            fingerprint=b"",
            owner=self._owner,
            expires_at=time.time() + WITNESS_S,
        )
        if witness.response_id == number and not self._place.shows_start:
            raise SettingsError(
                f"workers is {self._settings.workers}, but each worker has a store of its own: "
                f"what the first one wrote is not in the store {self._settings.shown_store} of "
                f"worker {number}. Choose a store that processes share, or set workers to 1."
            )

    def announce(self, facts: Mapping[str, Any]) -> None:
        self._reports.send(Report(owner=self._owner, facts=facts))
        self._reports.close()

    def say(self, sentence: str) -> None:
        logger.info("%s", sentence)
