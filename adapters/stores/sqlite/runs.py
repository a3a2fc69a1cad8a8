"""Runs in the SQLite store, their owners and logs: statements, and functions for its threads."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from functools import partial

import apsw
from msgspec import Struct

from antiphon.adapters.stores.not_found import response_not_found
from antiphon.adapters.stores.sqlite.file import Row, SqliteFile, rows_of
from antiphon.adapters.stores.stored_json import response_from
from antiphon.adapters.stores.tenant_turns import take_turns
from antiphon.application.ports import (
    Clock,
    EventChunk,
    Lease,
    LeasedRun,
    LogSlice,
    WebhookDelivery,
)
from antiphon.application.support.tasks import start_shared_task
from antiphon.domain.errors import NotFound, StoreError
from antiphon.domain.responses.response import TERMINAL

POLL_S = 0.05
"""How often to check, while a reader waits, whether another process has written."""

BEAT = """
INSERT INTO servers (owner, beat_at, ttl_s) VALUES (?1, ?2, ?3)
ON CONFLICT (owner) DO UPDATE SET beat_at = excluded.beat_at, ttl_s = excluded.ttl_s
"""

LEAVE = "DELETE FROM servers WHERE owner = ?"

COUNT_WAITING = """
SELECT count(*) FROM responses INDEXED BY responses_running
WHERE status IN ('queued', 'in_progress') AND owner IS NULL
"""

# The clock restarts with the machine, so a heartbeat in the future is from before the restart.
REMOVE_DEAD_SERVERS = "DELETE FROM servers WHERE beat_at + ttl_s <= ?1 OR beat_at > ?1 + 1"

# Without INDEXED BY, SQLite reads all responses in order instead of the few running ones; without
# owner > '', also the runs without an owner.
DEAD_RUNS = """
SELECT number, tenant FROM responses INDEXED BY responses_running
WHERE status IN ('queued', 'in_progress') AND owner > '' AND owner <> ?2 AND owner NOT IN (
    SELECT owner FROM servers WHERE beat_at + ttl_s > ?1 AND beat_at <= ?1 + 1
)
"""

# Seeks each tenant in the index, and reads as many of its runs as may be leased: one tenant's
# thousand runs cost no more than these.
WAITING_RUNS = """
WITH RECURSIVE tenants (tenant) AS (
    SELECT min(tenant) FROM responses INDEXED BY responses_running
    WHERE status IN ('queued', 'in_progress') AND owner IS NULL
    UNION ALL
    SELECT (
        SELECT min(tenant) FROM responses INDEXED BY responses_running
        WHERE status IN ('queued', 'in_progress') AND owner IS NULL AND tenant > tenants.tenant
    )
    FROM tenants WHERE tenants.tenant IS NOT NULL
)
SELECT number, responses.tenant FROM tenants CROSS JOIN responses
WHERE number IN (
    SELECT number FROM responses INDEXED BY responses_running
    WHERE status IN ('queued', 'in_progress') AND owner IS NULL AND tenant = tenants.tenant
    ORDER BY number LIMIT ?1
)
"""

LEASE_RUN = """
UPDATE responses SET owner = ?2, epoch = epoch + 1 WHERE number = ?1
RETURNING number, tenant, id, epoch, body
"""

TAKE_OVER = """
UPDATE responses SET owner = ?1, epoch = epoch + 1
WHERE tenant = ?2 AND id = ?3 AND status IN ('queued', 'in_progress')
RETURNING number, tenant, id, epoch, body
"""

RESPONSE_EXISTS = "SELECT 1 FROM responses WHERE tenant = ? AND id = ? AND body IS NOT NULL"

GIVE_BACK = """
UPDATE responses SET owner = NULL
WHERE tenant = ? AND id = ? AND epoch = ? AND owner IS NOT NULL
    AND status IN ('queued', 'in_progress')
RETURNING number
"""

HELD_LEASES = """
SELECT tenant, id, epoch FROM responses WHERE owner = ? AND status IN ('queued', 'in_progress')
"""

GET_OUTPUT = """
SELECT body FROM items WHERE tenant = ? AND response_id = ? AND kind = 1 ORDER BY position
"""

ADD_JOB = "INSERT INTO jobs (response, body) VALUES (?, ?)"

GET_JOB = "SELECT body FROM jobs WHERE response = ?"

REMOVE_JOB = "DELETE FROM jobs WHERE response = ?"

START_LOG = "INSERT INTO events (response, first, count, body) VALUES (?, ?, ?, ?)"

# The statement that writes also checks the lease and the event number.
APPEND = """
INSERT INTO events (response, first, count, body)
SELECT number, ?4, ?5, ?6 FROM responses
WHERE tenant = ?1 AND id = ?2 AND epoch = ?3 AND owner IS NOT NULL
    AND status IN ('queued', 'in_progress') AND logged
    AND ?4 = (
        SELECT first + count FROM events WHERE response = number ORDER BY first DESC LIMIT 1
    )
