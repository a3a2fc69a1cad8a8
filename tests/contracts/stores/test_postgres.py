"""The PostgreSQL store beyond the contract: recovery, time limits and error messages."""

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

from antiphon.adapters.stores.postgres.items import RANGES
from antiphon.adapters.stores.postgres.store import PostgresStore
from antiphon.application.ports import (
    EventChunk,
    IdempotencyRecord,
    NewRun,
    StoredItem,
    WebhookDelivery,
)
from antiphon.domain.errors import SettingsError, StoreError
from antiphon.domain.items import Message
from antiphon.testing.samples import (
    OWNER,
    US,
    chunk,
    finished_response,
    item,
    lease,
    new_response,
    response_with_log,
    turn_item_names,
)
from antiphon.testing.stores.calls import (
    beat,
    claim,
    context_of,
    create_and_finish,
    create_conversation,
    finish,
    is_locked,
    items_of,
    last_number,
    lease_runs,
    log_of,
    wait_until,
)
from antiphon.testing.stores.idempotency import FINGERPRINT, reserve

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
    """The connection of another program that reads the tables."""
    dsn, schema = postgres
    connection = await asyncpg.connect(dsn, server_settings={"search_path": schema})
    yield connection
    await connection.close()


async def kill(admin: Any, purpose: str = "%") -> int:
    """Terminate the sessions of the stores in this schema; return their number."""
    rows = await admin.fetch(
        "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
        " WHERE application_name LIKE 'antiphon ' || $1 || ' ' || current_schema()",
        purpose,
    )
    return len(rows)


# --- lost connections -----------------------------------------------------------------------------


async def test_readers_on_another_server_miss_nothing_while_their_connection_is_cut_repeatedly(
    store: PostgresStore, another: PostgresStore, admin: Any
) -> None:
    await store.create_response(US, response_with_log("a"))
    written = [chunk(0, 2), *[chunk(number) for number in range(2, 60)]]
    lags: list[float] = []
    clock = asyncio.get_running_loop().time
    written_at: dict[int, float] = {}

    async def follow() -> list[EventChunk]:
        chunks: list[EventChunk] = []
        while True:
            after = last_number(chunks) if chunks else -1
            await another.wait_for_events(US, "resp_a", after=after, limit_s=30)
            log_slice = await another.read_events(US, "resp_a", after=after)
            lags.extend(clock() - written_at.get(one.first, clock()) for one in log_slice.chunks)
            chunks += log_slice.chunks
            if log_slice.ends:
                return chunks

    reader = asyncio.create_task(follow())
    killed = 0
    for one in written[1:]:
        killed += await kill(admin, "notifications")
        written_at[one.first] = clock()
        assert await store.append_events(lease("a"), one)
    assert await store.finish_response(lease("a"), finished_response("a"))
    assert await reader == written
    assert killed > 0
    assert max(lags) < 2


async def test_a_waiting_reader_wakes_even_without_a_notification(
    store: PostgresStore, another: PostgresStore, admin: Any
) -> None:
    await store.create_response(US, response_with_log("a"))
    waiting = asyncio.create_task(another.wait_for_events(US, "resp_a", after=1, limit_s=30))
    await admin.execute("UPDATE runs SET next_event = 3")  # and no NOTIFY
    await asyncio.wait_for(waiting, 3)


async def test_a_store_keeps_working_when_its_sessions_are_terminated(
    store: PostgresStore, admin: Any
) -> None:
    await beat(store, OWNER)
    await store.create_response(US, response_with_log("a"))
    for number in range(2, 12):
        assert await kill(admin) > 0
        assert await store.append_events(lease("a"), chunk(number))
        assert (await store.get_response(US, "resp_a")).status == "in_progress"
        await beat(store, OWNER)
    assert await finish(store, finished_response("a"))
    assert [one.first for one in await log_of(store, "a")] == [0, *range(2, 12)]


