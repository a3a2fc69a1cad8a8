"""An MCP server that counts its calls: which tool was called with which text, and how often."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

from tests.support.fake_mcp_server import FakeMcpServer

Json = dict[str, Any]

TEXT = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
NOTE = {"name": "note", "inputSchema": TEXT}
LOOK = {"name": "look", "inputSchema": TEXT, "annotations": {"readOnlyHint": True}}


class CountingMcpServer(FakeMcpServer):
    """`note` must not run twice; `look` may."""

    def __init__(self) -> None:
        super().__init__()
        self.tools = [NOTE, LOOK]
        self.asked = deque(maxlen=0)  # type: ignore[assignment] # a long test asks too much of it
        self._server.handle_error = lambda *_: None  # type: ignore[method-assign] # who calls dies
        self.calls: Counter[tuple[str, str]] = Counter()
        self._counting = Lock()

    def answer(self, asked: Json, params: Json, *, is_other: bool) -> Json:
        if asked["method"] != "tools/call":
            return super().answer(asked, params, is_other=is_other)
        name, text = params["name"], params["arguments"]["text"]
        with self._counting:
            self.calls[name, text] += 1
        return {"result": {"content": [{"type": "text", "text": answer_to(name, text)}]}}


def answer_to(name: str, text: str) -> str:
    return f"{name}: {text}"


@contextmanager
def counting() -> Iterator[CountingMcpServer]:
    server = CountingMcpServer()
    try:
        yield server
    finally:
        server.close()
