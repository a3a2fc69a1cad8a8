"""The SQLite store beyond the contract: durability, isolation and errors."""

from __future__ import annotations

import asyncio
import itertools
import stat
import sys
import threading
from collections.abc import AsyncIterator
from importlib.resources import files
from pathlib import Path
from typing import Any

import apsw
import pytest
from tests.contracts.stores.sqlite_connections import SECRET, connect

from antiphon.adapters.stores.sqlite.file import SqliteFile
from antiphon.adapters.stores.sqlite.reserve import LOW_BYTES, RESERVE_BYTES, DiskReserve
from antiphon.adapters.stores.sqlite.store import SqliteStore
from antiphon.application.ports import StoredResponse
from antiphon.domain.errors import SettingsError, StoreError
from antiphon.domain.items import Message
from antiphon.testing.samples import (
    EVERY_FIELD,
    EVERY_KIND_OF_OUTPUT,
    OWNER,
    US,
    as_json,
    chunk,
    finished_response,
    item,
    lease,
    new_response,
    turn_item_names,
)
from antiphon.testing.stores.calls import (
    claim,
    context_of,
    create_and_finish,
    create_conversation,
    finish,
    is_gone,
    is_locked,
    items_of,
    run_in_conversation,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "kept" / "antiphon.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    store = SqliteStore(path)
    await store.start()
    yield store
    await store.aclose()


# --- durability -----------------------------------------------------------------------------------


async def test_a_restart_keeps_everything(path: Path) -> None:
    done = finished_response("b", after="a", **EVERY_FIELD, output=EVERY_KIND_OF_OUTPUT)
    store = SqliteStore(path)
    await store.start()
    await create_and_finish(store, "a")
    await store.create_response(US, new_response("b", after="a"))
    await finish(store, done)
    await store.create_response(US, new_response("c", after="b"))
    await store.delete_response(US, "resp_a")
    before = await store.get_context(US, "resp_c")
    await store.aclose()

    again = SqliteStore(path)
    await again.start()
    assert as_json(await again.get_response(US, "resp_b")) == as_json(done)
    assert await again.get_context(US, "resp_c") == before
    assert [lease.response_id for lease in await again.list_leases(OWNER)] == ["resp_c"]
    assert await is_gone(again, "a")
    await again.aclose()


WRITER = """
import asyncio, sys
from pathlib import Path
from typing import Any
from antiphon.adapters.stores.sqlite.store import SqliteStore
from antiphon.testing.stores.calls import create_and_finish

async def write(store, name, count):
    for n in range(count):
        await create_and_finish(store, f"{name}_{n}")
        print(f"{name}_{n}", flush=True)

async def main():
    _, path, name, count = sys.argv
    store = SqliteStore(Path(path))
    await store.start()
    await asyncio.gather(*[write(store, f"{name}{task}", int(count)) for task in range(8)])
    await store.aclose()

asyncio.run(main())
"""


async def writer(path: Path, name: str, count: int) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", WRITER, str(path), name, str(count), stdout=asyncio.subprocess.PIPE
    )


async def test_confirmed_writes_survive_a_kill(path: Path) -> None:
    process = await writer(path, "w", 1_000_000)
    assert process.stdout is not None
    acknowledged = [(await process.stdout.readline()).decode().strip() for _ in range(300)]
    process.kill()
    acknowledged += (await process.stdout.read()).decode().split("\n")[:-1]
    await process.wait()

    store = SqliteStore(path)
    await store.start()
    for name in acknowledged:
        assert await context_of(store, name) == turn_item_names(name)
    await store.aclose()
    assert len(acknowledged) >= 300


async def test_two_processes_share_a_file_from_the_start(path: Path) -> None:
    one, two = [await writer(path, name, 15) for name in ("one", "two")]
    written = [(await process.communicate())[0].decode().split() for process in (one, two)]
    assert [one.returncode, two.returncode] == [0, 0]

    store = SqliteStore(path)
    await store.start()
    for name in itertools.chain(*written):
        assert await context_of(store, name) == turn_item_names(name)
    await store.aclose()
    assert [len(names) for names in written] == [120, 120]


async def test_a_write_is_visible_to_other_connections_immediately(
    store: SqliteStore, path: Path
) -> None:
    other = SqliteStore(path)
    await other.start()
    for name in "abc":
        await store.create_response(US, new_response(name))
        assert await finish(other, finished_response(name))
        assert not await finish(store, finished_response(name))
        assert await context_of(store, name) == turn_item_names(name)
    await other.aclose()


