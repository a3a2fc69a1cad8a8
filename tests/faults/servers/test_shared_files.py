"""Files that were uploaded at one server are files at another, which shares nothing but stores."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.faults.conftest import STORES
from tests.faults.support.replicas import MODEL, Replica, replicas
from tests.support.object_store import CREDENTIALS, new_bucket, s3_server

pytestmark = [pytest.mark.faults, pytest.mark.timeout(180)]

LONG = bytes(range(256)) * 8000
TEXT = b"The owl flies at night."


@pytest.fixture(params=["postgres", "s3"])
def pair(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[list[Replica]]:
    """Yield two servers with one database, and one bucket or none."""
    with STORES["postgres"](tmp_path) as dsn:
        options = ["--store", dsn, "--keep-file-bytes", str(3 * len(LONG))]
        if request.param == "postgres":
            with replicas(tmp_path, *options, share_folder=False) as started:
                yield started
            return
        for name, value in CREDENTIALS.items():
            monkeypatch.setenv(name, value)
        with s3_server() as endpoint:
            url = f"s3://{new_bucket(endpoint)}/files"
            options += ["--file-store", url, "--file-store-endpoint", endpoint]
            with replicas(tmp_path, *options, share_folder=False) as started:
                yield started


def upload(server: Replica, content: bytes, name: str = "owl.txt") -> httpx.Response:
    return httpx.post(
        f"{server.api}/files",
        files={"file": (name, content)},
        data={"purpose": "user_data"},
        timeout=30,
    )


def listed(server: Replica, **query: Any) -> list[str]:
    page = httpx.get(f"{server.api}/files", params=query).raise_for_status().json()
    return [file["id"] for file in page["data"]]


def test_every_operation_on_a_file_works_at_the_other_server(pair: list[Replica]) -> None:
    first, second = pair
    ids = [upload(first, LONG, "long.bin").json()["id"], upload(second, TEXT).json()["id"]]
    ids.append(upload(first, b"").json()["id"])
    for server, other in ((first, second), (second, first)):
        assert listed(server, order="asc") == ids
        assert listed(server, order="desc", limit=1) == ids[-1:]
        assert listed(server, order="asc", after=ids[0]) == listed(other, order="asc")[1:]
        for file_id, content in zip(ids, (LONG, TEXT, b""), strict=True):
            file = httpx.get(f"{server.api}/files/{file_id}").json()
            assert (file["id"], file["bytes"]) == (file_id, len(content))
            answer = httpx.get(f"{server.api}/files/{file_id}/content")
            assert answer.content == content
    deleted = httpx.delete(f"{second.api}/files/{ids[0]}")
    assert deleted.json() == {"id": ids[0], "object": "file", "deleted": True}
    for path in (f"files/{ids[0]}", f"files/{ids[0]}/content"):
        assert httpx.get(f"{first.api}/{path}").status_code == 404
    assert listed(first, order="asc") == ids[1:]


def test_a_response_reads_a_file_that_was_uploaded_at_the_other_server(
    pair: list[Replica],
) -> None:
    first, second = pair
    file_id = upload(first, TEXT).json()["id"]
    content = [
        {"type": "input_file", "file_id": file_id},
        {"type": "input_text", "text": "What flies?"},
    ]
    body = {"model": MODEL, "input": [{"role": "user", "content": content}]}
    counted = [
        httpx.post(f"{server.api}/responses/input_tokens", json=body).json() for server in pair
    ]
    assert counted[0] == counted[1]
    answer = httpx.post(f"{second.api}/responses", json=body)
    assert answer.json()["status"] == "completed", answer.text
    httpx.delete(f"{first.api}/files/{file_id}")
    answer = httpx.post(f"{second.api}/responses", json=body)
    assert answer.status_code == 400
    assert file_id in answer.json()["error"]["message"]


def test_the_quota_counts_the_files_of_both_servers(pair: list[Replica]) -> None:
    first, second = pair
    for server in (first, second, first):
        assert upload(server, LONG).status_code == 200
    refused = upload(second, TEXT)
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "file_quota_exceeded")
    httpx.delete(f"{second.api}/files/{listed(second)[0]}")
    assert upload(second, TEXT).status_code == 200


def test_a_server_killed_while_it_stores_files_leaves_whole_files_or_none(
    pair: list[Replica],
) -> None:
    first, second = pair
    stored = upload(first, TEXT).json()["id"]
    with httpx.Client(timeout=30) as client:
        request = client.build_request(
            "POST",
            f"{first.api}/files",
            files={"file": ("long.bin", LONG)},
            data={"purpose": "user_data"},
        )
        body = request.read()
        half = httpx.Request(
            "POST", request.url, headers=request.headers, content=_then_kill(body, first)
        )
        with pytest.raises(httpx.TransportError):
            client.send(half)
    whole = dict.fromkeys(listed(second), LONG) | {stored: TEXT}
    assert len(whole) <= 2
    for file_id, content in whole.items():
        assert httpx.get(f"{second.api}/files/{file_id}/content").content == content


def _then_kill(body: bytes, server: Replica) -> Iterator[bytes]:
    """Yield a body, and kill the server that has just got its last part."""
    yield body[:-1]
    yield body[-1:]
    server.kill()


def test_each_server_deletes_what_the_other_was_given(pair: list[Replica]) -> None:
    for server, other in (pair, pair[::-1]):
        file_id = upload(server, TEXT).json()["id"]
        assert httpx.delete(f"{other.api}/files/{file_id}").json()["deleted"] is True
        for either in pair:
            assert httpx.get(f"{either.api}/files/{file_id}").status_code == 404
            assert httpx.delete(f"{either.api}/files/{file_id}").status_code == 404
            assert file_id not in listed(either)
