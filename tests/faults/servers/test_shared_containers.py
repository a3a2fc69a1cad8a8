"""A container lives at one server, and each server of its store answers for it."""

from __future__ import annotations

import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.faults.conftest import STORES
from tests.faults.support.container_servers import call, container_servers, new_container
from tests.faults.support.replicas import Replica

Json = dict[str, Any]

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(180),
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
]


@pytest.fixture(params=[*STORES])
def any_pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[list[Replica]]:
    with container_servers(tmp_path, store=request.param) as started:
        yield started


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[Replica]]:
    with container_servers(tmp_path) as started:
        yield started


def uploaded_note(server: Replica) -> Json:
    """Upload a short file, and return it."""
    form: Json = {"files": {"file": ("note.txt", b"hello")}, "data": {"purpose": "user_data"}}
    answer: Json = call(server, "POST", "files", **form).json()
    return answer


def test_every_operation_on_a_container_works_at_the_other_server(
    any_pair: list[Replica],
) -> None:
    first, second = pair = any_pair
    container = new_container(first)
    path = f"containers/{container}"
    seen = [call(server, "GET", path) for server in pair]
    assert seen[0].json()["id"] == seen[1].json()["id"] == container
    assert seen[0].headers["x-antiphon-server"] == seen[1].headers["x-antiphon-server"]
    content = bytes(range(256)) * 4000
    added = call(second, "POST", f"{path}/files", files={"file": ("data.bin", content)}).json()
    assert added["path"] == "/mnt/data/data.bin"
    for server in pair:
        listed = call(server, "GET", f"{path}/files?limit=5&order=asc").json()
        assert [file["id"] for file in listed["data"]] == [added["id"]]
        assert call(server, "GET", f"{path}/files/{added['id']}").json()["bytes"] == len(content)
        read = call(server, "GET", f"{path}/files/{added['id']}/content")
        assert read.content == content
        assert "data.bin" in read.headers["content-disposition"]
    uploaded = uploaded_note(first)
    by_id = call(second, "POST", f"{path}/files", json={"file_id": uploaded["id"]})
    assert by_id.json()["path"] == "/mnt/data/note.txt"
    wrong = call(second, "GET", f"{path}/files/cfile_none")
    assert (wrong.status_code, wrong.json()["error"]["param"]) == (404, "file_id")
    assert call(second, "DELETE", f"{path}/files/{added['id']}").json()["deleted"] is True
    assert call(second, "DELETE", path).json()["deleted"] is True
    for server in pair:
        assert call(server, "GET", path).status_code == 404


def test_another_tenant_sees_no_container_at_any_server(pair: list[Replica]) -> None:
    container = new_container(pair[0])
    for server in pair:
        for method in ("GET", "DELETE"):
            answer = call(server, method, f"containers/{container}", tenant="ben")
            assert answer.status_code == 404, answer.text
        unknown = httpx.get(f"{server.api}/containers/{container}")
        assert unknown.status_code == 401
    assert call(pair[1], "GET", f"containers/{container}").status_code == 200


def test_a_header_that_no_server_signed_is_refused(pair: list[Replica]) -> None:
    container = new_container(pair[0])
    for value in ("", "x", "e30=.e30=", "W10=.W10="):
        answer = httpx.get(
            f"{pair[0].api}/containers/{container}", headers={"x-antiphon-relayed": value}
        )
        assert answer.status_code == 401, answer.text
    for path in ("files", "responses/resp_1", "containers"):
        answer = httpx.get(f"{pair[0].api}/{path}", headers={"x-antiphon-relayed": "x"})
        assert answer.status_code in (400, 401), answer.text


def test_the_container_of_a_dead_server_is_a_clear_error(pair: list[Replica]) -> None:
    first, second = pair
    container = new_container(first)
    assert call(second, "GET", f"containers/{container}").status_code == 200
    first.kill()
    answer = call(second, "GET", f"containers/{container}")
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (503, "container_unreachable")
    assert "files are lost" in error["message"]


