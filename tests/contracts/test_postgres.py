"""What the PostgreSQL store promises besides the contract: it mends, it hurries, it says why."""

from __future__ import annotations

import asyncio
import secrets
import signal
import socket
import sys
from collections.abc import AsyncIterator, Awaitable
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest
from msgspec import Raw

from antiphon.adapters.stores.postgres import PostgresStore
from antiphon.application.ports import (
    EventChunk,
    IdempotencyRecord,
    NewRun,
    StoredItem,
    WebhookDelivery,
)
from antiphon.domain.errors import SettingsError, StoreError
from antiphon.domain.items import Message
from antiphon.testing.idempotency_store import FINGERPRINT, reserve
from antiphon.testing.samples import (
    OWNER,
    US,
    chunk,
    finished,
    item,
    lease,
    logged,
    running,
    turns,
)
from antiphon.testing.store_calls import (
    alive,
    claim,
    context_of,
    converse,
    end,
    is_locked,
    items_of,
    keep,
    last_of,
    log_of,
    take,
    until,
)

SECRET = "the-owl-flies-at-midnight"

Postgres = tuple[str, str]
"""The address of the database, and the schema."""


@pytest.fixture
async def store(postgres: Postgres) -> AsyncIterator[PostgresStore]:
    async for store in opened(postgres):
        yield store


@pytest.fixture
async def another(store: PostgresStore, postgres: Postgres) -> AsyncIterator[PostgresStore]:
    async for another in opened(postgres):
        yield another


async def opened(postgres: Postgres, **options: Any) -> AsyncIterator[PostgresStore]:
    dsn, schema = postgres
    store = PostgresStore(dsn, schema=schema, **options)
    await store.start()
    yield store
    await store.aclose()


@pytest.fixture
async def admin(postgres: Postgres) -> AsyncIterator[Any]:
    """Another program's connection, which sees the tables."""
    dsn, schema = postgres
    connection = await asyncpg.connect(dsn, server_settings={"search_path": schema})
    yield connection
    await connection.close()


async def kill(admin: Any, purpose: str = "%") -> int:
    """End sessions of the stores in this schema; return how many there were."""
    rows = await admin.fetch(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name LIKE 'antiphon ' || $1 || ' ' || current_schema()",
        purpose,
    )
    return len(rows)


# --- connections that are lost --------------------------------------------------------------------


async def test_readers_elsewhere_miss_nothing_while_listening_is_cut_again_and_again(
    store: PostgresStore, another: PostgresStore, admin: Any
) -> None:
    await store.create(US, logged("a"))
    written = [chunk(0, 2), *[chunk(number) for number in range(2, 60)]]
    lags: list[float] = []
    clock = asyncio.get_running_loop().time
    written_at: dict[int, float] = {}

    async def follow() -> list[EventChunk]:
        found: list[EventChunk] = []
        while True:
            after = last_of(found) if found else -1
            await another.wait_for_events(US, "resp_a", after=after, limit_s=30)
            piece = await another.events(US, "resp_a", after=after)
            lags.extend(clock() - written_at.get(one.first, clock()) for one in piece.chunks)
            found += piece.chunks
            if piece.ends:
                return found

    reader = asyncio.create_task(follow())
    killed = 0
    for one in written[1:]:
        killed += await kill(admin, "notifications")
        written_at[one.first] = clock()
        assert await store.append(lease("a"), one)
    assert await store.finish(lease("a"), finished("a"))
    assert await reader == written
    assert killed > 0
    assert max(lags) < 2


async def test_who_waits_is_told_of_what_nobody_heard_of(
    store: PostgresStore, another: PostgresStore, admin: Any
) -> None:
    await store.create(US, logged("a"))
    waiting = asyncio.create_task(another.wait_for_events(US, "resp_a", after=1, limit_s=30))
    await admin.execute("UPDATE runs SET next_event = 3")  # and no NOTIFY
    await asyncio.wait_for(waiting, 3)


