"""Look into a store without changing it: its version, its seal key, its clock.

A store that starts creates or migrates its tables; this only reads.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable
from importlib.resources import files
from pathlib import Path
from typing import Any

from msgspec import Struct

from antiphon.domain.errors import SettingsError, StoreError

SHARED_VALUES = ("shared_values", "agreed")
"""Where the seal key's fingerprint is; the second name is that of versions before the ninth."""


class StoreState(Struct, frozen=True, kw_only=True):
    """The state of a store, as it reports it.

    `version` is the number of its newest migration, or 0 if it has no tables yet; `newest_version`
    is that of this server. `fingerprint` is that of the seal key, None before the first start.
    `clock_skew_s` is how far its clock is ahead of ours, None if it has no clock of its own.
    `durability` is a sentence on what it may lose, None if it does not say so.
    """

    version: int
    newest_version: int
    fingerprint: bytes | None
    clock_skew_s: float | None = None
    durability: str | None = None


def _newest(folder: str) -> int:
    scripts: Iterable[str] = (
        each.name for each in (files(__package__) / "migrations" / folder).iterdir()
    )
    return max(int(name.partition("_")[0]) for name in scripts if name.endswith(".sql"))


async def inspect_sqlite(path: Path, fingerprint_name: str) -> StoreState:
    """Return the state of an existing file. Raises: SettingsError."""
    return await asyncio.to_thread(_inspect_sqlite, path, fingerprint_name)


def _inspect_sqlite(path: Path, fingerprint_name: str) -> StoreState:
    import apsw

    try:
        db = apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READWRITE)
        try:
            db.set_busy_timeout(5000)
            # It waits for the lock of a writer as a server does, and writes nothing.
            db.execute("BEGIN IMMEDIATE")
            version = db.pragma("user_version")
            query = "SELECT name FROM sqlite_schema WHERE name IN (?, ?)"
            value: Any = None
            for (table,) in db.execute(query, SHARED_VALUES).fetchall():
                query = f"SELECT value FROM {table} WHERE name = ?"
                value = next((row[0] for row in db.execute(query, (fingerprint_name,))), None)
            fingerprint = None if value is None else bytes(value)
            db.execute("ROLLBACK")
        finally:
            db.close()
    except apsw.Error as error:
        raise SettingsError(f"The store {str(path)!r} cannot be used: {error}.") from error
    return StoreState(
        version=version,
        newest_version=_newest("sqlite"),
        fingerprint=fingerprint,
    )


async def inspect_postgres(dsn: str, fingerprint_name: str) -> StoreState:
    """Return the state of a database. Raises: SettingsError."""
    from antiphon.adapters.stores.postgres.server import DATABASE_ERRORS, PostgresServer

    server = PostgresServer(dsn, schema="antiphon", pool=1, start_timeout_s=5, run_timeout_s=5)
    try:
        connection = await server.connect("inspection")
        try:
            before = time.time()
            at = await connection.fetchval("SELECT extract(epoch FROM clock_timestamp())::float8")
            middle = (before + time.time()) / 2
            version, fingerprint = 0, None
            if await connection.fetchval("SELECT to_regclass('schema_version')") is not None:
                version = await connection.fetchval("SELECT max(number) FROM schema_version") or 0
            for table in SHARED_VALUES:
                if await connection.fetchval("SELECT to_regclass($1)", table) is not None:
                    query = f"SELECT value FROM {table} WHERE name = $1"
                    fingerprint = await connection.fetchval(query, fingerprint_name)
        finally:
            connection.terminate()
    except (*DATABASE_ERRORS, ValueError) as error:
        raise SettingsError(server.error_message(error)) from error
    return StoreState(
        version=version,
        newest_version=_newest("postgres"),
        fingerprint=fingerprint,
        clock_skew_s=at - middle,
    )


async def inspect_redis(
    url: str, fingerprint_name: str, *, prefix: str = "antiphon:"
) -> StoreState:
    """Return the state of a database. Raises: SettingsError."""
    from antiphon.adapters.stores.redis.durability import durability_of
    from antiphon.adapters.stores.redis.schema import SCHEMA_VERSION, schema_version
    from antiphon.adapters.stores.redis.scripts import RedisScripts

    redis = RedisScripts(url, prefix=prefix, connect_timeout_s=5, timeout_s=5)
    await redis.start()
    try:
        with redis.raising_store_errors():
            before = time.time()
            seconds, microseconds = await redis.client.time()
            middle = (before + time.time()) / 2
            version = await schema_version(redis)
            fingerprint = None
            for name in SHARED_VALUES:
                fingerprint = fingerprint or await redis.client.execute_command(  # type: ignore[no-untyped-call]
                    "HGET", f"{prefix}{name}", fingerprint_name
                )
            durability = await durability_of(redis.client, redis.address)
    except StoreError as error:
        raise SettingsError(str(error)) from error
    finally:
        await redis.aclose()
    return StoreState(
        version=version,
        newest_version=SCHEMA_VERSION,
        durability=durability,
        fingerprint=fingerprint,
        clock_skew_s=int(seconds) + int(microseconds) / 1e6 - middle,
    )