async def test_output_is_stored_once(store: SqliteStore, path: Path) -> None:
    await store.create_response(US, new_response("a"))
    message = Message(id="msg_a", role="assistant", content=SECRET)
    await finish(store, finished_response("a", output=(message,)))
    elsewhere = connect(path)
    rows = elsewhere.execute("SELECT body FROM responses UNION ALL SELECT body FROM items")
    assert [SECRET.encode() in body for (body,) in rows].count(True) == 1
    elsewhere.close()


async def test_many_connections_can_open_a_new_file_at_the_same_time(path: Path) -> None:
    several = [SqliteFile(path) for _ in range(8)]
    await asyncio.gather(*[file.start() for file in several])
    counts = await asyncio.gather(
        *[
            file.read(lambda db: db.execute("SELECT count(*) FROM responses").fetchall())
            for file in several
        ]
    )
    assert counts == [[(0,)]] * 8
    await asyncio.gather(*[file.aclose() for file in several])


async def test_an_item_in_a_conversation_is_stored_once(store: SqliteStore, path: Path) -> None:
    await create_conversation(store, "a")
    await claim(store, "a", "one")
    await store.create_response(US, new_response("one", within="a"))
    message = Message(id="msg_one", role="assistant", content=SECRET)
    await finish(store, finished_response("one", within="a", output=(message,)))
    assert await items_of(store, "a") == ["one_in", "one"]
    elsewhere = connect(path)
    rows = elsewhere.execute("SELECT body FROM responses UNION ALL SELECT body FROM items")
    assert [SECRET.encode() in body for (body,) in rows].count(True) == 1
    elsewhere.close()


async def test_only_one_of_two_processes_can_claim_a_conversation(
    store: SqliteStore, path: Path
) -> None:
    other = SqliteStore(path)
    await other.start()
    await create_conversation(store, "a")
    for turn in range(10):
        refused = await asyncio.gather(
            is_locked(claim(store, "a", f"{turn}")),
            is_locked(claim(other, "a", f"{turn}_other")),
        )
        assert sorted(refused) == [False, True]
        await store.release_conversation(US, "conv_a", f"resp_{turn}")
        await store.release_conversation(US, "conv_a", f"resp_{turn}_other")
    await other.aclose()


async def test_a_file_of_the_first_version_opens_with_its_content(path: Path) -> None:
    path.parent.mkdir(mode=0o700)
    first = connect(path)
    script = files("antiphon.adapters.stores") / "migrations" / "sqlite" / "0001_responses.sql"
    first.execute(script.read_text("utf-8")).fetchall()
    first.pragma("user_version", 1)
    for name, parent in (("a", None), ("b", "resp_a")):
        first.execute(
            "INSERT INTO responses (tenant, id, parent, status, created_at, body)"
            " VALUES (?, ?, ?, 'completed', 0, ?)",
            (US, f"resp_{name}", parent, as_json(finished_response(name, output=()))),
        )
        for kind, way in enumerate(("in", "out")):
            first.execute(
                "INSERT INTO items (tenant, response_id, kind, position, item_id, body)"
                " VALUES (?, ?, ?, 0, ?, ?)",
                (US, f"resp_{name}", kind, f"msg_{name}_{way}", bytes(item(name).raw)),
            )
    first.close()

    store = SqliteStore(path)
    await store.start()
    assert await context_of(store, "b") == turn_item_names("a", "b")
    await create_conversation(store, "new")
    await run_in_conversation(store, "new", "c")
    assert await items_of(store, "new") == turn_item_names("c")
    await store.aclose()


# --- starting -------------------------------------------------------------------------------------


async def test_only_the_owner_may_read_the_files(store: SqliteStore, path: Path) -> None:
    await create_and_finish(store, "a")
    modes = {file.name: stat.S_IMODE(file.stat().st_mode) for file in path.parent.iterdir()}
    assert modes == {path.name + suffix: 0o600 for suffix in ("", "-wal", "-shm", ".lock")}
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


async def assert_refuses(path: Path, reason: str) -> None:
    store = SqliteStore(path)
    with pytest.raises(SettingsError, match=reason) as caught:
        await store.start()
    assert str(caught.value).count(".\n") == 0
    with pytest.raises(StoreError, match="not open"):
        await store.get_response(US, "resp_a")
    await store.aclose()


async def test_a_directory_that_cannot_be_created_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    await assert_refuses(tmp_path / "file" / "antiphon.db", "Not a directory|File exists")


async def test_an_unwritable_path_is_refused() -> None:
    await assert_refuses(Path("/proc/antiphon.db"), "cannot be used")


async def test_a_directory_in_place_of_the_file_is_refused(tmp_path: Path) -> None:
    await assert_refuses(tmp_path, "Is a directory")


async def test_a_file_that_is_not_a_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "antiphon.db"
    path.write_bytes(b"Dear diary, " * 1000)
    await assert_refuses(path, "is not a SQLite database")


