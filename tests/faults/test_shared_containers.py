"""A container lives at one server, and each server of its store answers for it."""

from __future__ import annotations

import hashlib
import shutil
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.faults.conftest import STORES
from tests.faults.replicas import Replica

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(180),
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
]

KEYS = {"anna": "ak-anna-0123456789abcdef0123456789", "ben": "ak-ben-0123456789abcdef01234567"}
RUN = '@@script [[{"call": "code_interpreter", "args": {"code": "%s"}}], [{"say": "ok"}]]'


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[list[Replica]]:
    keys = "".join(
        f'[[keys]]\nid = "key_{name}"\nname = "{name}"\ntenant = "{name}"\n'
        f'sha256 = "{hashlib.sha256(key.encode()).hexdigest()}"\n'
        for name, key in KEYS.items()
    )
    (tmp_path / "keys.toml").write_text(keys)
    (tmp_path / "keys.toml").chmod(0o600)
    started = []
    with STORES["postgres"](tmp_path) as dsn:
        try:
            for number in range(2):
                folder = tmp_path / f"replica{number}"
                folder.mkdir()
                port = free_port()
                started.append(
                    Replica(
                        folder,
                        *("--store", dsn, "--data-dir", str(folder), "--port", str(port)),
                        *("--seal-key-file", str(tmp_path / "seal.key")),
                        *("--keys-file", str(tmp_path / "keys.toml"), "--auth", "on"),
                        *("--advertise-url", f"http://127.0.0.1:{port}"),
                        *("--code-interpreter", "--code-cgroup", "off"),
                    )
                )
                started[-1].start()
            yield started
        finally:
            for replica in started:
                if replica.process is not None and replica.process.poll() is None:
                    replica.kill()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def call(
    server: Replica, method: str, path: str, *, tenant: str = "anna", **options: Any
) -> httpx.Response:
    headers = {"authorization": f"Bearer {KEYS[tenant]}"}
    return httpx.request(method, f"{server.api}/{path}", headers=headers, timeout=30, **options)


def new_container(server: Replica) -> str:
    answer = call(server, "POST", "containers", json={"name": "ours"})
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def test_every_operation_on_a_container_works_at_the_other_server(pair: list[Replica]) -> None:
    first, second = pair
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
    uploaded = call(
        first,
        "POST",
        "files",
        files={"file": ("note.txt", b"hello")},
        data={"purpose": "user_data"},
    ).json()
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
