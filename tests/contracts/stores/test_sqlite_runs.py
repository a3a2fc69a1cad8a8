"""Runs in the SQLite store beyond the contract: killed processes, and files of old versions."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import sys
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import apsw
import pytest

from antiphon.adapters.stores.sqlite.store import SqliteStore
from antiphon.application.ports import Clock, NewRun, StorageUsage, WebhookDelivery
from antiphon.domain.errors import SettingsError, StoreError
from antiphon.testing.samples import (
    NEXT_OWNER,
    OWNER,
    THEM,
    US,
    as_json,
    chunk,
    finished_response,
    item,
    lease,
    new_response,
    response_with_log,
    turn_item_names,
    waiting_response,
)
from antiphon.testing.stores.calls import (
    beat,
    claim,
    context_of,
    create_and_finish,
    create_conversation,
    finish,
    is_locked,
    last_number,
    lease_runs,
    log_of,
    run_names,
    wait_until,
)

pytestmark = pytest.mark.slow

OLD_MIGRATIONS = ("0001_responses.sql", "0002_conversations.sql")
OLD_RESPONSES = ((US, "a", "completed"), (US, "b", "queued"), (THEM, "a", "failed"))


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "antiphon.db"


@contextlib.asynccontextmanager
async def opened(
    path: Path, *, busy_s: float = 5, uptime: Clock = time.monotonic
) -> AsyncGenerator[SqliteStore]:
    store = SqliteStore(path, busy_s=busy_s, uptime=uptime)
    await store.start()
    try:
        yield store
    finally:
        await store.aclose()


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    async with opened(path) as store:
        yield store


# --- killed processes -----------------------------------------------------------------------------

SERVER = """
import asyncio, sys
from pathlib import Path
from antiphon.adapters.stores.sqlite.store import SqliteStore
from antiphon.testing.samples import US, chunk, lease, response_with_log

async def main():
    _, path, owner, ttl_s, name = sys.argv
    store = SqliteStore(Path(path))
    await store.start()
    store.record_heartbeat(owner, float(ttl_s))
    if name:
        await store.create_response(US, response_with_log(name, owner=owner))
    print("ready", flush=True)
    number = 2
    while name and await store.append_events(lease(name), chunk(number)):
        print(number, flush=True)
        number += 1
    await asyncio.to_thread(sys.stdin.read)

