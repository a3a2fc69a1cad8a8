"""An MCP server that answers calls wrongly, in the way that the tool's name says.

It speaks streamable HTTP (with JSON and with streams), SSE and, run as a program, stdio: written by
hand, because no SDK sends such things. Its tool `add` is sound. `BODIES` are wrong on every
transport, `EXCHANGES` on those of HTTP; `READABLE` are odd, but say what is meant.
"""

from __future__ import annotations

import gzip
import http.server
import json
import os
import queue
import socket
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any
from urllib.parse import parse_qs, urlsplit

Json = dict[str, Any]
PIECE = 64 * 1024
LARGE = 100_000_000


def result(number: bytes, content: bytes = b'[{"type":"text","text":"42"}]') -> bytes:
    return b'{"jsonrpc":"2.0","id":%b,"result":{"content":%b}}' % (number, content)


def large(number: bytes) -> Iterator[bytes]:
    head, tail = result(number, b'[{"type":"text","text":"|"}]').split(b"|")
    yield head
    for _ in range(LARGE // PIECE):
        yield b"x" * PIECE
    yield tail


def endless(number: bytes) -> Iterator[bytes]:
    yield b'{"jsonrpc":"2.0","id":%b,' % number
    while True:
        yield b" " * PIECE


def dripping(_: bytes) -> Iterator[bytes]:
    while True:
        yield b" "
        time.sleep(0.1)


BODIES: Mapping[str, Callable[[bytes], Iterable[bytes]]] = {
    "no_end": lambda number: [result(number)[:-9]],
    "no_json": lambda _: [b"internal error: 42"],
    "no_utf8": lambda number: [result(number, b'[{"type":"text","text":"\xff\xfe\xc0\xaf"}]')],
    "nul_bytes": lambda number: [result(number, b'[{"type":"text","text":"\0\0"}]')],
    "wrong_id": lambda _: [result(b"999999")],
    "null_id": lambda _: [result(b"null")],
    "list_id": lambda number: [result(b"[%b]" % number)],
    "no_id": lambda _: [b'{"jsonrpc":"2.0","result":{"content":[]}}'],
    "wrong_version": lambda number: [result(number).replace(b"2.0", b"1.0")],
    "no_object": lambda _: [b"[1,2,3]"],
    "no_result": lambda number: [b'{"jsonrpc":"2.0","id":%b}' % number],
    "wrong_error": lambda number: [b'{"jsonrpc":"2.0","id":%b,"error":"no"}' % number],
    "deep": lambda number: [result(number, b"[" * 100_000)],
    "deep_and_whole": lambda number: [result(number, b"[" * 50_000 + b"]" * 50_000)],
    "large_number": lambda number: [result(b"9" * 6000)],
    "large": large,
    "endless": endless,
    "dripping": dripping,
    "asks_back": lambda _: [b'{"jsonrpc":"2.0","id":1,"method":"sampling/createMessage"}'],
}
"""The bytes of an answer to the request with this id, without line breaks."""


ODD_TOOLS: Mapping[str, Json] = {
    "schema_of_nothing": {"inputSchema": {"$schema": "https://json-schema.org/draft/2020-12"}},
    "root_any_of": {"inputSchema": {"anyOf": [{"type": "object"}]}},
    "object_or_null": {"inputSchema": {"type": ["object", "null"], "properties": {"a": {}}}},
    "null_schema": {"inputSchema": None},
    "no_schema": {},
    "schema_is_true": {"inputSchema": True},
    "schema_of_a_text": {"inputSchema": {"type": "string"}},
    "properties_in_a_list": {"inputSchema": {"type": "object", "properties": []}},
    "required_is_a_text": {"inputSchema": {"type": "object", "required": "a"}},
    "no_such_type": {"inputSchema": {"type": "object", "properties": {"a": {"type": "strng"}}}},
    "output_of_a_text": {"inputSchema": {"type": "object"}, "outputSchema": {"type": "string"}},
    "output_is_null": {"inputSchema": {"type": "object"}, "outputSchema": 5},
    "icon_of_one_size": {
        "inputSchema": {"type": "object"},
        "icons": [{"src": "x", "sizes": "48x48"}],
    },
    "odd_hints": {"inputSchema": {"type": "object"}, "annotations": {"readOnlyHint": "yes"}},
    "hints_in_a_list": {"inputSchema": {"type": "object"}, "annotations": []},
    "description_in_a_list": {"inputSchema": {"type": "object"}, "description": ["Reads."]},
    "odd_meta": {"inputSchema": {"type": "object"}, "_meta": "x", "execution": "never"},
}
"""Tools that the specification does not allow, by name."""

_LINK = {"type": "resource_link", "uri": "file:///a.txt", "name": "a.txt", "description": "Notes."}
READABLE: Mapping[str, tuple[Json, str]] = {
    "content_is_a_text": ({"content": "42"}, "42"),
    "content_is_a_block": ({"content": {"type": "text", "text": "42"}}, "42"),
    "texts": ({"content": ["4", "2"]}, "4\n2"),
    "no_content": ({"structuredContent": {"sum": 42}}, '{"sum":42}'),
    "content_is_null": ({"content": None, "structuredContent": {"sum": 42}}, '{"sum":42}'),
    "blank_content": (
        {"content": [{"type": "text", "text": " "}], "structuredContent": {"sum": 42}},
        '{"sum":42}',
    ),
    "structured_list": ({"content": [], "structuredContent": [42]}, "[42]"),
    "structured_number": ({"structuredContent": 42}, "42"),
    "error_is_null": ({"content": [{"type": "text", "text": "42"}], "isError": None}, "42"),
    "error_is_a_text": ({"content": [{"type": "text", "text": "42"}], "isError": "no"}, "42"),
    "unknown_block": ({"content": [{"type": "chart", "points": [4, 2]}]}, "[4,2]"),
    "unknown_block_with_text": ({"content": [{"type": "chart", "text": "42"}]}, "42"),
    "block_without_text": ({"content": [{"type": "text"}]}, '{"type":"text"}'),
    "odd_annotations": (
        {"content": [{"type": "text", "text": "42", "annotations": {"priority": "high"}}]},
        "42",
    ),
    "old_result": ({"toolResult": {"sum": 42}}, '{"sum":42}'),
    "resource_link": ({"content": [_LINK]}, "a.txt, file:///a.txt, Notes."),
    "blob": (
        {"content": [{"type": "resource", "resource": {"uri": "file:///a.bin", "blob": "QUJD"}}]},
        "file:///a.bin",
    ),
}
"""Results that models can read, by the name of the tool, each with a text in the output."""


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FaultyServer

    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._note()
        if urlsplit(self.path).path != "/sse":
            self.answer(405)
            return
        number = len(self.server.streams)
        frames: queue.Queue[Iterable[bytes] | None] = queue.Queue()
        self.server.streams.append(frames)
        self._begin("text/event-stream")
        query = urlsplit(self.path).query
        self._write([b"event: endpoint\ndata: /messages?to=%d&%b\n\n" % (number, query.encode())])
        while (frame := frames.get()) is not None:
            self._write(frame)

    def do_DELETE(self) -> None:
        self.answer(200)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self._note()
        url = urlsplit(self.path)
        if url.path == "/sse":
            self.answer(405)
            return
        given = {name: values[-1] for name, values in parse_qs(url.query).items()}
        fault = fault_of(asked, given.get("at", "tools/call"), given.get("fault"))
        if "id" not in asked:
            self.answer(202)
        elif fault in EXCHANGES:
            EXCHANGES[fault](self)
        elif self._is_of_a_forgotten_session(asked, given.get("to", "")):
            status = self.server.forgets_with
            error = {"code": -32000, "message": "Bad Request: No valid session ID provided"}
            refusal = {"jsonrpc": "2.0", "id": None, "error": error}
            body = b"" if status == 404 else json.dumps(refusal).encode()
            self.answer(status, body, content_type="application/json")
        elif url.path == "/messages":
            self.answer(202)
            self.server.streams[int(given["to"])].put(_frame(answered(asked, fault)))
        elif url.path == "/stream":
            self._begin("text/event-stream")
            self._write(_frame(answered(asked, fault)))
            self._end()
        else:
            self._begin("application/json")
            self._write(answered(asked, fault))
            self._end()

    def _is_of_a_forgotten_session(self, asked: Json, stream: str) -> bool:
        session = self.headers["mcp-session-id"] or stream
        return asked["method"] != "initialize" and session in self.server.forgotten

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"content_length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        with suppress(OSError):
            self.wfile.write(body)

    def _note(self) -> None:
        self.server.asked.append((self.path, str(self.headers)))

    def _begin(self, kind: str) -> None:
        self.send_response(200)
        self.send_header("content-type", kind)
        self.send_header("transfer-encoding", "chunked")
        if self.path.startswith("/stream"):
            self.send_header("content-encoding", "identity")  # which is no encoding
        if self.headers["mcp-session-id"] is None:
            self.send_header("mcp-session-id", f"s{len(self.server.asked)}")
        self.end_headers()

    def _write(self, pieces: Iterable[bytes]) -> None:
        try:
            for piece in pieces:
                self.wfile.write(b"%x\r\n%b\r\n" % (len(piece), piece))
        except OSError:  # whoever asked has left
            self.close_connection = True

    def _end(self) -> None:
        with suppress(OSError):
            self.wfile.write(b"0\r\n\r\n")


def _frame(pieces: Iterable[bytes]) -> Iterator[bytes]:
    yield b"event: message\ndata: "
    yield from pieces
    yield b"\n\n"


def _reset(handler: _Handler) -> None:
    linger = struct.pack("ii", 1, 0)
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
    handler.close_connection = True
    handler.connection.close()


@cache
def _zeros() -> bytes:
    return gzip.compress(bytes(LARGE)) * 100


def _bomb(handler: _Handler) -> None:
    handler.answer(200, _zeros(), content_type="application/json", content_encoding="gzip")


def _unauthorized(handler: _Handler) -> None:
    elsewhere = handler.server.elsewhere
    hint = f'Bearer resource_metadata="{elsewhere}/.well-known/oauth-protected-resource"'
    handler.answer(401, www_authenticate=f'{hint}, authorization_uri="{elsewhere}/authorize"')


def _metadata(handler: _Handler) -> None:
    hint = 'Bearer resource_metadata="http://169.254.169.254/latest/meta-data/"'
    handler.answer(401, www_authenticate=hint)


EXCHANGES: Mapping[str, Callable[[_Handler], None]] = {
    "gzip_bomb": _bomb,
    "unauthorized": _unauthorized,
    "unauthorized_by_metadata": _metadata,
    "forbidden": lambda handler: handler.answer(403, b"no", www_authenticate="Bearer scope=all"),
    "not_found": lambda handler: handler.answer(404),
    "too_many": lambda handler: handler.answer(429, retry_after="999999"),
    "failing": lambda handler: handler.answer(500, b"<html>Traceback: secret</html>"),
    "redirecting": lambda handler: handler.answer(307, location=handler.server.elsewhere),
    "empty": lambda handler: handler.answer(200, content_type="application/json"),
    "html": lambda handler: handler.answer(200, b"<html>", content_type="text/html"),
    "reset": _reset,
    "cut": lambda handler: handler.answer(
        200, content_length="99", content_type="application/json"
    ),
    "huge_header": lambda handler: handler.answer(200, x=LARGE // 10 * "x"),
    "silent": lambda handler: handler.server.closing.wait(30) and None,
}


def fault_of(asked: Json, at: str, fault: str | None) -> str:
    """Return how this request is to be answered wrongly, "" for not at all."""
    if asked.get("method") != at:
        return ""
    return fault or str((asked.get("params") or {}).get("name", ""))


def answered(asked: Json, fault: str) -> Iterable[bytes]:
    number = json.dumps(asked.get("id")).encode()
    if fault in BODIES:
        return BODIES[fault](number)
    return [json.dumps(soundly(asked)).encode()]


def soundly(asked: Json) -> Json:
    match asked["method"]:
        case "initialize":
            given: Json = {
                "protocolVersion": asked["params"]["protocolVersion"],
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "faulty", "version": "1"},
            }
        case "tools/list":
            names = ("add", *BODIES, *EXCHANGES, *READABLE)
            sound = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
            odd = [{"name": name, **fields} for name, fields in ODD_TOOLS.items()]
            given = {"tools": [*sound, *odd, "no tool", {"description": "No name."}]}
        case "tools/call" if asked["params"]["name"] in READABLE:
            given = READABLE[asked["params"]["name"]][0]
        case "tools/call":
            given = {"content": [{"type": "text", "text": "42"}]}
        case "ping":
            given = {}
        case _:
            error = {"code": -32601, "message": "no such method"}
            return {"jsonrpc": "2.0", "id": asked["id"], "error": error}
    return {"jsonrpc": "2.0", "id": asked["id"], "result": given}


class FaultyServer(http.server.ThreadingHTTPServer):
    """`elsewhere` is where it sends those who ask; `asked` are paths and heads.

    It answers requests of the sessions in `forgotten` with the status `forgets_with`.
    """

    daemon_threads = True

    def __init__(self, elsewhere: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.elsewhere = elsewhere
        self.asked: list[tuple[str, str]] = []
        self.forgotten: set[str] = set()
        self.forgets_with = 404
        self.streams: list[queue.Queue[Iterable[bytes] | None]] = []
        self.closing = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def handle_error(self, *_: Any) -> None:
        pass  # most of those who ask leave early


@contextmanager
def serving(elsewhere: str) -> Iterator[FaultyServer]:
    server = FaultyServer(elsewhere)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        for stream in server.streams:
            stream.put(None)
        server.shutdown()
        thread.join()
        server.server_close()


def on_stdio() -> None:
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        if "id" not in asked or "method" not in asked:
            continue
        fault = fault_of(asked, "tools/call", None)
        if fault == "reset":
            os.write(1, b'{"jsonrpc": "2.0", "id"')
            os._exit(1)
        for piece in answered(asked, fault):
            sys.stdout.buffer.write(piece)
            sys.stdout.buffer.flush()
        if fault not in ("cut", "silent"):
            sys.stdout.buffer.write(b"\n")
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    on_stdio()
