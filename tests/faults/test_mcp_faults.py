"""Whatever an MCP server does, on whichever transport, a response ends with the model's answer."""

from __future__ import annotations

import json
import secrets
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.faults.support import faulty_mcp
from tests.faults.support.faulty_mcp import BODIES, EXCHANGES, FaultyServer
from tests.faults.support.replicas import Replica, replicas, wait_for
from tests.http.conftest import MODELS, create, script
from tests.support import inward_urls
from tests.support.inward_urls import LoopbackServer

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(sys.platform != "linux", reason="memory is measured by Linux"),
]

Json = dict[str, Any]

TOOLS = Path(__file__).parents[1] / "adapters" / "tool_process.py"
TIMEOUT_S = 2.0
ENDS_WITHIN_S = 10.0
"""For a busy machine; what hangs would take for ever."""
MEMORY = 20_000_000
LARGE = 100_000_000
ADD: Json = {"mcp": "add", "args": {"a": 2, "b": 40}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Replica]:
    folder = tmp_path_factory.mktemp("faults")
    config = folder / "antiphon.toml"
    config.write_text(f"""
        store = "sqlite:///{folder}/shared.db"
        [fetch]
        urls = true
        hosts = ["127.0.0.1:*"]
        private = ["127.0.0.1"]
        [tools]
        timeout_s = {TIMEOUT_S}
        [[mcp_servers]]
        label = "real"
        command = {json.dumps([sys.executable, str(TOOLS)])}
        [[mcp_servers]]
        label = "faulty"
        command = {json.dumps([sys.executable, faulty_mcp.__file__])}
    """)
    with replicas(folder, "--config", str(config), count=1) as started:
        yield started[0]


@pytest.fixture(scope="module")
def client(server: Replica) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.api, timeout=30) as client:
        yield client


@pytest.fixture(scope="module")
def elsewhere() -> Iterator[LoopbackServer]:
    """Where no credentials may come."""
    with inward_urls.sink() as listening:
        yield listening


@pytest.fixture(scope="module")
def faulty(elsewhere: LoopbackServer) -> Iterator[FaultyServer]:
    with faulty_mcp.serving(f"http://127.0.0.1:{elsewhere.port}") as serving:
        yield serving


@pytest.fixture
def canary() -> str:
    return f"canary{secrets.token_hex(12)}"


def remote(url: str, canary: str) -> Json:
    return {
        "type": "mcp",
        "server_label": "theirs",
        "server_url": url,
        "require_approval": "never",
        "authorization": canary,
        "headers": {"x-key": canary},
    }


def local(label: str) -> Json:
    return {"type": "mcp", "server_label": label}


def asked(client: httpx.Client, *parts: Any, model: str = MODELS[0]) -> Json:
    """Have a model play these turns (which may be calls) with these tools, and say something."""
    tools = [part for part in parts if "server_label" in part]
    turns = [part for part in parts if part not in tools]
    return create(client, model=model, input=script(*turns, {"say": "I see."}), tools=tools)


def sound(client: httpx.Client, tool: Json) -> bool:
    """Whether the server's sound tool can be called, which also has it begun."""
    return outputs(asked(client, tool, ADD)) == ["42"]


def outputs(response: Json) -> list[str | None]:
    return [item["output"] for item in response["output"] if item["type"] == "mcp_call"]


@contextmanager
def bounded(server: Replica) -> Iterator[None]:
    """What happens inside ends in time, and takes no memory to speak of."""
    process = Path(f"/proc/{server.pid}")
    (process / "clear_refs").write_text("5")
    before, begun = peak(process), time.monotonic()
    yield
    assert time.monotonic() - begun < ENDS_WITHIN_S
    assert peak(process) - before < MEMORY


