"""One PostgreSQL database: its connections, its tables, and what may go wrong with both.

Every operation has a time limit. What fails, fails as a StoreError of one sentence, without the
password. A connection that somebody stopped waiting for is closed, not mended: mending takes an
answer from the server, and none may come.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from importlib.resources import files
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from antiphon.adapters.extras import install_command
from antiphon.domain.errors import SettingsError, StoreError

try:
    import asyncpg
except ImportError:
    raise SettingsError(
        f"The store PostgreSQL needs a package. Install it with: {install_command('postgres')}"
    ) from None

T = TypeVar("T")
Row = Sequence[Any]
Connection = Any
"""An asyncpg.Connection, which has no types."""

Work = Callable[[Connection], Awaitable[T]]

OLDEST_SERVER = 14
"""Older ones get no fixes any more."""

MIGRATE_S = 600
"""How long to wait for another process that migrates, and to migrate."""

CLOSE_S = 5
"""How long closing may wait for what was asked for."""

ESCAPE = "\x1a"
"""What stands in texts before what PostgreSQL cannot write: NUL, and itself."""

CONNECTION_ERRORS = (
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,  # an administrator, or a crash, ended the session
    asyncpg.CannotConnectNowError,
    asyncpg.InterfaceError,  # "connection is closed"
    asyncpg.InternalClientError,  # the last words of a session came in place of an answer
    OSError,
)
"""The connection is gone; whether the work was done before that is not known."""

UNDONE = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.InvalidCachedStatementError,  # another process has migrated meanwhile
)
"""The work was taken back, for no fault of its own."""

DATABASE_ERRORS = (asyncpg.PostgresError, *CONNECTION_ERRORS)

ADDRESS = (
    "an address is postgresql://user@host:5432/database, and a password in it has %2F for /, "
    "%3F for ?, %23 for #, %40 for @"
)

ERROR_MESSAGES: Sequence[tuple[type[BaseException], str]] = (
    (TimeoutError, "it does not answer in time"),
    (asyncpg.ClientConfigurationError, ADDRESS),
    (asyncpg.InvalidCatalogNameError, "there is no such database; create it with createdb"),
    (asyncpg.InvalidAuthorizationSpecificationError, "it refuses this user or password"),
    (asyncpg.TooManyConnectionsError, "it has too many connections; raise its max_connections"),
    (asyncpg.CannotConnectNowError, "it is starting or stopping"),
    (asyncpg.InsufficientPrivilegeError, "this user may not do that"),
    (asyncpg.ReadOnlySQLTransactionError, "it can only be read; is it a standby?"),
    (asyncpg.DiskFullError, "its disk is full"),
    (asyncpg.UniqueViolationError, "the same id is there already"),
    (asyncpg.QueryCanceledError, "it does not answer in time"),
    (asyncpg.UndefinedTableError, "a table is missing"),
    (asyncpg.DataCorruptedError, "it is damaged"),
    (asyncpg.IndexCorruptedError, "it is damaged"),
    (ConnectionRefusedError, "no server listens there"),
    (asyncpg.PostgresConnectionError, "the connection broke off"),
    (asyncpg.OperatorInterventionError, "the connection was ended"),
    (asyncpg.InterfaceError, "the connection broke off"),
    (asyncpg.InternalClientError, "the connection broke off"),
    (ValueError, ADDRESS),  # its text may be a part of the password
)
"""The first that fits."""


class Timeouts(NamedTuple):
    """Seconds: to get a connection, and for all of an operation."""

    connection_s: float
    total_s: float


class PostgresServer:
    """`pool`: connections of this store, at most; a few more serve its heart and its news.

    `start_s` limits what a request waits for before it has begun, `middle_s` all else.
    """

    def __init__(
        self, dsn: str, *, schema: str, pool: int, start_s: float, middle_s: float
    ) -> None:
        self.schema = schema
        self.first = Timeouts(start_s, start_s)
        self.read = Timeouts(start_s, middle_s)
        self.middle = Timeouts(middle_s, middle_s)
        self._dsn = dsn
        self._size = pool
        self._name = _shown(dsn)
        self._pool: Any = None

    async def start(self) -> None:
        """Connect and migrate. Raises: SettingsError, which says what to do."""
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,39}", self.schema):
            raise SettingsError(
                f"{self.schema!r} cannot be a schema: use small letters, digits and _, 40 at most."
            )
        try:
            await self._migrate()
            self._pool = await asyncpg.create_pool(
                self._dsn,
                min_size=1,
                max_size=self._size,
                max_inactive_connection_lifetime=300,
                init=_prepare,
                reset=_leave_as_it_is,
                timeout=self.first.connection_s,
                server_settings=self._settings("requests"),
            )
        except asyncpg.InsufficientPrivilegeError as error:
            raise SettingsError(
                f"The store {self._name} cannot be used: this user may not create what is missing "
                f"there. As an administrator: CREATE SCHEMA {self.schema} AUTHORIZATION the_user"
            ) from error
        except (*DATABASE_ERRORS, ValueError) as error:
            raise SettingsError(self.error_message(error)) from error

    async def aclose(self) -> None:
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            async with asyncio.timeout(CLOSE_S):
                await pool.close()
        except DATABASE_ERRORS:
            pool.terminate()

    async def connect(self, purpose: str) -> Connection:
        """Return a connection apart from the pool, which the caller closes.

        Administrators see the purpose.
        """
        async with asyncio.timeout(self.first.connection_s):
            settings = self._settings(purpose)
            connection = await asyncpg.connect(self._dsn, server_settings=settings)
            try:
                await _prepare(connection)
            except BaseException:
                connection.terminate()
                raise
        return connection

    async def fetch(
        self, query: str, *values: Any, limits: Timeouts | None = None, again: bool = False
    ) -> list[Row]:
        """Return the rows of one statement. `again`: it may be tried twice if its end is unknown.

        Raises: StoreError.
        """

        async def work(connection: Connection) -> list[Row]:
            rows: list[Row] = await connection.fetch(query, *values)
            return rows

        return await self._do(work, limits or self.read, may_repeat=lambda: again)

    async def in_transaction(self, work: Work[T], *, limits: Timeouts | None = None) -> T:
        """Return what `work` returned, once all that it did is committed.

        It is done again where nothing of it was. Raises: StoreError.
        """
        committing = False

        async def transaction(connection: Connection) -> T:
            nonlocal committing
            committing = False
            await connection.execute("BEGIN")
            try:
                result = await work(connection)
            except Exception:
                with suppress(*DATABASE_ERRORS):
                    await connection.execute("ROLLBACK")
                raise
            committing = True
            await connection.execute("COMMIT")
            return result

        return await self._do(transaction, limits or self.read, may_repeat=lambda: not committing)

    def error_message(self, error: BaseException) -> str:
        """Return one sentence, fit for people."""
        fitting = (reason for kind, reason in ERROR_MESSAGES if isinstance(error, kind))
        reason = next(fitting, None) or str(error).strip().splitlines()[0].rstrip(".")
        return f"The store {self._name} cannot be used: {reason}."

    async def _do(self, work: Work[T], limits: Timeouts, *, may_repeat: Callable[[], bool]) -> T:
        try:
            async with asyncio.timeout(limits.total_s):
                try:
                    return await self._once(work, limits)
                except UNDONE:
                    pass
                except CONNECTION_ERRORS as error:
                    if not _is_lost(error) or not may_repeat():
                        raise
                return await self._once(work, limits)
        except DATABASE_ERRORS as error:
            raise StoreError(self.error_message(error)) from error

    async def _once(self, work: Work[T], limits: Timeouts) -> T:
        if self._pool is None:
            raise StoreError(f"The store {self._name} is not open.")
        connection = await self._pool.acquire(timeout=limits.connection_s)
        try:
            return await work(connection)
        except asyncio.CancelledError:
            _drop(connection)
            raise
        except CONNECTION_ERRORS as error:
            if _is_lost(error):
                _drop(connection)
                # The others may be lost too, and not know it yet.
                await self._pool.expire_connections()
            raise
        finally:
            await self._pool.release(connection)

    def _settings(self, purpose: str) -> Mapping[str, str]:
        patience = str(int(self.middle.total_s * 1000))
        return {
            "application_name": f"antiphon {purpose} {self.schema}",
            "search_path": self.schema,
            # Each statement goes from index to index, however many rows there are: the statistics
            # of a table that has just grown would tell otherwise (a chain took 500 ms, not 2).
            "enable_seqscan": "off",
            "enable_hashjoin": "off",
            "enable_mergejoin": "off",
            "jit": "off",
            "statement_timeout": patience,
            # A server that is stopped in the middle must not keep what it has locked.
            "idle_in_transaction_session_timeout": patience,
        }

    # --- tables -----------------------------------------------------------------------------------

    async def _migrate(self) -> None:
        connection = await self.connect("migration")
        try:
            version = connection.get_server_version()
            if version.major < OLDEST_SERVER:
                raise SettingsError(
                    f"The store {self._name} is PostgreSQL {version.major}: "
                    f"{OLDEST_SERVER} or newer is needed."
                )
            async with asyncio.timeout(MIGRATE_S):
                await connection.execute("SET statement_timeout = 0")
                async with _alone(connection, f"antiphon {self.schema}"):
                    await self._apply(connection)
        finally:
            connection.terminate()

    async def _apply(self, connection: Connection) -> None:
        # One that is there needs no right to create one.
        if await connection.fetchval("SELECT to_regnamespace($1)", self.schema) is None:
            await connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{self.schema}"')
        if await connection.fetchval("SELECT to_regclass('schema_version')") is None:
            await connection.execute("CREATE TABLE schema_version (number INTEGER PRIMARY KEY)")
        version = await connection.fetchval("SELECT max(number) FROM schema_version") or 0
        scripts = dict(_scripts())
        if version > max(scripts):
            raise SettingsError(
                f"The store {self._name} was written by a newer version of this server."
            )
        for number in sorted(scripts):
            if number > version:
                async with connection.transaction():
                    await connection.execute(scripts[number])
                    await connection.execute("INSERT INTO schema_version VALUES ($1)", number)


def _is_lost(error: Exception) -> bool:
    """Whether the connection is to blame: not what it was given, nor that it took long."""
    return not isinstance(error, ValueError | TimeoutError)


@asynccontextmanager
async def _alone(connection: Connection, what: str) -> AsyncGenerator[None]:
    """Keep other processes from the same; the end of the connection frees them too."""
    await connection.execute("SELECT pg_advisory_lock(hashtextextended($1, 0))", what)
    yield
    await connection.execute("SELECT pg_advisory_unlock(hashtextextended($1, 0))", what)


def _scripts() -> Iterator[tuple[int, str]]:
    """Yield the numbered migrations: `0001_store.sql` is number 1."""
    for script in (files(__package__) / "migrations" / "postgres").iterdir():
        if script.name.endswith(".sql"):
            yield int(script.name.partition("_")[0]), script.read_text("utf-8")


def _shown(dsn: str) -> str:
    """Return an address without its secrets.

    >>> _shown("postgresql://me:secret@localhost:5432/kept?password=too")
    'postgresql://localhost:5432/kept'

    A password that was not written as URLs have it may end anywhere:

    >>> _shown("postgresql://me:sec/ret@localhost:5432/kept")
    'PostgreSQL'
    """
    try:
        parts = urlsplit(dsn)
    except ValueError:
        return "PostgreSQL"
    if "@" in parts.path + parts.query + parts.fragment:
        return "PostgreSQL"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


# --- connections ----------------------------------------------------------------------------------


async def _prepare(connection: Connection) -> None:
    await connection.set_type_codec(
        "text", schema="pg_catalog", encoder=written, decoder=read, format="text"
    )


def _drop(connection: Connection) -> None:
    with suppress(asyncpg.InterfaceError):  # it has found out by itself
        connection.terminate()


async def _leave_as_it_is(_: Connection) -> None:
    """Nothing of a session is ever changed, so that nothing must be put back: a round trip."""


def written(text: str) -> str:
    r"""Return the text as PostgreSQL can keep it.

    >>> read(written("a\x00b\x1a")) == "a\x00b\x1a"
    True
    """
    if "\0" not in text and ESCAPE not in text:
        return text
    return text.replace(ESCAPE, ESCAPE + "1").replace("\0", ESCAPE + "0")


def read(text: str) -> str:
    """Return the text that was `written`."""
    if ESCAPE not in text:
        return text
    return text.replace(ESCAPE + "0", "\0").replace(ESCAPE + "1", ESCAPE)


def columns(rows: Sequence[Row], width: int) -> list[list[Any]]:
    """Return what `unnest` makes rows of again. Texts in arrays are not `written` by themselves."""
    return [[_cell(row[place]) for row in rows] for place in range(width)]


def _cell(value: Any) -> Any:
    return written(value) if isinstance(value, str) else value