async def test_a_file_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "antiphon.db"
    newer = connect(path)
    newer.pragma("user_version", 9999)
    newer.close()
    await assert_refuses(path, "newer version")


async def test_a_file_that_refuses_writes_is_refused(path: Path) -> None:
    store = SqliteStore(path)
    await store.start()
    await store.aclose()
    damaged = connect(path)
    damaged.execute("DROP TABLE items")
    damaged.close()
    await assert_refuses(path, "no such table: items")


async def test_a_file_that_loses_writes_is_refused(path: Path) -> None:
    store = SqliteStore(path)
    await store.start()
    await store.aclose()
    damaged = connect(path)
    damaged.execute(
        "CREATE TRIGGER forget AFTER INSERT ON responses"
        " BEGIN DELETE FROM responses WHERE number = new.number; END"
    )
    damaged.close()
    await assert_refuses(path, "does not return what was written")


async def test_the_self_test_leaves_nothing(store: SqliteStore, path: Path) -> None:
    elsewhere = connect(path)
    assert elsewhere.execute("SELECT * FROM responses").fetchall() == []
    elsewhere.close()


# --- failing --------------------------------------------------------------------------------------


@pytest.fixture
async def file(path: Path) -> AsyncIterator[SqliteFile]:
    file = SqliteFile(path, busy_s=0.05)
    await file.start()
    await file.write(lambda db: db.execute("CREATE TABLE texts (text)"))
    yield file
    await file.aclose()


def add(text: str, db: apsw.Connection) -> None:
    db.execute("INSERT INTO texts VALUES (?)", (text,))


async def texts(file: SqliteFile) -> list[object]:
    rows = await file.read(lambda db: db.execute("SELECT text FROM texts").fetchall())
    return [text for (text,) in rows]


async def test_a_full_disk_fails_only_the_write_that_needs_space(
    file: SqliteFile,
) -> None:
    pages = await file.read(lambda db: db.pragma("page_count"))
    await file.write(lambda db: db.pragma("max_page_count", pages + 2))
    large = "x" * 100_000
    outcomes = await asyncio.gather(
        *[
            file.write(lambda db, text=text: add(text, db))  # type: ignore[misc]
            for text in ("a", large, "b")
        ],
        return_exceptions=True,
    )
    assert [type(outcome) for outcome in outcomes] == [type(None), StoreError, type(None)]
    assert "the disk is full" in str(outcomes[1])
    assert await texts(file) == ["a", "b"]
    await file.write(lambda db: db.pragma("max_page_count", 1_000_000))
    await file.write(lambda db: add(large, db))
    assert await texts(file) == ["a", "b", large]


@pytest.mark.parametrize(("free", "size"), [(LOW_BYTES, None), (LOW_BYTES - 1, RESERVE_BYTES)])
def test_room_for_deleting_is_kept_when_little_is_left(
    tmp_path: Path, free: int, size: int | None
) -> None:
    reserve = DiskReserve(tmp_path, free=lambda _: free)
    for _ in range(2):
        reserve.keep()
        assert [file.stat().st_size for file in tmp_path.iterdir()] == ([size] if size else [])
        assert reserve.release() is (size is not None)
        assert not reserve.release()


