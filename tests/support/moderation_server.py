"""A server of OpenAI's moderations API on a real socket; it knows the words of some categories."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.support.http_server import serving

Json = dict[str, Any]

WORDS = {"violence": "xyzzy", "violence/graphic": "plugh", "illicit": "abracadabra"}
"""A category for each word; a text with its word has the score 0.8 there."""


class FakeModerations:
    """Records requests. If `answer` (status, body) is set, sends it; `write` answers otherwise.
    Waits for `go_on`; whoever clears it sets it again."""

    def __init__(self) -> None:
        self.answer: tuple[int, bytes] | None = None
        self.write: Callable[[BaseHTTPRequestHandler], None] | None = None
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


@contextmanager
def moderating() -> Iterator[FakeModerations]:
    fake = FakeModerations()

    def answer(request: BaseHTTPRequestHandler) -> None:
        body = json.loads(request.rfile.read(int(request.headers["content-length"])))
        assert request.path == "/v1/moderations"
        fake.asked.append(body)
        fake.keys.append(request.headers["authorization"])
        fake.go_on.wait()
        if fake.write is not None:
            fake.write(request)
            return
        results = [result_for(text) for text in body["input"]]
        given = {"id": "modr-1", "model": body["model"], "results": results}
        status, content = fake.answer or (200, json.dumps(given).encode())
        request.send_response(status)
        request.send_header("content-type", "application/json")
        request.send_header("content-length", str(len(content)))
        request.send_header("location", "http://127.0.0.1:1/")
        request.end_headers()
        request.wfile.write(content)

    with serving(answer) as url:
        fake.url = f"{url}/v1"
        try:
            yield fake
        finally:
            fake.go_on.set()