async def test_a_canceled_transaction_leaves_no_lock(
    store: PostgresStore, another: PostgresStore, admin: Any
) -> None:
    loop_errors: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: loop_errors.append(context))
    await store.create_response(US, response_with_log("a"))
    await store.create_response(US, response_with_log("b"))
    async with admin.transaction():
        await admin.execute("LOCK TABLE items")
        leaving = asyncio.create_task(store.finish_response(lease("a"), finished_response("a")))
        await wait_until(
            lambda: admin.fetchval("SELECT count(*) > 0 FROM pg_locks WHERE NOT granted")
        )
        leaving.cancel()
        await asyncio.wait([leaving])
    assert await another.finish_response(lease("a"), finished_response("a"))
    assert await store.finish_response(lease("b"), finished_response("b"))
    assert loop_errors == []


# --- limits ---------------------------------------------------------------------------------------


async def error_of(call: Awaitable[object], within_s: float) -> str:
    async with asyncio.timeout(within_s):
        with pytest.raises(StoreError) as caught:
            await call
    return str(caught.value)


async def test_a_request_waits_for_a_connection_for_a_limited_time(
    postgres: Postgres, admin: Any
) -> None:
    async for store in opened(postgres, pool=2, start_timeout_s=0.3, run_timeout_s=5):
        await create_and_finish(store, "a")
        async with admin.transaction():
            await admin.execute("LOCK TABLE runs")
            stuck = [asyncio.create_task(store.list_leases(OWNER)) for _ in range(2)]
            await wait_until(
                lambda: admin.fetchval("SELECT count(*) >= 2 FROM pg_locks WHERE NOT granted")
            )
            assert "in time" in await error_of(store.get_response(US, "resp_a"), 2)
            assert "in time" in await error_of(store.create_response(US, new_response("b")), 2)
        assert await asyncio.gather(*stuck) == [[], []]
        assert (await store.get_response(US, "resp_a")).status == "completed"


async def test_a_hanging_database_fails_new_requests_quickly_and_running_ones_later(
    postgres: Postgres, admin: Any
) -> None:
    async for store in opened(postgres, start_timeout_s=0.3, run_timeout_s=1):
        await store.create_response(US, response_with_log("a"))
        async with admin.transaction():
            await admin.execute("LOCK TABLE runs, servers")
            assert "in time" in await error_of(
                store.create_response(US, response_with_log("b")), 0.9
            )
            assert "in time" in await error_of(
                asyncio.to_thread(store.record_heartbeat, OWNER, 5), 0.9
            )
            assert "in time" in await error_of(store.append_events(lease("a"), chunk(2)), 3)
            assert "in time" in await error_of(
                store.finish_response(lease("a"), finished_response("a")), 3
            )
        assert await store.append_events(lease("a"), chunk(2))
        assert await store.finish_response(lease("a"), finished_response("a"), events=chunk(3))
        await beat(store, OWNER)


async def test_a_store_that_is_not_open_says_so(postgres: Postgres) -> None:
    dsn, schema = postgres
    store = PostgresStore(dsn, schema=schema)
    assert "not open" in await error_of(store.get_response(US, "resp_a"), 1)
    await store.aclose()


# --- starting -------------------------------------------------------------------------------------


async def refusal_of(dsn: str, schema: str, **options: Any) -> str:
    store = PostgresStore(dsn, schema=schema, **options)
    with pytest.raises(SettingsError) as caught:
        await store.start()
    await store.aclose()
    message = str(caught.value)
    assert "\n" not in message
    assert SECRET not in message
    return message


def changed(dsn: str, *, user: str = "postgres", place: str = "", path: str = "") -> str:
    """Return the address with some parts replaced, and with a password."""
    parts = urlsplit(dsn)
    place = place or parts.netloc.rpartition("@")[2]
    return f"postgresql://{user}:{SECRET}@{place}{path or parts.path}"


async def test_a_wrong_address_is_refused_with_the_reason(
    postgres: Postgres,
) -> None:
    dsn, schema = postgres
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        place = "{}:{}".format(*free.getsockname())
        assert "no server is listening there" in await refusal_of(changed(dsn, place=place), schema)
    assert "createdb" in await refusal_of(changed(dsn, path="/not_there"), schema)
    assert "user or password" in await refusal_of(changed(dsn, user="nobody_here"), schema)
    assert "postgresql://user@" in await refusal_of(f"mysql://root:{SECRET}@here/db", schema)
    assert "lowercase letters" in await refusal_of(dsn, 'kept"; DROP')