async def test_a_store_whose_sessions_are_ended_goes_on(store: PostgresStore, admin: Any) -> None:
    await alive(store, OWNER)
    await store.create(US, logged("a"))
    for number in range(2, 12):
        assert await kill(admin) > 0
        assert await store.append(lease("a"), chunk(number))
        assert (await store.get(US, "resp_a")).status == "in_progress"
        await alive(store, OWNER)
    assert await end(store, finished("a"))
    assert [one.first for one in await log_of(store, "a")] == [0, *range(2, 12)]


async def test_a_caller_that_leaves_a_transaction_leaves_no_lock(
    store: PostgresStore, another: PostgresStore, admin: Any
) -> None:
    complaints: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
    await store.create(US, logged("a"))
    await store.create(US, logged("b"))
    async with admin.transaction():
        await admin.execute("LOCK TABLE items")
        leaving = asyncio.create_task(store.finish(lease("a"), finished("a")))
        await until(lambda: admin.fetchval("SELECT count(*) > 0 FROM pg_locks WHERE NOT granted"))
        leaving.cancel()
        await asyncio.wait([leaving])
    assert await another.finish(lease("a"), finished("a"))
    assert await store.finish(lease("b"), finished("b"))
    assert complaints == []


# --- limits ---------------------------------------------------------------------------------------


async def complaint(call: Awaitable[object], within_s: float) -> str:
    async with asyncio.timeout(within_s):
        with pytest.raises(StoreError) as caught:
            await call
    return str(caught.value)


async def test_a_request_waits_for_a_connection_only_so_long(
    postgres: Postgres, admin: Any
) -> None:
    async for store in opened(postgres, pool=2, start_timeout_s=0.3, run_timeout_s=5):
        await keep(store, "a")
        async with admin.transaction():
            await admin.execute("LOCK TABLE runs")
            stuck = [asyncio.create_task(store.held_leases(OWNER)) for _ in range(2)]
            await until(
                lambda: admin.fetchval("SELECT count(*) >= 2 FROM pg_locks WHERE NOT granted")
            )
            assert "in time" in await complaint(store.get(US, "resp_a"), 2)
            assert "in time" in await complaint(store.create(US, running("b")), 2)
        assert await asyncio.gather(*stuck) == [[], []]
        assert (await store.get(US, "resp_a")).status == "completed"


async def test_a_database_that_hangs_fails_what_begins_at_once_and_the_rest_later(
    postgres: Postgres, admin: Any
) -> None:
    async for store in opened(postgres, start_timeout_s=0.3, run_timeout_s=1):
        await store.create(US, logged("a"))
        async with admin.transaction():
            await admin.execute("LOCK TABLE runs, servers")
            assert "in time" in await complaint(store.create(US, logged("b")), 0.9)
            assert "in time" in await complaint(asyncio.to_thread(store.beat, OWNER, 5), 0.9)
            assert "in time" in await complaint(store.append(lease("a"), chunk(2)), 3)
            assert "in time" in await complaint(store.finish(lease("a"), finished("a")), 3)
        assert await store.append(lease("a"), chunk(2))
        assert await store.finish(lease("a"), finished("a"), events=chunk(3))
        await alive(store, OWNER)


async def test_a_store_that_is_not_open_says_so(postgres: Postgres) -> None:
    dsn, schema = postgres
    store = PostgresStore(dsn, schema=schema)
    assert "not open" in await complaint(store.get(US, "resp_a"), 1)
    await store.aclose()


# --- starting -------------------------------------------------------------------------------------


async def refusal(dsn: str, schema: str, **options: Any) -> str:
    store = PostgresStore(dsn, schema=schema, **options)
    with pytest.raises(SettingsError) as caught:
        await store.start()
    await store.aclose()
    said = str(caught.value)
    assert "\n" not in said
    assert SECRET not in said
    return said


def instead(dsn: str, *, user: str = "postgres", place: str = "", path: str = "") -> str:
    """Return the address with something else in it, and with a password."""
    parts = urlsplit(dsn)
    place = place or parts.netloc.rpartition("@")[2]
    return f"postgresql://{user}:{SECRET}@{place}{path or parts.path}"


