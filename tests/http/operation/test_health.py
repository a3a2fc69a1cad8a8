"""What orchestrators ask: does it live, would it serve?"""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from antiphon.adapters.stores.memory.store import MemoryStore
from antiphon.application.runs.readiness import CACHED_S
from antiphon.domain.errors import StoreError

pytestmark = pytest.mark.slow


class SickStore(MemoryStore):
    """Cannot be written once a test says so, or does not answer."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = self.is_silent = False
        self.checks = 0

    async def check(self) -> None:
        self.checks += 1
        if self.is_full:
            raise StoreError("the disk at db-7.internal is full", reason="the disk is full")
        if self.is_silent:
            await asyncio.Event().wait()


@pytest.mark.parametrize("path", ["/livez", "/health/live"])
def test_a_server_says_that_it_is_well(server: Any, path: str) -> None:
    assert httpx.get(server.url + path).status_code == 200


@pytest.mark.parametrize("path", ["/readyz", "/health/ready"])
def test_each_part_is_named(server: Any, path: str) -> None:
    answer = httpx.get(server.url + path)
    assert answer.status_code == 200
    assert answer.json() == {
        "status": "ready",
        "server": "ok",
        "store": "ok",
        "files": "ok",
        "engine": "ok",
        "models": {"scripted-chat": "ok", "scripted-harmony": "ok"},
    }


@pytest.mark.parametrize(
    ("fault", "word", "reason"),
    [
        ("is_full", "unavailable", "the disk is full"),
        ("is_silent", "silent", "it did not answer within 2 seconds"),
    ],
)
def test_an_unwritable_store_is_named_without_details(
    serve: Any, fault: str, word: str, reason: str
) -> None:
    store = SickStore()
    with serve(instead=store) as server:
        setattr(store, fault, True)
        answer = httpx.get(f"{server.url}/readyz")
        assert httpx.get(f"{server.url}/livez").status_code == 200
    assert answer.status_code == 503
    assert answer.json()["store"] == word
    assert answer.json()["reasons"] == {"store": reason}
    assert "internal" not in answer.text


def test_many_who_ask_cause_few_writes(serve: Any) -> None:
    store = SickStore()
    with serve(instead=store) as server, httpx.Client(base_url=server.url) as client:
        started_at = time.monotonic()
        for _ in range(100):
            assert client.get("/readyz").status_code == 200
        assert store.checks <= (time.monotonic() - started_at) / CACHED_S + 1


def test_a_full_disk_of_files_is_named_and_responses_are_served(serve: Any, tmp_path: Path) -> None:
    with serve(file_store="folder") as server:
        folder = tmp_path / "files"
        folder.rmdir()
        folder.write_text("no folder")
        answer = httpx.get(f"{server.url}/readyz")
    assert answer.status_code == 200
    assert answer.json()["files"] == "unavailable"
    assert answer.json()["reasons"] == {"files": "file exists"}


def test_a_model_whose_engine_is_dead_is_named_and_the_other_one_serves(serve: Any) -> None:
    with serve() as server:
        server.engine("scripted-chat")._die("no GPU")
        answer = httpx.get(f"{server.url}/readyz")
    assert answer.status_code == 200
    assert answer.json()["engine"] == "ok"
    assert answer.json()["models"] == {"scripted-chat": "unavailable", "scripted-harmony": "ok"}


def test_a_server_whose_engines_are_all_dead_is_not_ready(serve: Any) -> None:
    with serve(model="scripted-chat") as server:
        server.engine("scripted-chat")._die("no GPU")
        answer = httpx.get(f"{server.url}/readyz")
    assert answer.status_code == 503
    assert answer.json()["engine"] == "unavailable"