async def test_a_server_that_never_answers_is_given_up(postgres: Postgres) -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        place = "{}:{}".format(*silent.getsockname())
        message = await refusal_of(
            changed(postgres[0], place=place), postgres[1], start_timeout_s=0.2
        )
    assert "did not answer in time" in message


async def test_a_user_who_may_create_no_schema_is_told_what_to_ask_for(
    postgres: Postgres, admin: Any
) -> None:
    dsn, schema = postgres
    user = f"role_{schema}"
    await admin.execute(f"CREATE ROLE {user} LOGIN PASSWORD '{SECRET}'")
    try:
        message = await refusal_of(changed(dsn, user=user), schema)
        assert f"CREATE SCHEMA {schema} AUTHORIZATION" in message
        await admin.execute(f"CREATE SCHEMA {schema} AUTHORIZATION {user}")
        async for store in opened((changed(dsn, user=user), schema)):
            await create_and_finish(store, "a")
    finally:
        await admin.execute(f"DROP SCHEMA IF EXISTS {schema} CASCADE")
        await admin.execute(f"DROP ROLE {user}")


async def test_a_read_only_database_is_refused(store: PostgresStore, postgres: Postgres) -> None:
    dsn, schema = postgres
    message = await refusal_of(f"{dsn}?default_transaction_read_only=on", schema)
    assert "read-only" in message


async def test_a_schema_of_a_newer_version_is_refused(
    store: PostgresStore, postgres: Postgres, admin: Any
) -> None:
    await admin.execute("INSERT INTO schema_version VALUES (9999)")
    assert "newer version" in await refusal_of(*postgres)


async def test_a_database_that_loses_writes_is_refused(
    store: PostgresStore, postgres: Postgres, admin: Any
) -> None:
    await admin.execute("CREATE RULE forget AS ON INSERT TO responses DO INSTEAD NOTHING")
    await refusal_of(*postgres)


async def test_many_stores_can_open_a_new_schema_at_the_same_time(postgres: Postgres) -> None:
    stores = [PostgresStore(postgres[0], schema=postgres[1]) for _ in range(6)]
    await asyncio.gather(*[store.start() for store in stores])
    for number, one in enumerate(stores):
        await create_and_finish(one, str(number), after=str(number - 1) if number else None)
    assert await context_of(stores[0], "5") == turn_item_names(*"012345")
    for one in stores:
        await one.aclose()


STARTS = """
import asyncio, sys
from antiphon.adapters.stores.postgres.store import PostgresStore

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
from antiphon.adapters.stores.postgres.store import PostgresStore

async def main():
    store = PostgresStore(sys.argv[1], schema=sys.argv[2], run_timeout_s=0.5)
    await store.start()

    async def work(db):
        await db.execute("SELECT * FROM runs FOR UPDATE")
        print("locked", flush=True)
        await asyncio.sleep(60)

    await store._server.in_transaction(work)

asyncio.run(main())
"""


async def test_a_first_start_that_was_killed_can_be_repeated(
    postgres: Postgres, admin: Any
) -> None:
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
        await create_and_finish(store, "a")


# --- stored data ----------------------------------------------------------------------------------


async def all_content(admin: Any) -> str:
    """Return the content of all tables of the schema, with bytes in hexadecimal."""
    tables = await admin.fetch(
        "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
    )
    rows = [await admin.fetch(f"SELECT t::text FROM {table} t") for (table,) in tables]
    return "\n".join(text for table in rows for (text,) in table)


def occurrences(text: str) -> int:
    return text.count(SECRET) + text.count(SECRET.encode().hex())


async def test_deleted_content_is_nowhere_in_the_tables(store: PostgresStore, admin: Any) -> None:
    raw = Raw(b'{"content":"%b"}' % SECRET.encode())
    about = response_with_log("a", job=SECRET.encode())
    new = new_response(
        "a", StoredItem(id=f"msg_{SECRET}", raw=raw), run=about.run, instructions=SECRET
    )
    await store.create_response(US, new)
    assert await store.append_events(lease("a"), chunk(2, 1, SECRET.encode()))
    message = Message(id="msg_said", role="assistant", content=SECRET)
    done = finished_response("a", instructions=SECRET, output=(message,))
    assert await store.finish_response(lease("a"), done, events=chunk(3, 1, SECRET.encode()))
    assert occurrences(await all_content(admin)) == 6
    await store.delete_response(US, "resp_a")
    assert occurrences(await all_content(admin)) == 0
    use = await store.get_storage_usage(US)
    assert (use.responses, use.bytes) == (0, 0)


