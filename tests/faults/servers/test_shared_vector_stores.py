"""Vector stores of one PostgreSQL: what one server adds, another indexes, finds and deletes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.faults.conftest import STORES
from tests.faults.support.replicas import MODEL, Replica, replicas, wait_for

pytestmark = [pytest.mark.faults, pytest.mark.timeout(180)]


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[Replica]]:
    with (
        STORES["postgres"](tmp_path) as dsn,
        replicas(tmp_path, "--store", dsn, share_folder=False) as started,
    ):
        yield started


def call(server: Replica, method: str, path: str, body: Any = None) -> Any:
    answer = httpx.request(method, f"{server.api}/{path}", json=body, timeout=30)
    assert answer.status_code == 200, answer.text
    return answer.json()


def upload(server: Replica, content: bytes) -> str:
    answer = httpx.post(
        f"{server.api}/files",
        files={"file": ("owl.txt", content)},
        data={"purpose": "assistants"},
        timeout=30,
    )
    return str(answer.raise_for_status().json()["id"])


def test_every_operation_on_a_vector_store_works_at_the_other_server(
    pair: list[Replica],
) -> None:
    first, second = pair
    file_ids = [upload(first, b"The owl flies at night."), upload(second, b"The cat sleeps.")]
    store = call(first, "POST", "vector_stores", {"name": "animals"})
    path = f"vector_stores/{store['id']}"
    call(second, "POST", f"{path}/files", {"file_id": file_ids[0], "attributes": {"year": 2026}})
    batch = call(first, "POST", f"{path}/file_batches", {"file_ids": file_ids[1:]})
    for server in pair:
        wait_for(lambda s=server: call(s, "GET", path)["file_counts"]["completed"] == 2 or None)
        seen = call(server, "GET", f"{path}/file_batches/{batch['id']}")
        assert seen["status"] == "completed"
        listed = call(server, "GET", f"{path}/files?order=asc")
        assert [file["id"] for file in listed["data"]] == file_ids
        found = call(server, "POST", f"{path}/search", {"query": "What flies at night?"})
        assert found["data"][0]["file_id"] == file_ids[0]
        assert found["data"][0]["attributes"] == {"year": 2026}
        text = call(server, "GET", f"{path}/files/{file_ids[0]}/content")
        assert text["data"][0]["text"] == "The owl flies at night."
    assert call(first, "POST", path, {"name": "birds"})["name"] == "birds"
    assert call(second, "GET", path)["name"] == "birds"
    call(second, "DELETE", f"{path}/files/{file_ids[1]}")
    assert call(first, "GET", path)["file_counts"]["total"] == 1
    call(first, "DELETE", f"files/{file_ids[0]}")  # it leaves all vector stores
    assert call(second, "POST", f"{path}/search", {"query": "owl"})["data"] == []
    call(second, "DELETE", path)
    assert httpx.get(f"{first.api}/{path}").status_code == 404


def test_a_response_searches_files_that_the_other_server_was_given(pair: list[Replica]) -> None:
    first, second = pair
    file_id = upload(first, b"The owl flies at night.")
    store = call(first, "POST", "vector_stores", {"file_ids": [file_id]})
    path = f"vector_stores/{store['id']}"
    wait_for(lambda: call(first, "GET", path)["file_counts"]["completed"] == 1 or None)
    script = '@@script [[{"call": "file_search", "args": {"queries": ["owl"]}}], [{"say": "ok"}]]'
    body = {
        "model": MODEL,
        "input": script,
        "tools": [{"type": "file_search", "vector_store_ids": [store["id"]]}],
        "include": ["file_search_call.results"],
    }
    response = call(second, "POST", "responses", body)
    [search] = [item for item in response["output"] if item["type"] == "file_search_call"]
    assert [result["file_id"] for result in search["results"]] == [file_id]


def test_each_operation_sees_what_the_other_server_did_before(pair: list[Replica]) -> None:
    first, second = pair
    ids = [upload(first, b"The owl flies at night."), upload(second, b"The lark sings at dawn.")]
    store = call(first, "POST", "vector_stores", {"name": "birds", "metadata": {"kind": "test"}})
    path = f"vector_stores/{store['id']}"
    other = call(second, "POST", "vector_stores", {"name": "others"})
    listed = [call(server, "GET", "vector_stores?order=asc")["data"] for server in pair]
    assert listed[0] == listed[1]
    assert [each["id"] for each in listed[0]] == [store["id"], other["id"]]
    batch = call(second, "POST", f"{path}/file_batches", {"file_ids": ids})
    in_batch = f"{path}/file_batches/{batch['id']}"
    wait_for(lambda: call(first, "GET", in_batch)["status"] == "completed" or None)
    files = call(first, "GET", f"{in_batch}/files?order=asc")["data"]
    assert sorted(file["id"] for file in files) == sorted(ids)
    # A batch that is complete stays complete.
    assert call(first, "POST", f"{in_batch}/cancel")["file_counts"]["completed"] == 2
    changed = call(first, "POST", f"{path}/files/{ids[0]}", {"attributes": {"hour": "night"}})
    assert call(second, "GET", f"{path}/files/{ids[0]}") == changed
    at_night = {"type": "eq", "key": "hour", "value": "night"}
    query = {"query": "Who flies or sings at night?", "filters": at_night}
    for server in pair:
        found = call(server, "POST", f"{path}/search", query)["data"]
        assert [each["file_id"] for each in found] == [ids[0]]
    assert call(second, "DELETE", f"{path}/files/{ids[1]}")["deleted"] is True
    for gone in (f"{path}/files/{ids[1]}", f"{path}/files/{ids[1]}/content"):
        assert httpx.get(f"{first.api}/{gone}").status_code == 404
    assert httpx.get(f"{first.api}/files/{ids[1]}").status_code == 200, "the file itself stays"
    assert call(second, "DELETE", path)["deleted"] is True
    for server in pair:
        assert httpx.get(f"{server.api}/{path}").status_code == 404
        left = call(server, "GET", "vector_stores")["data"]
        assert [each["id"] for each in left] == [other["id"]]
