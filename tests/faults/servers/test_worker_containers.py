"""A container lives at one worker, and all workers answer for it, also those of other machines."""

from __future__ import annotations

import os
import re
import shutil
import signal
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.faults.support.container_servers import call, container_servers, new_container
from tests.faults.support.replicas import MODEL, Replica, wait_for
from tests.faults.support.workers import (
    START_S,
    WORKERS,
    a_client_of_each,
    pids_of,
    serving_with_workers,
)

from antiphon.application.resources.server_addresses import server_tag

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(300),
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed"),
]

Json = dict[str, Any]
Clients = Mapping[str, httpx.Client]

SHOW = '@@script [[{"call": "python", "args": {"code": "print(secret)"}}], [{"say": "ok"}]]'
SET = SHOW.replace("print(secret)", "secret = 42")
WITH_CODE = ("--code-interpreter", "--shell", "--code-cgroup", "off")
PER_MACHINE = 2


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    """A server for all tests that leave it as it is."""
    with serving_with_workers(tmp_path_factory.mktemp("workers"), *WITH_CODE) as started:
        yield started


@pytest.fixture
def clients(server: Replica) -> Iterator[Clients]:
    with a_client_of_each(server) as connected:
        yield connected


def created(client: httpx.Client) -> str:
    return str(client.post("/containers", json={"name": "work"}).json()["id"])


def ran(client: httpx.Client, prompt: str, container: str | Json, **fields: Any) -> str:
    """Return what the code has printed."""
    code = {"type": "code_interpreter", "container": container}
    include = {"include": ["code_interpreter_call.outputs"]}
    body = {"model": MODEL, "input": prompt, "tools": [code], **include, **fields}
    answer = client.post("/responses", json=body)
    assert answer.status_code == 200, answer.text
    [item] = [each for each in answer.json()["output"] if each["type"] == "code_interpreter_call"]
    return "".join(output["logs"] for output in item["outputs"] or ())


def test_every_operation_on_a_container_works_at_every_worker(clients: Clients) -> None:
    owner, maker = next(iter(clients.items()))
    container = created(maker)
    assert server_tag(owner) in container
    for number, client in enumerate(clients.values()):
        seen = client.get(f"/containers/{container}")
        assert seen.json()["id"] == container
        assert seen.headers["x-antiphon-server"] == server_tag(owner)
        listed = client.get("/containers").json()["data"]
        assert container in [each["id"] for each in listed]
        added = client.post(
            f"/containers/{container}/files", files={"file": (f"{number}.txt", b"some text")}
        ).json()
        path = f"/containers/{container}/files/{added['id']}"
        for other in clients.values():
            assert other.get(f"{path}/content").content == b"some text"
        assert client.delete(path).json()["deleted"] is True
    assert [*clients.values()][-1].delete(f"/containers/{container}").json()["deleted"] is True
    for client in clients.values():
        assert client.get(f"/containers/{container}").status_code == 404


def test_a_response_runs_at_the_worker_of_its_container(clients: Clients) -> None:
    first, *_ = clients.values()
    container = created(first)
    ran(first, SET, container)
    for client in clients.values():
        assert ran(client, SHOW, container) == "42\n"
        streamed = {
            "model": MODEL,
            "input": SHOW,
            "stream": True,
            "tools": [{"type": "code_interpreter", "container": container}],
        }
        events = re.findall(r"^event: (\S+)", client.post("/responses", json=streamed).text, re.M)
        assert events[-1] == "response.completed"


def test_a_conversation_goes_on_in_its_container_at_any_worker(clients: Clients) -> None:
    first, *others = clients.values()
    conversation = first.post("/conversations", json={}).json()["id"]
    ran(first, SET, {"type": "auto"}, conversation=conversation)
    for client in others:
        assert ran(client, SHOW, {"type": "auto"}, conversation=conversation) == "42\n"


def test_the_container_of_a_worker_that_was_killed_is_unknown_at_once(tmp_path: Path) -> None:
    with serving_with_workers(tmp_path, *WITH_CODE) as server, a_client_of_each(server) as clients:
        owner, maker = next(iter(clients.items()))
        container = created(maker)
        os.kill(pids_of(server)[owner], signal.SIGKILL)
        wait_for(lambda: len(pids_of(server)) > WORKERS or None, limit_s=START_S)
        with a_client_of_each(server) as again:
            assert owner not in again
            for client in again.values():
                answer = client.get(f"/containers/{container}")
                assert (answer.status_code, answer.json()["error"]["param"]) == (
                    404,
                    "container_id",
                )
                assert client.get("/containers").json()["data"] == []
        assert "does not answer" not in server.log()


def test_a_worker_passes_on_what_another_machine_has_relayed(tmp_path: Path) -> None:
    workers = ("--workers", str(PER_MACHINE))
    with container_servers(tmp_path, *workers, start_s=START_S) as pair:
        made: dict[str, tuple[Replica, str]] = {}

        def make() -> bool | None:
            for server in pair:  # each request has a connection of its own
                container = new_container(server)
                made[container.removeprefix("cntr_")[:16]] = server, container
            return len(made) == PER_MACHINE * len(pair) or None

        wait_for(make)
        for server in pair:
            for home, container in made.values():
                for _ in range(2 * PER_MACHINE):
                    seen = call(server, "GET", f"containers/{container}")
                    assert seen.status_code == 200, (server is home, seen.text)
        home, container = next(iter(made.values()))
        [away] = [server for server in pair if server is not home]
        code = {"type": "code_interpreter", "container": container}
        for server, prompt in ((home, SET), *[(away, SHOW)] * 2 * PER_MACHINE):
            body = {"model": MODEL, "input": prompt, "tools": [code]}
            answer = call(server, "POST", "responses", json=body)
            assert answer.json()["status"] == "completed", answer.text
            assert call(away, "GET", f"responses/{answer.json()['id']}").status_code == 200