async def test_an_address_that_leads_nowhere_is_refused_with_the_reason(
    postgres: Postgres,
) -> None:
    dsn, schema = postgres
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = "{}:{}".format(*free.getsockname())
        assert "no server is listening there" in await refusal(instead(dsn, place=place), schema)
    assert "createdb" in await refusal(instead(dsn, path="/not_there"), schema)
    assert "user or password" in await refusal(instead(dsn, user="nobody_here"), schema)
    assert "postgresql://user@" in await refusal(f"mysql://root:{SECRET}@here/db", schema)
    assert "lowercase letters" in await refusal(dsn, 'kept"; DROP')


async def test_a_server_that_never_answers_is_given_up(postgres: Postgres) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        place = "{}:{}".format(*silent.getsockname())
        said = await refusal(instead(postgres[0], place=place), postgres[1], start_timeout_s=0.2)
    assert "did not answer in time" in said


async def test_a_user_who_may_create_no_schema_is_told_what_to_ask_for(
    postgres: Postgres, admin: Any
) -> None:
    dsn, schema = postgres
    user = f"role_{schema}"
    await admin.execute(f"CREATE ROLE {user} LOGIN PASSWORD '{SECRET}'")
    try:
        said = await refusal(instead(dsn, user=user), schema)
        assert f"CREATE SCHEMA {schema} AUTHORIZATION" in said
        await admin.execute(f"CREATE SCHEMA {schema} AUTHORIZATION {user}")
        async for store in opened((instead(dsn, user=user), schema)):
            await keep(store, "a")
    finally:
        await admin.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        await admin.execute(f"DROP ROLE {user}")


async def test_a_database_that_can_only_be_read_is_refused(
    store: PostgresStore, postgres: Postgres
) -> None:
    dsn, schema = postgres
    said = await refusal(f"{dsn}?default_transaction_read_only=on", schema)
    assert "read-only" in said


async def test_a_schema_of_a_newer_version_is_refused(
    store: PostgresStore, postgres: Postgres, admin: Any
) -> None:
    await admin.execute("INSERT INTO schema_version VALUES (9999)")
    assert "newer version" in await refusal(*postgres)


async def test_a_database_that_forgets_what_was_written_is_refused(
    store: PostgresStore, postgres: Postgres, admin: Any
) -> None:
    await admin.execute("CREATE RULE forget AS ON INSERT TO responses DO INSTEAD NOTHING")
    await refusal(*postgres)


async def test_many_may_open_a_new_schema_at_once(postgres: Postgres) -> None:
    stores = [PostgresStore(postgres[0], schema=postgres[1]) for _ in range(6)]
    await asyncio.gather(*[store.start() for store in stores])
    for number, one in enumerate(stores):
        await keep(one, str(number), after=str(number - 1) if number else None)
    assert await context_of(stores[0], "5") == turns(*"012345")
    for one in stores:
        await one.aclose()


STARTS = """
import asyncio, sys
from antiphon.adapters.stores.postgres import PostgresStore

async def main():
    store = PostgresStore(sys.argv[1], schema=sys.argv[2])
    print("starts", flush=True)
    await store.start()
    print("started", flush=True)
    await store.aclose()

asyncio.run(main())
"""


STOPS = """
import asyncio, sys
from antiphon.adapters.stores.postgres import PostgresStore

async def main():
    store = PostgresStore(sys.argv[1], schema=sys.argv[2], run_timeout_s=0.5)
    await store.start()

    async def work(db):
        await db.execute("SELECT * FROM runs FOR UPDATE")
        print("has it", flush=True)
        await asyncio.sleep(60)

    await store._server.in_transaction(work)

asyncio.run(main())
"""


async def test_a_first_start_that_is_killed_is_begun_again(postgres: Postgres, admin: Any) -> None:
    for delay_s in (0.0, 0.01, 0.02, 0.04):
        starting = await asyncio.create_subprocess_exec(
            sys.executable, "-c", STARTS, *postgres, stdout=asyncio.subprocess.PIPE
        )
        assert starting.stdout is not None
        assert await starting.stdout.readline() == b"starts\n"
        await asyncio.sleep(delay_s)  # what is killed must be somewhere in its start
        starting.kill()
        await starting.communicate()
    async for store in opened(postgres):
        await keep(store, "a")


# --- what is kept ---------------------------------------------------------------------------------


