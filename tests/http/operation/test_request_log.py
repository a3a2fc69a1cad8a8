"""One line of the log for each request, and ids that join the lines of a response."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from tests.http.access.test_auth import bearer, new_key
from tests.http.conftest import create, script, wait_until
from tests.http.resources.test_webhooks import listening, settings
from tests.http.wire.test_websocket import joined

from antiphon.entrypoints.process.log_format import FIELDS, JsonLogFormatter

pytestmark = [
    pytest.mark.slow,
    pytest.mark.one_process,  # whose log records the tests see
]

Json = dict[str, Any]
KEY_NAME = "test"


class Lines(logging.Handler):
    """The lines of a server in this process, as they are logged."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.setFormatter(JsonLogFormatter())
        self.texts: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.texts.append(self.format(record))

    @property
    def messages(self) -> list[str]:
        return [json.loads(text)["message"] for text in self.texts]

    def of(self, **fields: Any) -> list[Json]:
        lines = [json.loads(text) for text in self.texts]
        return [line for line in lines if fields.items() <= line.items()]


@pytest.fixture
def lines() -> Iterator[Lines]:
    handler, root = Lines(), logging.getLogger("antiphon")
    level = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    yield handler
    root.removeHandler(handler)
    root.setLevel(level)


@pytest.fixture
def keyed(serve_from: Any, tmp_path: Path) -> Iterator[tuple[httpx.Client, str]]:
    keys_file = tmp_path / "keys.toml"
    key = new_key(keys_file)
    with (
        serve_from(tmp_path, auth="on", keys_file=keys_file) as server,
        httpx.Client(base_url=server.url, timeout=10) as client,
    ):
        yield client, key


def line_of(lines: Lines, **fields: Any) -> Json:
    wait_until(lambda: bool(lines.of(logger="antiphon.access", **fields)))
    [line] = lines.of(logger="antiphon.access", **fields)
    return line


def test_a_request_that_succeeds_has_one_line(http: httpx.Client, lines: Lines) -> None:
    http.headers["x-request-id"] = "mine-1"
    response = create(http, model="scripted-chat", input="hi")
    line = line_of(lines, request_id="mine-1")
    assert (line["method"], line["path"], line["status"]) == ("POST", "/v1/responses", 200)
    assert (line["level"], line["response_id"]) == ("info", response["id"])
    assert 0 < line["first_byte_seconds"] <= line["seconds"]


def test_a_stream_has_its_whole_time(http: httpx.Client, lines: Lines) -> None:
    said = script({"say": "one two three", "tick": 0.02})
    body: Json = {"model": "scripted-chat", "input": said, "stream": True}
    http.post("/responses", json=body, headers={"x-request-id": "mine-2"})
    line = line_of(lines, request_id="mine-2")
    assert line["seconds"] > line["first_byte_seconds"] + 0.04


def test_the_lines_of_a_response_have_the_request_id(http: httpx.Client, lines: Lines) -> None:
    body: Json = {"model": "scripted-chat", "input": script({"fail": "gone"}), "background": True}
    answer = http.post("/responses", json=body, headers={"x-request-id": "mine-3"}).json()
    wait_until(lambda: bool(lines.of(logger="antiphon.runs", response_id=answer["id"])))
    [failed] = lines.of(logger="antiphon.runs", response_id=answer["id"])
    assert (failed["request_id"], failed["level"]) == ("mine-3", "warning")


@pytest.mark.parametrize(
    ("method", "path", "status", "level"),
    [
        ("GET", "/v1/responses/resp_none", 404, "info"),
        ("GET", "/nowhere", 404, "info"),
        ("PUT", "/v1/responses", 405, "info"),
        ("POST", "/v1/responses", 415, "info"),
        ("GET", "/livez", 200, "debug"),
        ("GET", "/readyz", 200, "debug"),
        ("GET", "/console", 200, "debug"),
        ("GET", "/v1/models", 200, "info"),
    ],
)
def test_each_answer_has_a_line_of_its_level(
    keyed: tuple[httpx.Client, str], lines: Lines, method: str, path: str, status: int, level: str
) -> None:
    client, key = keyed
    assert client.request(method, path, headers=bearer(key)).status_code == status
    line = line_of(lines, path=path)
    assert (line["method"], line["status"], line["level"]) == (method, status, level)
    if path.startswith("/v1"):
        assert line["key"] == KEY_NAME


