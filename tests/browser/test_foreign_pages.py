"""A page of another site, in a real browser, reads and writes nothing on a server without keys."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
import pytest
from tests.browser.browser import chromium

pytestmark = pytest.mark.browser

FOREIGN = "evil.example"

ATTACK = """
const [base, done] = arguments;
const body = JSON.stringify({ model: "scripted-chat", input: "hi", store: true });
const form = new FormData();
form.append("purpose", "user_data");
form.append("file", new Blob(["stolen"]), "a.txt");
const read = [];
const tries = [];
const note = (name) => (text) => { if (text) read.push(`${name}: ${text}`); };
const attempt = (name, work) => tries.push(
  Promise.resolve().then(work).then(note(name), () => {})
);
const send = (path, options) => fetch(base + path, options).then(
  async (answer) => answer.ok && answer.type !== "opaque" ? `read ${await answer.text()}` : ""
);
const json = { "content-type": "application/json" };
attempt("get", () => send("/v1/models"));
attempt("list", () => send("/v1/responses"));
attempt("post", () => send("/v1/responses", { method: "POST", body, headers: json }));
attempt("text", () => send("/v1/responses", { method: "POST", body, mode: "no-cors" }));
attempt("blob", () => send("/v1/responses", {
  method: "POST", body: new Blob([body]), mode: "no-cors",
}));
attempt("bytes", () => send("/v1/responses", {
  method: "POST", body: new TextEncoder().encode(body), mode: "no-cors",
}));
attempt("conversation", () => send("/v1/conversations", {
  method: "POST", body: new Blob(["{}"]), mode: "no-cors",
}));
attempt("form", () => send("/v1/files", { method: "POST", body: form, mode: "no-cors" }));
attempt("delete", () => send("/v1/files/file_1", { method: "DELETE" }));
attempt("beacon", () => { navigator.sendBeacon(`${base}/v1/responses`, new Blob([body])); });
attempt("script", () => new Promise((resolve) => {
  const script = document.createElement("script");
  script.src = `${base}/v1/models`;
  script.onload = () => resolve("loaded");
  script.onerror = () => resolve("");
  document.head.append(script);
}));
attempt("socket", () => new Promise((resolve) => {
  const socket = new WebSocket(`${base.replace("http", "ws")}/v1/responses`);
  socket.onopen = () => socket.send(body.replace("{", '{"type":"response.create",'));
  socket.onmessage = (message) => resolve(message.data);
  socket.onerror = () => resolve("");
}));
attempt("events", () => new Promise((resolve) => {
  const source = new EventSource(`${base}/v1/responses/resp_1?stream=true`);
  source.onopen = () => resolve("opened");
  source.onerror = () => { source.close(); resolve(""); };
}));
Promise.all(tries).then(() => setTimeout(() => done(read), 300));
"""


class _BlankPage(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.end_headers()
        self.wfile.write(b"<!doctype html><title>A game</title>")

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def attacker() -> Iterator[int]:
    """The port of a site with a page that anybody may visit."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _BlankPage)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium(f"--host-resolver-rules=MAP {FOREIGN} 127.0.0.1") as driver:
        yield driver


@pytest.fixture(scope="module")
def keyless(serve_from: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    with serve_from(tmp_path_factory.mktemp("keyless"), store="sqlite") as server:
        yield server


def written(server: Any) -> list[Any]:
    return [
        item
        for path in ("/v1/responses", "/v1/files")
        for item in httpx.get(f"{server.url}{path}").json()["data"]
    ]


@pytest.mark.parametrize("page", [FOREIGN, "localhost", "127.0.0.1"])
@pytest.mark.parametrize("name", [FOREIGN, "localhost", "127.0.0.1"])
def test_a_page_of_another_site_does_nothing(
    browser: Any, keyless: Any, attacker: int, page: str, name: str
) -> None:
    port = keyless.url.rpartition(":")[2]
    browser.get(f"http://{page}:{attacker}/")
    assert browser.execute_async_script(ATTACK, f"http://{name}:{port}") == []
    assert written(keyless) == []


def test_a_name_that_now_means_this_machine_helps_nobody(browser: Any, keyless: Any) -> None:
    port = keyless.url.rpartition(":")[2]
    browser.get(f"http://{FOREIGN}:{port}/")
    assert browser.execute_async_script(ATTACK, f"http://{FOREIGN}:{port}") == []
    assert written(keyless) == []


def test_the_console_and_allowed_pages_go_on_working(
    browser: Any, serve: Any, attacker: int
) -> None:
    with serve(store="sqlite", cors_origin=[f"http://{FOREIGN}:{attacker}"]) as server:
        port = server.url.rpartition(":")[2]
        for name in ("localhost", "127.0.0.1"):
            browser.get(f"http://{name}:{port}/console")
            read = browser.execute_async_script(ATTACK, f"http://{name}:{port}")
            assert {"get", "list", "post", "socket"} <= {each.partition(":")[0] for each in read}
        before = len(written(server))
        browser.get(f"http://{FOREIGN}:{attacker}/")
        read = browser.execute_async_script(ATTACK, f"http://127.0.0.1:{port}")
        assert {"get", "list", "post", "socket"} <= {each.partition(":")[0] for each in read}
        assert len(written(server)) > before