async def everything(admin: Any) -> str:
    """Return all that the tables of the schema hold, bytes in hexadecimal."""
    tables = await admin.fetch(
        "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
    )
    rows = [await admin.fetch(f"SELECT t::text FROM {table} t") for (table,) in tables]
    return "\n".join(text for found in rows for (text,) in found)


def occurrences(text: str) -> int:
    return text.count(SECRET) + text.count(SECRET.encode().hex())


async def test_what_is_deleted_is_nowhere_in_the_tables(store: PostgresStore, admin: Any) -> None:
    raw = Raw(b'{"content":"%b"}' % SECRET.encode())
    about = logged("a", job=SECRET.encode())
    new = running("a", StoredItem(id=f"msg_{SECRET}", raw=raw), run=about.run, instructions=SECRET)
    await store.create(US, new)
    assert await store.append(lease("a"), chunk(2, 1, SECRET.encode()))
    said = Message(id="msg_said", role="assistant", content=SECRET)
    done = finished("a", instructions=SECRET, output=(said,))
    assert await store.finish(lease("a"), done, events=chunk(3, 1, SECRET.encode()))
    assert occurrences(await everything(admin)) == 6
    await store.delete(US, "resp_a")
    assert occurrences(await everything(admin)) == 0
    use = await store.usage(US)
    assert (use.responses, use.bytes) == (0, 0)


async def test_a_tree_deleted_by_many_at_once_leaves_nothing(
    store: PostgresStore, another: PostgresStore, admin: Any
) -> None:
    for turn in range(5):
        await keep(store, f"root{turn}")
        leaves = [f"leaf{turn}_{number}" for number in range(10)]
        for name in leaves:
            await keep(store, name, after=f"root{turn}")
        names = [f"root{turn}", *leaves]
        stores = (store, another) * len(names)
        await asyncio.gather(
            *[one.delete(US, f"resp_{name}") for one, name in zip(stores, names, strict=False)]
        )
        assert await admin.fetchval("SELECT count(*) FROM items") == 0
        assert await admin.fetchval("SELECT count(*) FROM responses") == 0


async def test_a_conversation_and_its_responses_deleted_at_once_leave_nothing(
    store: PostgresStore, another: PostgresStore, admin: Any
) -> None:
    for turn in range(5):
        await converse(store, "a", "x")
        names = [f"{turn}_{number}" for number in range(6)]
        for name in names:
            await claim(store, "a", name)
            await store.create(US, running(name, within="a"))
            assert await end(store, finished(name, within="a"))
        await asyncio.gather(
            another.delete_conversation(US, "conv_a"),
            *[store.delete(US, f"resp_{name}") for name in names],
        )
        assert await admin.fetchval("SELECT count(*) FROM items") == 0
    assert (await store.usage(US)).bytes == 0


async def test_what_clients_send_may_hold_what_postgres_text_cannot(store: PostgresStore) -> None:
    for name in ("\0", "\x1a", "\x1a0\0\x1a1", "é\0🍀"):
        await store.create(US, running(name, item(name)))
        assert [one.id for one in await store.input_items(US, f"resp_{name}")] == [f"msg_{name}"]
        assert (await store.item(US, f"msg_{name}")).id == f"msg_{name}"
        [held] = [
            one for one in await store.held_leases(OWNER) if one.response_id == f"resp_{name}"
        ]
        assert await store.finish(held, finished(name))


async def test_a_hole_in_a_log_is_told_not_skipped(store: PostgresStore, admin: Any) -> None:
    await store.create(US, logged("a"))
    for number in range(2, 6):
        assert await store.append(lease("a"), chunk(number))
    assert await store.finish(lease("a"), finished("a"), events=chunk(6))
    await admin.execute("DELETE FROM events WHERE first = 3")
    with pytest.raises(StoreError, match="event 3 is missing"):
        await store.events(US, "resp_a")
    assert (await store.events(US, "resp_a", after=3)).ends
    await admin.execute("DELETE FROM events WHERE first >= 3")
    with pytest.raises(StoreError, match="event 3 is missing"):
        await store.events(US, "resp_a", after=2)
    assert await store.get(US, "resp_a") == finished("a")


