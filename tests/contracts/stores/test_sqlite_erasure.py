"""The SQLite store leaves no trace of deleted or swept content in its files."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec import Raw
from tests.contracts.stores.sqlite_connections import SECRET, connect

from antiphon.adapters.stores.sqlite.store import SqliteStore
from antiphon.application.ports import NewRun, StoredItem
from antiphon.domain.history.conversation import Conversation
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
    claim,
    context_of,
    create_and_finish,
    create_conversation,
    finish,
    input_of,
    items_of,
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


def traces(path: Path, secret: str = SECRET) -> list[str]:
    """Return the files of the store that contain `secret`."""
    files = path.parent.glob(f"{path.name}*")
    return [file.name for file in files if secret.encode() in file.read_bytes()]


async def keep_secrets(store: SqliteStore, name: str, *, after: str | None = None) -> None:
    """Store secrets of all sizes: within a page, and far longer than one."""
    raw = b'{"content":"%b"}' % (SECRET.encode() * 1000)
    secret = StoredItem(id=f"msg_{SECRET}", raw=Raw(raw))
    await store.create_response(
        US, new_response(name, item("x"), secret, after=after, instructions=SECRET)
    )
    messages = [Message(id=f"msg_{n}", role="assistant", content=SECRET * n) for n in (1, 20, 900)]
    done = finished_response(name, after=after, instructions=SECRET, output=tuple(messages))
    assert await finish(store, done)


async def test_deleted_content_leaves_no_trace_in_the_files(store: SqliteStore, path: Path) -> None:
    await keep_secrets(store, "a")
    for n in range(30):
        await create_and_finish(store, str(n))
    assert traces(path) != []
    await store.delete_response(US, "resp_a")
    await store.aclose()
    assert traces(path) == []


async def keep_a_secret_log(store: SqliteStore, name: str, *, expires_at: float = 0) -> None:
    """Store a finished response whose events contain a secret."""
    run = NewRun(owner=OWNER, job=SECRET.encode(), events=chunk(0, 1, SECRET.encode()))
    await store.create_response(US, new_response(name, run=run, expires_at=expires_at))
    for n, size in enumerate((1, 20, 900), 1):
        assert await store.append_events(lease(name), chunk(n, 1, SECRET.encode() * size))
    assert await finish(store, finished_response(name))


async def test_deleted_logs_leave_no_trace_in_the_files(store: SqliteStore, path: Path) -> None:
    await keep_a_secret_log(store, "a")
    for n in range(30):
        await store.create_response(US, response_with_log(str(n)))
    assert traces(path) != []
    await store.delete_response(US, "resp_a")
    await create_and_finish(store, "next")  # written after the wiping
    assert traces(path) == []


async def test_swept_content_leaves_no_trace_in_the_files(store: SqliteStore, path: Path) -> None:
    await keep_a_secret_log(store, "a")
    assert traces(path) != []
    assert await store.sweep(keep_events_s=3600) == 1
    await create_and_finish(store, "next")  # written after the wiping
    assert traces(path) == []
    await keep_a_secret_log(store, "b", expires_at=1e12)
    assert traces(path) != []
    assert await store.sweep(keep_events_s=0) == 1
    await create_and_finish(store, "one more")
    assert traces(path) == []
    assert await context_of(store, "b") == turn_item_names("b")


async def test_a_job_is_deleted_when_its_run_ends(store: SqliteStore, path: Path) -> None:
    await keep_a_secret_log(store, "a")
    elsewhere = connect(path)
    assert elsewhere.execute("SELECT * FROM jobs").fetchall() == []
    elsewhere.close()


async def test_a_large_sweep_lets_other_writes_in_between(store: SqliteStore, path: Path) -> None:
    for n in range(250):
        await store.create_response(US, new_response(str(n), expires_at=0))
        assert await finish(store, finished_response(str(n)))
    swept = asyncio.create_task(store.sweep(keep_events_s=0, limit=220))
    await create_and_finish(store, "kept")
    assert not swept.done()
    assert await swept == 220
    assert await store.sweep(keep_events_s=0) == 30
    assert await context_of(store, "kept") == turn_item_names("kept")


async def test_deleted_content_is_wiped_while_the_store_is_open(
    store: SqliteStore, path: Path
) -> None:
    await keep_secrets(store, "a")
    await store.delete_response(US, "resp_a")
    await create_and_finish(store, "next")  # written after the wiping
    assert traces(path) == []


async def test_a_deleted_response_is_wiped_once_no_response_continues_it(
    store: SqliteStore, path: Path
) -> None:
    await keep_secrets(store, "a")
    await create_and_finish(store, "b", after="a")
    await store.delete_response(US, "resp_a")
    assert len(await input_of(store, "b")) == 6
    await store.delete_response(US, "resp_b")
    await store.aclose()
    assert traces(path) == []


async def test_deleted_conversations_and_items_leave_no_trace_in_the_files(
    store: SqliteStore, path: Path
) -> None:
    secret = item(SECRET, raw=b'{"content":"%b"}' % (SECRET.encode() * 1000))
    about = Conversation(id="conv_a", created_at=0, metadata={"k": SECRET})
    await store.create_conversation(US, about, [secret])
    await create_conversation(store, "b", "x")
    await store.create_conversation_items(US, "conv_b", [secret])
    assert traces(path) != []
    await store.delete_conversation(US, "conv_a")
    assert traces(path) != []
    await store.delete_conversation_item(US, "conv_b", f"msg_{SECRET}")
    await create_and_finish(store, "next")  # written after the wiping
    assert traces(path) == []
    assert await items_of(store, "b") == ["x"]


async def test_items_of_a_response_and_a_conversation_are_wiped_with_the_last_of_both(
    store: SqliteStore, path: Path
) -> None:
    await create_conversation(store, "a")
    for name in ("one", "two"):
        await claim(store, "a", name)
        secret = item("secret", raw=b'{"content":"%b"}' % SECRET.encode())
        await store.create_response(US, new_response(name, secret, within="a"))
        await finish(store, finished_response(name, within="a"))
    await store.delete_response(US, "resp_one")
    await store.delete_conversation(US, "conv_a")
    assert await context_of(store, "two") == ["secret", "two_out"]
    await store.delete_response(US, "resp_two")
    await store.aclose()
    assert traces(path) == []


async def test_a_reader_in_another_process_delays_the_wiping_but_no_write(
    store: SqliteStore, path: Path
) -> None:
    await keep_secrets(store, "a")
    elsewhere = connect(path)
    elsewhere.execute("BEGIN; SELECT count(*) FROM items").fetchall()
    await store.delete_response(US, "resp_a")
    await asyncio.wait_for(create_and_finish(store, "next"), 30)
    assert traces(path) != []
    elsewhere.execute("COMMIT")
    elsewhere.close()
    await store.aclose()
    assert traces(path) == []


async def test_the_wiping_is_retried_until_no_reader_is_in_the_way(
    store: SqliteStore, path: Path
) -> None:
    await keep_secrets(store, "a")
    elsewhere = connect(path)
    elsewhere.execute("BEGIN; SELECT count(*) FROM items").fetchall()
    await store.delete_response(US, "resp_a")
    await create_and_finish(store, "next")
    assert traces(path) != []
    elsewhere.execute("COMMIT")
    async with asyncio.timeout(30):
        while traces(path):
            await store.get_storage_usage(US)
    elsewhere.close()
