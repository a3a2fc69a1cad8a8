"""A server of OpenAI's images API on a real socket, which draws what it is asked for."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from email.parser import BytesParser
from http.server import BaseHTTPRequestHandler
from typing import Any

from tests.support.http_server import serving

from antiphon.adapters.engines.scripted.images import draw_png

Json = dict[str, Any]
File = tuple[str, str, bytes]
"""The field, the content type and the content."""


class FakeImages:
    """Records requests, and their files.

    If `answer` (status, headers, body) is set, sends it instead of images. Refuses requests with a
    field in `refused`, as OpenAI does, and streams unless `streams` is False. Waits for `go_on`
    before it answers; whoever clears it sets it again.
    """

    def __init__(self) -> None:
        self.answer: tuple[int, Mapping[str, str], bytes] | None = None
        self.refused: set[str] = set()
        self.streams = True
        self.asked: list[tuple[str, Json]] = []
        self.files: list[list[File]] = []
        self.keys: list[str | None] = []
        self.go_on = threading.Event()
        self.go_on.set()
        self.url = ""

    @property
    def prompts(self) -> Sequence[str]:
        return [fields["prompt"] for _, fields in self.asked]


def image_for(prompt: str, size: str = "64x64", *, tiles: int = 8) -> bytes:
    width, height = (64, 64) if size == "auto" else map(int, size.split("x"))
    return draw_png(prompt.encode()[:32].ljust(32), width, height, tiles=tiles)


def encoded(content: bytes) -> str:
    return base64.b64encode(content).decode()


@contextmanager
def drawing() -> Iterator[FakeImages]:
    fake = FakeImages()

    def answer(request: BaseHTTPRequestHandler) -> None:
        body = request.rfile.read(int(request.headers["content-length"]))
        fields, files = _read(request.headers["content-type"], body)
        fake.asked.append((request.path, fields))
        fake.files.append(files)
        fake.keys.append(request.headers["authorization"])
        fake.go_on.wait()
        status, headers, content = fake.answer or _answer(fake, request.path, fields)
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
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


def _read(kind: str, body: bytes) -> tuple[Json, list[File]]:
    if kind == "application/json":
        return json.loads(body), []
    form = BytesParser().parsebytes(b"Content-Type: " + kind.encode() + b"\r\n\r\n" + body)
    fields: Json = {}
    files: list[File] = []
    for part in form.get_payload():
        name = str(part.get_param("name", header="content-disposition"))  # type: ignore[union-attr]
        content: Any = part.get_payload(decode=True)  # type: ignore[union-attr]
        if part.get_filename():  # type: ignore[union-attr]
            files.append((name, part.get_content_type(), content))  # type: ignore[union-attr]
        else:
            fields[name] = content.decode()
    return fields, files


def _answer(fake: FakeImages, path: str, fields: Json) -> tuple[int, Mapping[str, str], bytes]:
    if refused := sorted(fake.refused & fields.keys()):
        message = f"Unknown parameter: '{refused[0]}'."
        error = {"message": message, "param": refused[0], "code": "unknown_parameter"}
        return 400, {}, json.dumps({"error": error}).encode()
    prompt, size = fields["prompt"], fields.get("size", "64x64")
    used = {"quality": "medium", "background": "opaque", "output_format": "png", "size": size}
    final = {"b64_json": encoded(image_for(prompt, size)), **used}
    if not fake.streams or str(fields.get("stream")).lower() != "true":
        body = {"created": 1, "data": [{"b64_json": final["b64_json"]}], **used}
        return 200, {"content-type": "application/json"}, json.dumps(body).encode()
    kind = "image_edit" if path.endswith("/edits") else "image_generation"
    drafts = [
        image_for(prompt, size, tiles=n + 1) for n in range(int(fields.get("partial_images", 0)))
    ]
    events = [
        {
            "type": f"{kind}.partial_image",
            "partial_image_index": number,
            "b64_json": encoded(draft),
            **used,
        }
        for number, draft in enumerate(drafts)
    ]
    events.append({"type": f"{kind}.completed", **final})
    stream = "".join(f"event: {each['type']}\ndata: {json.dumps(each)}\n\n" for each in events)
    return 200, {"content-type": "text/event-stream; charset=utf-8"}, stream.encode()
