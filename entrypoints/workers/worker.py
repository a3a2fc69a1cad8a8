"""A worker: a process that serves the port beside others, under a supervisor."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, closing, nullcontext
from multiprocessing.connection import Connection
from typing import Any

from antiphon.application.ports import RunStore
from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.container import Container
from antiphon.entrypoints.process.exits import HANGUP
from antiphon.entrypoints.process.peers import Peers
from antiphon.entrypoints.server.listener import Listeners
from antiphon.entrypoints.server.process import Process
from antiphon.entrypoints.server.serve import run
from antiphon.entrypoints.settings import Settings
from antiphon.entrypoints.workers.connection_counts import ConnectionCounts
from antiphon.entrypoints.workers.worker_spec import SIGNALS, Report, WorkerSpec

logger = logging.getLogger("antiphon.workers")

WITNESS = "antiphon workers"
"""In place of a tenant, whose name has no space: its only key shows that workers share a store."""
WITNESS_S = 600.0


def serve(settings: Settings, spec: WorkerSpec, reports: Connection) -> None:
    """Serve until a signal stops this process. Raises: SettingsError; StoreError; ModelsFailed."""
    peers = Peers(spec.folder, number=spec.number, count=settings.workers)
    run(settings, Worker(settings, spec, reports), peers)


class Worker(Process):
    """One of several processes of a server. The supervisor has bound its port, gets the signals of
    the terminal, and speaks to the operator.
    """

    stop_signals = (signal.SIGTERM,)

    def __init__(self, settings: Settings, spec: WorkerSpec, reports: Connection) -> None:
        super().__init__(settings)
        self._spec = spec
        self._reports = reports
        self._owner = ""
        self._connections = ConnectionCounts(spec.folder, count=settings.workers)

    def listening(self) -> AbstractContextManager[Listeners]:
        return closing(self._spec.listeners)

    def is_turn(self, connections: int) -> bool:
        return self._connections.is_least_busy(self._spec.number, connections)

    def take_signals(self) -> None:
        # A terminal sends them to all processes, and the supervisor says what they mean. They are
        # not ignored, since the processes of tools would inherit that.
        for number in (signal.SIGINT, *HANGUP):
            signal.signal(number, lambda *_: None)
        # They were blocked, so that none is lost while this process starts.
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)

    def starting(self, task: str) -> AbstractContextManager[object]:
        return super().starting(task) if self._spec.shows_start else nullcontext()

    async def join(self, store: RunStore) -> None:
        if self._spec.predecessor is not None:
            # It is gone for certain, so nobody needs to wait for the end of its lease.
            await store.end_heartbeat(self._spec.predecessor)

    async def check_store(self, container: Container) -> None:
        """Raises: SettingsError if the store does not have what the first worker wrote to it."""
        self._owner = container.owner()
        number = str(self._spec.number)
        if self._spec.predecessor is not None:
            return
        witness = await container.store().reserve_idempotency_key(
            WITNESS,
            self._spec.server_id,
            response_id=number,
            fingerprint=b"",
            owner=self._owner,
            expires_at=time.time() + WITNESS_S,
        )
        if witness.response_id == number and not self._spec.shows_start:
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
