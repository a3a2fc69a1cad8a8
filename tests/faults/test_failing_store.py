"""A store that fails at any operation: every request has an answer, and the next one is served."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from antiphon.adapters.stores.memory.store import MemoryStore
from antiphon.domain.errors import StoreError

OPERATIONS = (
    *("create_response", "finish_response", "get_response", "list_input_items", "get_context"),
    *("get_item", "delete_response", "create_conversation", "get_conversation"),
    *("update_conversation", "delete_conversation", "list_conversation_items"),
    *("create_conversation_items", "delete_conversation_item"),
    *("claim_conversation", "release_conversation"),
)
MANY = 60  # more operations than the requests below make


class CountedStore(MemoryStore):
    """Fails at its `fails_at`-th operation, once."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0
        self.fails_at = 0
        self.asked_again = 0

    def __getattribute__(self, name: str) -> Any:
        operation = super().__getattribute__(name)
        if name not in OPERATIONS:
            return operation
        self.count += 1
        if self.count == self.fails_at:
            self.asked_again += name == "finish_response"
            raise StoreError("the disk is full")
        return operation


@pytest.fixture
def store() -> CountedStore:
    return CountedStore()


@pytest.fixture
def http(serve: Any, store: CountedStore) -> Iterator[httpx.Client]:
    with serve(instead=store) as server, httpx.Client(base_url=server.api, timeout=30) as client:
        yield client


def requests(http: httpx.Client) -> Iterator[httpx.Response]:
    """Every verb once; what depends on a request that failed is asked for all the same."""
    body = {"model": "scripted-chat", "input": "hi"}
    created = http.post("/responses", json=body)
    yield created
    path = f"/responses/{created.json().get('id', 'resp_none')}"
    reference = {"type": "item_reference", "id": "msg_none"}
    yield http.post("/responses", json={**body, "input": [reference]})
    again = {**body, "stream": True, "previous_response_id": path.removeprefix("/responses/")}
    yield http.post("/responses", json=again)
    yield http.get(path)
    yield http.get(f"{path}/input_items")
    yield http.get(path, params={"stream": "true"})
    yield http.delete(path)
    talk = http.post("/conversations", json={})
    yield talk
    path = f"/conversations/{talk.json().get('id', 'conv_none')}"
    within = {**body, "conversation": path.removeprefix("/conversations/")}
    for store in (True, False):
        yield http.post("/responses", json={**within, "store": store})
    yield http.get(path)
    yield http.post(path, json={"metadata": {}})
    added = http.post(f"{path}/items", json={"items": [{"role": "user", "content": "x"}]})
    assert "conversation_locked" not in added.text, "a response that failed has freed it"
    yield added
    item = f"{path}/items/{added.json().get('first_id', 'msg_none')}"
    yield http.get(item)
    yield http.delete(item)
    yield http.get(f"{path}/items")
    yield http.delete(path)


def last_event(answer: httpx.Response) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(answer.text.strip().rpartition("data: ")[2])
    return found


@pytest.mark.timeout(60)
def test_wherever_the_store_fails_every_request_has_an_end(
    http: httpx.Client, store: CountedStore
) -> None:
    failures = 0
    for operation in range(1, MANY):
        store.count, store.fails_at = 0, operation
        for answer in requests(http):
            if answer.headers["content-type"].startswith("text/event-stream"):
                kind = last_event(answer)["type"]
                assert kind in ("response.completed", "response.failed")
                failures += kind == "response.failed"
            else:
                assert answer.status_code in (200, 400, 404, 500)
                assert "error" in answer.json() or answer.status_code == 200
                failures += answer.status_code == 500
        if store.count < operation:
            break
    else:
        pytest.fail("MANY is too small")
    seen = operation - 1 - store.asked_again
    assert failures == seen, "each failure is seen by one client, and only by one"
    store.fails_at = 0
    assert all(answer.status_code < 500 for answer in requests(http))
