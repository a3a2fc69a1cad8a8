"""The stores under test. To test another store, add a line to STORES."""

from __future__ import annotations

import os
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import asyncpg
import pytest
from redis.asyncio import Redis
from redis.exceptions import RedisError

from antiphon.adapters.stores.memory.store import MemoryStore
from antiphon.adapters.stores.postgres.store import PostgresStore
from antiphon.adapters.stores.redis.store import RedisStore
from antiphon.adapters.stores.sqlite.store import SqliteStore
from antiphon.application.ports import Store

POSTGRES = os.environ.get("ANTIPHON_TEST_POSTGRES", "postgresql://postgres@127.0.0.1:5432/test")
REDIS = os.environ.get("ANTIPHON_TEST_REDIS", "redis://127.0.0.1:6379/0")

NewStore = Callable[[], Store]
"""Creates another store on the same data, not started yet, as another server would."""

Place = Callable[[Path], AbstractAsyncContextManager[NewStore]]
"""Provides a place for the data of one test, in the folder or elsewhere, and clears it."""


@asynccontextmanager
async def in_memory(_: Path) -> AsyncIterator[NewStore]:
    store = MemoryStore()
    yield lambda: store


@asynccontextmanager
async def in_sqlite(folder: Path) -> AsyncIterator[NewStore]:
    yield lambda: SqliteStore(folder / "antiphon.db")


@asynccontextmanager
async def redis_prefix() -> AsyncIterator[str]:
    """Yield a prefix for one test and delete its keys afterwards. Skip the test without a Redis."""
    prefix = f"antiphon-test-{secrets.token_hex(8)}:"
    async with Redis.from_url(REDIS) as client:
        try:
            await client.ping()
        except (RedisError, OSError) as error:
            pytest.skip(f"no Redis at {REDIS} (ANTIPHON_TEST_REDIS): {error}")
        yield prefix
        async for key in client.scan_iter(f"{prefix}*", count=1000):
            await client.delete(key)


@asynccontextmanager
async def in_redis(_: Path) -> AsyncIterator[NewStore]:
    async with redis_prefix() as prefix:
        yield lambda: RedisStore(REDIS, prefix=prefix)


@asynccontextmanager
async def schema_of_postgres() -> AsyncIterator[tuple[str, str]]:
    """Yield the address of a PostgreSQL and a schema for one test, which is dropped afterwards.

    Skip the test without a PostgreSQL.
    """
    try:
        admin = await asyncpg.connect(POSTGRES, timeout=2)
    except (OSError, asyncpg.PostgresError) as error:
        pytest.skip(f"no PostgreSQL at {POSTGRES} (ANTIPHON_TEST_POSTGRES): {error}")
    schema = f"test_{secrets.token_hex(6)}"
    try:
        yield POSTGRES, schema
    finally:
        await admin.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        await admin.close()


@asynccontextmanager
async def in_postgres(_: Path) -> AsyncIterator[NewStore]:
    async with schema_of_postgres() as (dsn, schema):
        yield lambda: PostgresStore(dsn, schema=schema)


STORES: Mapping[str, Place] = {
    "memory": in_memory,
    "sqlite": in_sqlite,
    "postgres": in_postgres,
    "redis": in_redis,
}


@pytest.fixture(params=STORES)
def place(request: pytest.FixtureRequest) -> Place:
    return STORES[request.param]


@pytest.fixture
async def new_store(place: Place, tmp_path: Path) -> AsyncIterator[NewStore]:
    async with place(tmp_path) as new_store:
        yield new_store


@pytest.fixture
async def postgres() -> AsyncIterator[tuple[str, str]]:
    async with schema_of_postgres() as dsn_and_schema:
        yield dsn_and_schema
