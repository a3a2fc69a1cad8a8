"""`antiphon serve`, from its first line to Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from antiphon.adapters.extras import install_command

pytestmark = pytest.mark.slow

SERVE = (sys.executable, "-m", "antiphon.entrypoints.cli", "serve")


def start_server(
    folder: Path, *arguments: str, before: Callable[[], object] | None = None
) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*SERVE, "--store", "memory", "--data-dir", str(folder), *arguments],
        env={k: v for k, v in os.environ.items() if not k.startswith("ANTIPHON_")},
        cwd=folder,
        encoding="utf-8",
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        preexec_fn=before,
    )


@pytest.fixture
def server(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    process = start_server(tmp_path, "--port", "0")
    try:
        yield process
    finally:
        process.kill()
        process.communicate(timeout=30)


def lines_until(process: subprocess.Popen[str], start: str) -> str:
    """Return the first line with this start. The test's time limit bounds the wait."""
    assert process.stderr is not None
    seen = []
    for line in process.stderr:
        seen.append(line)
        if line.startswith(start):
            return line
    raise AssertionError(f"no line starts with {start!r}: {''.join(seen)}")


def test_the_request_that_is_printed_at_the_start_works(server: subprocess.Popen[str]) -> None:
    curl = shlex.split(lines_until(server, "try: curl "))
    url, body = curl[2], curl[-1]
    answer = httpx.post(url, content=body, headers={"content-type": "application/json"})
    assert answer.status_code == 200
    assert answer.json()["status"] == "completed"


def test_the_api_page_that_is_printed_at_the_start_exists(server: subprocess.Popen[str]) -> None:
    ready = lines_until(server, "antiphon ")
    page = ready.strip().rpartition("openapi: ")[2]
    answer = httpx.get(page, follow_redirects=True)
    assert answer.status_code == 200
    assert "text/html" in answer.headers["content-type"]


def test_a_plain_server_loads_no_library_that_it_does_not_use(tmp_path: Path) -> None:
    # What is loaded takes memory in every server, and time at every start.
    serve = ("-X", "importtime", *SERVE[1:], "--store", "memory", "--data-dir", str(tmp_path))
    with subprocess.Popen(
        [sys.executable, *serve, "--port", "0"], stderr=subprocess.PIPE, encoding="utf-8"
    ) as process:
        try:
            assert process.stderr is not None
            loaded = set()
            for line in process.stderr:
                if line.startswith("or in Python: "):
                    break
                loaded.add(line.rpartition("|")[2].strip())
        finally:
            process.kill()
    assert "antiphon.entrypoints.http.app" in loaded
    clients = {"httpx", "httpcore", "cryptography"}
    unused = {*clients, "litestar.plugins.pydantic", "openai_harmony"}
    assert not loaded & unused


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_server_without_a_traceback(
    server: subprocess.Popen[str], number: signal.Signals
) -> None:
    lines_until(server, "or in Python: ")
    server.send_signal(number)
    _, rest = server.communicate(timeout=30)
    assert server.returncode == 0
    assert "Traceback" not in rest


def test_a_server_with_nohup_goes_on_when_its_terminal_closes(tmp_path: Path) -> None:
    server = start_server(
        tmp_path, "--port", "0", before=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)
    )
    try:
        url = shlex.split(lines_until(server, "try: curl "))[2]
        server.send_signal(signal.SIGHUP)
        assert httpx.get(url.replace("/v1/responses", "/livez")).status_code == 200
        server.send_signal(signal.SIGTERM)
        server.communicate(timeout=30)
        assert server.returncode == 0
    finally:
        server.kill()
        server.communicate(timeout=30)


def test_ctrl_c_says_what_the_server_waits_for_and_a_second_one_ends_it(
    server: subprocess.Popen[str],
) -> None:
    url = shlex.split(lines_until(server, "try: curl "))[2]
    body = {"model": "scripted", "stream": True, "input": '@@script [{"hang": 3600}]'}
    with httpx.stream("POST", url, json=body, timeout=30) as stream:
        frames = stream.iter_lines()
        assert next(frames) == "event: response.created"
        server.send_signal(signal.SIGINT)
        assert lines_until(server, "Stopping: ") == (
            "Stopping: waiting up to 25 s for 1 running response. "
            "Press Ctrl-C again to end it now.\n"
        )
        signalled_at = time.monotonic()
        server.send_signal(signal.SIGINT)
        assert lines_until(server, "Stopping now") == "Stopping now: ending 1 running response.\n"
        _, rest = server.communicate(timeout=30)
        assert time.monotonic() - signalled_at < 20  # not the 25 s of the first
        assert "event: response.failed" in list(frames)
    assert server.returncode == 0
    assert "Traceback" not in rest


