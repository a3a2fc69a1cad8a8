"""An embedding engine on a real socket, whose vectors reflect the meanings of a few words."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

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

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["content-length"])))
            fake.asked.append((self.path, body))
            fake.keys.append(self.headers["authorization"])
            if fake.on_request is not None:
                fake.on_request()
            status, content = fake.answer or (200, _vectors(body["input"]))
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.send_header("location", "http://127.0.0.1:1/")
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    fake.url = f"http://127.0.0.1:{server.server_port}/v1"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


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
