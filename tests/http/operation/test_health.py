"""What orchestrators ask: does it live, would it serve?"""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest

from antiphon.adapters.stores.memory.store import MemoryStore
from antiphon.domain.errors import StoreError

pytestmark = pytest.mark.slow


class SickStore(MemoryStore):
    """Cannot be written once a test says so, or does not answer."""

    def __init__(self) -> None:
        super().__init__()
        self.is_full = self.is_silent = False

    async def check(self) -> None:
        if self.is_full:
            raise StoreError("the disk at db-7.internal is full")
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
        "engine": "ok",
        "models": {"scripted-chat": "ok", "scripted-harmony": "ok"},
    }


@pytest.mark.parametrize(("fault", "word"), [("is_full", "unavailable"), ("is_silent", "silent")])
def test_an_unwritable_store_is_named_without_details(serve: Any, fault: str, word: str) -> None:
    store = SickStore()
    with serve(instead=store) as server:
        setattr(store, fault, True)
        answer = httpx.get(f"{server.url}/readyz")
        assert httpx.get(f"{server.url}/livez").status_code == 200
    assert answer.status_code == 503
    assert answer.json()["store"] == word
    assert "internal" not in answer.text


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