def test_a_client_cannot_forge_lines_in_the_log(tmp_path: Path) -> None:
    process = start_server(tmp_path, "--port", "0", "--error-stacks", "--log-requests")
    forged = "\r\nINFO all is well\n2026-01-01 INFO all is well\x1b[2K\x9b2K\u2028INFO"
    try:
        url = shlex.split(lines_until(process, "try: curl "))[2]
        item = {"type": forged, "content": forged}
        assert httpx.get(f"{url}/{quote(forged)}").status_code == 404
        assert httpx.post(url, json={"model": "scripted", "input": [item]}).status_code == 400
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=30)
    finally:
        process.kill()
    assert rest.count("all is well") > 4
    assert not any(character in rest for character in "\r\x1b\x9b\u2028")
    records = [line for line in rest.split("\n") if line and not line.startswith("    ")]
    assert all(re.match(r"[\d-]{10} [\d:,]{12} [A-Z]+ antiphon\.", each) for each in records[1:])


def test_a_port_in_use_is_one_sentence_and_exit_code_2(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        process = start_server(tmp_path, "--port", str(port))
        _, said = process.communicate(timeout=30)
    assert process.returncode == 2
    assert said.startswith(f"antiphon: Cannot listen on 127.0.0.1 port {port}")
    assert said.endswith("Choose another with --port.\n")
    assert len(said.splitlines()) == 1


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("192.0.2.1", "this machine does not have that address. Choose another with --host: "),
        ("no-such-host.invalid", "Choose another with --host."),
    ],
)
def test_an_address_that_this_machine_does_not_have_is_refused(
    tmp_path: Path, host: str, why: str
) -> None:
    process = start_server(tmp_path, "--host", host, "--auth", "off", "--port", "0")
    _, said = process.communicate(timeout=30)
    assert process.returncode == 2
    assert said.startswith(f"antiphon: Cannot listen on {host} port 0: ")
    assert why in said
    assert "--port" not in said
    assert len(said.splitlines()) == 1


@pytest.mark.skipif(find_spec("vllm") is not None, reason="vLLM is installed")
def test_without_vllm_a_model_is_refused_with_the_command_that_installs_it(tmp_path: Path) -> None:
    process = start_server(tmp_path, "some/model", "--port", "0")
    _, said = process.communicate(timeout=30)
    assert process.returncode == 2
    assert said.splitlines()[-1] == (
        f"antiphon: vLLM is not installed. Install it with: {install_command('vllm')}"
    )


def test_a_settings_file_in_the_working_folder_is_read_and_named(tmp_path: Path) -> None:
    (tmp_path / "antiphon.toml").write_text('port = 0\nhost = "192.0.2.1"\n')
    process = start_server(tmp_path)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 2
    first, second = said.splitlines()
    assert first == f"Reading settings from {tmp_path / 'antiphon.toml'}"
    assert second.startswith("antiphon: Cannot listen on 192.0.2.1 port 0")


SLOW_STORE = """
import asyncio, sys
from antiphon.adapters.stores.memory.store import MemoryStore

class Slow(MemoryStore):
    async def start(self):
        print("the store opens", file=sys.stderr, flush=True)
        try:
            await asyncio.sleep(60)
        finally:
            print("the store was stopped", file=sys.stderr, flush=True)
"""


def test_a_signal_stops_a_server_that_is_still_starting(tmp_path: Path) -> None:
    (tmp_path / "slow_store.py").write_text(SLOW_STORE)
    process = start_server(tmp_path, "--port", "0", "--store", "slow_store:Slow")
    try:
        lines_until(process, "the store opens")
        process.send_signal(signal.SIGTERM)
        _, rest = process.communicate(timeout=30)
    finally:
        process.kill()
    assert process.returncode == 0
    assert "the store was stopped" in rest
    assert "Traceback" not in rest


def test_a_server_whose_engine_dies_too_often_ends_with_a_code_of_its_own(tmp_path: Path) -> None:
    process = start_server(tmp_path, "scripted-chat", "--engine-restarts", "1", "--port", "0")
    url = lines_until(process, "antiphon ").partition("; url: ")[2].partition(";")[0]
    body = {"model": "scripted-chat", "input": '@@script [{"die": true}]'}
    try:
        while process.poll() is None:
            with suppress(httpx.TransportError):  # it has ended meanwhile
                httpx.post(f"{url}/responses", json=body, timeout=10)
    finally:
        process.kill()
        _, text = process.communicate(timeout=30)
    assert process.returncode == 3
    assert text.count("its engine has died") == 2
    assert text.splitlines()[-1].startswith("antiphon: No model works")


def test_with_the_json_format_each_line_is_json(tmp_path: Path) -> None:
    process = start_server(tmp_path, "--port", "0", "--log-format", "json", "--log-level", "debug")
    try:
        assert process.stderr is not None
        lines = []
        for line in process.stderr:
            lines.append(json.loads(line))
            if found := re.search(r"url: (http://\S+)/v1", lines[-1]["message"]):
                break
        assert found is not None
        assert httpx.get(f"{found[1]}/v1/models").status_code == 200
        process.send_signal(signal.SIGINT)
        rest, _ = process.communicate(timeout=30)[::-1]
        lines += [json.loads(line) for line in rest.splitlines()]
    finally:
        process.kill()
        process.communicate(timeout=30)
    [answered] = [line for line in lines if line["logger"] == "antiphon.access"]
    assert (answered["path"], answered["status"]) == ("/v1/models", 200)
    assert all({"time", "level", "logger", "message"} <= line.keys() for line in lines)
