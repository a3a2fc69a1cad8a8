"""Clients of the running server, for both scripted models."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.with_workers import CONNECTIONS, NOBODY

ROOT = Path(__file__).parents[2]
MODELS = ("scripted-chat", "scripted-harmony")


@pytest.fixture(params=MODELS)
def model(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def container_server(serve_from: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A server that runs code and commands."""
    if shutil.which("bwrap") is None:
        pytest.skip("there is no bwrap here: apt-get install bubblewrap")
    given = {
        "code_interpreter": True,
        "shell": True,
        "code.cgroup": "off",
        "code.timeout_s": 2.0,
        "code.memory_mb": 1024,
        "code.disk_mb": 8,
    }
    with serve_from(tmp_path_factory.mktemp("containers"), **given) as served:
        yield served


@pytest.fixture
def containers(container_server: Any) -> Iterator[httpx.Client]:
    with httpx.Client(
        base_url=container_server.api, timeout=20, limits=CONNECTIONS, verify=NOBODY
    ) as client:
        yield client


@pytest.fixture(scope="module")
def serve_odd_tools(
    serve_from: Any, tmp_path_factory: pytest.TempPathFactory
) -> Callable[..., AbstractContextManager[httpx.Client]]:
    """Start a server with the tools of `odd_tools`, labelled "odd": `with serve_odd_tools(…) as
    client: …`."""

    @contextmanager
    def serve_odd_tools(**given: Any) -> Iterator[httpx.Client]:
        settings = {"tool": ["tests.http.odd_tools:OddTools"], "store": "sqlite", **given}
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(ROOT))
            with (
                serve_from(tmp_path_factory.mktemp("odd"), **settings) as server,
                httpx.Client(
                    base_url=server.api, timeout=15, limits=CONNECTIONS, verify=NOBODY
                ) as client,
            ):
                yield client

    return serve_odd_tools


@pytest.fixture
def http(server: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.api, timeout=30, limits=CONNECTIONS, verify=NOBODY) as client:
        yield client


def create(http: httpx.Client, **body: Any) -> dict[str, Any]:
    """Create a response that is accepted, and return it."""
    answer = http.post("/responses", json=body)
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = answer.json()
    return result


def stream(http: httpx.Client, **body: Any) -> dict[str, Any]:
    """Create a response that is accepted, read its events, and return it as it has ended."""
    answer = http.post("/responses", json={**body, "stream": True})
    assert answer.status_code == 200, answer.text
    result: dict[str, Any] = frames(answer.text)[-1]["response"]
    return result


def wait_until(holds: Callable[[], bool], limit_s: float = 30.0) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.005)


@pytest.fixture(name="eventually")
def eventually_fixture() -> Any:
    return wait_until


def text_of(response: dict[str, Any]) -> str:
    """Return what the messages of a response say."""
    return "".join(
        part["text"]
        for item in response["output"]
        if item["type"] == "message"
        for part in item["content"]
        if part["type"] == "output_text"
    )


def script(*turns: Any) -> str:
    """A message that makes the scripted models play these turns."""
    return f"@@script {json.dumps(list(turns))}"


@pytest.fixture(name="script")
def script_fixture() -> Any:
    return script


def frames(body: str) -> list[dict[str, Any]]:
    """Return the events of a stream; its end marker is left out."""
    found = []
    for block in body.split("\n\n"):
        frame = block.removeprefix(": keepalive\n")
        if frame.startswith("event: "):
            name, data = frame.split("\n", 1)
            event = json.loads(data.removeprefix("data: "))
            assert name == f"event: {event['type']}"
            found.append(event)
    return found


@pytest.fixture(name="frames")
def frames_fixture() -> Any:
    return frames
