"""A small MCP server on a real socket, which answers with JSON and notes what it was asked."""

from __future__ import annotations

import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

Json = dict[str, Any]

TOOLS = [
    {
        "name": "add",
        "description": "Adds.",
        "inputSchema": {
            "type": "object",
            "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
            "required": ["a", "b"],
        },
    },
    {"name": "look", "annotations": {"readOnlyHint": True}, "inputSchema": {"type": "object"}},
    {"name": "boom", "inputSchema": {"type": "object"}},
]


class _Server(http.server.ThreadingHTTPServer):
    request_queue_size = 128  # with 5, one of many connections at once may wait for a minute


class FakeMcpServer:
    """`tools` are what it lists, `says` what calls of a tool give; any may be changed at any time.

    At the path /refused it answers 401, whatever it is asked; at /other its tools are described
    otherwise; at /token it grants a token, which it wants to see from then on.
    """

    def __init__(self) -> None:
        self.asked: list[tuple[str, Json, Json]] = []
        self.tools: list[Json] = [*TOOLS]
        self.says: dict[str, str] = {}
        self.instructions: str | None = None
        self.status = 200
        self.token: str | None = None
        self.grants: list[tuple[str, str]] = []
        self.grant: Json = {"expires_in": 3600}
        self.grant_status = 200
        self.meeting: threading.Barrier | None = None
        self.redirect: str | None = None
        site = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_: Any) -> None:
                pass

            def do_GET(self) -> None:
                self._answer(405)

            def do_DELETE(self) -> None:
                self._answer(200)

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                if self.path == "/token":
                    self._grant(body.decode())
                    return
                asked = json.loads(body)
                params = asked.get("params") or {}
                site.asked.append((asked["method"], params, dict(self.headers)))
                if self.path == "/refused":
                    self._answer(401)
                elif site.redirect:
                    self._answer(307, location=site.redirect)
                elif site.token and self.headers["authorization"] != f"Bearer {site.token}":
                    self._answer(401)
                elif site.status != 200:
                    self._answer(site.status)
                elif "id" not in asked:
                    self._answer(202)
                else:
                    answered = site.answer(asked, params, is_other=self.path == "/other")
                    self._answer(200, {"jsonrpc": "2.0", "id": asked["id"], **answered})

            def _grant(self, asked: str) -> None:
                site.grants.append((self.headers["authorization"], asked))
                if site.grant_status != 200:
                    self._answer(site.grant_status, {"error": "invalid_client"})
                    return
                site.token = f"token-{len(site.grants)}"
                answer = {"access_token": site.token, "token_type": "Bearer", **site.grant}
                self._answer(200, answer)

            def _answer(self, status: int, body: Json | None = None, **headers: str) -> None:
                content = b"" if body is None else json.dumps(body).encode()
                head = [f"HTTP/1.1 {status} x", f"content-length: {len(content)}"]
                head += ["content-type: application/json"] if content else []
                head += [f"{name}: {value}" for name, value in headers.items()]
                self.wfile.write("\r\n".join([*head, "", ""]).encode() + content)

        self._server = _Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.origin = f"http://127.0.0.1:{self._server.server_address[1]}"
        self.url = f"{self.origin}/mcp"

    def answer(self, asked: Json, params: Json, *, is_other: bool) -> Json:
        match asked["method"]:
            case "initialize":
                info = {"name": "site", "version": "1"}
                version = params["protocolVersion"]
                capabilities: Json = {"tools": {}}
                result = {
                    "protocolVersion": version,
                    "capabilities": capabilities,
                    "serverInfo": info,
                    "instructions": self.instructions,
                }
            case "tools/list" if is_other:
                result = {"tools": [{**tool, "description": "Other."} for tool in self.tools]}
            case "tools/list":
                result = {"tools": self.tools}
            case "tools/call" if params["name"] == "boom":
                content = [{"type": "text", "text": self.says.get("boom", "no such page")}]
                result = {"content": content, "isError": True}
            case "tools/call":
                if self.meeting is not None:
                    self.meeting.wait(10)
                text = self.says.get(params["name"])
                if text is None:
                    text = str(sum(params.get("arguments", {}).values()))
                result = {"content": [{"type": "text", "text": text}], "isError": False}
            case _:
                return {"error": {"code": -32601, "message": "no such method"}}
        return {"result": result}

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    def methods(self, name: str) -> list[Json]:
        return [params for method, params, _ in self.asked if method == name]


@contextmanager
def site() -> Iterator[FakeMcpServer]:
    listening = FakeMcpServer()
    try:
        yield listening
    finally:
        listening.close()