async def test_a_tree_of_responses_deleted_concurrently_leaves_nothing(
    store: PostgresStore, another: PostgresStore, admin: Any
) -> None:
    for turn in range(5):
        await create_and_finish(store, f"root{turn}")
        leaves = [f"leaf{turn}_{number}" for number in range(10)]
        for name in leaves:
            await create_and_finish(store, name, after=f"root{turn}")
        names = [f"root{turn}", *leaves]
        stores = (store, another) * len(names)
        await asyncio.gather(
            *[
                one.delete_response(US, f"resp_{name}")
                for one, name in zip(stores, names, strict=False)
            ]
        )
        assert await admin.fetchval("SELECT count(*) FROM items") == 0
        assert await admin.fetchval("SELECT count(*) FROM responses") == 0


async def test_a_conversation_and_its_responses_deleted_concurrently_leave_nothing(
    store: PostgresStore, another: PostgresStore, admin: Any
) -> None:
    for turn in range(5):
        await create_conversation(store, "a", "x")
        names = [f"{turn}_{number}" for number in range(6)]
        for name in names:
            await claim(store, "a", name)
            await store.create_response(US, new_response(name, within="a"))
            assert await finish(store, finished_response(name, within="a"))
        await asyncio.gather(
            another.delete_conversation(US, "conv_a"),
            *[store.delete_response(US, f"resp_{name}") for name in names],
        )
        assert await admin.fetchval("SELECT count(*) FROM items") == 0
    assert (await store.get_storage_usage(US)).bytes == 0


async def test_clients_may_send_characters_that_postgres_text_cannot_store(
    store: PostgresStore,
) -> None:
    for name in ("\0", "\x1a", "\x1a0\0\x1a1", "é\0🍀"):
        await store.create_response(US, new_response(name, item(name)))
        assert [one.id for one in await store.list_input_items(US, f"resp_{name}")] == [
            f"msg_{name}"
        ]
        assert (await store.get_item(US, f"msg_{name}")).id == f"msg_{name}"
        [held] = [
            one for one in await store.list_leases(OWNER) if one.response_id == f"resp_{name}"
        ]
        assert await store.finish_response(held, finished_response(name))


async def test_a_gap_in_a_log_is_reported_and_not_skipped(store: PostgresStore, admin: Any) -> None:
    await store.create_response(US, response_with_log("a"))
    for number in range(2, 6):
        assert await store.append_events(lease("a"), chunk(number))
    assert await store.finish_response(lease("a"), finished_response("a"), events=chunk(6))
    await admin.execute("DELETE FROM events WHERE first = 3")
    with pytest.raises(StoreError, match="event 3 is missing"):
        await store.read_events(US, "resp_a")
    assert (await store.read_events(US, "resp_a", after=3)).ends
    await admin.execute("DELETE FROM events WHERE first >= 3")
    with pytest.raises(StoreError, match="event 3 is missing"):
        await store.read_events(US, "resp_a", after=2)
    assert await store.get_response(US, "resp_a") == finished_response("a")


async def test_a_log_can_be_asked_for_what_it_will_never_have(store: PostgresStore) -> None:
    await store.create_response(US, response_with_log("a"))
    for after in (2**31, 2**63, 10**30):
        assert (await store.read_events(US, "resp_a", after=after)).chunks == []
        await store.wait_for_events(US, "resp_a", after=after, limit_s=0.05)
    assert await store.finish_response(lease("a"), finished_response("a"))
    for after in (2**31, 2**63, 10**30):
        assert (await store.read_events(US, "resp_a", after=after)).ends


async def test_concurrent_appends_of_one_run_keep_their_order(
    store: PostgresStore,
) -> None:
    await store.create_response(US, response_with_log("a"))
    chunks = [chunk(number) for number in range(2, 40)]
    assert all(await asyncio.gather(*[store.append_events(lease("a"), one) for one in chunks]))
    assert await log_of(store, "a") == [chunk(0, 2), *chunks]


