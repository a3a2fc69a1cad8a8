"""A run has the rights of the key that asked for it, whenever and wherever it starts."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from tests.http.access.test_limits import Keys
from tests.http.conftest import script, wait_until
from tests.http.requests.test_media import png

pytestmark = pytest.mark.slow

MODEL = "scripted-chat"


class Site(BaseHTTPRequestHandler):
    """Shows a picture, and from then on redirects to another host that the server may reach."""

    def do_GET(self) -> None:
        visited: list[str] = self.server.visited  # type: ignore[attr-defined]
        visited.append(self.path)
        is_moved = visited.count("/a.png") > 1 and self.path == "/a.png"
        content = b"" if is_moved else png()
        self.send_response(302 if is_moved else 200)
        if is_moved:
            self.send_header("location", f"http://127.0.0.1:{self.server.server_port}/secret.png")
        self.send_header("content-type", "image/png")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_: Any) -> None: ...


@pytest.fixture
def site() -> Iterator[Any]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Site) as server:
        server.visited = []  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_a_queued_run_may_fetch_only_from_its_keys_hosts(
    serve_from: Any, tmp_path: Path, site: Any
) -> None:
    file = tmp_path / "keys.toml"
    file.touch()
    fetch = {
        "fetch.urls": True,
        "fetch.hosts": ["127.0.0.1:*", "localhost:*"],
        "fetch.private": ["127.0.0.1", "::1"],
    }
    options = {"auth": "on", "keys_file": file, "store": "sqlite", "background_runs": 1}
    with serve_from(tmp_path, **options, **fetch) as server:
        keys = Keys(file, server)
        with keys.client(hosts=("localhost",)) as client:

            def start(content: Any) -> str:
                body = {"model": MODEL, "background": True, "input": content}
                created = client.post("/responses", json=body)
                assert created.status_code == 200, created.text
                return str(created.json()["id"])

            def status_of(response_id: str) -> str:
                return str(client.get(f"/responses/{response_id}").json()["status"])

            first = start(script({"hang": 60}))
            wait_until(lambda: status_of(first) == "in_progress")
            image = {
                "type": "input_image",
                "image_url": f"http://localhost:{site.server_port}/a.png",
            }
            second = start([{"role": "user", "content": [image]}])
            client.post(f"/responses/{first}/cancel")
            wait_until(lambda: status_of(second) not in ("queued", "in_progress"))
            assert status_of(second) == "failed"
    assert set(site.visited) == {"/a.png"}
    assert len(site.visited) > 1
