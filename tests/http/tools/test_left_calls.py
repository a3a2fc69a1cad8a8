"""Calls of every kind that are left while they run: by a cancel, a deletion, a client who goes."""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import Struct
from openai import OpenAI
from tests.adapters.fake_embeddings import vector_of
from tests.golden.test_golden_flows import check_order
from tests.http.conftest import create, frames, script, text_of, wait_until

pytestmark = pytest.mark.slow

Json = dict[str, Any]

SHELL = {"type": "shell", "environment": {"type": "container_auto"}}
PYTHON = {"type": "code_interpreter", "container": {"type": "auto"}}
PROGRAMS = {"type": "programmatic_tool_calling"}
SLEEP = "600.25"
"""Seconds that no other process of this machine sleeps."""


class Slow:
    """The services that a server asks: whatever says `wait` is held until who asked has left."""

    def __init__(self) -> None:
        self.held = 0
        self._counting = threading.Lock()
        slow = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                if self.path.startswith("/search"):
                    self._hold()
                else:
                    self._answer(b"", 405)

            def do_DELETE(self) -> None:
                self._answer(b"")

            def do_POST(self) -> None:
                asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
                if "wait" in json.dumps([asked.get("input"), asked.get("params")]):
                    self._hold()
                elif "id" in asked or "input" in asked:
                    self._answer(json.dumps(slow.answer(asked)).encode())
                else:
                    self._answer(b"", 202)

            def _hold(self) -> None:
                with slow._counting:
                    slow.held += 1
                self.connection.recv(1)
                self.close_connection = True
                with slow._counting:
                    slow.held -= 1

            def _answer(self, content: bytes, status: int = 200) -> None:
                self.send_response(status)
                self.send_header("content-type", "application/json")
                self.send_header("content-length", str(len(content)))
                self.end_headers()
                with suppress(ConnectionError):
                    self.wfile.write(content)

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"

    def answer(self, asked: Json) -> Json:
        if "input" in asked:
            vectors = enumerate(map(vector_of, asked["input"]))
            return {"data": [{"index": index, "embedding": vector} for index, vector in vectors]}
        result: Json = {"tools": [{"name": "wait", "inputSchema": {"type": "object"}}]}
        if asked["method"] == "initialize":
            version = asked["params"]["protocolVersion"]
            info = {"name": "slow", "version": "1"}
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        return {"jsonrpc": "2.0", "id": asked["id"], "result": result}


class Running(Struct, frozen=True):
    client: httpx.Client
    slow: Slow
    named: Mapping[str, str]