asyncio.run(main())
"""


@contextlib.asynccontextmanager
async def another_process(
    path: Path, owner: str, *, ttl_s: float, runs: str = ""
) -> AsyncGenerator[asyncio.subprocess.Process]:
    """Start a server on the same file, which may run a response and append to its log quickly."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", SERVER, str(path), owner, str(ttl_s), runs),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    try:
        assert await line_of(process) == "ready"
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def line_of(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    return (await process.stdout.readline()).decode().strip()


async def test_a_server_alone_on_the_file_leases_the_runs_of_a_killed_one_immediately(
    path: Path,
) -> None:
    async with another_process(path, "srv_killed", ttl_s=3600, runs="a") as killed:
        numbers = [await line_of(killed) for _ in range(50)]
        killed.kill()
        await killed.wait()
        async with opened(path) as store:
            [run] = await lease_runs(store)
            assert run.lease == lease("a", epoch=2)
            assert run.job == b"job"
            log = await log_of(store, "a")
            assert last_number(log) >= int(numbers[-1])
            assert [one.first for one in log] == [0, *range(2, last_number(log) + 1)]


async def test_a_server_that_shares_the_file_waits_for_the_death_of_a_killed_one(
    path: Path,
) -> None:
    passed_s = 0.0
    async with (
        another_process(path, "srv_alive", ttl_s=3600),
        another_process(path, "srv_killed", ttl_s=60, runs="a") as killed,
    ):
        killed.kill()
        await killed.wait()
        async with opened(path, uptime=lambda: time.monotonic() + passed_s) as store:
            assert await lease_runs(store) == []
            passed_s = 100.0
            assert len(await lease_runs(store)) == 1
            assert await store.list_leases(NEXT_OWNER) == [lease("a", epoch=2)]


async def test_a_starting_server_takes_no_run_from_a_live_one(path: Path) -> None:
    async with (
        another_process(path, "srv_alive", ttl_s=3600, runs="a") as other,
        opened(path) as store,
    ):
        assert await lease_runs(store) == []
        before = int(await line_of(other))
        await wait_until(lambda: has_more(store, "a", before))


async def has_more(store: SqliteStore, name: str, than: int) -> bool:
    return last_number(await log_of(store, name)) > than


async def test_waiting_readers_notice_what_another_process_writes(path: Path) -> None:
    async with opened(path) as store, another_process(path, "srv_alive", ttl_s=3600, runs="a"):
        after = 1
        for _ in range(20):
            async with asyncio.timeout(10):
                await store.wait_for_events(US, "resp_a", after=after, limit_s=60)
            log = await log_of(store, "a", after=after)
            assert log[0].first == after + 1
            after = last_number(log)


async def test_heartbeats_reach_the_file_while_the_event_loop_is_blocked(
    store: SqliteStore,
) -> None:
    await store.create_response(US, response_with_log("a"))
    beating = threading.Thread(target=store.record_heartbeat, args=(OWNER, 60))
    beating.start()
    beating.join()  # the loop does nothing meanwhile
    assert await lease_runs(store) == []


async def test_a_clock_that_restarts_revives_no_owner(path: Path) -> None:
    """The machine was up for a day and has been restarted."""
    async with opened(path) as store:
        await store.create_response(US, response_with_log("a"))
        await beat(store, OWNER, ttl_s=15)
        async with opened(path, uptime=lambda: 30.0) as restarted:
            assert run_names(await restarted.lease_runs(NEXT_OWNER, limit=1)) == ["a"]


async def test_the_oldest_runs_are_leased_first_whoever_owned_them(store: SqliteStore) -> None:
    for n, owner in enumerate(("srv_z", None, "srv_a", None, "srv_z")):
        await store.create_response(US, response_with_log(str(n), owner=owner))
    assert run_names(await lease_runs(store, limit=2)) == ["0", "1"]
    assert run_names(await lease_runs(store, limit=2)) == ["2", "3"]
    assert run_names(await lease_runs(store, limit=2)) == ["4"]


# --- logs -----------------------------------------------------------------------------------------


async def test_a_long_log_is_read_in_several_slices(store: SqliteStore) -> None:
    await store.create_response(US, response_with_log("a"))
    for n in range(12):
        assert await store.append_events(lease("a"), chunk(2 + n, 1, bytes([n]) * 1_000_000))
    piece = await store.read_events(US, "resp_a")
    assert not piece.ends
    assert 2 <= len(piece.chunks) < 12
    whole = await log_of(store, "a")
    assert [one.first for one in whole] == [0, *range(2, 14)]
    assert whole[-1].body == bytes([11]) * 1_000_000


async def test_a_partial_read_keeps_no_transaction_open(store: SqliteStore, path: Path) -> None:
    await store.create_response(US, response_with_log("a"))
    for n in range(12):
        assert await store.append_events(lease("a"), chunk(2 + n, 1, b"x" * 1_000_000))
    assert not (await store.read_events(US, "resp_a")).ends
    await store.delete_response(US, "resp_a")
    wal = path.with_name(f"{path.name}-wal")
    await wait_until(lambda: asyncio.to_thread(is_empty, wal))


def is_empty(file: Path) -> bool:
    return file.stat().st_size == 0


async def test_each_of_a_hundred_readers_is_woken_by_its_own_log_only(
    store: SqliteStore, path: Path
) -> None:
    for n in range(100):
        await store.create_response(US, response_with_log(str(n)))
    waiting = {
        n: asyncio.create_task(store.wait_for_events(US, f"resp_{n}", after=1, limit_s=30))
        for n in range(100)
    }
    async with opened(path) as other:
        for n in (7, 70):
            assert await other.append_events(lease(str(n)), chunk(2))
            await waiting.pop(n)
    assert not any(task.done() for task in waiting.values())
    for n in (8, 80):
        assert await store.append_events(lease(str(n)), chunk(2))
        await waiting.pop(n)
    assert not any(task.done() for task in waiting.values())
    for task in waiting.values():
        task.cancel()


async def test_closing_wakes_waiting_readers(path: Path) -> None:
    async with opened(path) as store:
        await store.create_response(US, response_with_log("a"))
        waiting = asyncio.create_task(store.wait_for_events(US, "resp_a", after=1, limit_s=30))
        await store.list_leases(OWNER)
    async with asyncio.timeout(10):
        await waiting


# --- files of old versions ------------------------------------------------------------------------


def create_old_file(path: Path) -> None:
    """Create a file of the second version, as a killed server left it."""
    db = apsw.Connection(str(path))
    db.pragma("journal_mode", "WAL")
    for number, name in enumerate(OLD_MIGRATIONS, 1):
        script = files("antiphon.adapters.stores") / "migrations" / "sqlite" / name
        db.execute(script.read_text("utf-8")).fetchall()
        db.pragma("user_version", number)
    for tenant, name, status in OLD_RESPONSES:
        response = finished_response(name, status=status, output=())
        db.execute(
            "INSERT INTO responses (tenant, id, status, created_at, body) VALUES (?, ?, ?, 0, ?)",
            (tenant, response.id, status, as_json(response)),
        )
        for kind, way in enumerate(("in", "out")):
            db.execute(
                "INSERT INTO items (tenant, response_id, kind, position, item_id, body)"
                " VALUES (?, ?, ?, 0, ?, ?)",
                (tenant, response.id, kind, f"msg_{name}_{way}", bytes(item(f"{name}").raw)),
            )
    db.execute(
        "INSERT INTO conversations (tenant, id, created_at, metadata, held_by, next_place)"
        " VALUES (?, 'conv_c', 0, x'7b7d', 'resp_gone', 0)",
        (US,),
    )
    db.close()


async def has_old_content(path: Path) -> bool:
    async with opened(path) as store:
        assert await context_of(store, "a") == turn_item_names("a")
        [run] = await lease_runs(store)
        assert run.lease == lease("b", epoch=1)
        assert run.job is None
        assert not await is_locked(claim(store, "c", "new"))
        ours = await store.get_storage_usage(US)
        await create_and_finish(store, "new")
        more = await store.get_storage_usage(US)
        assert (more.responses, more.bytes > ours.bytes) == (3, True)
        for name in ("new", "a", "b"):
            await store.delete_response(US, f"resp_{name}")
        assert await store.get_storage_usage(US) == StorageUsage()
        assert (await store.get_storage_usage(THEM)).responses == 1
    return True


async def test_a_file_of_the_previous_version_opens_with_its_content(path: Path) -> None:
    create_old_file(path)
    assert await has_old_content(path)


KILLED = """
import os, shutil, signal, sys
from pathlib import Path
import apsw
from antiphon.adapters.stores.sqlite import file as sqlite_file
from antiphon.adapters.stores.file_lock import FileLock

old, folder = map(Path, sys.argv[1:])

def die_at(statement):
    remaining = [statement]
    def trace(cursor, sql, bindings):
        remaining[0] -= 1
        if not remaining[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return True
    apsw.connection_hooks.append(lambda connection: setattr(connection, "exec_trace", trace))

statement, status = 0, 1
while status:
    statement += 1
    path = folder / f"{statement}.db"
    shutil.copy(old, path)
    child = os.fork()
    if not child:
        die_at(statement)
        sqlite_file._open(path, "sqlite", 5000, FileLock(path), lambda db: None)
        os._exit(0)
    _, status = os.waitpid(child, 0)
print(statement)
"""


async def test_a_kill_at_any_statement_of_an_upgrade_leaves_a_file_that_opens(
    tmp_path: Path,
) -> None:
    old = tmp_path / "old.db"
    create_old_file(old)
    (tmp_path / "new").mkdir()
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", KILLED, str(old), str(tmp_path / "new")),
        stdout=asyncio.subprocess.PIPE,
    )
    output, _ = await process.communicate()
    statements = int(output)
    assert statements > 30  # of 0003 alone
    for statement in range(1, statements + 1):
        assert await has_old_content(tmp_path / "new" / f"{statement}.db")


