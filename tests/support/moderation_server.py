"""A server of OpenAI's moderations API on a real socket; it knows the words of some categories."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

Json = dict[str, Any]

WORDS = {"violence": "xyzzy", "violence/graphic": "plugh", "illicit": "abracadabra"}
"""A category for each word; a text with its word has the score 0.8 there."""


class FakeModerations:
    """Records requests. If `answer` (status, body) is set, sends it. Waits for `go_on`; whoever
    clears it sets it again."""

    def __init__(self) -> None:
        self.answer: tuple[int, bytes] | None = None
        self.asked: list[Json] = []
        self.keys: list[str | None] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self.url = ""

    @property
    def texts(self) -> list[str]:
        return [text for body in self.asked for text in body["input"]]


def result_for(text: str) -> Json:
    scores = {name: 0.8 if word in text.lower() else 0.1 for name, word in WORDS.items()}
    categories = {name: score > 0.5 for name, score in scores.items()}
    return {
        "flagged": any(categories.values()),
        "categories": categories,
        "category_scores": scores,
        "category_applied_input_types": {name: ["text"] for name in scores},
    }


class _Server(ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        pass  # clients leave in the middle of an answer


@contextmanager
def moderating() -> Iterator[FakeModerations]:
    fake = FakeModerations()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            assert self.path == "/v1/moderations"
            fake.asked.append(body)
            fake.keys.append(self.headers["authorization"])
            fake.go_on.wait()
            results = [result_for(text) for text in body["input"]]
            answer = {"id": "modr-1", "model": body["model"], "results": results}
            status, content = fake.answer or (200, json.dumps(answer).encode())
            self.send_response(status)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", str(len(content)))
            self.send_header("location", "http://127.0.0.1:1/")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = _Server(("127.0.0.1", 0), Handler)
    fake.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield fake
    finally:
        fake.go_on.set()
        server.shutdown()
        thread.join()
        server.server_close()
