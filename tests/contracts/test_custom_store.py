"""The store that examples/custom_store.py shows keeps every promise, and survives a restart."""

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
from antiphon.testing.response_store import (
    EVERY_FIELD,
    EVERY_KIND_OF_OUTPUT,
    OWNER,
    US,
    as_json,
    claim,
    context_of,
    converse,
    end,
    finished,
    items_of,
    keep,
    running,
    say,
    turns,
    unknown,
)
from antiphon.testing.run_store import chunk, lease, log_of, logged, take
from antiphon.testing.store import StoreContract

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
    done = finished("b", after="a", **EVERY_FIELD, output=EVERY_KIND_OF_OUTPUT)
    async with opened(path) as store:
        await keep(store, "a")
        await store.create(US, running("b", after="a"))
        assert await end(store, done)
        await converse(store, "talk", "x")
        await say(store, "talk", "one")
        await claim(store, "talk", "two")
        await store.create(US, logged("runs"))
        await store.leave(OWNER)
        [taken] = await take(store)
        assert await store.append(taken.lease, chunk(2))
        await store.delete(US, "resp_a")
    async with opened(path) as store:
        assert as_json(await store.get(US, "resp_b")) == as_json(done)
        assert (await context_of(store, "b"))[:3] == [*turns("a"), "b_in"]
        assert await items_of(store, "talk") == ["x", *turns("one")]
        assert await log_of(store, "runs") == [chunk(0, 2), chunk(2)]
        [again] = await take(store, "srv_c")
        assert again.lease == lease("runs", taken.lease.epoch + 1)


async def test_what_was_not_written_whole_was_never_there(opened: Open, path: Path) -> None:
    async with opened(path) as store:
        await keep(store, "a")
    whole = size_of(path)
    async with opened(path) as store:
        await keep(store, "b")
    os.truncate(path, whole + 7)
    async with opened(path) as store:
        assert await context_of(store, "a") == turns("a")
        await keep(store, "c", after="a")
    async with opened(path) as store:
        assert await context_of(store, "c") == turns("a", "c")


async def test_two_servers_on_one_journal_are_refused(opened: Open, path: Path) -> None:
    async with opened(path):
        with pytest.raises(SettingsError, match="cannot be opened"):
            async with opened(path):
                pass


@pytest.fixture
def full_at() -> Iterator[Callable[[int], None]]:
    """Let no file grow beyond so many bytes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_a_journal_that_cannot_be_written_takes_nothing_more(
    opened: Open, path: Path, full_at: Callable[[int], None]
) -> None:
    async with opened(path) as store:
        await keep(store, "a")
        full_at(size_of(path) + 10)
        for name in "bc":
            with pytest.raises(StoreError, match="File too large"):
                await store.create(US, running(name))
        with pytest.raises(StoreError):
            await store.check()
        full_at(size_of(path) + 100_000)
    async with opened(path) as store:
        assert await context_of(store, "a") == turns("a")
        assert await unknown(store.get(US, "resp_b"))


def test_it_can_be_served(
    example: Any, serve: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    ask = {"model": "scripted-chat", "input": "hi"}
    ids = []
    for _ in range(2):
        with (
            serve(store="examples.custom_store:JournalStore") as server,
            httpx.Client(base_url=server.api) as http,
        ):
            ids.append(http.post("/responses", json=ask).json()["id"])
            answers = [http.get(f"/responses/{one}") for one in ids]
            assert [answer.json()["status"] for answer in answers] == ["completed"] * len(ids)