# --- locks and checks -----------------------------------------------------------------------------


@contextlib.contextmanager
def locked_exclusively(path: Path) -> Iterator[None]:
    """Lock the file as servers did before several could share one."""
    descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield
    os.close(descriptor)


async def test_a_file_that_another_server_has_locked_is_refused_unchanged(path: Path) -> None:
    create_old_file(path)
    with (
        locked_exclusively(path),
        pytest.raises(SettingsError, match="another process has it locked"),
    ):
        async with opened(path, busy_s=0.05):
            pass
    db = apsw.Connection(str(path))
    assert db.pragma("user_version") == len(OLD_MIGRATIONS)
    db.close()
    assert await has_old_content(path)


async def test_a_check_writes(path: Path) -> None:
    async with opened(path, busy_s=0.05) as store:
        await store.check()
        elsewhere = apsw.Connection(str(path))
        elsewhere.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="another process has it locked"):
            await store.check()
        with pytest.raises(StoreError, match="another process has it locked"):
            await asyncio.to_thread(store.record_heartbeat, OWNER, 15)
        elsewhere.execute("ROLLBACK")
        elsewhere.close()
        await store.check()


async def test_a_finish_with_events_out_of_order_is_not_written(store: SqliteStore) -> None:
    await store.create_response(US, waiting_response("a"))
    [run] = await lease_runs(store)
    with pytest.raises(StoreError, match="missing before number 9"):
        await store.finish_response(run.lease, finished_response("a"), events=chunk(9))
    assert (await store.get_response(US, "resp_a")).status == "in_progress"
    assert await store.finish_response(run.lease, finished_response("a"), events=chunk(2))
    assert not await finish(store, finished_response("a"))


