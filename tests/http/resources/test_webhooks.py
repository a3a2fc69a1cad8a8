"""Webhooks of a whole server: set by settings, told after the end, also by another server."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import openai
import pytest

pytestmark = pytest.mark.slow

MODEL = "scripted-chat"
SECRET = f"whsec_{base64.b64encode(b's' * 32).decode()}"


class Receiver(ThreadingHTTPServer):
    """Keeps what it is sent; `status` is what it answers."""

    def __init__(self, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Received)
        self.status = 204
        self.received: list[tuple[dict[str, str], bytes]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/hook"


class _Received(BaseHTTPRequestHandler):
    server: Receiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        self.server.received.append((dict(self.headers.items()), body))
        self.send_response(self.server.status)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


@contextmanager
def listening(port: int = 0) -> Iterator[Receiver]:
    with Receiver(port) as receiver:
        thread = threading.Thread(target=receiver.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield receiver
        finally:
            receiver.shutdown()
            thread.join()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    with listening() as receiver:
        yield receiver


def settings(receiver: Receiver) -> dict[str, Any]:
    return {"webhook_url": receiver.url, "webhook_secret": SECRET}


def unwrapped(receiver: Receiver) -> list[Any]:
    client = openai.OpenAI(api_key="none", webhook_secret=SECRET)
    return [client.webhooks.unwrap(body, headers) for headers, body in receiver.received]


def begin(api: str, **body: Any) -> str:
    answer = httpx.post(f"{api}/responses", json={"model": MODEL, "input": "hi", **body})
    assert answer.status_code == 200, answer.text
    response_id: str = answer.json()["id"]
    return response_id


def test_only_background_responses_send_webhooks(
    serve: Any, receiver: Receiver, eventually: Any
) -> None:
    with serve(**settings(receiver)) as server:
        begin(server.api)
        response_id = begin(server.api, background=True)
        eventually(lambda: receiver.received)
        [event] = unwrapped(receiver)
    assert (event.type, event.data.id) == ("response.completed", response_id)


@pytest.mark.parametrize(
    ("turn", "limit", "told"),
    [
        ({"fail": "server_error"}, None, "response.failed"),
        ({"say": "one two ", "repeat": 20}, 16, "response.incomplete"),
    ],
)
def test_each_final_status_has_its_own_webhook_event(
    serve: Any, receiver: Receiver, eventually: Any, script: Any, turn: Any, limit: Any, told: str
) -> None:
    with serve(**settings(receiver)) as server:
        begin(server.api, background=True, input=script(turn), max_output_tokens=limit)
        eventually(lambda: receiver.received)
    assert [event.type for event in unwrapped(receiver)] == [told]


def test_a_cancelled_response_sends_a_webhook(
    serve: Any, receiver: Receiver, eventually: Any, script: Any
) -> None:
    with serve(**settings(receiver)) as server:
        response_id = begin(server.api, background=True, input=script({"hang": 60}))
        assert httpx.post(f"{server.api}/responses/{response_id}/cancel").status_code == 200
        eventually(lambda: receiver.received)
    assert [event.type for event in unwrapped(receiver)] == ["response.cancelled"]


def test_wrong_settings_stop_the_start(serve: Any) -> None:
    with (
        pytest.raises(Exception, match="24 to 64 bytes"),
        serve(webhook_url="https://example.org/", webhook_secret="whsec_short"),
    ):
        pass
