"""A store that the version before has written opens with all of its content.

The files here were made by that version: a store with every kind of row.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import apsw
import asyncpg
import pytest
import redis.asyncio as aio
from redis.exceptions import ResponseError
from tests.contracts.conftest import POSTGRES, REDIS, redis_prefix
from tests.contracts.stores.test_sqlite_runs import KILLED

from antiphon.adapters.stores.file_lock import FileLock
from antiphon.adapters.stores.inspection import inspect_redis, inspect_sqlite
from antiphon.adapters.stores.migration_scripts import migrations_of
from antiphon.adapters.stores.postgres.store import PostgresStore
from antiphon.adapters.stores.redis.schema import SCHEMA_VERSION, upgrade
from antiphon.adapters.stores.redis.scripts import RedisScripts
from antiphon.adapters.stores.redis.store import RedisStore
from antiphon.adapters.stores.sqlite.store import SqliteStore
from antiphon.application.ports import Charge, StorageUsage, Store, StorePageQuery
from antiphon.domain.access.limits import KeyPolicy
from antiphon.domain.errors import SettingsError
from antiphon.testing.samples import (
    FAR_FUTURE,
    NEXT_OWNER,
    OWNER,
    THEM,
    US,
    chunk,
    finished_response,
    lease,
)
from antiphon.testing.stores.calls import (
    claim,
    context_of,
    is_locked,
    items_of,
    lease_runs,
    log_of,
    wait_until,
)

FOLDER = Path(__file__).parent
OLD_VERSION = 8
ALL = StorePageQuery(limit=100)
IN_USE = "servers of an older version are using it; stop them first"

OpenStore = Callable[[], Store]


async def has_old_content(store: Store) -> bool:
    await has_keys_and_values(store)
    await has_responses(store)
    await has_conversations(store)
    await has_idempotency_keys_and_deliveries(store)
    await has_runs(store)
    await everything_can_be_deleted(store)
    return True


async def has_keys_and_values(store: Store) -> None:
    assert await store.compare_and_set("seal_key", b"new") == b"fingerprint"
    assert [key.id for key in await store.list_api_keys()] == ["key_1", "key_2"]
    key = await store.get_api_key(b"hash of the second")
    assert key is not None
    assert key.policy == KeyPolicy(limits={"requests/min": 60})
    charge = Charge(name="requests/min", start=60, amount=0, expires_at=int(FAR_FUTURE))
    usage = await store.reserve_usage("key_2", [charge])
    assert (usage.counts, usage.runs) == ([7], 1)


async def has_responses(store: Store) -> None:
    assert (await store.get_response(US, "resp_log")).status == "completed"
    assert (await store.get_response(THEM, "resp_theirs")).output != ()
    assert await store.get_trace(US, "resp_log") == b"trace"
    assert [one.first for one in await log_of(store, "log")] == [0, 2, 3]
    assert await context_of(store, "child") == ["gone_in", "gone_out", "child_in", "child_out"]
    listed = [each.id for each in await store.list_responses(US, ALL)]
    assert listed == [f"resp_{name}" for name in ("child", "log", "in", "owned", "waits")]
    usage = await store.get_storage_usage(US)
    assert (usage.responses, usage.waiting) == (5, 1)
    assert usage.bytes > (await store.get_storage_usage(THEM)).bytes > 0


async def has_conversations(store: Store) -> None:
    listed = [each.id for each in await store.list_conversations(US, ALL)]
    assert listed == ["conv_c", "conv_claimed"]
    assert (await store.get_conversation(US, "conv_c")).metadata == {"topic": "birds"}
    assert await items_of(store, "c") == ["x", "y", "in_in", "in_out", "z"]
    assert await context_of(store, "in") == ["x", "y", "in_in", "in_out"]
    assert await is_locked(claim(store, "claimed", "another"))
    assert not await is_locked(claim(store, "c", "another"))


async def has_idempotency_keys_and_deliveries(store: Store) -> None:
    for key, response_id, exists in (("kept", "resp_log", True), ("reserved", "resp_never", False)):
        record = await store.reserve_idempotency_key(
            US,
            f"{key} key",
            response_id="resp_new",
            fingerprint=b"new",
            owner=NEXT_OWNER,
            expires_at=FAR_FUTURE,
        )
        assert (record.response_id, record.exists) == (response_id, exists)
    due = await store.claim_due_deliveries(limit=10, claim_s=60)
    found = sorted((each.id, each.endpoint, each.body, each.attempts) for each in due)
    assert found == [("evt_1", "main", b'{"n":1}', 1), ("evt_2", "other", b'{"n":2}', 0)]
    for each in due:
        await store.delete_delivery(each.id)


async def has_runs(store: Store) -> None:
    await store.end_heartbeat(OWNER)
    assert await store.count_waiting_runs() == 1
    runs = {run.lease.response_id: run for run in await lease_runs(store)}
    owned, waits = runs["resp_owned"], runs["resp_waits"]
    assert (owned.lease.epoch, owned.job) == (2, b"job of owned")
    assert (waits.lease.epoch, waits.job) == (1, b"job")
    assert await store.append_events(waits.lease, chunk(2))
    assert not await store.append_events(lease("owned"), chunk(2))
    done = finished_response("owned", within="claimed")
    assert await store.finish_response(owned.lease, done, events=chunk(2))
    assert await items_of(store, "claimed") == ["w", "owned_in", "owned_out"]


async def everything_can_be_deleted(store: Store) -> None:
    assert await store.sweep(keep_events_s=1e10) == 0
    for name in ("child", "log", "in", "owned", "waits"):
        await store.delete_response(US, f"resp_{name}")
    for name in ("c", "claimed"):
        await store.delete_conversation(US, f"conv_{name}")
    assert await store.get_storage_usage(US) == StorageUsage()


async def opens_with_old_content(store: Store) -> bool:
    await store.start()
    try:
        return await has_old_content(store)
    finally:
        await store.aclose()


async def is_refused(store: Store) -> bool:
    with pytest.raises(SettingsError, match=IN_USE):
        await store.start()
    return True


# --- SQLite ---------------------------------------------------------------------------------------


@pytest.fixture
def old_file(tmp_path: Path) -> Path:
    path = tmp_path / "antiphon.db"
    db = apsw.Connection(str(path))
    db.pragma("journal_mode", "WAL")
    for number, script in migrations_of("sqlite").items():
        if number <= OLD_VERSION:
            db.execute(script).fetchall()
    db.execute((FOLDER / "sqlite.sql").read_text("utf-8")).fetchall()
    db.pragma("user_version", OLD_VERSION)
    db.close()
    return path


async def test_a_sqlite_file_opens_with_its_content(old_file: Path) -> None:
    old = await inspect_sqlite(old_file, "seal_key")
    assert (old.version, old.fingerprint) == (OLD_VERSION, b"fingerprint")
    assert await opens_with_old_content(SqliteStore(old_file))
    new = await inspect_sqlite(old_file, "seal_key")
    assert (new.version, new.fingerprint) == (new.newest_version, b"fingerprint")


@pytest.mark.slow
async def test_a_kill_at_any_statement_of_the_upgrade_of_a_file_loses_nothing(
    old_file: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "killed"
    folder.mkdir()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", KILLED, str(old_file), str(folder)), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    assert int(output) > 15
    for statement in range(2, int(output) + 1):
        assert await opens_with_old_content(SqliteStore(folder / f"{statement}.db"))


async def test_a_file_that_an_older_server_uses_is_refused_unchanged(old_file: Path) -> None:
    older = FileLock(old_file)
    older.acquire(1)
    older.acquire_shared(1)
    assert await is_refused(SqliteStore(old_file))
    older.release()
    assert await opens_with_old_content(SqliteStore(old_file))


# --- PostgreSQL -----------------------------------------------------------------------------------


@pytest.fixture
async def admin(postgres: tuple[str, str]) -> AsyncIterator[Any]:
    """The connection of another program, in a schema of the version before."""
    dsn, schema = postgres
    connection = await asyncpg.connect(dsn, server_settings={"search_path": schema})
    await connection.execute(f"CREATE SCHEMA {schema}")
    await connection.execute("CREATE TABLE schema_version (number INTEGER PRIMARY KEY)")
    for number, script in migrations_of("postgres").items():
        if number <= OLD_VERSION:
            await connection.execute(script)
            await connection.execute("INSERT INTO schema_version VALUES ($1)", number)
    async with connection.transaction():
        await connection.execute((FOLDER / "postgres.sql").read_text("utf-8"))
    yield connection
    await connection.close()


async def test_a_postgres_schema_opens_with_its_content(
    postgres: tuple[str, str], admin: Any
) -> None:
    dsn, schema = postgres
    assert await opens_with_old_content(PostgresStore(dsn, schema=schema))
    assert await admin.fetchval("SELECT max(number) FROM schema_version") > OLD_VERSION
    assert await admin.fetchval("SELECT to_regclass('uses')") is None


async def test_stores_that_start_together_upgrade_a_schema_once(
    postgres: tuple[str, str], admin: Any
) -> None:
    dsn, schema = postgres
    stores = [PostgresStore(dsn, schema=schema) for _ in range(3)]
    await asyncio.gather(*(store.start() for store in stores))
    try:
        assert await has_old_content(stores[0])
    finally:
        await asyncio.gather(*(store.aclose() for store in stores))


STARTS = """
import asyncio, sys
from antiphon.adapters.stores.postgres.store import PostgresStore
asyncio.run(PostgresStore(sys.argv[1], schema=sys.argv[2]).start())
"""


WAITING = """
SELECT pg_terminate_backend(pid) FROM pg_locks WHERE relation = $1::regclass AND NOT granted
"""


async def is_waiting(observer: Any, table: str) -> bool:
    query = "SELECT count(*) FROM pg_locks WHERE relation = $1::regclass AND NOT granted"
    return bool(await observer.fetchval(query, table))


async def test_a_kill_in_the_middle_of_the_upgrade_of_a_schema_loses_nothing(
    postgres: tuple[str, str], admin: Any
) -> None:
    dsn, schema = postgres
    async with admin.transaction():
        await admin.execute("LOCK TABLE uses")  # the upgrade renames others before it waits here
        upgrading = await asyncio.create_subprocess_exec(sys.executable, "-c", STARTS, dsn, schema)
        observer = await asyncpg.connect(POSTGRES)
        await wait_until(lambda: is_waiting(observer, f"{schema}.uses"))
        upgrading.kill()
        await upgrading.wait()
        await observer.fetch(WAITING, f"{schema}.uses")
        await observer.close()
    assert await admin.fetchval("SELECT max(number) FROM schema_version") == OLD_VERSION
    assert await opens_with_old_content(PostgresStore(dsn, schema=schema))


async def test_a_schema_that_older_servers_use_is_refused_unchanged(
    postgres: tuple[str, str], admin: Any
) -> None:
    dsn, schema = postgres
    beat = "INSERT INTO servers VALUES ('srv_old', clock_timestamp() + interval '1 hour')"
    await admin.execute(beat)
    assert await is_refused(PostgresStore(dsn, schema=schema))
    await admin.execute("DELETE FROM servers")
    assert await opens_with_old_content(PostgresStore(dsn, schema=schema))


# --- Redis ----------------------------------------------------------------------------------------

Value = Any


async def write(client: aio.Redis, prefix: str) -> None:
    """Write what the version before has written."""
    for name, entry in json.loads((FOLDER / "redis.json").read_text("utf-8")).items():
        await WRITERS[entry["type"]](client, prefix + name, entry["value"])
        if "expires_at" in entry:
            await client.expireat(prefix + name, entry["expires_at"])


async def write_stream(client: aio.Redis, key: str, entries: Value) -> None:
    for entry_id, fields in entries:
        await client.xadd(key, dict(zip(fields[::2], fields[1::2], strict=True)), id=entry_id)


WRITERS: Mapping[str, Callable[[aio.Redis, str, Value], Awaitable[Any]]] = {
    "string": lambda client, key, text: client.set(key, text),
    "hash": lambda client, key, fields: client.hset(key, mapping=fields),
    "zset": lambda client, key, scores: client.zadd(key, scores),
    "set": lambda client, key, members: client.sadd(key, *members),
    "stream": write_stream,
}


@pytest.fixture
async def client() -> AsyncIterator[aio.Redis]:
    async with aio.Redis.from_url(REDIS, encoding="latin-1") as client:
        yield client


@pytest.fixture
async def prefix(client: aio.Redis) -> AsyncIterator[str]:
    async with redis_prefix() as prefix:
        await write(client, prefix)
        yield prefix


async def test_a_redis_opens_with_its_content(prefix: str) -> None:
    old = await inspect_redis(REDIS, "seal_key", prefix=prefix)
    assert (old.version, old.fingerprint) == (1, b"fingerprint")
    assert await opens_with_old_content(RedisStore(REDIS, prefix=prefix))
    new = await inspect_redis(REDIS, "seal_key", prefix=prefix)
    assert (new.version, new.fingerprint) == (SCHEMA_VERSION, b"fingerprint")


async def test_no_key_keeps_its_old_name(client: aio.Redis, prefix: str) -> None:
    assert await opens_with_old_content(RedisStore(REDIS, prefix=prefix))
    names = [key.decode().removeprefix(prefix) async for key in client.scan_iter(f"{prefix}*")]
    kinds = {name.partition(":")[0] for name in names}
    old = {"agreed", "repeat", "repeats", "reserved", "notice", "due", "use", "ended", "expiring"}
    assert kinds & (old | {"owned", "waiting"}) == set()


async def test_stores_that_start_together_upgrade_a_redis_once(prefix: str) -> None:
    stores = [RedisStore(REDIS, prefix=prefix) for _ in range(3)]
    await asyncio.gather(*(store.start() for store in stores))
    try:
        assert await has_old_content(stores[0])
    finally:
        await asyncio.gather(*(store.aclose() for store in stores))


class Killed(Exception):
    """The process ends here."""


class DyingScripts(RedisScripts):
    """Runs so many operations, then none."""

    def __init__(self, prefix: str, operations: int) -> None:
        super().__init__(REDIS, prefix=prefix)
        self.operations = operations

    async def run(self, operation: str, **arguments: Any) -> list[Any]:
        if not self.operations:
            raise Killed
        self.operations -= 1
        return await super().run(operation, **arguments)


async def upgrades_in(operations: int, prefix: str) -> bool:
    scripts = DyingScripts(prefix, operations)
    await scripts.start()
    try:
        await upgrade(scripts, portion=10)
    except Killed:
        return False
    finally:
        await scripts.aclose()
    return True


async def test_a_kill_after_any_step_of_the_upgrade_of_a_redis_loses_nothing(
    client: aio.Redis,
) -> None:
    operations, is_over = 0, False
    while not is_over:
        async with redis_prefix() as prefix:
            await write(client, prefix)
            is_over = await upgrades_in(operations, prefix)
            assert await opens_with_old_content(RedisStore(REDIS, prefix=prefix))
        operations += 1
    assert operations > 5


async def test_a_redis_that_older_servers_use_is_refused_unchanged(
    client: aio.Redis, prefix: str
) -> None:
    await client.zadd(f"{prefix}owners", {"srv_old": 9e15})
    assert await is_refused(RedisStore(REDIS, prefix=prefix))
    await client.zadd(f"{prefix}owners", {"srv_old": 0})
    assert await opens_with_old_content(RedisStore(REDIS, prefix=prefix))


async def test_an_older_server_neither_starts_nor_continues_with_an_upgraded_redis(
    client: aio.Redis, prefix: str
) -> None:
    """What it does first when it starts, and with each heartbeat, fails."""
    assert await upgrades_in(1000, prefix)
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await client.get(f"{prefix}listed")
    with pytest.raises(ResponseError, match="WRONGTYPE"):
        await client.zadd(f"{prefix}owners", {"srv_old": 0})


async def test_a_redis_of_a_newer_version_is_refused(client: aio.Redis, prefix: str) -> None:
    await client.set(f"{prefix}schema_version", SCHEMA_VERSION + 1)
    with pytest.raises(SettingsError, match="was written by a newer version of this server"):
        await RedisStore(REDIS, prefix=prefix).start()