def test_the_container_of_a_server_that_has_stopped_is_unknown(pair: list[Replica]) -> None:
    first, second = pair
    container = new_container(first)
    first.stop()
    assert call(second, "GET", f"containers/{container}").status_code == 404


def test_clients_of_both_servers_share_a_container_at_the_same_time(pair: list[Replica]) -> None:
    container = new_container(pair[0])
    statuses: list[int] = []

    def add(number: int) -> None:
        answer = call(
            pair[number % 2],
            "POST",
            f"containers/{container}/files",
            files={"file": (f"{number}.txt", b"x" * number)},
        )
        statuses.append(answer.status_code)

    threads = [threading.Thread(target=add, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert statuses == [200] * 8
    listed = call(pair[1], "GET", f"containers/{container}/files").json()["data"]
    assert len(listed) == 8


def test_a_list_has_the_containers_of_all_servers_in_pages_and_of_one_tenant(
    any_pair: list[Replica],
) -> None:
    made = [new_container(any_pair[number % 2], name=f"{number}") for number in range(5)]
    foreign = new_container(any_pair[0], tenant="ben")
    for server in any_pair:
        newest = call(server, "GET", "containers").json()
        assert sorted(each["id"] for each in newest["data"]) == sorted(made)
        times = [each["created_at"] for each in newest["data"]]
        assert times == sorted(times, reverse=True)
        assert newest["has_more"] is False
        whole = [each["id"] for each in newest["data"]]
        assert [newest["first_id"], newest["last_id"]] == [whole[0], whole[-1]]
        oldest = call(server, "GET", "containers?order=asc").json()["data"]
        assert [each["id"] for each in oldest] == whole[::-1]
        named = call(server, "GET", "containers?name=3").json()["data"]
        assert [each["id"] for each in named] == [made[3]]
        others = call(server, "GET", "containers", tenant="ben").json()["data"]
        assert [each["id"] for each in others] == [foreign]
    # Each page comes from the other server than the one before.
    pages: list[str] = []
    for number in range(3):
        after = f"&after={pages[-1]}" if pages else ""
        page = call(any_pair[number % 2], "GET", f"containers?limit=2{after}").json()
        assert page["has_more"] is (number < 2)
        pages += [each["id"] for each in page["data"]]
    assert pages == whole
    unknown = call(any_pair[0], "GET", f"containers?after={foreign}")
    assert (unknown.status_code, unknown.json()["error"]["param"]) == (400, "after")


def test_a_dead_server_is_left_out_of_lists(pair: list[Replica]) -> None:
    first, second = pair
    new_container(first)
    own = new_container(second)
    assert len(call(second, "GET", "containers").json()["data"]) == 2
    first.kill()
    answer = call(second, "GET", "containers")
    assert answer.status_code == 200, answer.text
    assert [each["id"] for each in answer.json()["data"]] == [own]


def test_a_server_that_hangs_is_left_out_of_lists(pair: list[Replica]) -> None:
    first, second = pair
    new_container(first)
    own = new_container(second)
    first.signal(signal.SIGSTOP)
    answer = call(second, "GET", "containers")
    first.signal(signal.SIGCONT)
    assert [each["id"] for each in answer.json()["data"]] == [own]


def test_a_container_starts_with_files_that_were_uploaded_at_the_other_server(
    pair: list[Replica],
) -> None:
    first, second = pair
    uploaded = uploaded_note(first)
    made = call(second, "POST", "containers", json={"name": "x", "file_ids": [uploaded["id"]]})
    assert made.status_code == 200, made.text
    listed = call(first, "GET", f"containers/{made.json()['id']}/files").json()["data"]
    assert [file["path"] for file in listed] == ["/mnt/data/note.txt"]
    content = f"containers/{made.json()['id']}/files/{listed[0]['id']}/content"
    assert call(first, "GET", content).content == b"hello"