@pytest.fixture(scope="module")
def running(serve_from: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    if shutil.which("bwrap") is None:
        pytest.skip("there is no bwrap here: apt-get install bubblewrap")
    slow = Slow()
    thread = threading.Thread(target=slow.server.serve_forever, args=(0.01,))
    thread.start()
    settings = {
        "fetch.urls": True,
        "fetch.hosts": ["127.0.0.1:*"],
        "fetch.private": ["127.0.0.1"],
        "code_interpreter": True,
        "shell": True,
        "programs": True,
        "code.cgroup": "off",
        "web_search": "searxng",
        "web.url": f"{slow.url}/search",
        "embeddings.url": f"{slow.url}/v1",
        "embeddings.model": "m",
        "code.timeout_s": 60.0,
    }
    try:
        with (
            serve_from(tmp_path_factory.mktemp("left"), **settings) as server,
            httpx.Client(base_url=server.api, timeout=20) as client,
            OpenAI(base_url=server.api, api_key="none") as official,
        ):
            file = official.files.create(file=("a.txt", b"A dog."), purpose="user_data")
            store = official.vector_stores.create()
            official.vector_stores.files.create_and_poll(
                file.id, vector_store_id=store.id, poll_interval_ms=10
            )
            yield Running(client, slow, {"store": store.id, "slow": slow.url})
    finally:
        slow.server.shutdown()
        thread.join()
        slow.server.server_close()


def sleeps() -> int:
    """Count the processes that sleep for SLEEP seconds, those in sandboxes too."""
    found = 0
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found += process.read_bytes().split(b"\0")[:2] == [b"sleep", SLEEP.encode()]
        except OSError:
            continue
    return found


CALLS: Mapping[str, tuple[Json, Json]] = {
    "mcp": (
        {"type": "mcp", "server_label": "s", "server_url": "{slow}", "require_approval": "never"},
        {"mcp": "wait", "args": {}},
    ),
    "web": ({"type": "web_search"}, {"call": "browser.search", "args": {"query": "wait"}}),
    "code": (PYTHON, {"python": f"import subprocess; subprocess.run(['sleep', '{SLEEP}'])"}),
    "shell": (SHELL, {"call": "shell", "args": {"commands": [f"echo first; sleep {SLEEP}"]}}),
    "program": (
        {**SHELL, "allowed_callers": ["programmatic"]},
        {
            "call": "program",
            "args": {"code": f"await tools.shell({{ commands: ['echo first; sleep {SLEEP}'] }})"},
        },
    ),
    "files": (
        {"type": "file_search", "vector_store_ids": ["{store}"]},
        {"call": "file_search", "args": {"queries": ["wait"]}},
    ),
}
"""A tool, and a call of it that goes on for as long as it may. A kind that is new gets a row."""


@pytest.fixture(params=CALLS)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def body_of(running: Running, kind: str, model: str, **fields: Any) -> Json:
    tool, call = CALLS[kind]
    text = json.dumps([tool, *([PROGRAMS] if kind == "program" else [])])
    for name, value in running.named.items():
        text = text.replace(f"{{{name}}}", value)
    asked = script([{"think": "Hm."}, call], {"say": "no"})
    return {"model": model, "input": asked, "tools": json.loads(text), **fields}


def is_at_work(running: Running) -> bool:
    return running.slow.held + sleeps() > 0


def wait_for(running: Running, *, at_work: bool) -> None:
    wait_until(lambda: is_at_work(running) is at_work)


def goes_on(running: Running, response_id: str, model: str) -> None:
    asked = {"input": script({"say": "fine"}), "previous_response_id": response_id}
    assert text_of(create(running.client, model=model, **asked)) == "fine"


def test_a_cancelled_call_ends_and_its_events_stay(running: Running, kind: str, model: str) -> None:
    begun = create(running.client, **body_of(running, kind, model, background=True))
    path = f"/responses/{begun['id']}"
    wait_for(running, at_work=True)
    cancelled = running.client.post(f"{path}/cancel").json()
    assert cancelled["status"] == "cancelled"
    wait_for(running, at_work=False)
    last = cancelled["output"][-1]
    assert last.get("status", "incomplete") == "incomplete"
    told = frames(running.client.get(path, params={"stream": "true"}).text)
    check_order(told)
    assert told[-1]["response"]["output"] == cancelled["output"]
    for number in range(len(told)):
        params: Json = {"stream": "true", "starting_after": number}
        assert frames(running.client.get(path, params=params).text) == told[number + 1 :]
    goes_on(running, begun["id"], model)
    again = {"role": "user", "content": script({"say": "On."})}
    asked = {"input": [*cancelled["output"], again], "store": False}
    assert text_of(create(running.client, model=model, **asked)) == "On."


def test_what_a_command_printed_before_it_was_cancelled_is_kept(
    running: Running, model: str
) -> None:
    begun = create(running.client, **body_of(running, "shell", model, background=True))
    path = f"/responses/{begun['id']}"
    wait_for(running, at_work=True)
    with running.client.stream("GET", path, params={"stream": "true"}) as answer:
        lines = answer.iter_lines()
        assert next(line for line in lines if line.startswith("data: ") and "first\\n" in line)
    output = running.client.post(f"{path}/cancel").json()["output"][-1]
    kept = {"stdout": "first\n", "stderr": "", "outcome": {"type": "timeout"}}
    assert (output["status"], output["output"]) == ("incomplete", [kept])


def test_whoever_leaves_a_call_leaves_nothing_running(
    running: Running, kind: str, model: str
) -> None:
    response_id = ""
    body = body_of(running, kind, model, stream=True)
    with running.client.stream("POST", "/responses", json=body) as answer:
        lines = answer.iter_lines()  # a reader that is thrown away has left
        for line in lines:
            event = json.loads(line.removeprefix("data: ")) if line.startswith("data: {") else {}
            response_id = event.get("response", {}).get("id") or response_id
            if "call" in event.get("item", {}).get("type", ""):
                break
        wait_for(running, at_work=True)
    wait_for(running, at_work=False)

    def left() -> Json:
        found: Json = running.client.get(f"/responses/{response_id}").json()
        return found

    wait_until(lambda: left()["status"] not in ("queued", "in_progress"))
    assert all(item.get("status") != "in_progress" for item in left()["output"])
    goes_on(running, response_id, model)


def test_a_deleted_response_stops_its_call(running: Running, kind: str) -> None:
    body = body_of(running, kind, "scripted-chat", background=True)
    path = f"/responses/{create(running.client, **body)['id']}"
    wait_for(running, at_work=True)
    assert running.client.delete(path).status_code == 200
    wait_for(running, at_work=False)
    assert running.client.get(path).status_code == 404
