"""An embedding engine on a real socket, whose vectors reflect the meanings of a few words."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.support.http_server import serving

MEANINGS = ({"dog", "puppy", "hound"}, {"car", "automobile", "engine"}, {"snow", "winter", "ice"})


def vector_of(text: str | list[int]) -> list[float]:
    if not isinstance(text, str):
        return [1.0, *(float(token) for token in text[:3]), *[0.0] * (3 - len(text[:3]))]
    words = set(text.lower().replace(".", " ").replace("?", " ").split())
    return [0.01, *(float(len(words & meaning)) for meaning in MEANINGS)]


class FakeEmbeddings:
    """Records requests. If `answer` (status, body) is set, sends it instead of vectors. Calls
    `on_request`, if set, before it answers."""

    def __init__(self) -> None:
        self.on_request: Callable[[], object] | None = None
        self.answer: tuple[int, bytes] | None = None
        self.asked: list[Any] = []
        self.keys: list[str | None] = []
        self.url = ""


@contextmanager
def embedding() -> Iterator[FakeEmbeddings]:
    fake = FakeEmbeddings()

    def answer(request: BaseHTTPRequestHandler) -> None:
        body = json.loads(request.rfile.read(int(request.headers["content-length"])))
        fake.asked.append((request.path, body))
        fake.keys.append(request.headers["authorization"])
        if fake.on_request is not None:
            fake.on_request()
        status, content = fake.answer or (200, _vectors(body["input"]))
        request.send_response(status)
        request.send_header("content-length", str(len(content)))
        request.send_header("location", "http://127.0.0.1:1/")
        request.end_headers()
        request.wfile.write(content)

    with serving(answer) as url:
        fake.url = f"{url}/v1"
        yield fake


def _vectors(texts: list[str | list[int]]) -> bytes:
    data = [
        {"object": "embedding", "index": index, "embedding": vector_of(text)}
        for index, text in enumerate(texts)
    ]
    usage = {"prompt_tokens": sum(map(tokens_of, texts)), "total_tokens": 0}
    body = {"object": "list", "data": data[::-1], "model": "m", "usage": usage}
    return json.dumps(body).encode()


def tokens_of(text: str | list[int]) -> int:
    return len(text.split() if isinstance(text, str) else text)
