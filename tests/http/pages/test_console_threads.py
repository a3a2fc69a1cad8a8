"""`GET /console/threads/{id}`: what came before a response, and all that follows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from tests.http.conftest import create

from antiphon.adapters.stores.memory.store import MemoryStore
from antiphon.application.ports import StoredResponse
from antiphon.application.responses import thread as threads
from antiphon.domain.responses.response import Response

MODEL = "scripted-chat"


@pytest.fixture(scope="module")
def api(serve_from: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    with (
        serve_from(tmp_path_factory.mktemp("threads"), store="sqlite") as server,
        httpx.Client(base_url=server.api, timeout=20) as client,
    ):
        yield client


def after(api: httpx.Client, before: str | None = None) -> str:
    return str(create(api, model=MODEL, input="hi", previous_response_id=before)["id"])


def read(api: httpx.Client, response_id: str) -> dict[str, Any]:
    answer = api.get(str(api.base_url.join(f"/console/threads/{response_id}")))
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def ids(thread: dict[str, Any]) -> list[str]:
    return [each["id"] for each in thread["data"]]


def test_a_thread_has_all_forks_whichever_response_is_named(api: httpx.Client) -> None:
    root = after(api)
    first = after(api, root)
    other = after(api)
    fork = after(api, root)
    last, forked, theirs = after(api, first), after(api, fork), after(api, other)
    for named in (root, first, last, fork, forked):
        thread = read(api, named)
        assert ids(thread) == [root, first, fork, last, forked]
        assert (thread["deleted"], thread["earlier"], thread["has_more"]) == (None, None, False)
    assert ids(read(api, theirs)) == [other, theirs]
    assert thread["data"][0]["preview"]["input"] == "hi"
    assert thread["data"][0]["metrics"]["turns"]


def test_a_deleted_response_ends_the_thread(api: httpx.Client) -> None:
    root = after(api)
    middle = after(api, root)
    last = after(api, middle)
    api.delete(f"/responses/{middle}")
    thread = read(api, last)
    assert (ids(thread), thread["deleted"]) == ([last], middle)
    assert api.get(str(api.base_url.join("/console/threads/resp_none"))).status_code == 404


async def test_a_long_thread_is_read_in_parts(serve_from: Any, tmp_path: Any) -> None:
    store = MemoryStore()
    for number in range(threads.MAX_BEFORE + 9):
        made = Response(
            id=f"resp_{number:03}",
            created_at=number,
            model="m",
            previous_response_id=f"resp_{number - 1:03}" if number else None,
        )
        await store.create_response("default", StoredResponse(response=made))
    with (
        serve_from(tmp_path, instead=store) as server,
        httpx.Client(base_url=server.api, timeout=20) as client,
    ):
        thread = read(client, f"resp_{threads.MAX_BEFORE + 8}")
        assert (thread["earlier"], len(thread["data"])) == ("resp_007", threads.MAX_BEFORE + 1)
        assert len(read(client, "resp_007")["data"]) == threads.MAX_BEFORE + 9