async def test_a_write_that_ends_the_transaction_fails_alone(file: SqliteFile) -> None:
    def end_it(db: apsw.Connection) -> None:
        db.execute("ROLLBACK")
        raise apsw.FullError("as a full disk does")

    writes = [file.write(lambda db: add("a", db)), file.write(end_it)]
    writes.append(file.write(lambda db: add("b", db)))
    outcomes = await asyncio.gather(*writes, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [type(None), StoreError, type(None)]
    assert await texts(file) == ["a", "b"]


async def test_an_exception_in_one_write_is_raised_there_and_rolled_back(file: SqliteFile) -> None:
    def fail(db: apsw.Connection) -> None:
        add("half", db)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await file.write(fail)
    await file.write(lambda db: add("a", db))
    assert await texts(file) == ["a"]


async def test_a_file_that_stays_locked_fails_writes_and_not_reads(
    file: SqliteFile, path: Path
) -> None:
    elsewhere = connect(path)
    elsewhere.execute("BEGIN IMMEDIATE")
    with pytest.raises(StoreError, match="another process has it locked"):
        await file.write(lambda db: add("a", db))
    assert await texts(file) == []
    elsewhere.execute("ROLLBACK")
    await file.write(lambda db: add("b", db))
    assert await texts(file) == ["b"]


async def test_a_write_waits_for_another_process(store: SqliteStore, path: Path) -> None:
    elsewhere = connect(path)
    elsewhere.execute("BEGIN IMMEDIATE")
    waiting = asyncio.create_task(create_and_finish(store, "a"))
    assert await store.list_leases(OWNER) == []
    assert not waiting.done()
    elsewhere.execute("COMMIT")
    await waiting
    assert await context_of(store, "a") == turn_item_names("a")


async def test_neither_reads_nor_writes_block_the_event_loop(file: SqliteFile) -> None:
    go_on = threading.Event()
    reading = asyncio.create_task(file.read(lambda _: go_on.wait(30)))
    writing = asyncio.create_task(file.write(lambda _: go_on.wait(30)))
    for _ in range(100):
        await asyncio.sleep(0)
    assert not reading.done()
    assert not writing.done()
    go_on.set()
    assert await reading
    assert await writing


async def test_reading_connections_cannot_write(file: SqliteFile) -> None:
    with pytest.raises(StoreError):
        await file.read(lambda db: add("a", db))
    assert await texts(file) == []


# --- closing --------------------------------------------------------------------------------------


async def test_closing_finishes_pending_work(path: Path) -> None:
    store = SqliteStore(path)
    await store.start()
    await create_and_finish(store, "root")
    writes = [asyncio.create_task(create_running(store, str(n))) for n in range(20)]
    reads = [asyncio.create_task(store.get_response(US, "resp_root")) for _ in range(20)]
    await asyncio.sleep(0)
    await store.aclose()
    await asyncio.gather(*writes)
    assert {response.id for response in await asyncio.gather(*reads)} == {"resp_root"}

    await store.start()
    assert len(await store.list_leases(OWNER)) == 20
    await store.aclose()


async def create_running(store: SqliteStore, name: str) -> None:
    await store.create_response(US, new_response(name))


async def test_a_closed_store_says_so(store: SqliteStore) -> None:
    await store.aclose()
    await store.aclose()
    for call in (
        store.create_response(US, StoredResponse(response=new_response("a").response)),
        finish(store, finished_response("a")),
        store.get_response(US, "resp_a"),
        store.list_input_items(US, "resp_a"),
        store.get_context(US, "resp_a"),
        store.get_item(US, "msg_a"),
        store.delete_response(US, "resp_a"),
        store.get_storage_usage(US),
        store.sweep(keep_events_s=0),
        store.check(),
        asyncio.to_thread(store.record_heartbeat, OWNER, 15),
        store.end_heartbeat(OWNER),
        store.lease_runs(OWNER, limit=1),
        store.take_over_run(OWNER, US, "resp_a"),
        store.give_back_run(lease("a")),
        store.list_leases(OWNER),
        store.append_events(lease("a"), chunk(1)),
        store.read_events(US, "resp_a"),
        store.wait_for_events(US, "resp_a", limit_s=10),
        store.reserve_idempotency_key(
            US, "k", response_id="resp_a", fingerprint=b"", owner=OWNER, expires_at=0
        ),
        store.release_idempotency_key(US, "k", "resp_a"),
        store.claim_due_deliveries(limit=1, claim_s=1),
        store.delay_delivery("evt_a", 1),
        store.delete_delivery("evt_a"),
        store.list_api_keys(),
        store.get_api_key(b""),
        store.revoke_api_key("key_a"),
        create_conversation(store, "a"),
        store.get_conversation(US, "conv_a"),
        store.update_conversation(US, "conv_a", {}),
        store.delete_conversation(US, "conv_a"),
        store.list_conversation_items(US, "conv_a"),
        store.create_conversation_items(US, "conv_a", []),
        store.delete_conversation_item(US, "conv_a", "msg_a"),
        store.claim_conversation(US, "conv_a", "resp_a", owner=OWNER),
        store.release_conversation(US, "conv_a", "resp_a"),
    ):
        with pytest.raises(StoreError, match="not open"):
            await call


async def test_closing_leaves_the_file_and_its_lock(store: SqliteStore, path: Path) -> None:
    await create_and_finish(store, "a")
    await store.aclose()
    sizes = {file.name: file.stat().st_size for file in path.parent.iterdir()}
    assert sizes.keys() == {path.name, f"{path.name}.lock"}
    assert sizes[f"{path.name}.lock"] == 0


async def test_a_result_does_not_wait_for_a_long_read_of_another_tenant(tmp_path: Path) -> None:
    file = SqliteFile(tmp_path / "one.db")
    await file.start()
    began, may_end = threading.Event(), threading.Event()

    def long(_: Any) -> bool:
        began.set()
        return may_end.wait(20)

    try:
        short = asyncio.ensure_future(file.read(lambda _: "short", tenant="a"))
        slow = asyncio.ensure_future(file.read(long, tenant="b"))
        assert await asyncio.wait_for(short, 10) == "short"
        await asyncio.to_thread(began.wait, 10)
        assert not slow.done()
    finally:
        may_end.set()
    assert await slow
    await file.aclose()