async def test_a_refused_append_does_not_fail_the_others(store: PostgresStore) -> None:
    for name in "ab":
        await store.create_response(US, response_with_log(name))
    attempts = [
        store.append_events(lease(name), chunk(first)) for name, first in (("a", 7), ("b", 2))
    ]
    refused, written = await asyncio.gather(*attempts, return_exceptions=True)
    assert isinstance(refused, StoreError)
    assert written is True


async def test_a_page_of_what_has_just_grown_is_read_from_its_index(store: PostgresStore) -> None:
    await create_conversation(store, "a")
    for start in range(0, 6000, 1000):
        items = [item(str(number)) for number in range(start, start + 1000)]
        await store.create_conversation_items(US, "conv_a", items)
    statements = [RANGES[True].format(order="DESC"), RANGES[False].format(order="ASC")]
    values: Any = [(1, -1, 2**62, 21, 2**62), ([1], [-1], [-1], [2], [-1], 21, 2**62)]
    for statement, given in zip(statements, values, strict=True):
        plan = await store._server.fetch(f"EXPLAIN {statement}", *given)
        steps = "\n".join(line for (line,) in plan)
        assert "Bitmap" not in steps
        assert "Index Scan" in steps


async def test_only_one_of_two_servers_can_claim_a_conversation(
    store: PostgresStore, another: PostgresStore
) -> None:
    await create_conversation(store, "a")
    await beat(store, OWNER)
    for turn in range(10):
        names = (f"resp_{turn}", f"resp_other_{turn}")
        refused = await asyncio.gather(
            *[
                is_locked(one.claim_conversation(US, "conv_a", name, owner=OWNER))
                for one, name in zip((store, another), names, strict=True)
            ]
        )
        assert sorted(refused) == [False, True]
        await store.release_conversation(
            US, "conv_a", names[refused.index(False)], [item(str(turn))]
        )
    assert await items_of(store, "a") == [str(turn) for turn in range(10)]


async def test_a_key_is_not_free_while_its_response_is_being_created(
    store: PostgresStore, another: PostgresStore, admin: Any
) -> None:
    await reserve(store, "a")  # its owner is dead: it sends no heartbeats
    waiting = "SELECT count(*) >= $1 FROM pg_locks WHERE NOT granted"
    async with admin.transaction():
        # Locks what every transaction changes last.
        slots = (
            "INSERT INTO storage_usage SELECT $1, slot, 0, 0 FROM generate_series(0, 15) AS slot"
        )
        await admin.execute(slots, US)
        run = NewRun(owner=OWNER, key="key")
        creating = asyncio.create_task(store.create_response(US, new_response("a", run=run)))
        await wait_until(lambda: admin.fetchval(waiting, 1))
        asking = asyncio.create_task(reserve(another, "b", owner="srv_b"))
        await wait_until(lambda: admin.fetchval(waiting, 2))
    await creating
    assert await asking == IdempotencyRecord(
        response_id="resp_a", fingerprint=FINGERPRINT, exists=True
    )


async def test_a_server_suspended_in_a_transaction_does_not_block_its_run_forever(
    store: PostgresStore, postgres: Postgres, admin: Any
) -> None:
    await store.create_response(US, response_with_log("a"))
    stops = await asyncio.create_subprocess_exec(
        sys.executable, "-c", STOPS, *postgres, stdout=asyncio.subprocess.PIPE
    )
    assert stops.stdout is not None
    assert await stops.stdout.readline() == b"locked\n"
    stops.send_signal(signal.SIGSTOP)
    try:
        await wait_until(lambda: lease_runs(store))
    finally:
        stops.kill()
        await stops.communicate()


async def test_a_failed_finish_stores_no_webhook_deliveries(store: PostgresStore) -> None:
    delivery = WebhookDelivery(
        id=f"evt_{secrets.token_hex(4)}", tenant=US, endpoint="main", body=b"{}"
    )
    for name in "ab":
        await store.create_response(US, new_response(name))
    assert await store.finish_response(lease("a"), finished_response("a"), deliveries=[delivery])
    with pytest.raises(StoreError):
        await store.finish_response(lease("b"), finished_response("b"), deliveries=[delivery])
    assert (await store.get_response(US, "resp_b")).status == "in_progress"
    assert await finish(store, finished_response("b"))