def peak(process: Path) -> int:
    """The most memory that a process has had since that was cleared, in bytes."""
    lines = (process / "status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) * 1024


def check_kept_nowhere(server: Replica, response: Json, canary: str) -> None:
    assert canary not in json.dumps(response)
    folder = server.output.parent.parent
    files = [file for file in folder.rglob("*") if file.is_file()]
    assert any("server.log" in file.name for file in files)
    assert not [file for file in files if canary.encode() in file.read_bytes()]


def check_failed(response: Json) -> None:
    """The call of a response has failed, and the model went on."""
    *_, call, message = response["output"]
    assert (response["status"], message["type"]) == ("completed", "message")
    check_failed_call(call)


def check_failed_call(call: Json) -> None:
    """It failed, which is told in short."""
    assert (call["type"], call["status"], call["output"]) == ("mcp_call", "failed", None)
    assert call["error"], call["name"]
    assert len(json.dumps(call)) < 5000


# --- servers that break the protocol --------------------------------------------------------------

REMOTE = ("/json", "/stream", "/sse")
HEAVY = ("large", "endless", "dripping", "gzip_bomb", "huge_header")
"""What is sent without end or takes memory, so that it is looked at alone."""

BODIES_AT_ONCE = tuple(sorted(set(BODIES) - set(HEAVY)))
EXCHANGES_AT_ONCE = tuple(sorted(set(EXCHANGES) - set(HEAVY)))
TAKEN = {("/stream", "no_utf8"), ("/sse", "no_utf8"), ("/stream", "wrong_id")}
"""What the SDK reads as an answer: a stream's bytes are read with replacements, and what comes on
the stream of one request is its answer."""

WRONG: list[tuple[str, tuple[str, ...]]] = [
    *((transport, BODIES_AT_ONCE) for transport in (*REMOTE, "stdio")),
    *((transport, (fault,)) for transport in (*REMOTE, "stdio") for fault in HEAVY[:3]),
    *((transport, EXCHANGES_AT_ONCE) for transport in ("/json", "/stream")),
    *((transport, (fault,)) for transport in ("/json", "/stream") for fault in HEAVY[3:]),
    *(("/sse", (fault,)) for fault in EXCHANGES),  # one connection: each may end it for all
    *(("stdio", (fault,)) for fault in ("reset", "cut", "silent")),
]
"""A transport, and faults of calls that are made side by side."""


def name_of(case: object) -> str | None:
    return str(case[0] if len(case) == 1 else "all") if isinstance(case, tuple) else None


def check_nobody_else_was_asked(faulty: FaultyServer, elsewhere: LoopbackServer) -> None:
    assert elsewhere.connections == 0
    assert not [path for path, _ in faulty.asked if "well-known" in path]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("transport", "faults"), WRONG, ids=name_of)
def test_a_wrong_answer_fails_the_call_and_the_model_goes_on(
    client: httpx.Client,
    server: Replica,
    faulty: FaultyServer,
    elsewhere: LoopbackServer,
    canary: str,
    transport: str,
    faults: tuple[str, ...],
) -> None:
    is_local = transport == "stdio"
    tool = local("faulty") if is_local else remote(f"{faulty.url}{transport}", canary)
    wait_for(lambda: sound(client, tool) or None, limit_s=30)
    with bounded(server):
        response = asked(client, tool, [{"mcp": fault, "args": {}} for fault in faults])
    *_, message = response["output"]
    assert (response["status"], message["type"]) == ("completed", "message")
    calls = [item for item in response["output"] if item["type"] == "mcp_call"]
    assert [call["name"] for call in calls] == [*faults]
    for call in calls:
        if (transport, call["name"]) not in TAKEN:
            check_failed_call(call)
    check_nobody_else_was_asked(faulty, elsewhere)
    check_kept_nowhere(server, response, canary)
    # The server is none the worse for it.
    wait_for(lambda: sound(client, tool) or None, limit_s=30)
    if not is_local:
        assert any(canary in head for _, head in faulty.asked)