def test_a_wrong_key_has_a_line_without_the_key(
    keyed: tuple[httpx.Client, str], lines: Lines
) -> None:
    client, _ = keyed
    assert client.get("/v1/models", headers=bearer("sk-wrong")).status_code == 401
    line = line_of(lines, path="/v1/models")
    assert (line["status"], line["level"]) == (401, "info")
    assert "key" not in line
    assert not any("sk-wrong" in text for text in lines.texts)


def test_what_is_no_http_has_a_line(server: Any, lines: Lines) -> None:
    url = urlsplit(server.url)
    address = (url.hostname, url.port)
    for _ in range(3):
        with socket.create_connection(address, timeout=5) as raw:
            raw.sendall(b"nonsense\r\n\r\n")
            assert b"400" in raw.recv(100)
    wait_until(lambda: bool(lines.of(logger="antiphon.access", status=400)))
    assert lines.of(logger="antiphon.access", status=400)[0]["message"].startswith("refused: 400")


def test_a_client_that_leaves_has_a_line(http: httpx.Client, lines: Lines) -> None:
    body: Json = {"model": "scripted-chat", "input": script({"hang": 30})}
    with pytest.raises(httpx.ReadTimeout):
        http.post("/responses", json=body, headers={"x-request-id": "mine-4"}, timeout=0.3)
    line = line_of(lines, request_id="mine-4")
    assert (line["status"], line["level"]) == (499, "info")
    assert "client left" in line["message"]


def test_a_websocket_has_a_line_and_so_has_each_response(server: Any, lines: Lines) -> None:
    client = joined(server, "scripted-chat")
    with client.connection:
        response_id = client.turn("hi")["id"]
    message = line_of(lines, method="MESSAGE", response_id=response_id)
    assert message["status"] == "completed"
    line = line_of(lines, method="WEBSOCKET", request_id=message["request_id"])
    assert line["status"] == 101


def test_prompts_and_outputs_are_logged_only_on_request(
    serve_from: Any, tmp_path: Path, lines: Lines
) -> None:
    said = script({"say": "the-owl-flies"})
    for switch in (False, True):
        lines.texts.clear()
        with (
            serve_from(tmp_path / str(switch), log_requests=switch, log_outputs=switch) as server,
            httpx.Client(base_url=server.api, timeout=10) as client,
        ):
            create(client, model="scripted-chat", input=said)
        assert any("the-owl-flies" in text for text in lines.texts) is switch


def test_an_output_is_logged_as_json(serve_from: Any, tmp_path: Path, lines: Lines) -> None:
    with (
        serve_from(tmp_path, log_outputs=True) as server,
        httpx.Client(base_url=server.api, timeout=10) as client,
    ):
        response = create(client, model="scripted-chat", input="hi")
    [line] = [each for each in lines.of(logger="antiphon.runs") if "ended:" in each["message"]]
    logged = json.loads(line["message"].partition("ended: ")[2])
    assert (logged["id"], logged["output"]) == (response["id"], response["output"])
    assert FIELDS not in line


def test_a_webhook_that_is_received_has_a_line_of_its_response(serve: Any, lines: Lines) -> None:
    with listening() as receiver, serve(**settings(receiver)) as server:
        body: Json = {"model": "scripted-chat", "input": "hi", "background": True}
        made = httpx.post(f"{server.api}/responses", json=body).json()
        wait_until(lambda: bool(lines.of(logger="antiphon.webhooks", response_id=made["id"])))
    [line] = lines.of(logger="antiphon.webhooks", response_id=made["id"])
    assert "received in" in line["message"]
    assert "attempt 1" in line["message"]