async def test_usage_matches_the_stored_rows(store: SqliteStore, path: Path) -> None:
    """The sums that triggers maintain are those of the rows, whatever was written and deleted."""
    await create_conversation(store, "c", "x", "y")
    for name, before in (("a", None), ("b", "a"), ("c", "b")):
        await create_and_finish(store, name, after=before)
    await store.create_response(US, new_response("in", within="c"))
    await finish(store, finished_response("in", within="c"))
    await store.create_response(US, response_with_log("log"))
    await store.append_events(lease("log"), chunk(2))
    await store.delete_response(US, "resp_b")
    await store.delete_conversation_item(US, "conv_c", "msg_x")
    elsewhere = apsw.Connection(str(path))
    size: Any = elsewhere.execute(
        "SELECT sum(length(body)) FROM (SELECT body FROM responses UNION ALL"
        " SELECT body FROM items UNION ALL SELECT body FROM events)"
    ).fetchall()[0][0]
    elsewhere.close()
    assert await store.get_storage_usage(US) == StorageUsage(responses=4, bytes=size)


# --- atomicity ------------------------------------------------------------------------------------


class FailingDisk:
    """Fails one statement: the `at`-th after `at` is set."""

    at = 0

    def watch(self, connection: apsw.Connection) -> None:
        connection.exec_trace = self

    def __call__(self, _cursor: object, _sql: str, _bindings: object) -> bool:
        self.at -= 1
        if not self.at:
            raise apsw.IOError
        return True


@pytest.fixture
def disk() -> Iterator[FailingDisk]:
    disk = FailingDisk()
    apsw.connection_hooks.append(disk.watch)
    yield disk
    apsw.connection_hooks.remove(disk.watch)


async def state_of(store: SqliteStore) -> object:
    return (
        await store.get_response(US, "resp_a"),
        await store.read_events(US, "resp_a"),
        await store.list_conversation_items(US, "conv_c"),
        await store.list_leases(OWNER),
        await store.get_storage_usage(US),
        await is_locked(claim(store, "c", "other")),
    )


async def test_a_finish_that_fails_at_any_statement_writes_nothing(
    disk: FailingDisk, path: Path
) -> None:
    delivery = WebhookDelivery(id="evt_a", tenant=US, endpoint="main", body=b"{}")
    run = NewRun(owner=OWNER, job=b"job", events=chunk(0))
    async with opened(path) as store:
        await create_conversation(store, "c", "x")
        await claim(store, "c", "a")
        await store.create_response(US, new_response("a", within="c", run=run))
        before = await state_of(store)
        failures = 0
        while True:
            disk.at = failures + 1
            try:
                assert await store.finish_response(
                    lease("a"),
                    finished_response("a", within="c"),
                    events=chunk(1),
                    deliveries=[delivery],
                )
                break
            except StoreError as error:
                assert "its disk failed" in str(error)
            failures += 1
            assert await state_of(store) == before
            assert await store.claim_due_deliveries(limit=1, claim_s=0) == []
        disk.at = 0
        assert failures > 10
        assert (await store.read_events(US, "resp_a")).ends
        assert await store.claim_due_deliveries(limit=1, claim_s=0) == [delivery]
        assert [one.id for one in await store.list_conversation_items(US, "conv_c")] == [
            "msg_x",
            "msg_a_in",
            "msg_a_out",
        ]
