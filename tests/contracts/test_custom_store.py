"""The example store of examples/custom_store.py passes the contract and survives a restart."""

from __future__ import annotations

import importlib
import os
import resource
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest

from antiphon.application.ports import Store
from antiphon.domain.errors import SettingsError, StoreError
from antiphon.testing.samples import (
    EVERY_FIELD,
    EVERY_KIND_OF_OUTPUT,
    OWNER,
    US,
    as_json,
    chunk,
    finished_response,
    lease,
    new_response,
    response_with_log,
    turn_item_names,
)
from antiphon.testing.store import StoreContract
from antiphon.testing.stores.calls import (
    claim,
    context_of,
    create_and_finish,
    create_conversation,
    finish,
    is_unknown,
    items_of,
    lease_runs,
    log_of,
    run_in_conversation,
)

ROOT = Path(__file__).parents[2]


def size_of(path: Path) -> int:
    return path.stat().st_size


Open = Callable[[Path], AbstractAsyncContextManager[Store]]


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(ROOT))
    return importlib.import_module("examples.custom_store")


@pytest.fixture
def opened(example: Any) -> Open:
    @asynccontextmanager
    async def opened(path: Path) -> AsyncIterator[Store]:
        store = cast("Store", example.JournalStore(path))
        await store.start()
        yield store
        await store.aclose()

    return opened


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "journal"


class TestJournalStore(StoreContract):
    @pytest.fixture
    async def store(self, opened: Open, path: Path) -> AsyncIterator[Store]:
        async with opened(path) as store:
            yield store


async def test_a_restart_keeps_everything(opened: Open, path: Path) -> None:
    done = finished_response("b", after="a", **EVERY_FIELD, output=EVERY_KIND_OF_OUTPUT)
    async with opened(path) as store:
        await create_and_finish(store, "a")
        await store.create_response(US, new_response("b", after="a"))
        assert await finish(store, done)
        await create_conversation(store, "talk", "x")
        await run_in_conversation(store, "talk", "one")
        await claim(store, "talk", "two")
        await store.create_response(US, response_with_log("runs"))
        await store.end_heartbeat(OWNER)
        [run] = await lease_runs(store)
        assert await store.append_events(run.lease, chunk(2))
        await store.delete_response(US, "resp_a")
    async with opened(path) as store:
        assert as_json(await store.get_response(US, "resp_b")) == as_json(done)
        assert (await context_of(store, "b"))[:3] == [*turn_item_names("a"), "b_in"]
        assert await items_of(store, "talk") == ["x", *turn_item_names("one")]
        assert await log_of(store, "runs") == [chunk(0, 2), chunk(2)]
        [next_run] = await lease_runs(store, "srv_c")
        assert next_run.lease == lease("runs", run.lease.epoch + 1)


async def test_a_partial_write_is_ignored(opened: Open, path: Path) -> None:
    async with opened(path) as store:
        await create_and_finish(store, "a")
    complete_size = size_of(path)
    async with opened(path) as store:
        await create_and_finish(store, "b")
    os.truncate(path, complete_size + 7)
    async with opened(path) as store:
        assert await context_of(store, "a") == turn_item_names("a")
        await create_and_finish(store, "c", after="a")
    async with opened(path) as store:
        assert await context_of(store, "c") == turn_item_names("a", "c")


async def test_two_servers_on_one_journal_are_refused(opened: Open, path: Path) -> None:
    async with opened(path):
        with pytest.raises(SettingsError, match="cannot be opened"):
            async with opened(path):
                pass


@pytest.fixture
def limit_file_size() -> Iterator[Callable[[int], None]]:
    """Yield a function that limits the size of files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_journal_that_cannot_be_written_accepts_no_more_writes(
    opened: Open, path: Path, limit_file_size: Callable[[int], None]
) -> None:
    async with opened(path) as store:
        await create_and_finish(store, "a")
        limit_file_size(size_of(path) + 10)
        for name in "bc":
            with pytest.raises(StoreError, match="File too large"):
                await store.create_response(US, new_response(name))
        with pytest.raises(StoreError):
            await store.check()
        limit_file_size(size_of(path) + 100_000)
    async with opened(path) as store:
        assert await context_of(store, "a") == turn_item_names("a")
        assert await is_unknown(store.get_response(US, "resp_b"))


def test_the_example_can_be_served(
    example: Any, serve: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    request = {"model": "scripted-chat", "input": "hi"}
    ids = []
    for _ in range(2):
        with (
            serve(store="examples.custom_store:JournalStore") as server,
            httpx.Client(base_url=server.api) as http,
        ):
            ids.append(http.post("/responses", json=request).json()["id"])
            answers = [http.get(f"/responses/{response_id}") for response_id in ids]
            assert [answer.json()["status"] for answer in answers] == ["completed"] * len(ids)
