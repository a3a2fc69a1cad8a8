"""One SQLite file, read and written by threads of its own, never by the event loop.

Writes that queue up while a transaction commits share the next one. Each has a savepoint: one that
fails takes no other with it. What a caller was told is written survives the death of the process
(WAL, synchronous=NORMAL); a power cut may take the last moments.

Nothing here maps the file into memory: that has been seen to corrupt files in shared use.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

import apsw

from antiphon.adapters.stores.file_lock import FileLock
from antiphon.domain.errors import SettingsError, StoreError

T = TypeVar("T")
Work = Callable[[apsw.Connection], T]
Row = tuple[Any, ...]

WRITES_AT_ONCE = 256
"""Writes that share a transaction, at most."""

READS_AT_ONCE = 16
"""Reads whose results are handed over together, at most: fewer wake-ups of the event loop."""

RETRY_S = 0.5
"""How soon to try again to empty the WAL of what was deleted."""

OLDEST_SQLITE = (3, 51, 3)
"""Before it, two connections that restart the WAL at once could corrupt the file."""

PRAGMAS: tuple[tuple[str, Any], ...] = (
    ("synchronous", "NORMAL"),
    ("secure_delete", True),
    ("temp_store", "MEMORY"),  # or deleted content might stay behind in a temporary file
    ("mmap_size", 0),
)

REASONS: Mapping[type[BaseException], str] = {
    apsw.FullError: "the disk is full",
    apsw.BusyError: "another process keeps it locked",
    apsw.ProtocolError: "too many processes open it at once",
    apsw.CorruptError: "it is damaged",
    apsw.NotADBError: "it is not a SQLite database",
    apsw.ReadOnlyError: "it cannot be written",
    apsw.CantOpenError: "it cannot be opened",
    apsw.IOError: "its disk fails",
    apsw.ConstraintError: "the same id is there already",
}


class SqliteFile:
    """The work that it is given runs in a thread of its own, with a connection of its own.

    `migrations` is the folder of the scripts that make its tables, `prepare` is done to the
    connection that reads; `busy_s`: how long a write waits for one of another process.
    """

    def __init__(
        self,
        path: Path,
        *,
        migrations: str = "sqlite",
        prepare: Work[None] | None = None,
        busy_s: float = 5.0,
    ) -> None:
        self._path = path
        self._migrations = migrations
        self._prepare = prepare or _leave_as_it_is
        self._busy_ms = int(busy_s * 1000)
        self._reader: _Lane | None = None
        self._writer: _Lane | None = None
        self._direct: apsw.Connection | None = None
        self._direct_use = threading.Lock()
        self._lock = FileLock(path)

    async def start(self, *, alone: Work[Any] | None = None) -> None:
        """Open and migrate; where no other process has the file open, do `alone` first.

        Raises: SettingsError, which says what is wrong with the file.
        """
        try:
            writing, reading = await asyncio.to_thread(
                _open, self._path, self._migrations, self._busy_ms, self._lock, alone
            )
        except (apsw.Error, OSError) as error:
            raise SettingsError(self._complaint(error)) from error
        self._prepare(reading)
        self._writer = _Lane(_Writing(writing, self._busy_ms), name="sqlite writer")
        self._reader = _Lane(_Reading(reading), name="sqlite reader")

    async def aclose(self) -> None:
        """Finish what was asked for until now, then close."""
        lanes = (self._reader, self._writer)
        self._reader = self._writer = None
        for lane in lanes:
            if lane is not None:
                await lane.aclose()
        await asyncio.to_thread(self._close_direct)
        self._lock.release()

    async def read(self, work: Work[T]) -> T:
        """Return what `work` read. Raises: StoreError."""
        return await self._do(self._reader, work)

    async def write(self, work: Work[T]) -> T:
        """Return the result of `work` once it is committed. Raises: StoreError."""
        return await self._do(self._writer, work)

    async def erase(self, work: Work[T]) -> T:
        """As `write`; what it deletes is then wiped from the WAL too.

        That happens right afterwards, or as soon as no other process reads the WAL.
        """
        return await self._do(self._writer, work, erases=True)

    def write_here(self, work: Work[T]) -> T:
        """As `write`, in the thread that calls, which waits. Raises: StoreError."""
        with self._direct_use:
            if self._writer is None:
                raise StoreError(self._not_open())
            try:
                if self._direct is None:
                    self._direct = _connect(self._path, self._busy_ms)
                with _transaction(self._direct):
                    return work(self._direct)
            except apsw.Error as error:
                raise StoreError(self._complaint(error)) from error

    def _close_direct(self) -> None:
        with self._direct_use:
            if self._direct is not None:
                self._direct.close()
                self._direct = None

    async def _do(self, lane: _Lane | None, work: Work[T], *, erases: bool = False) -> T:
        if lane is None:
            raise StoreError(self._not_open())
        try:
            result: T = await lane.do(work, erases=erases)
        except apsw.Error as error:
            raise StoreError(self._complaint(error)) from error
        return result

    def _not_open(self) -> str:
        return f"The store {str(self._path)!r} is not open."

    def _complaint(self, error: Exception) -> str:
        reason = error.strerror if isinstance(error, OSError) else REASONS.get(type(error))
        return f"The store {str(self._path)!r} cannot be used: {reason or error}."


class SqliteMemory:
    """As SqliteFile, for a database in memory, which is gone at the end."""

    def __init__(self, *, migrations: str, prepare: Work[None]) -> None:
        self._migrations = migrations
        self._prepare = prepare
        self._lane: _Lane | None = None

    async def start(self, *, alone: Work[Any] | None = None) -> None:  # noqa: ARG002
        connection = await asyncio.to_thread(_open_in_memory, self._migrations)
        self._prepare(connection)
        # Another connection would see another database: reads go where writes go.
        self._lane = _Lane(_Writing(connection, 0), name="sqlite memory")

    async def aclose(self) -> None:
        lane, self._lane = self._lane, None
        if lane is not None:
            await lane.aclose()

    async def read(self, work: Work[T]) -> T:
        """As `SqliteFile.read`."""
        return await self.write(work)

    async def write(self, work: Work[T]) -> T:
        """As `SqliteFile.write`."""
        if self._lane is None:
            raise StoreError("The store in memory is not open.")
        try:
            return await self._lane.do(work)
        except apsw.Error as error:
            raise StoreError(f"The store in memory cannot be used: {error}.") from error

    async def erase(self, work: Work[T]) -> T:
        """As `SqliteFile.erase`."""
        return await self.write(work)


def _leave_as_it_is(_: apsw.Connection) -> None: ...


def rows_of(db: apsw.Connection, query: str, values: Row) -> list[Row]:
    """Return all rows: a cursor that is left half read would keep the WAL from being emptied."""
    rows: list[Row] = db.execute(query, values).fetchall()
    return rows


# --- opening --------------------------------------------------------------------------------------


def _open(
    path: Path, migrations: str, busy_ms: int, lock: FileLock, alone: Work[Any] | None
) -> tuple[apsw.Connection, apsw.Connection]:
    """Return a connection that writes and one that reads."""
    if tuple(map(int, apsw.sqlitelibversion().split("."))) < OLDEST_SQLITE:
        oldest = ".".join(map(str, OLDEST_SQLITE))
        raise SettingsError(f"SQLite {apsw.sqlitelibversion()} is too old: {oldest} is needed.")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite gives the WAL the same mode
    with contextlib.ExitStack() as undo:
        undo.callback(lock.release)
        # First of all: one that shares the file with nobody may be of a version that cannot.
        is_alone = lock.acquire(busy_ms / 1000)
        writing = _connect(path, busy_ms)
        undo.callback(writing.close)
        _use_wal(writing, busy_ms)
        _migrate(writing, migrations)
        if is_alone and alone is not None:
            with _transaction(writing):
                alone(writing)
        reading = _connect(path, busy_ms)
        undo.callback(reading.close)
        reading.pragma("query_only", True)
        lock.acquire_shared(busy_ms / 1000)
        undo.pop_all()
    return writing, reading


def _open_in_memory(migrations: str) -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    _migrate(connection, migrations)
    return connection


def _connect(path: Path, busy_ms: int) -> apsw.Connection:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.set_busy_timeout(busy_ms)
    for name, value in PRAGMAS:  # one a call: a script would stop at the first that answers
        connection.pragma(name, value)
    return connection


def _use_wal(connection: apsw.Connection, busy_ms: int) -> None:
    # Two that change a new file's mode at once get BUSY at once: SQLite does not wait there, since
    # both would.
    deadline = time.monotonic() + busy_ms / 1000
    while True:
        try:
            mode = connection.pragma("journal_mode", "WAL")
            break
        except apsw.BusyError:
            if time.monotonic() > deadline:
                raise
            time.sleep(random.uniform(0.001, 0.02))
    if mode != "wal":
        raise SettingsError(
            f"The store {connection.filename!r} is on a file system that cannot share it (no WAL)."
        )


def _migrate(connection: apsw.Connection, folder: str) -> None:
    scripts = dict(_scripts(folder))
    with _transaction(connection):  # from here on any other process that starts must wait
        version = connection.pragma("user_version")
        if version > max(scripts):
            raise SettingsError(
                f"The store {connection.filename!r} was written by a newer version of this server."
            )
        for number in sorted(scripts):
            if number > version:
                connection.execute(scripts[number]).fetchall()
                connection.pragma("user_version", number)


def _scripts(folder: str) -> Iterator[tuple[int, str]]:
    """Yield the numbered migrations: `0001_responses.sql` is number 1."""
    for script in (files(__package__) / "migrations" / folder).iterdir():
        if script.name.endswith(".sql"):
            yield int(script.name.partition("_")[0]), script.read_text("utf-8")


@contextlib.contextmanager
def _transaction(connection: apsw.Connection) -> Iterator[None]:
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # a full disk may have ended it already
            connection.execute("ROLLBACK")
        raise


# --- threads --------------------------------------------------------------------------------------


class _Job(NamedTuple):
    work: Work[Any]
    done: asyncio.Future[Any]
    erases: bool


class _Outcome(NamedTuple):
    done: asyncio.Future[Any]
    result: Any = None
    error: Exception | None = None


class _Reading:
    """Each job by itself."""

    at_once = READS_AT_ONCE

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection

    def do(self, jobs: Sequence[_Job]) -> list[_Outcome]:
        return [self._attempt(job) for job in jobs]

    def _attempt(self, job: _Job) -> _Outcome:
        try:
            return _Outcome(job.done, job.work(self.connection))
        except Exception as error:
            return _Outcome(job.done, error=error)

    def rest(self) -> float | None:
        return None


class _Writing:
    """Jobs that came together are committed together; then the WAL is wiped where it must be."""

    at_once = WRITES_AT_ONCE

    def __init__(self, connection: apsw.Connection, busy_ms: int) -> None:
        self.connection = connection
        self._busy_ms = busy_ms
        self._has_traces = False

    def do(self, jobs: Sequence[_Job]) -> list[_Outcome]:
        self._has_traces = self._has_traces or any(job.erases for job in jobs)
        try:
            with _transaction(self.connection):
                return [self._attempt(job) for job in jobs]
        except apsw.BusyError as error:  # the next try would wait as long
            return [_Outcome(job.done, error=error) for job in jobs]
        except Exception as error:
            if len(jobs) == 1:
                return [_Outcome(jobs[0].done, error=error)]
            # One of them has ended the transaction for all (a full disk does): alone, each can
            # only fail for itself.
            return [outcome for job in jobs for outcome in self.do([job])]

    def _attempt(self, job: _Job) -> _Outcome:
        self.connection.execute("SAVEPOINT job")
        try:
            result = job.work(self.connection)
        except Exception as error:
            if not self.connection.in_transaction:
                raise
            self.connection.execute("ROLLBACK TO job")
            self.connection.execute("RELEASE job")
            return _Outcome(job.done, error=error)
        self.connection.execute("RELEASE job")
        return _Outcome(job.done, result)

    def rest(self) -> float | None:
        """Wipe the WAL if it must be. Return in how many seconds to try again."""
        if not self._has_traces:
            return None
        self.connection.set_busy_timeout(0)  # writes must not wait until others have read
        try:
            self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.Error:
            return RETRY_S
        finally:
            self.connection.set_busy_timeout(self._busy_ms)
        self._has_traces = False
        return None


class _Lane:
    """A thread that does what is queued, as much at once as there is, and tells the event loop."""

    def __init__(self, worker: _Reading | _Writing, *, name: str) -> None:
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._closed = self._loop.create_future()
        # A daemon: a disk that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def do(self, work: Work[T], *, erases: bool = False) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self._loop.create_future()
        self._queue.put(_Job(work, done, erases))
        return done

    async def aclose(self) -> None:
        self._queue.put(None)
        await self._closed
        self._thread.join()

    def _run(self) -> None:
        patience = None
        while True:
            jobs = self._take(patience)
            last = bool(jobs) and jobs[-1] is None
            asked = [job for job in jobs if job is not None]
            if asked:
                self._tell(self._worker.do(asked))
            patience = self._worker.rest()
            if last:
                break
        self._worker.connection.close()
        self._tell([_Outcome(self._closed)])

    def _take(self, patience: float | None) -> list[_Job | None]:
        """Return what is queued; wait if nothing is. None ends the thread: it is the last."""
        jobs: list[_Job | None] = []
        try:
            jobs.append(self._queue.get(timeout=patience))
            while len(jobs) < self._worker.at_once:
                jobs.append(self._queue.get_nowait())
        except Empty:
            pass
        return jobs

    def _tell(self, outcomes: list[_Outcome]) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(_settle, outcomes)


def _settle(outcomes: list[_Outcome]) -> None:
    for done, result, error in outcomes:
        if done.done():  # its caller has left
            continue
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)