async def test_a_log_can_be_asked_for_what_it_will_never_have(store: PostgresStore) -> None:
    await store.create(US, logged("a"))
    for after in (2**31, 2**63, 10**30):
        assert (await store.events(US, "resp_a", after=after)).chunks == []
        await store.wait_for_events(US, "resp_a", after=after, limit_s=0.05)
    assert await store.finish(lease("a"), finished("a"))
    for after in (2**31, 2**63, 10**30):
        assert (await store.events(US, "resp_a", after=after)).ends


async def test_appends_of_one_run_that_come_together_keep_their_order(
    store: PostgresStore,
) -> None:
    await store.create(US, logged("a"))
    chunks = [chunk(number) for number in range(2, 40)]
    assert all(await asyncio.gather(*[store.append(lease("a"), one) for one in chunks]))
    assert await log_of(store, "a") == [chunk(0, 2), *chunks]


async def test_an_append_that_is_refused_takes_no_other_with_it(store: PostgresStore) -> None:
    for name in "ab":
        await store.create(US, logged(name))
    attempts = [store.append(lease(name), chunk(first)) for name, first in (("a", 7), ("b", 2))]
    refused, kept = await asyncio.gather(*attempts, return_exceptions=True)
    assert isinstance(refused, StoreError)
    assert kept is True


async def test_of_two_servers_that_claim_a_conversation_one_succeeds(
    store: PostgresStore, another: PostgresStore
) -> None:
    await converse(store, "a")
    await alive(store, OWNER)
    for turn in range(10):
        names = (f"resp_{turn}", f"resp_other_{turn}")
        refused = await asyncio.gather(
            *[
                is_locked(one.claim(US, "conv_a", name, owner=OWNER))
                for one, name in zip((store, another), names, strict=True)
            ]
        )
        assert sorted(refused) == [False, True]
        await store.release(US, "conv_a", names[refused.index(False)], [item(str(turn))])
    assert await items_of(store, "a") == [str(turn) for turn in range(10)]


async def test_a_key_whose_response_is_being_created_is_given_to_nobody(
    store: PostgresStore, another: PostgresStore, admin: Any
) -> None:
    await reserve(store, "a")  # nobody beats: its owner is dead
    waiting = "SELECT count(*) >= $1 FROM pg_locks WHERE NOT granted"
    async with admin.transaction():
        # What every transaction changes last.
        slots = "INSERT INTO uses SELECT $1, slot, 0, 0 FROM generate_series(0, 15) AS slot"
        await admin.execute(slots, US)
        run = NewRun(owner=OWNER, key="key")
        creating = asyncio.create_task(store.create(US, running("a", run=run)))
        await until(lambda: admin.fetchval(waiting, 1))
        asking = asyncio.create_task(reserve(another, "b", owner="srv_b"))
        await until(lambda: admin.fetchval(waiting, 2))
    await creating
    assert await asking == IdempotencyRecord(
        response_id="resp_a", fingerprint=FINGERPRINT, exists=True
    )


async def test_a_server_that_is_stopped_in_a_transaction_keeps_a_run_from_nobody(
    store: PostgresStore, postgres: Postgres, admin: Any
) -> None:
    await store.create(US, logged("a"))
    stops = await asyncio.create_subprocess_exec(
        sys.executable, "-c", STOPS, *postgres, stdout=asyncio.subprocess.PIPE
    )
    assert stops.stdout is not None
    assert await stops.stdout.readline() == b"has it\n"
    stops.send_signal(signal.SIGSTOP)
    try:
        await until(lambda: take(store))
    finally:
        stops.kill()
        await stops.communicate()


async def test_notices_of_an_end_that_fails_are_not_kept(store: PostgresStore) -> None:
    delivery = WebhookDelivery(
        id=f"evt_{secrets.token_hex(4)}", tenant=US, endpoint="main", body=b"{}"
    )
    for name in "ab":
        await store.create(US, running(name))
    assert await store.finish(lease("a"), finished("a"), deliveries=[delivery])
    with pytest.raises(StoreError):
        await store.finish(lease("b"), finished("b"), deliveries=[delivery])
    assert (await store.get(US, "resp_b")).status == "in_progress"
    assert await end(store, finished("b"))