RETURNING response
"""

GET_LEASED = """
SELECT number FROM responses
WHERE tenant = ? AND id = ? AND epoch = ? AND owner IS NOT NULL
    AND status IN ('queued', 'in_progress')
"""

HAS_CHUNK = "SELECT 1 FROM events WHERE response = ? AND first = ? AND count = ?"

# A log without further events still returns one row, of NULLs.
EVENTS = """
SELECT status, events.first, events.count, events.body
FROM responses LEFT JOIN events
    ON events.response = responses.number
    AND events.first >= coalesce((
        SELECT first FROM events WHERE response = responses.number AND first <= ?3 + 1
        ORDER BY first DESC LIMIT 1
    ), 0)
    AND events.first + events.count > ?3 + 1
WHERE tenant = ?1 AND id = ?2 AND logged
ORDER BY events.first
"""

# No row means that the log or its response is gone, or the run is over.
NEXT_EVENT_NUMBER = """
SELECT first + count FROM events
WHERE response = (
    SELECT number FROM responses
    WHERE tenant = ? AND id = ? AND logged AND status IN ('queued', 'in_progress')
)
ORDER BY first DESC LIMIT 1
"""

REMOVE_LOG = "DELETE FROM events WHERE response = ?"

MARK_LOG_REMOVED = "UPDATE responses SET logged = 0 WHERE number = ?"

ADD_DELIVERY = """
INSERT INTO webhook_deliveries (id, tenant, endpoint, body, attempts, due_at)
VALUES (?, ?, ?, ?, ?, ?)
"""


# --- owners ---------------------------------------------------------------------------------------


def beat(owner: str, ttl_s: float, uptime: Clock, db: apsw.Connection) -> None:
    db.execute(BEAT, (owner, uptime(), ttl_s))


def remove_dead_servers(uptime: Clock, db: apsw.Connection) -> None:
    db.execute(REMOVE_DEAD_SERVERS, (uptime(),))


def remove_all_servers(db: apsw.Connection) -> None:
    db.execute("DELETE FROM servers")


class LeaseQuery(Struct, frozen=True):
    """Which runs an owner asks for: the arguments of `RunStore.lease_runs`."""

    owner: str
    limit: int
    waiting: bool
    held: Mapping[str, int]
    per_tenant: int | None


def find_runs(query: LeaseQuery, uptime: Clock, db: apsw.Connection) -> list[int]:
    """Return the numbers of the responses whose runs the owner may lease."""
    found = rows_of(db, DEAD_RUNS, (uptime(), query.owner))
    if query.waiting:
        found += rows_of(db, WAITING_RUNS, (query.limit,))
    return take_turns(found, query.limit, held=query.held, per_tenant=query.per_tenant)


def lease_runs(query: LeaseQuery, uptime: Clock, db: apsw.Connection) -> list[LeasedRun]:
    numbers = find_runs(query, uptime, db)
    rows = [row for number in numbers for row in rows_of(db, LEASE_RUN, (number, query.owner))]
    return [_leased_run(row, db) for row in rows]


def take_over(owner: str, tenant: str, response_id: str, db: apsw.Connection) -> LeasedRun | None:
    for row in rows_of(db, TAKE_OVER, (owner, tenant, response_id)):
        return _leased_run(row, db)
    if not rows_of(db, RESPONSE_EXISTS, (tenant, response_id)):
        raise response_not_found(response_id)
    return None


def _leased_run(row: Row, db: apsw.Connection) -> LeasedRun:
    number, tenant, response_id, epoch, body = row
    jobs = rows_of(db, GET_JOB, (number,))
    output = rows_of(db, GET_OUTPUT, (tenant, response_id))
    return LeasedRun(
        lease=Lease(tenant=tenant, response_id=response_id, epoch=epoch),
        response=response_from(body, [item for (item,) in output]),
        job=jobs[0][0] if jobs else None,
    )


def lease_row(lease: Lease) -> Row:
    return (lease.tenant, lease.response_id, lease.epoch)


# --- logs -----------------------------------------------------------------------------------------


def append(lease: Lease, chunk: EventChunk, db: apsw.Connection) -> bool:
    row = (*lease_row(lease), chunk.first, chunk.count, chunk.body)
    if rows_of(db, APPEND, row):
        return True
    rows = rows_of(db, GET_LEASED, lease_row(lease))
    if not rows:
        return False
    if not rows_of(db, HAS_CHUNK, (rows[0][0], chunk.first, chunk.count)):
        raise StoreError(
            f"Events of response {lease.response_id!r} are missing before number {chunk.first}."
        )
    return True


def events(
    tenant: str, response_id: str, after: int, limit_bytes: int, db: apsw.Connection
) -> LogSlice:
    chunks: list[EventChunk] = []
    size, is_over = 0, None
    with contextlib.closing(db.execute(EVENTS, (tenant, response_id, after))) as rows:
        for status, first, count, body in rows:
            is_over = status in TERMINAL
            if first is None:
                continue
            if size >= limit_bytes:
                return LogSlice(chunks=chunks, ends=False)
            chunks.append(EventChunk(first=first, count=count, body=body))
            size += len(body)
    if is_over is None:
        raise NotFound(f"There are no events of response {response_id!r}.")
    return LogSlice(chunks=chunks, ends=is_over)


def remove_run(number: int, db: apsw.Connection) -> None:
    """Remove the job and the log of a response."""
    db.execute(REMOVE_JOB, (number,))
    db.execute(REMOVE_LOG, (number,))


def add_deliveries(deliveries: Sequence[WebhookDelivery], now: float, db: apsw.Connection) -> None:
    rows = [(d.id, d.tenant, d.endpoint, d.body, d.attempts, now) for d in deliveries]
    db.executemany(ADD_DELIVERY, rows)


# --- notifications --------------------------------------------------------------------------------


class _Waiter(Struct, eq=False):
    log: tuple[str, str]
    after: int
    woken: asyncio.Future[None]


class SqliteNotifications:
    """Wakes those who wait for events: immediately for what this process writes.

    While anyone waits, one task checks for all of them whether another process has written. Only
    then does it look at each log.
    """

    def __init__(self, file: SqliteFile) -> None:
        self._file = file
        self._waiters: dict[tuple[str, str], set[_Waiter]] = {}
        self._polling: asyncio.Task[None] | None = None

    async def wait(self, tenant: str, response_id: str, after: int, limit_s: float) -> None:
        woken = asyncio.get_running_loop().create_future()
        waiter = _Waiter((tenant, response_id), after, woken)
        # Register before the first check, or events in between would be missed.
        self._waiters.setdefault(waiter.log, set()).add(waiter)
        try:
            if await self._file.read(partial(_has_new_events, waiter)):
                return
            if self._polling is None and not woken.done():
                self._polling = start_shared_task(self._poll())
            await asyncio.wait([woken], timeout=limit_s)
        finally:
            self._remove(waiter)

    def notify(self, tenant: str, response_id: str) -> None:
        """Wake those who wait for this log."""
        for waiter in self._waiters.get((tenant, response_id), ()):
            _wake(waiter)

    async def aclose(self) -> None:
        for waiter in self._all_waiters():
            _wake(waiter)
        if self._polling is not None:
            self._polling.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._polling

    def _all_waiters(self) -> list[_Waiter]:
        return [waiter for waiters in self._waiters.values() for waiter in waiters]

    def _remove(self, waiter: _Waiter) -> None:
        waiters = self._waiters[waiter.log]
        waiters.remove(waiter)
        if not waiters:
            del self._waiters[waiter.log]

    async def _poll(self) -> None:
        version = None
        try:
            while self._waiters:
                await asyncio.sleep(POLL_S)
                version = await self._poll_once(version)
        finally:
            self._polling = None

    async def _poll_once(self, last_version: int | None) -> int | None:
        waiters = self._all_waiters()

        def check(db: apsw.Connection) -> tuple[int, list[_Waiter]]:
            version = db.pragma("data_version")
            if version == last_version:
                return version, []
            return version, [waiter for waiter in waiters if _has_new_events(waiter, db)]

        try:
            version, ready = await self._file.read(check)
        except StoreError:  # those who wait will get the error when they read
            version, ready = None, waiters
        for waiter in ready:
            _wake(waiter)
        return version


def _has_new_events(waiter: _Waiter, db: apsw.Connection) -> bool:
    rows = rows_of(db, NEXT_EVENT_NUMBER, waiter.log)
    return not rows or rows[0][0] > waiter.after + 1


def _wake(waiter: _Waiter) -> None:
    if not waiter.woken.done():
        waiter.woken.set_result(None)
