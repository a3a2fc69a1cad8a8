"""The sign of life of a server: while it is given, nobody takes its runs."""

from __future__ import annotations

import logging
import threading
import time

from antiphon.application.ports import Clock, RunStore
from antiphon.application.support.outages import Outages

logger = logging.getLogger("antiphon.runs")

BEATS_PER_LEASE = 3
"""A lease lasts as long as so many intervals: a beat or two may fail."""

STOPPING_S = 0.5
"""A beat that the store does not take by then is not waited for."""


class Heartbeat:
    """Beats in a thread of its own, so that a busy event loop does not look like a dead server.

    `clock` gives seconds of any origin.
    """

    def __init__(
        self, store: RunStore, owner: str, *, lease_s: float, clock: Clock = time.monotonic
    ) -> None:
        self._store = store
        self._owner = owner
        self._lease_s = lease_s
        self._clock = clock
        self._beaten_at = self._calm_at = clock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="antiphon-heartbeat", daemon=True)

    def start(self) -> None:
        """Be alive on return. Raises: StoreError."""
        self._store.beat(self._owner, self._lease_s)
        self._beaten_at = self._clock()
        self._thread.start()

    def stop(self) -> None:
        """Beat no more; what was promised last still counts."""
        self._stopped.set()
        self._thread.join(timeout=STOPPING_S)

    def is_healthy(self) -> bool:
        """Whether those who seem dead are: not where the store took no beats for about a lease, or
        this server slept. Then the others may have been kept from beating too, and have a lease's
        time to say that they live.
        """
        now = self._clock()
        return now >= self._calm_at and not self._is_long_ago(now)

    def _is_long_ago(self, now: float) -> bool:
        # The last beat of another may be older than ours, by the time between two.
        return now - self._beaten_at > self._lease_s * (1 - 1 / BEATS_PER_LEASE)

    def _beat(self) -> None:
        outages = Outages(logger, "the store does not know that this server lives")
        while not self._stopped.wait(self._lease_s / BEATS_PER_LEASE):
            with outages.log_outages():
                self._store.beat(self._owner, self._lease_s)
                self._beaten()

    def _beaten(self) -> None:
        now = self._clock()
        if self._is_long_ago(now):
            self._calm_at = now + self._lease_s
        self._beaten_at = now
