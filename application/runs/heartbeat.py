"""A server's heartbeat: as long as it continues, no other server takes over its runs."""

from __future__ import annotations

import logging
import threading
import time

from antiphon.application.ports import Clock, RunStore
from antiphon.application.support.outages import Outages

logger = logging.getLogger("antiphon.runs")

BEATS_PER_LEASE = 3
"""The number of beats during one lease: one or two of them may fail."""

RETRY_S = 1.0
"""The longest delay after a beat that failed: others should learn soon that an outage is over."""

JOIN_TIMEOUT_S = 0.5
"""The longest wait of `stop` for a beat that is being written."""


class Heartbeat:
    """Beats in its own thread, so that a server with a busy event loop does not seem dead.

    `clock` returns seconds of any origin.
    """

    def __init__(
        self,
        store: RunStore,
        owner: str,
        *,
        lease_s: float,
        retry_s: float = RETRY_S,
        clock: Clock = time.monotonic,
    ) -> None:
        self._store = store
        self._owner = owner
        self._lease_s = lease_s
        self._retry_s = retry_s
        self._clock = clock
        self._last_beat_at = self._healthy_from = clock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="antiphon-heartbeat", daemon=True)

    def start(self) -> None:
        """Write the first beat and start the thread. Raises: StoreError."""
        self._store.record_heartbeat(self._owner, self._lease_s)
        self._last_beat_at = self._clock()
        self._thread.start()

    def stop(self) -> None:
        """Stop beating; the last beat still counts."""
        self._stopped.set()
        self._thread.join(timeout=JOIN_TIMEOUT_S)

    def is_healthy(self) -> bool:
        """Return whether a server that seems dead really is.

        After an outage of the store, or a suspension of this machine, of about a lease, the other
        servers may have missed beats as well. They get the time of one lease to beat again.
        """
        now = self._clock()
        return now >= self._healthy_from and not self._is_overdue(now)

    def _is_overdue(self, now: float) -> bool:
        # The last beat of another server may be older than ours by one interval.
        return now - self._last_beat_at > self._lease_s * (1 - 1 / BEATS_PER_LEASE)

    def _run(self) -> None:
        outages = Outages(logger, "to the other servers, this server will seem dead")
        interval_s = wait_s = self._lease_s / BEATS_PER_LEASE
        while not self._stopped.wait(wait_s):
            wait_s = min(self._retry_s, interval_s)
            with outages.log_outages():
                self._store.record_heartbeat(self._owner, self._lease_s)
                self._record_beat()
                wait_s = interval_s

    def _record_beat(self) -> None:
        now = self._clock()
        if self._is_overdue(now):
            self._healthy_from = now + self._lease_s
        self._last_beat_at = now
