"""One PostgreSQL database: its connections, migrations and errors.

Every operation has a timeout. Every failure is a StoreError of one sentence, without the password.
The connection of a canceled operation is closed and not reset, because resetting it takes an answer
from the server that may never come.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlsplit

from antiphon.adapters.extras import install_command
from antiphon.adapters.stores.migration_scripts import migrations_of
from antiphon.domain.errors import SettingsError, StoreError

try:
    import asyncpg
except ImportError:
    raise SettingsError(
        f"The PostgreSQL store needs asyncpg. Install it with: {install_command('postgres')}"
    ) from None

logger = logging.getLogger("antiphon.stores")

T = TypeVar("T")
Row = Sequence[Any]
Connection = Any
"""An asyncpg.Connection. asyncpg has no type annotations."""

Work = Callable[[Connection], Awaitable[T]]

MIN_SERVER_VERSION = 14
"""Older versions no longer get fixes."""

MIGRATION_TIMEOUT_S = 600
"""The time limit for a migration, including the wait for another process that migrates."""

CLOSE_TIMEOUT_S = 5
"""How long closing may wait for pending operations."""

ESCAPE = "\x1a"
"""Escapes the two characters that stored text cannot contain as they are: NUL, and itself."""

CONNECTION_ERRORS = (
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,  # an administrator or a crash ended the session
    asyncpg.CannotConnectNowError,
    asyncpg.InterfaceError,  # "connection is closed"
    asyncpg.InternalClientError,  # a session ended instead of answering
    OSError,
)
"""The connection is lost. It is unknown whether the work was done."""

ROLLED_BACK_ERRORS = (
    asyncpg.DeadlockDetectedError,
    asyncpg.SerializationError,
    asyncpg.InvalidCachedStatementError,  # another process has migrated in the meantime
)
"""PostgreSQL rolled the work back for reasons outside of it; it can be retried."""

DATABASE_ERRORS = (asyncpg.PostgresError, *CONNECTION_ERRORS)

ADDRESS_FORMAT = (
    "an address looks like postgresql://user@host:5432/database; in its password, write %2F for /, "
    "%3F for ?, %23 for #, %40 for @"
)

ERROR_MESSAGES: Sequence[tuple[type[BaseException], str]] = (
    (TimeoutError, "it did not answer in time"),
    (asyncpg.ClientConfigurationError, ADDRESS_FORMAT),
    (asyncpg.InvalidCatalogNameError, "the database does not exist; create it with createdb"),
    (asyncpg.InvalidAuthorizationSpecificationError, "it rejected the user or password"),
    (asyncpg.TooManyConnectionsError, "it has too many connections; raise its max_connections"),
    (asyncpg.CannotConnectNowError, "it is starting or stopping"),
    (asyncpg.InsufficientPrivilegeError, "this user lacks the permission"),
    (asyncpg.ReadOnlySQLTransactionError, "it is read-only; is it a standby?"),
    (asyncpg.DiskFullError, "its disk is full"),
    (asyncpg.UniqueViolationError, "the same id already exists"),
    (asyncpg.QueryCanceledError, "it did not answer in time"),
    (asyncpg.UndefinedTableError, "a table is missing"),
    (asyncpg.DataCorruptedError, "it is damaged"),
    (asyncpg.IndexCorruptedError, "it is damaged"),
    (ConnectionRefusedError, "no server is listening there"),
    (asyncpg.PostgresConnectionError, "the connection was lost"),
    (asyncpg.OperatorInterventionError, "the connection was ended"),
    (asyncpg.InterfaceError, "the connection was lost"),
    (asyncpg.InternalClientError, "the connection was lost"),
    (ValueError, ADDRESS_FORMAT),  # its text may contain a part of the password
)
"""The first matching entry applies."""


class Timeouts(NamedTuple):
    """Time limits for getting a connection, and for a whole operation."""

    connection_s: float
    total_s: float


READ_IN_ORDER: Mapping[str, str] = MappingProxyType({"enable_bitmapscan": "off"})
"""For a `planner`: read a page from its index, in order. If the statistics say that there is hardly
anything, as they do of what has just grown, PostgreSQL rather sorts everything: a page of 30,000
items took 33 ms instead of 0.1. Full-text indexes need bitmaps."""


class PostgresServer:
    """A pool of at most `pool` connections; heartbeats and notifications have their own.

    `start_timeout_s` limits operations at the start of a request, `run_timeout_s` all others.
    `planner` are further settings of how PostgreSQL plans its statements.
    """

    def __init__(
        self,
        dsn: str,
        *,
        schema: str,
        pool: int,
        start_timeout_s: float,
        run_timeout_s: float,
        planner: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.schema = schema
        self.start_timeouts = Timeouts(start_timeout_s, start_timeout_s)
        self.read_timeouts = Timeouts(start_timeout_s, run_timeout_s)
        self.run_timeouts = Timeouts(run_timeout_s, run_timeout_s)
        self._dsn = _without_libpq_options(dsn)
        self._size = pool
        self._planner = planner
        self._name = _without_secrets(dsn)
        self._pool: Any = None

    async def start(self) -> None:
        """Connect and migrate. Raises: SettingsError, which says what to do."""
        if not re.fullmatch(r"[a-z_][a-z0-9_]{0,39}", self.schema):
            raise SettingsError(
                f"{self.schema!r} cannot be a schema: use up to 40 lowercase letters, digits and _."
            )
        try:
            await self._migrate()
            self._pool = await asyncpg.create_pool(
                self._dsn,
                min_size=1,
                max_size=self._size,
                max_inactive_connection_lifetime=300,
                init=self._prepare,
                reset=_do_nothing,
                timeout=self.start_timeouts.connection_s,
                server_settings=self._startup_settings("requests"),
            )
        except asyncpg.InsufficientPrivilegeError as error:
            raise SettingsError(
                f"The store {self._name} cannot be used: this user may not create its schema. "
                f"Run as an administrator: CREATE SCHEMA {self.schema} AUTHORIZATION the_user"
            ) from error
        except (*DATABASE_ERRORS, ValueError) as error:
            raise SettingsError(self.error_message(error)) from error

    async def aclose(self) -> None:
        pool, self._pool = self._pool, None
        if pool is None:
            return
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await pool.close()
        except DATABASE_ERRORS:
            pool.terminate()

    async def connect(self, purpose: str, *, checks_pooler: bool = False) -> Connection:
        """Return a new connection outside of the pool, which the caller closes.

        Administrators see `purpose` in the name of the session. Raises: SettingsError if it is to
        look for a pooler that cannot be used, and finds one.
        """
        async with asyncio.timeout(self.start_timeouts.connection_s):
            connection = await self._dial(purpose)
            try:
                if checks_pooler:
                    await self._check_pooler(connection)
                await self._prepare(connection)
            except BaseException:
                connection.terminate()
                raise
        return connection

    async def _dial(self, purpose: str) -> Connection:
        return await asyncpg.connect(self._dsn, server_settings=self._startup_settings(purpose))

    async def _prepare(self, connection: Connection) -> None:
        settings = (f"SET {name} TO '{value}'" for name, value in self._settings().items())
        await connection.execute("; ".join(settings))
        await connection.set_type_codec(
            "text", schema="pg_catalog", encoder=escape, decoder=unescape, format="text"
        )

    async def fetch(
        self,
        query: str,
        *values: Any,
        timeouts: Timeouts | None = None,
        idempotent: bool = False,
    ) -> list[Row]:
        """Return the rows of one statement.

        An `idempotent` statement is retried once if the connection is lost. Raises: StoreError.
        """

        async def work(connection: Connection) -> list[Row]:
            rows: list[Row] = await connection.fetch(query, *values)
            return rows

        return await self._run(work, timeouts or self.read_timeouts, may_retry=lambda: idempotent)

    async def in_transaction(self, work: Work[T], *, timeouts: Timeouts | None = None) -> T:
        """Return the result of `work` once its transaction is committed.

        It is retried once if nothing of it was committed. Raises: StoreError.
        """
        is_committing = False

        async def transaction(connection: Connection) -> T:
            nonlocal is_committing
            is_committing = False
            await connection.execute("BEGIN")
            try:
                result = await work(connection)
            except Exception:
                with suppress(*DATABASE_ERRORS):
                    await connection.execute("ROLLBACK")
                raise
            is_committing = True
            await connection.execute("COMMIT")
            return result

        return await self._run(
            transaction, timeouts or self.read_timeouts, may_retry=lambda: not is_committing
        )

    def error_message(self, error: BaseException) -> str:
        """Return one sentence for users and operators."""
        reason = _known_reason(error) or str(error).strip().splitlines()[0].rstrip(".")
        return f"The store {self._name} cannot be used: {reason}."

    async def _run(self, work: Work[T], timeouts: Timeouts, *, may_retry: Callable[[], bool]) -> T:
        try:
            async with asyncio.timeout(timeouts.total_s):
                try:
                    return await self._run_once(work, timeouts)
                except ROLLED_BACK_ERRORS:
                    pass
                except CONNECTION_ERRORS as error:
                    if not _is_connection_lost(error) or not may_retry():
                        raise
                return await self._run_once(work, timeouts)
        except DATABASE_ERRORS as error:
            raise StoreError(self.error_message(error), reason=_known_reason(error)) from error

    async def _run_once(self, work: Work[T], timeouts: Timeouts) -> T:
        if self._pool is None:
            raise StoreError(f"The store {self._name} is not open.")
        connection = await self._pool.acquire(timeout=timeouts.connection_s)
        try:
            return await work(connection)
        except asyncio.CancelledError:
            _terminate(connection)
            raise
        except CONNECTION_ERRORS as error:
            if _is_connection_lost(error):
                _terminate(connection)
                # The other connections may be lost too, without knowing it yet.
                await self._pool.expire_connections()
            raise
        finally:
            await self._pool.release(connection)

    def _startup_settings(self, purpose: str) -> Mapping[str, str]:
        """Return what a connection begins with: no more than poolers like PgBouncer let pass."""
        return {"application_name": f"antiphon {purpose} {self.schema}"}

    def _settings(self) -> Mapping[str, str]:
        timeout_ms = str(int(self.run_timeouts.total_s * 1000))
        return {
            "search_path": self.schema,
            # Every statement should use the indexes, however many rows there are. The statistics of
            # a table that has just grown suggest otherwise (a chain took 500 ms instead of 2).
            "enable_seqscan": "off",
            "enable_hashjoin": "off",
            "enable_mergejoin": "off",
            "jit": "off",
            **self._planner,
            "statement_timeout": timeout_ms,
            # A server that is suspended in a transaction must not hold its locks.
            "idle_in_transaction_session_timeout": timeout_ms,
        }

    # --- tables -----------------------------------------------------------------------------------

    async def _migrate(self) -> None:
        connection = await self.connect("migration", checks_pooler=True)
        try:
            version = connection.get_server_version()
            if version.major < MIN_SERVER_VERSION:
                raise SettingsError(
                    f"The store {self._name} is PostgreSQL {version.major}: "
                    f"{MIN_SERVER_VERSION} or newer is required."
                )
            async with asyncio.timeout(MIGRATION_TIMEOUT_S):
                await connection.execute("SET statement_timeout = 0")
                async with _exclusive_lock(connection, f"antiphon {self.schema}"):
                    await self._apply_migrations(connection)
        finally:
            connection.terminate()

    async def _check_pooler(self, connection: Connection) -> None:
        """Raises: SettingsError if a pooler gives each transaction another session.

        What a session was told holds for one transaction there: settings, statements, channels.
        """
        pid = connection.get_server_pid()
        if not await _is(connection, f"pg_backend_pid() <> {pid}"):
            return  # PostgreSQL itself
        other = await self._dial("migration")
        try:
            probe = f"'{id(connection)} {pid}'"
            await connection.execute(f"SET antiphon.probe TO {probe}")
            if await _is(other, f"current_setting('antiphon.probe', true) = {probe}"):
                raise SettingsError(
                    f"The store {self._name} is behind a pooler that shares sessions among "
                    "transactions. Have it pool sessions (pool_mode = session in PgBouncer), or "
                    "give the address of PostgreSQL itself."
                )
        finally:
            other.terminate()

    async def _apply_migrations(self, connection: Connection) -> None:
        # Check first: if the schema exists, the user needs no permission to create one.
        if await connection.fetchval("SELECT to_regnamespace($1)", self.schema) is None:
            await connection.execute(f'CREATE SCHEMA IF NOT EXISTS "{self.schema}"')
        if await connection.fetchval("SELECT to_regclass('schema_version')") is None:
            await connection.execute("CREATE TABLE schema_version (number INTEGER PRIMARY KEY)")
        version = await connection.fetchval("SELECT max(number) FROM schema_version") or 0
        scripts = migrations_of("postgres")
        if version > max(scripts):
            raise SettingsError(
                f"The store {self._name} was written by a newer version of this server."
            )
        for number in sorted(scripts):
            if number > version:
                async with connection.transaction():
                    await connection.execute(scripts[number])
                    await connection.execute("INSERT INTO schema_version VALUES ($1)", number)


async def _is(connection: Connection, condition: str) -> bool:
    """Return whether this holds in the session, asked so that no statement stays prepared."""
    try:
        await connection.execute(
            f"DO $$ BEGIN IF {condition} THEN RAISE EXCEPTION 'it is'; END IF; END $$"
        )
    except asyncpg.RaiseError:
        return True
    return False


def _known_reason(error: BaseException) -> str:
    """Return a reason of ours, which names no machine; "" if the error is unknown."""
    return next((reason for kind, reason in ERROR_MESSAGES if isinstance(error, kind)), "")


def _is_connection_lost(error: Exception) -> bool:
    """Return whether the connection is to blame, and not bad values or a timeout."""
    return not isinstance(error, ValueError | TimeoutError)


@asynccontextmanager
async def _exclusive_lock(connection: Connection, name: str) -> AsyncGenerator[None]:
    """Hold an advisory lock, which the end of the connection releases too."""
    await connection.execute("SELECT pg_advisory_lock(hashtextextended($1, 0))", name)
    yield
    await connection.execute("SELECT pg_advisory_unlock(hashtextextended($1, 0))", name)


LIBPQ_OPTIONS = frozenset(
    {
        *("channel_binding", "connect_timeout", "fallback_application_name", "gssencmode"),
        *("keepalives", "keepalives_count", "keepalives_idle", "keepalives_interval"),
        *("load_balance_hosts", "pgbouncer", "require_auth", "sslcompression", "sslsni"),
        *("tcp_user_timeout", "connection_limit", "pool_timeout"),
    }
)
"""Options of addresses that hosting services hand out for other clients; this one has none of them,
and PostgreSQL would take them for settings of its own."""


def _without_libpq_options(dsn: str) -> str:
    """Return the address without options for other clients. The log names those that protect.

    >>> _without_libpq_options("postgresql://h/d?connect_timeout=10&sslmode=require")
    'postgresql://h/d?sslmode=require'
    """
    address, mark, query = dsn.partition("?")
    options = query.split("&")
    kept = [each for each in options if each.partition("=")[0] not in LIBPQ_OPTIONS]
    for each in set(options) & {"channel_binding=require"}:
        logger.warning("the store's address says %s, which this client cannot do", each)
    return address + (mark if kept else "") + "&".join(kept)


def _without_secrets(dsn: str) -> str:
    """Return the address without its secrets.

    >>> _without_secrets("postgresql://me:secret@localhost:5432/kept?password=too")
    'postgresql://localhost:5432/kept'

    A password that is not URL-encoded may end anywhere:

    >>> _without_secrets("postgresql://me:sec/ret@localhost:5432/kept")
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


def _terminate(connection: Connection) -> None:
    with suppress(asyncpg.InterfaceError):  # the pool has closed it already
        connection.terminate()


async def _do_nothing(_: Connection) -> None:
    """Save a round trip: no session state ever changes, so there is nothing to reset."""


def escape(text: str) -> str:
    r"""Return the text in a form that PostgreSQL can store.

    >>> unescape(escape("a\x00b\x1a")) == "a\x00b\x1a"
    True
    """
    if "\0" not in text and ESCAPE not in text:
        return text
    return text.replace(ESCAPE, ESCAPE + "1").replace("\0", ESCAPE + "0")


def unescape(text: str) -> str:
    """Return the text whose `escape` this is."""
    if ESCAPE not in text:
        return text
    return text.replace(ESCAPE + "0", "\0").replace(ESCAPE + "1", ESCAPE)


def columns(rows: Sequence[Row], width: int) -> list[list[Any]]:
    """Return the rows as columns for `unnest`, with the text in them escaped.

    asyncpg does not apply the codec of text to arrays of text.
    """
    return [[_cell(row[place]) for row in rows] for place in range(width)]


def _cell(value: Any) -> Any:
    return escape(value) if isinstance(value, str) else value