LISTED_AT_ONCE = (*sorted(set(EXCHANGES_AT_ONCE) - {"silent"}), "no_json", "no_object", "deep")
UNLISTED: list[tuple[str, str, tuple[str, ...]]] = [
    (transport, at, faults)
    for transport in REMOTE
    for at in ("initialize", "tools/list")
    for faults in (LISTED_AT_ONCE, ("large",), ("endless",), ("gzip_bomb",))
]
"""A transport, the request that is answered wrongly, and how, by so many servers."""


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("transport", "at", "faults"), UNLISTED, ids=name_of)
def test_a_server_that_cannot_be_listed_is_told_of_and_the_model_goes_on(
    client: httpx.Client,
    server: Replica,
    faulty: FaultyServer,
    elsewhere: LoopbackServer,
    canary: str,
    transport: str,
    at: str,
    faults: tuple[str, ...],
) -> None:
    tools = [
        {
            **remote(f"{faulty.url}{transport}?at={at}&fault={fault}", canary),
            "server_label": fault,
        }
        for fault in faults
    ]
    with bounded(server):
        response = asked(client, *tools)
    *lists, message = response["output"]
    assert (response["status"], message["type"]) == ("completed", "message")
    assert [each["server_label"] for each in lists] == [*faults]
    for listed in lists:
        assert listed["tools"] == []
        assert f"'{listed['server_label']}'" in listed["error"]
        assert len(listed["error"]) < 3000
    check_nobody_else_was_asked(faulty, elsewhere)
    check_kept_nowhere(server, response, canary)


# --- real servers ---------------------------------------------------------------------------------

TRANSPORTS = ("streamable-http", "sse", "stdio")


@contextmanager
def real_server(transport: str) -> Iterator[str]:
    """Run a server of the SDK in a process of its own, and yield its address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    process = subprocess.Popen(
        [sys.executable, str(TOOLS), transport, port],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    url = f"http://127.0.0.1:{port}/{'sse' if transport == 'sse' else 'mcp'}"
    try:
        wait_for(lambda: _listens(int(port)), limit_s=30)
        yield url
    finally:
        process.kill()
        process.wait(10)


def _listens(port: int) -> bool | None:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return None


@pytest.fixture(params=TRANSPORTS)
def real(request: pytest.FixtureRequest, client: httpx.Client, canary: str) -> Iterator[Json]:
    """A tool of a real server that was called once, on each transport."""
    if request.param == "stdio":
        tool = local("real")
        wait_for(lambda: sound(client, tool) or None, limit_s=30)
        yield tool
        return
    with real_server(request.param) as url:
        tool = remote(url, canary)
        wait_for(lambda: sound(client, tool) or None, limit_s=30)
        yield tool


def check_error(response: Json) -> None:
    check_failed(response)
    assert response["output"][-2]["error"]["type"] == "mcp_tool_execution_error"


def check_late(response: Json) -> None:
    check_failed(response)
    assert f"{TIMEOUT_S:g} seconds" in response["output"][-2]["error"]["message"]


REAL: list[tuple[Json, Callable[[Json], None]]] = [
    ({"mcp": "confess", "args": {}}, check_error),
    ({"mcp": "add", "args": {"a": "no number"}}, check_error),
    ({"mcp": "large", "args": {"count": LARGE}}, check_failed),
    ({"mcp": "wait", "args": {}}, check_late),
    ({"mcp": "hang", "args": {}}, check_late),
]
"""Calls, and how each ends. After the last, a server on HTTP never answers again."""


@pytest.mark.timeout(120)
def test_whatever_becomes_of_a_call_of_a_real_server_the_model_goes_on(
    client: httpx.Client, server: Replica, real: Json, canary: str
) -> None:
    for model in MODELS:
        response = asked(client, real, ADD, model=model)
        assert outputs(response) == ["42"]
        assert response["output"][0]["type"] == "mcp_list_tools"
    for call, check in REAL:
        wait_for(lambda: sound(client, real) or None, limit_s=30)  # the last one may keep it busy
        with bounded(server):
            response = asked(client, real, call)
        check(response)
        check_kept_nowhere(server, response, canary)


@pytest.mark.timeout(120)
def test_a_real_server_that_dies_in_a_call_fails_it_and_the_model_goes_on(
    client: httpx.Client, server: Replica, real: Json, canary: str
) -> None:
    with bounded(server):
        response = asked(client, real, {"mcp": "die", "args": {}})
    check_failed(response)
    check_kept_nowhere(server, response, canary)
