"""What is not for clients, and what is not for logs: no answer and no line holds it."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from websockets.sync.client import connect

from antiphon.adapters.keys.file import append
from antiphon.adapters.stores.memory.store import MemoryStore
from antiphon.application.ports import StoredItem
from antiphon.application.resources.keys import create_key
from antiphon.domain.errors import StoreError
from antiphon.domain.responses.response import Response

SECRETS = ("t0k3n-of-mcp", "h34d3r-of-mcp", "ak-", "whsec_")
BODY = {"model": "scripted-chat", "input": "hi"}
REASON = "The store at 'redis://db-7.internal:6379/0' cannot be used: it cannot be reached."


class LostStore(MemoryStore):
    """Once it is lost, nothing of responses is read any more."""

    async def get_response(self, tenant: str, response_id: str) -> Response:
        raise StoreError(REASON)

    async def get_context(self, tenant: str, response_id: str) -> list[StoredItem]:
        raise StoreError(REASON)


@pytest.fixture
def lost(serve: Any) -> Iterator[Any]:
    with serve(instead=LostStore()) as server:
        yield server


def test_why_a_store_fails_is_for_the_log_alone(
    lost: Any, caplog: pytest.LogCaptureFixture
) -> None:
    continuing = {**BODY, "previous_response_id": "resp_a"}
    answers = [
        httpx.get(f"{lost.api}/responses/resp_a"),
        httpx.post(f"{lost.api}/responses", json=continuing),
    ]
    with connect(f"{lost.api}/responses".replace("http", "ws", 1), proxy=None) as connection:
        connection.send(json.dumps({"type": "response.create", **continuing}))
        told = str(connection.recv(timeout=30))
    for answer in answers:
        assert answer.status_code == 500
        assert answer.json()["error"]["code"] == "server_error"
    assert not any("internal" in text for text in (told, *(each.text for each in answers)))
    assert caplog.text.count(REASON) == 3


def test_a_run_that_waits_leaves_no_secret_on_disk_nor_in_the_log(
    serve: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture, script: Any, eventually: Any
) -> None:
    key, kept = create_key("ci", "us", new_id=lambda _: "key_1", now=lambda: 0)
    append(tmp_path / "keys.toml", kept)
    secret = b"s" * 32
    server_of_tools = {
        "type": "mcp",
        "server_label": "tools",
        "server_url": "http://127.0.0.1:9/",
        "authorization": SECRETS[0],
        "headers": {"x-secret": SECRETS[1]},
    }
    settings = {
        "store": "sqlite",
        "auth": "on",
        "keys_file": tmp_path / "keys.toml",
        "background_runs": 1,
        "log_requests": True,
        "log_outputs": True,
        "error_stacks": True,
        "webhook_url": "http://127.0.0.1:9/",
        "webhook_secret": f"whsec_{base64.b64encode(secret).decode()}",
    }
    caplog.set_level("DEBUG", "antiphon")
    headers = {"authorization": f"Bearer {key}", "idempotency-key": "k"}
    with serve(**settings) as server, httpx.Client(base_url=server.api, headers=headers) as http:
        hanging = {**BODY, "input": script({"hang": 60}), "background": True}
        running = http.post("/responses", json=hanging).json()
        headers["idempotency-key"] = "l"
        waiting = http.post(
            "/responses", json={**hanging, "tools": [server_of_tools]}, headers=headers
        ).json()
        assert waiting["status"] == "queued"
        assert "authorization" not in waiting["tools"][0]
        kept_now = b"".join(file.read_bytes() for file in tmp_path.iterdir() if file.is_file())
        assert waiting["id"].encode() in kept_now
        for each in (running, waiting):
            assert http.post(f"/responses/{each['id']}/cancel").status_code == 200
        eventually(lambda: "webhook" in caplog.text)
        kept_then = b"".join(file.read_bytes() for file in tmp_path.iterdir() if file.is_file())
    for each in (*SECRETS, base64.b64encode(secret).decode()):
        assert each.encode() not in kept_now + kept_then
        assert each not in caplog.text
    assert secret not in kept_now + kept_then


@pytest.mark.parametrize(
    "url",
    [
        "http://me:CANARY@127.0.0.1:9/a.png",
        "http://CANARY@127.0.0.1:9/a.png",
        "http://127.0.0.1:9/a.png?v=1&token=CANARY#top",
        "https://127.0.0.1:9/?CANARY=CANARY&key=CANARY",
    ],
)
def test_no_secret_of_a_url_is_logged(
    serve: Any, caplog: pytest.LogCaptureFixture, url: str
) -> None:
    image = {"type": "input_image", "image_url": url}
    file = {"type": "input_file", "file_url": url}
    tool = {"type": "mcp", "server_label": "tools", "server_url": url}
    bodies: list[dict[str, Any]] = [
        {"input": [{"role": "user", "content": [part]}]} for part in (image, file)
    ]
    bodies += [{"input": f"Look at {url}."}, {"input": "hi", "tools": [tool]}]
    bodies += [{"input": "hi", "instructions": url, "metadata": {"url": url}}]
    caplog.set_level("DEBUG", "antiphon")
    options = {
        "log_requests": True,
        "log_outputs": True,
        "error_stacks": True,
        "keep_traces": "all",
    }
    with (
        serve(**options, **{"fetch.urls": True, "fetch.hosts": ["127.0.0.1"]}) as server,
        httpx.Client(base_url=server.api, timeout=30) as http,
    ):
        for body in bodies:
            http.post("/responses", json={**BODY, **body, "store": True})
            http.post("/conversations", json={"items": body["input"]} if "tools" in body else {})
    assert "/responses" in caplog.text
    for line in caplog.text.splitlines():
        assert "CANARY" not in line.replace("?CANARY=", ""), line
