"""Whatever ends the server, the processes of its tools end with it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.support.processes import is_process_alive

PROGRAM = Path(__file__).parents[1] / "adapters" / "tool_process.py"
SERVE = (sys.executable, "-m", "antiphon.entrypoints.cli", "serve", "--port", "0")

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(sys.platform != "linux", reason="ends of parents are told by Linux"),
]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    config = tmp_path / "antiphon.toml"
    command = json.dumps([sys.executable, str(PROGRAM)])
    config.write_text(f"""
        store = "memory"
        data_dir = "{tmp_path}"
        graceful_shutdown_s = 0
        [tools]
        timeout_s = 30
        [[mcp_servers]]
        label = "calc"
        command = {command}
    """)
    process = subprocess.Popen(
        [*SERVE, "--config", str(config)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        cwd=tmp_path,
    )
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("hangs", [False, True])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_no_process_is_left_behind(
    server: subprocess.Popen[str], number: signal.Signals, hangs: bool
) -> None:
    assert server.stderr is not None
    ready = next(line for line in server.stderr if " is ready" in line)
    url = ready.partition("url: ")[2].partition(";")[0]
    with httpx.Client(base_url=url, timeout=30) as client:
        process = int(called(client, "process")["output"])
        assert is_process_alive(process)
        if hangs:
            body = {**calling("hang"), "background": True}
            client.post("/responses", json=body).raise_for_status()
            until(lambda: ignores(process, signal.SIGTERM))
        server.send_signal(number)
        server.wait(timeout=30)
    until(lambda: not is_process_alive(process))


def calling(name: str) -> dict[str, Any]:
    turns = [{"mcp": name, "args": {}}, {"say": "done"}]
    tool = {"type": "mcp", "server_label": "calc"}
    asked = f"@@script {json.dumps(turns)}"
    return {"model": "scripted-chat", "input": asked, "tools": [tool]}


def called(client: httpx.Client, name: str) -> dict[str, Any]:
    output = client.post("/responses", json=calling(name)).json()["output"]
    return next(item for item in output if item["type"] == "mcp_call")


def ignores(process: int, number: signal.Signals) -> bool:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    ignored = next(line for line in lines if line.startswith("SigIgn"))
    return bool(int(ignored.split()[1], 16) >> (number - 1) & 1)


def until(holds: Any, limit_s: float = 30.0) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.01)
