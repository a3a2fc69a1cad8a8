"""One SQLite file, read and written by dedicated threads, never by the event loop.

Writes that queue up during a commit share the next transaction. Each has a savepoint, so a failed
write does not affect the others. A write that was confirmed survives the death of the process (WAL,
synchronous=NORMAL); a power cut may lose the last moments.

The file is never mapped into memory, because that has corrupted files in shared use.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeVar

import apsw

from antiphon.adapters.stores.fair_jobs import FairJobs
from antiphon.adapters.stores.file_lock import FileLock
from antiphon.adapters.stores.migration_scripts import migrations_of
from antiphon.adapters.stores.sqlite.reserve import DiskReserve
from antiphon.domain.errors import SettingsError, StoreError

T = TypeVar("T")
Work = Callable[[apsw.Connection], T]
Row = tuple[Any, ...]

MAX_WRITES = 256
"""The most writes that share a transaction."""

MAX_READS = 16
"""The most reads of a tenant whose results are delivered together, which saves wake-ups."""

DELIVER_S = 0.001
"""A result waits no longer than this for those of other reads."""

KEEP_RESERVE_S = 1.0
"""How often it is seen to that there is a reserve, at most."""

WIPE_RETRY_S = 0.5
"""How soon to retry emptying the WAL of deleted content."""

MIN_SQLITE_VERSION = (3, 51, 3)
"""In older versions, two connections that restart the WAL at the same time can corrupt the file."""

PRAGMAS: tuple[tuple[str, Any], ...] = (
    ("synchronous", "NORMAL"),
    ("secure_delete", True),
    ("temp_store", "MEMORY"),  # a temporary file could retain deleted content
    ("mmap_size", 0),
)

ERROR_MESSAGES: Mapping[type[BaseException], str] = {
    apsw.FullError: "the disk is full",
    apsw.BusyError: "another process has it locked",
    apsw.ProtocolError: "too many processes are opening it",
    apsw.CorruptError: "it is damaged",
    apsw.NotADBError: "it is not a SQLite database",
    apsw.ReadOnlyError: "it is read-only",
    apsw.CantOpenError: "it cannot be opened",
    apsw.IOError: "its disk failed",
    apsw.ConstraintError: "the same id already exists",
}


class SqliteFile:
    """A SQLite file with `readers` threads for reads and one for writes, each with a connection.

    Tenants share the readers fairly: with several of them, one tenant leaves one to the others.
    `migrations` is the folder of scripts that create its tables. `prepare` is called with each
    reading connection. `busy_s` is how long a write waits for another process.
    """

    def __init__(
        self,
        path: Path,
        *,
        migrations: str = "sqlite",
        prepare: Work[None] | None = None,
        busy_s: float = 5.0,
        readers: int = 1,
    ) -> None:
        self._path = path
        self._readers = readers
        self._migrations = migrations
        self._prepare = prepare or _do_nothing
        self._busy_ms = int(busy_s * 1000)
        self._reader: _FairThreads | None = None
        self._writer: _WorkerThread | None = None
        self._direct: apsw.Connection | None = None
        self._direct_lock = threading.Lock()
        self._lock = FileLock(path)

    async def start(self, *, alone: Work[Any] | None = None) -> None:
        """Open and migrate the file. Then run `alone` if no other process has the file open.

        Raises: SettingsError, which says what is wrong with the file.
        """
        reserve = DiskReserve(self._path.parent)
        open_all = partial(
            _open,
            self._path,
            self._migrations,
            self._busy_ms,
            self._lock,
            alone,
            readers=self._readers,
        )
        try:
            try:
                writer, *readers = await asyncio.to_thread(open_all)
            except apsw.FullError:
                if not reserve.release():
                    raise
                writer, *readers = await asyncio.to_thread(open_all)
        except (apsw.Error, OSError) as error:
            raise SettingsError(self._error_message(error)) from error
        for reader in readers:
            self._prepare(reader)
        worker = _WriteWorker(writer, self._busy_ms, reserve)
        self._writer = _WorkerThread(worker, name="sqlite writer")
        self._reader = _FairThreads([*map(_ReadWorker, readers)], name="sqlite reader")

    async def aclose(self) -> None:
        """Finish all queued work, then close."""
        threads: tuple[_FairThreads | _WorkerThread | None, ...] = (self._reader, self._writer)
        self._reader = self._writer = None
        for thread in threads:
            if thread is not None:
                await thread.aclose()
        await asyncio.to_thread(self._close_direct)
        self._lock.release()

    async def read(self, work: Work[T], *, tenant: str = "") -> T:
        """Return the result of `work`, which only reads. Raises: StoreError.

        The reads of a tenant wait only for each other, and for one of each other tenant.
        """
        if self._reader is None:
            raise StoreError(self._not_open_message())
        return await self._result_of(self._reader.submit(tenant, work))

    async def write(self, work: Work[T]) -> T:
        """Return the result of `work` once it is committed. Raises: StoreError."""
        return await self._submit(work)

    async def erase(self, work: Work[T]) -> T:
        """Do the same as `write`, then wipe deleted content from the WAL too.

        The WAL is wiped right afterwards, or as soon as no other process reads it.
        """
        return await self._submit(work, erases=True)

    def write_blocking(self, work: Work[T]) -> T:
        """Do the same as `write` in the calling thread, which blocks. Raises: StoreError."""
        with self._direct_lock:
            if self._writer is None:
                raise StoreError(self._not_open_message())
            try:
                if self._direct is None:
                    self._direct = _connect(self._path, self._busy_ms)
                with _transaction(self._direct):
                    return work(self._direct)
            except apsw.Error as error:
                raise self._store_error(error) from error

    def _close_direct(self) -> None:
        with self._direct_lock:
            if self._direct is not None:
                self._direct.close()
                self._direct = None

    async def _submit(self, work: Work[T], *, erases: bool = False) -> T:
        if self._writer is None:
            raise StoreError(self._not_open_message())
        return await self._result_of(self._writer.submit(work, erases=erases))

    async def _result_of(self, done: asyncio.Future[T]) -> T:
        try:
            result: T = await done
        except apsw.Error as error:
            raise self._store_error(error) from error
        return result

    def _not_open_message(self) -> str:
        return f"The store {str(self._path)!r} is not open."

    def _store_error(self, error: Exception) -> StoreError:
        reason = ERROR_MESSAGES.get(type(error), "")
        return StoreError(self._error_message(error), reason=reason)

    def _error_message(self, error: Exception) -> str:
        reason = error.strerror if isinstance(error, OSError) else ERROR_MESSAGES.get(type(error))
        return f"The store {str(self._path)!r} cannot be used: {reason or error}."


class SqliteMemory:
    """The same as SqliteFile for a database in memory, which is lost when it is closed."""

    def __init__(self, *, migrations: str, prepare: Work[None]) -> None:
        self._migrations = migrations
        self._prepare = prepare
        self._thread: _FairThreads | None = None

    async def start(self, *, alone: Work[Any] | None = None) -> None:  # noqa: ARG002
        connection = await asyncio.to_thread(_open_in_memory, self._migrations)
        self._prepare(connection)
        # A second connection would open a different database, so one thread reads and writes.
        self._thread = _FairThreads([_WriteWorker(connection, 0)], name="sqlite memory")

    async def aclose(self) -> None:
        thread, self._thread = self._thread, None
        if thread is not None:
            await thread.aclose()

    async def read(self, work: Work[T], *, tenant: str = "") -> T:
        """Do the same as `SqliteFile.read`."""
        if self._thread is None:
            raise StoreError("The store in memory is not open.")
        try:
            return await self._thread.submit(tenant, work)
        except apsw.Error as error:
            raise StoreError(f"The store in memory cannot be used: {error}.") from error

    async def write(self, work: Work[T]) -> T:
        """Do the same as `SqliteFile.write`."""
        return await self.read(work)

    async def erase(self, work: Work[T]) -> T:
        """Do the same as `SqliteFile.erase`."""
        return await self.read(work)


def _do_nothing(_: apsw.Connection) -> None: ...


def rows_of(db: apsw.Connection, query: str, values: Row) -> list[Row]:
    """Return all rows. A cursor that is only half read would prevent emptying the WAL."""
    rows: list[Row] = db.execute(query, values).fetchall()
    return rows


# --- opening --------------------------------------------------------------------------------------


def _open(
    path: Path,
    migrations: str,
    busy_ms: int,
    lock: FileLock,
    alone: Work[Any] | None,
    *,
    readers: int = 1,
) -> list[apsw.Connection]:
    """Return a writing connection and the reading ones."""
    if tuple(map(int, apsw.sqlitelibversion().split("."))) < MIN_SQLITE_VERSION:
        minimum = ".".join(map(str, MIN_SQLITE_VERSION))
        raise SettingsError(f"SQLite {apsw.sqlitelibversion()} is too old: {minimum} is required.")
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # SQLite gives the WAL the same mode
    with contextlib.ExitStack() as undo:
        undo.callback(lock.release)
        # Lock first: a process with an exclusive lock may run a version that cannot share the file.
        is_alone = lock.acquire(busy_ms / 1000)
        writer = _connect(path, busy_ms)
        undo.callback(writer.close)
        _use_wal(writer, busy_ms)
        _migrate(writer, migrations, is_shared=FileLock.works and not is_alone)
        if is_alone and alone is not None:
            with _transaction(writer):
                alone(writer)
        connections = [writer]
        for _ in range(readers):
            reader = _connect(path, busy_ms)
            undo.callback(reader.close)
            reader.pragma("query_only", True)
            connections.append(reader)
        lock.acquire_shared(busy_ms / 1000)
        undo.pop_all()
    return connections


def _open_in_memory(migrations: str) -> apsw.Connection:
    connection = apsw.Connection(":memory:")
    _migrate(connection, migrations, is_shared=False)
    return connection


def _connect(path: Path, busy_ms: int) -> apsw.Connection:
    connection = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
    connection.set_busy_timeout(busy_ms)
    for name, value in PRAGMAS:  # one per call: a script would stop at the first that returns a row
        connection.pragma(name, value)
    return connection


def _use_wal(connection: apsw.Connection, busy_ms: int) -> None:
    # If two processes change the mode of a new file, SQLite reports BUSY immediately instead of
    # waiting, because both would wait for each other.
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
            f"The store {connection.filename!r} is on a file system that does not support WAL."
        )


def _migrate(connection: apsw.Connection, folder: str, *, is_shared: bool) -> None:
    scripts = migrations_of(folder)
    with _transaction(connection):  # other starting processes wait from here on
        version = connection.pragma("user_version")
        if version > max(scripts):
            raise SettingsError(
                f"The store {connection.filename!r} was written by a newer version of this server."
            )
        if version < max(scripts) and is_shared:  # they would not find their tables any more
            raise SettingsError(
                f"The store {connection.filename!r} cannot be used: "
                "servers of an older version are using it; stop them first."
            )
        for number in sorted(scripts):
            if number > version:
                connection.execute(scripts[number]).fetchall()
                connection.pragma("user_version", number)


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


class _ReadWorker:
    """Runs each job separately."""

    def __init__(self, connection: apsw.Connection) -> None:
        self.connection = connection

    def run(self, jobs: Sequence[_Job]) -> list[_Outcome]:
        return [self._attempt(job) for job in jobs if not job.done.cancelled()]

    def _attempt(self, job: _Job) -> _Outcome:
        try:
            return _Outcome(job.done, job.work(self.connection))
        except Exception as error:
            return _Outcome(job.done, error=error)


class _WriteWorker:
    """Commits the jobs of one call in one transaction, and wipes the WAL after an erasing job.

    On a full disk, an erasing job gets the `reserve`.
    """

    max_jobs = MAX_WRITES

    def __init__(
        self, connection: apsw.Connection, busy_ms: int, reserve: DiskReserve | None = None
    ) -> None:
        self.connection = connection
        self._busy_ms = busy_ms
        self._reserve = reserve
        self._keep_reserve_at = 0.0
        self._has_traces = False

    def run(self, jobs: Sequence[_Job]) -> list[_Outcome]:
        outcomes = self._commit(jobs)
        full = [at for at, each in enumerate(outcomes) if isinstance(each.error, apsw.FullError)]
        erasing = [at for at in full if jobs[at].erases]
        if full and self._make_room(for_erasing=bool(erasing)):
            for at in erasing or full:
                [outcomes[at]] = self._commit([jobs[at]])
        return outcomes

    def _make_room(self, *, for_erasing: bool) -> bool:
        """Return whether there may be more room now: what is deleted leaves some in the file, but
        not in the WAL."""
        has_more = for_erasing and self._reserve is not None and self._reserve.release()
        return self._empty_wal() or has_more

    def _commit(self, jobs: Sequence[_Job]) -> list[_Outcome]:
        self._has_traces = self._has_traces or any(job.erases for job in jobs)
        try:
            with _transaction(self.connection):
                return [self._attempt(job) for job in jobs]
        except apsw.BusyError as error:  # another try would wait just as long
            return [_Outcome(job.done, error=error) for job in jobs]
        except Exception as error:
            if len(jobs) == 1:
                return [_Outcome(jobs[0].done, error=error)]
            # One job ended the transaction for all, as a full disk does. Run each one alone, so it
            # can only fail itself.
            return [outcome for job in jobs for outcome in self._commit([job])]

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

    def clean_up(self) -> float | None:
        """Wipe the WAL if needed, and keep the reserve. Return when to retry, in s, or None."""
        self._has_traces = self._has_traces and not self._empty_wal()
        if self._reserve is not None and (now := time.monotonic()) >= self._keep_reserve_at:
            self._reserve.keep()
            self._keep_reserve_at = now + KEEP_RESERVE_S
        return WIPE_RETRY_S if self._has_traces else None

    def _empty_wal(self) -> bool:
        """Write the WAL back, and return whether nothing is left in it."""
        self.connection.set_busy_timeout(0)  # writes must not wait for readers
        try:
            self.connection.wal_checkpoint(mode=apsw.SQLITE_CHECKPOINT_TRUNCATE)
        except apsw.Error:
            return False
        finally:
            self.connection.set_busy_timeout(self._busy_ms)
        return True


class _WorkerThread:
    """A thread that runs queued jobs in batches and delivers the results to the event loop."""

    def __init__(self, worker: _WriteWorker, *, name: str) -> None:
        self._worker = worker
        self._loop = asyncio.get_running_loop()
        self._queue: SimpleQueue[_Job | None] = SimpleQueue()
        self._closed = self._loop.create_future()
        # A daemon, so that a hanging disk does not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def submit(self, work: Work[T], *, erases: bool = False) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self._loop.create_future()
        self._queue.put(_Job(work, done, erases))
        return done

    async def aclose(self) -> None:
        self._queue.put(None)
        await self._closed
        self._thread.join()

    def _run(self) -> None:
        timeout_s = None
        while True:
            queued = self._take(timeout_s)
            is_closing = bool(queued) and queued[-1] is None
            jobs = [job for job in queued if job is not None]
            if jobs:
                _deliver(self._loop, self._worker.run(jobs))
            timeout_s = self._worker.clean_up()
            if is_closing:
                break
        self._worker.connection.close()
        _deliver(self._loop, [_Outcome(self._closed)])

    def _take(self, timeout_s: float | None) -> list[_Job | None]:
        """Return the queued jobs; wait if there are none. A None, always last, ends the thread."""
        jobs: list[_Job | None] = []
        try:
            jobs.append(self._queue.get(timeout=timeout_s))
            while len(jobs) < self._worker.max_jobs:
                jobs.append(self._queue.get_nowait())
        except Empty:
            pass
        return jobs


class _FairThreads:
    """Threads that run jobs one by one, those of all tenants in turn.

    A job belongs to the worker that takes it, so a worker's connection serves one job at a time.
    """

    def __init__(self, workers: Sequence[_ReadWorker | _WriteWorker], *, name: str) -> None:
        self._loop = asyncio.get_running_loop()
        several = len(workers) > 1
        self._jobs = FairJobs[_Job](per_tenant=len(workers) - 1 if several else None)
        self._closed = [self._loop.create_future() for _ in workers]
        self._threads = [
            # Daemons, so that a hanging disk does not keep the process from ending.
            threading.Thread(target=self._run, args=(worker, closed), name=name, daemon=True)
            for worker, closed in zip(workers, self._closed, strict=True)
        ]
        for thread in self._threads:
            thread.start()

    def submit(self, tenant: str, work: Work[T]) -> asyncio.Future[T]:
        done: asyncio.Future[T] = self._loop.create_future()
        self._jobs.put(tenant, _Job(work, done, erases=False))
        return done

    async def aclose(self) -> None:
        self._jobs.close()
        for closed in self._closed:
            await closed
        for thread in self._threads:
            thread.join()

    def _run(self, worker: _ReadWorker | _WriteWorker, closed: asyncio.Future[Any]) -> None:
        while (taken := self._jobs.take()) is not None:
            outcomes: list[_Outcome] = []
            deadline = time.monotonic() + DELIVER_S
            while taken is not None:
                tenant, job = taken
                outcomes += worker.run([job])
                self._jobs.end(tenant)
                is_full = len(outcomes) >= MAX_READS or time.monotonic() > deadline
                taken = None if is_full else self._jobs.take_now()
                if taken is not None and taken[0] != tenant:  # its read may take long
                    _deliver(self._loop, outcomes)
                    outcomes = []
            _deliver(self._loop, outcomes)
        worker.connection.close()
        _deliver(self._loop, [_Outcome(closed)])


def _deliver(loop: asyncio.AbstractEventLoop, outcomes: list[_Outcome]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing waits any more
        loop.call_soon_threadsafe(_resolve, outcomes)


def _resolve(outcomes: list[_Outcome]) -> None:
    for done, result, error in outcomes:
        if done.done():  # the caller was canceled
            continue
        if error is None:
            done.set_result(result)
        else:
            done.set_exception(error)
