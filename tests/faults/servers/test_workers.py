"""A server with several workers is one server: any of them answers for all."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.faults.support.replicas import MODEL, Replica, background, frames_of, wait_for
from tests.faults.support.workers import (
    WORKERS,
    a_client_of_each,
    pid_of_the_worker_that_made,
    pids_of,
    serving_with_workers,
)
from tests.support.processes import children_of, descendants_of, is_process_alive

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

SHORT = '@@script [[{"say": "word ", "repeat": 20, "tick": 0.01}]]'
MEDIUM = '@@script [[{"say": "word ", "repeat": 200, "tick": 0.02}]]'
LONG = '@@script [[{"say": "word ", "repeat": 5000, "tick": 0.02}]]'
Clients = Mapping[str, httpx.Client]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    """A server for all tests that leave it as it is."""
    with serving_with_workers(tmp_path_factory.mktemp("workers"), "--metrics") as started:
        yield started


@pytest.fixture
def clients(server: Replica) -> Iterator[Clients]:
    with a_client_of_each(server) as connected:
        yield connected


def create(client: httpx.Client, prompt: str, **fields: Any) -> str:
    answer = client.post("/responses", json=background(prompt, **fields))
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def ended(client: httpx.Client, response_id: str) -> Any:
    """Return the response once it has ended."""
    response = client.get(f"/responses/{response_id}").json()
    return None if response["status"] in ("queued", "in_progress") else response


def stream(client: httpx.Client, response_id: str, after: int = -1) -> bytes:
    asked: Any = {"stream": "true", "starting_after": after}
    answer = client.get(f"/responses/{response_id}", params=asked)
    assert answer.status_code == 200, answer.text
    return answer.content


# --- any worker answers for all -------------------------------------------------------------------


def test_connections_are_shared_out_evenly(server: Replica) -> None:
    with a_client_of_each(server) as first, a_client_of_each(server) as second:
        assert first.keys() == second.keys() == pids_of(server).keys()
        for client in (*first.values(), *second.values()):
            for path in ("livez", "readyz"):
                assert client.get(f"{server.url}/{path}").status_code == 200


def test_the_banner_is_printed_once_and_lines_of_the_log_name_their_worker(
    server: Replica,
) -> None:
    wanted = {str(number) for number in range(1, WORKERS + 1)}

    def all_have_answered() -> bool | None:
        assert httpx.get(f"{server.api}/models", timeout=30).status_code == 200
        found = re.findall(r"GET /v1/models 200 .*\[worker=(\d+) ", server.log())
        return set(found) == wanted or None

    wait_for(all_have_answered)
    assert server.log().count(" is ready; ") == 1


def read_everywhere(clients: Sequence[httpx.Client]) -> None:
    first, *others = clients
    response_id = create(first, SHORT)
    whole = frames_of(stream(first, response_id))
    assert b"response.completed" in whole[max(whole)]
    for client in others:
        assert frames_of(stream(client, response_id)) == whole
        rest = frames_of(stream(client, response_id, after=5))
        assert rest == {number: frame for number, frame in whole.items() if number > 5}
        assert ended(client, response_id)["status"] == "completed"
        follow_up = {"model": MODEL, "input": "and?", "previous_response_id": response_id}
        assert client.post("/responses", json=follow_up).json()["status"] == "completed"


def cancel_elsewhere(clients: Sequence[httpx.Client]) -> None:
    first, second, third, *_ = clients
    response_id = create(first, LONG)
    with third.stream("GET", f"/responses/{response_id}", params={"stream": "true"}) as answer:
        lines = answer.iter_lines()
        next(line for line in lines if "output_text.delta" in line)
        assert second.post(f"/responses/{response_id}/cancel").json()["status"] == "cancelled"
        assert '"cancelled"' in list(lines)[-2]
    assert first.delete(f"/responses/{response_id}").json()["deleted"] is True
    for client in clients:
        assert client.get(f"/responses/{response_id}").status_code == 404


def test_a_response_is_read_resumed_canceled_and_deleted_at_any_worker(
    tmp_path: Path, shared_store: list[str]
) -> None:
    with (
        serving_with_workers(tmp_path, *shared_store) as server,
        a_client_of_each(server) as clients,
    ):
        read_everywhere(list(clients.values()))
        cancel_elsewhere(list(clients.values()))


def test_a_file_is_in_all_workers(clients: Clients) -> None:
    first, *others = clients.values()
    upload = {"file": ("a.txt", b"Refunds take two weeks.")}
    made = first.post("/files", files=upload, data={"purpose": "assistants"}).json()
    store = first.post("/vector_stores", json={"file_ids": [made["id"]]}).json()
    for client in others:
        assert client.get(f"/files/{made['id']}/content").content == b"Refunds take two weeks."
        path = f"/vector_stores/{store['id']}"
        wait_for(lambda c=client, p=path: c.get(p).json()["status"] == "completed" or None)
        found = client.post(f"{path}/search", json={"query": "refunds"}).json()
        assert [each["file_id"] for each in found["data"]] == [made["id"]]


def test_an_idempotency_key_has_one_response_at_all_workers(clients: Clients) -> None:
    body = {"model": MODEL, "input": SHORT}
    together = threading.Barrier(len(clients))

    def post(client: httpx.Client) -> str:
        together.wait(timeout=30)
        answer = client.post("/responses", json=body, headers={"Idempotency-Key": "one"})
        return str(answer.json()["id"])

    with ThreadPoolExecutor(len(clients)) as posts:
        assert len(set(posts.map(post, clients.values()))) == 1


def test_a_scrape_has_the_numbers_of_all_workers(server: Replica) -> None:
    everywhere = {str(number) for number in range(1, WORKERS + 1)}

    def all_have_answered() -> bool | None:
        body = {"model": MODEL, "input": "hi", "store": False}
        assert httpx.post(f"{server.api}/responses", json=body, timeout=30).status_code == 200
        text = httpx.get(f"{server.url}/metrics", timeout=30).text
        families = {each.name: each for each in text_string_to_metric_families(text)}
        info = families["antiphon_server_info"].samples
        ended = families["antiphon_responses"].samples
        return (
            {each.labels["server"] for each in info} == pids_of(server).keys()
            and {each.labels["worker"] for each in ended if each.value} == everywhere
        ) or None

    wait_for(all_have_answered)


def test_the_state_in_the_console_is_that_of_all_workers(server: Replica, clients: Clients) -> None:
    first, *others = clients.values()
    response_id = create(first, LONG)
    for client in others:
        state = client.get(f"{server.url}/console/state").json()
        assert state["runs"]["running"] >= 1
        assert state["connections"]["open"] >= WORKERS
    first.post(f"/responses/{response_id}/cancel")


def test_workers_share_what_they_have_loaded(server: Replica, clients: Clients) -> None:
    for client in clients.values():
        body = {"model": "scripted-harmony", "input": "hi"}
        assert client.post("/responses", json=body).status_code == 200
    for pid in pids_of(server).values():
        assert private_bytes_of(pid) < 60 * 2**20, "110 MB if each loads the vocabulary itself"


def private_bytes_of(process: int) -> int:
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) * 1024


def test_a_limit_of_a_key_is_exact_over_all_workers(tmp_path: Path) -> None:
    key = subprocess.run(
        [
            *(sys.executable, "-m", "antiphon.entrypoints.cli", "keys", "create", "--name", "a"),
            *("--limit", "requests/day=7", "--data-dir", str(tmp_path)),
        ],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    ).stdout.strip()
    with serving_with_workers(tmp_path, "--auth", "on") as server:

        def post(_: int) -> int:
            return httpx.post(
                f"{server.api}/responses",
                json={"model": MODEL, "input": "hi"},
                headers={"authorization": f"Bearer {key}"},
                timeout=30,
            ).status_code

        with ThreadPoolExecutor(6) as posts:
            answers = list(posts.map(post, range(24)))
    assert (answers.count(200), answers.count(429)) == (7, 17)


# --- a worker dies --------------------------------------------------------------------------------


def test_a_worker_that_is_killed_is_replaced_and_its_runs_go_on(tmp_path: Path) -> None:
    with (
        serving_with_workers(tmp_path, "--lease-s", "60") as server,
        a_client_of_each(server) as clients,
    ):
        heard = create(next(iter(clients.values())), MEDIUM)
        with httpx.stream(
            "GET", f"{server.api}/responses/{heard}", params={"stream": "true"}, timeout=30
        ) as answer:
            next(line for line in answer.iter_lines() if "output_text.delta" in line)
        os.kill(pid_of_the_worker_that_made(server, heard), signal.SIGKILL)
        with httpx.Client(base_url=server.api, timeout=30) as client:
            # Long before the end of its lease: the worker that replaces it gives it up.
            over = wait_for(lambda: ended(client, heard))
        assert over["output"][0]["content"][0]["text"] == "word " * 200
        assert "killed by SIGKILL. It is started again in 0.5 s." in server.log()
        wait_for(lambda: len(pids_of(server)) > WORKERS or None, limit_s=60)
        with a_client_of_each(server) as later:
            assert len(later.keys() - clients.keys()) == 1
            for client in later.values():
                assert ended(client, heard) == over


def test_when_the_process_that_workers_are_forked_from_is_killed_all_are_replaced(
    tmp_path: Path,
) -> None:
    with serving_with_workers(tmp_path) as server:
        with httpx.Client(base_url=server.api, timeout=30) as client:
            kept = create(client, SHORT)
            over = wait_for(lambda: ended(client, kept))
        before = pids_of(server)
        os.kill(fork_server_of(server), signal.SIGKILL)
        wait_for(lambda: len(pids_of(server)) == 2 * WORKERS or None, limit_s=60)
        assert not any(map(is_process_alive, before.values()))
        with a_client_of_each(server) as clients:
            assert not clients.keys() & before.keys()
            assert [ended(each, kept) for each in clients.values()] == [over] * WORKERS


def test_a_worker_that_is_told_to_stop_ends_its_runs_and_is_replaced(tmp_path: Path) -> None:
    with serving_with_workers(tmp_path) as server:
        with httpx.Client(base_url=server.api, timeout=30) as client:
            response_id = create(client, SHORT)
        os.kill(pid_of_the_worker_that_made(server, response_id), signal.SIGTERM)
        wait_for(lambda: len(pids_of(server)) > WORKERS or None, limit_s=60)
        assert httpx.get(f"{server.api}/responses/{response_id}").json()["status"] == "completed"


# --- the end --------------------------------------------------------------------------------------


def reading(server: Replica, prompt: str) -> tuple[threading.Thread, list[str]]:
    """Start to read a stream in the foreground; return when its first text has come."""
    lines: list[str] = []
    begun = threading.Event()

    def read() -> None:
        body = {"model": MODEL, "input": prompt, "stream": True}
        with httpx.stream("POST", f"{server.api}/responses", json=body, timeout=60) as answer:
            for line in answer.iter_lines():
                lines.append(line)
                if "output_text.delta" in line:
                    begun.set()

    thread = threading.Thread(target=read)
    thread.start()
    assert begun.wait(30)
    return thread, lines


def last_event(reader: tuple[threading.Thread, list[str]]) -> dict[str, Any]:
    thread, lines = reader
    thread.join(timeout=60)
    data = [line for line in lines if line.startswith("data: ")][-1]
    found: dict[str, Any] = json.loads(data.removeprefix("data: "))
    return found


def is_refused(server: Replica) -> bool | None:
    try:
        httpx.get(f"{server.url}/livez", timeout=5)
    except httpx.ConnectError:
        return True
    except httpx.TransportError:  # it waited to be accepted when the last worker left
        return None
    return None


def test_told_to_stop_all_workers_finish_what_runs(tmp_path: Path) -> None:
    with serving_with_workers(tmp_path, "--graceful-shutdown-s", "20") as server:
        readers = [reading(server, SHORT.replace("20", "100")) for _ in range(WORKERS)]
        processes = pids_of(server).values()
        assert server.stop(limit_s=60) == 0
        assert [last_event(each)["type"] for each in readers] == ["response.completed"] * WORKERS
        assert not any(map(is_process_alive, processes))
        assert server.log().count("Stopping 3 workers") == 1
        assert is_refused(server)


def test_the_process_that_workers_are_forked_from_leaves_signals_to_the_supervisor(
    tmp_path: Path,
) -> None:
    with serving_with_workers(tmp_path, "--graceful-shutdown-s", "20") as server:
        reader = reading(server, SHORT.replace("20", "100"))
        fork_server = fork_server_of(server)
        for number in (signal.SIGINT, signal.SIGTERM):  # as to all processes of a group
            os.kill(fork_server, number)
        assert server.stop(limit_s=60) == 0
        assert last_event(reader)["type"] == "response.completed"
        wait_for(lambda: not is_process_alive(fork_server) or None)


def fork_server_of(server: Replica) -> int:
    workers = set(pids_of(server).values())
    [found] = [each for each in children_of(server.pid) if workers <= set(children_of(each))]
    return found


def test_a_second_ctrl_c_ends_what_still_runs(tmp_path: Path) -> None:
    with serving_with_workers(tmp_path, "--graceful-shutdown-s", "600") as server:
        readers = [reading(server, LONG) for _ in range(WORKERS)]
        processes = [server.pid, *pids_of(server).values()]
        for process in processes:  # as a terminal does
            os.kill(process, signal.SIGINT)
        waited_for = r"Stopping: waiting up to 600 s for (\d+) running response"
        wait_for(lambda: sum(map(int, re.findall(waited_for, server.log()))) == WORKERS or None)
        assert all(thread.is_alive() for thread, _ in readers)
        for process in processes:
            os.kill(process, signal.SIGINT)
        assert server.process is not None
        assert server.process.wait(timeout=60) == 0
        assert [last_event(each)["type"] for each in readers] == ["response.failed"] * WORKERS
        assert "Traceback" not in server.log()


def test_no_worker_outlives_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    with serving_with_workers(tmp_path, "--graceful-shutdown-s", "3") as server:
        reader = reading(server, LONG)
        processes = descendants_of(server.pid)
        assert set(pids_of(server).values()) <= set(processes)
        server.kill()
        killed_at = time.monotonic()
        assert last_event(reader)["type"] == "response.failed"
        wait_for(lambda: not any(map(is_process_alive, processes)) or None, limit_s=60)
        assert time.monotonic() - killed_at < 30
        assert is_refused(server)


OWN_STORE = """
from antiphon.adapters.stores.memory.store import MemoryStore

class Mine(MemoryStore):
    pass
"""


def test_a_store_that_workers_do_not_share_is_noticed_at_the_start(tmp_path: Path) -> None:
    (tmp_path / "my_store.py").write_text(OWN_STORE)
    process = subprocess.run(
        [
            *(sys.executable, "-m", "antiphon.entrypoints.cli", "serve", "--port", "0"),
            *("--workers", "2", "--store", "my_store:Mine", "--data-dir", str(tmp_path)),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert process.returncode == 2
    assert "each worker has a store of its own" in process.stderr
    assert " is ready; " not in process.stderr
    assert "Traceback" not in process.stderr
