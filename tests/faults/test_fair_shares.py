"""One tenant has as much work done as it can; another's single request takes about its usual time.

ANTIPHON_TEST_FAIR_FILES etc. set the sizes. `-s` prints the figures.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.faults.replicas import Replica, wait_for
from tests.security.test_fair_pdfs import pdf

from antiphon.adapters.keys.file import append
from antiphon.application.resources.keys import create_key

pytestmark = [pytest.mark.faults, pytest.mark.timeout(600)]

MODEL = "scripted-chat"
FILES = int(os.environ.get("ANTIPHON_TEST_FAIR_FILES", "1500"))
BIG_MB = int(os.environ.get("ANTIPHON_TEST_FAIR_BIG_MB", "4"))
SITES = int(os.environ.get("ANTIPHON_TEST_FAIR_SITES", "40"))
TRIES = 7
FACTOR, NOISE_S = 1.2, float(os.environ.get("ANTIPHON_TEST_FAIR_NOISE_S", "1.5"))
"""Another's wait may be this many times its usual one, plus what processors that are all busy cost:
the attacker's client, the server and the other's client share them."""

Json = dict[str, Any]
Work = Callable[[], Any]


class Tenants:
    """A server, and a client of each of its two tenants."""

    def __init__(self, url: str, greedy: str, other: str) -> None:
        self.greedy = self._client(url, greedy)
        self.other = self._client(url, other)

    def _client(self, url: str, key: str) -> httpx.Client:
        limits = httpx.Limits(max_connections=None)
        headers = {"authorization": f"Bearer {key}"}
        return httpx.Client(base_url=f"{url}/v1", headers=headers, timeout=300, limits=limits)


@pytest.fixture
def tenants(tmp_path: Path) -> Iterator[Tenants]:
    keys = tmp_path / "keys.toml"
    made = {}
    for name in ("greedy", "other"):
        made[name], kept = create_key(
            name, name, new_id=lambda prefix, name=name: f"{prefix}_{name}", now=lambda: 0
        )
        append(keys, kept)
    home = tmp_path / "server"
    home.mkdir()
    fetching = ("--fetch-urls", "--fetch-hosts", "127.0.0.1:*", "--fetch-private", "127.0.0.1/32")
    server = Replica(home, "--auth", "on", "--keys-file", str(keys), *fetching)
    try:
        server.start()
        tenants = Tenants(server.url, **made)
        with tenants.greedy, tenants.other:
            yield tenants
    finally:
        server.kill()


def usual_and_attacked(work: Work, attack: list[Work]) -> tuple[float, float]:
    """Return how many seconds the work takes: the median of some, alone and during the attack."""
    work()  # what is done once
    usual = statistics.median(seconds(work) for _ in range(TRIES))
    stop = threading.Event()

    def repeat(each: Work) -> None:
        while not stop.is_set():
            each()

    with ThreadPoolExecutor(len(attack)) as threads:
        running = [threads.submit(repeat, each) for each in attack]
        time.sleep(0.5)  # the attack reaches its full load
        attacked = statistics.median(seconds(work) for _ in range(TRIES))
        stop.set()
        for each in running:
            each.exception()
    return usual, attacked


def seconds(work: Work) -> float:
    started_at = time.monotonic()
    work()
    return time.monotonic() - started_at


def check(name: str, usual: float, attacked: float) -> None:
    print(f"\n{name}: usually {usual * 1000:.0f} ms, attacked {attacked * 1000:.0f} ms")
    assert attacked <= FACTOR * usual + NOISE_S


def upload(client: httpx.Client, name: str, content: bytes) -> str:
    answer = client.post("/files", data={"purpose": "user_data"}, files={"file": (name, content)})
    answer.raise_for_status()
    return str(answer.json()["id"])


def show(client: httpx.Client, **part: Any) -> int:
    content = [{"type": "input_file", **part}]
    body = {"model": MODEL, "input": [{"role": "user", "content": content}]}
    return client.post("/responses/input_tokens", json=body).status_code


def test_an_upload_during_lists_and_uploads_of_a_tenant_with_many_files(tenants: Tenants) -> None:
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda n: upload(tenants.greedy, f"{n}", b""), range(FILES)))
    attack: list[Work] = [lambda: tenants.greedy.get("/files")] * 20
    attack += [lambda: upload(tenants.greedy, "more", b"x" * 1000)] * 20
    check("upload", *usual_and_attacked(lambda: upload(tenants.other, "a", b"hello"), attack))


def test_a_small_file_and_a_search_during_big_files_and_searches(tenants: Tenants) -> None:
    words = " ".join(f"word{number % 5000}" for number in range(BIG_MB * 120_000)).encode()
    stores = {
        name: client.post("/vector_stores", json={}).json()["id"]
        for name, client in (("greedy", tenants.greedy), ("other", tenants.other))
    }

    def add(client: httpx.Client, name: str, content: bytes) -> str:
        path = f"/vector_stores/{stores[name]}/files"
        file_id = upload(client, "a.txt", content)
        client.post(path, json={"file_id": file_id}).raise_for_status()
        return f"{path}/{file_id}"

    def add_small() -> None:
        path = add(tenants.other, "other", b"hello there")
        wait_for(lambda: tenants.other.get(path).json()["status"] != "in_progress" or None, 300)

    def search(client: httpx.Client, name: str, query: str) -> None:
        path = f"/vector_stores/{stores[name]}/search"
        client.post(path, json={"query": query}).raise_for_status()

    def search_small() -> None:
        search(tenants.other, "other", "hello")

    add_small()
    usual = [statistics.median(seconds(w) for _ in range(TRIES)) for w in (add_small, search_small)]
    for _ in range(8):
        add(tenants.greedy, "greedy", words)
    queries = [lambda: search(tenants.greedy, "greedy", "word1 word2 word3 word4")] * 30
    small, attacked = usual_and_attacked(add_small, queries)  # both during the big files
    print(f"\n(small file during big files, without searches: {small * 1000:.0f} ms)")
    check("small file", usual[0], attacked)
    check("search", usual[1], usual_and_attacked(search_small, queries)[1])


@contextmanager
def site() -> Iterator[str]:
    """Yield the address of a site whose `/slow` pages hang until the block ends."""
    ends = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/slow"):
                ends.wait(300)
            with suppress(ConnectionError):  # the fetch has given up
                self.send_response(200)
                self.send_header("content-length", "5")
                self.end_headers()
                self.wfile.write(b"hello")

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        ends.set()
        server.shutdown()
        thread.join()
        server.server_close()


def test_a_fetch_during_fetches_from_slow_sites(tenants: Tenants) -> None:
    with site() as address:
        attack = [lambda: show(tenants.greedy, file_url=f"{address}/slow")] * SITES
        fetch = lambda: show(tenants.other, file_url=f"{address}/a.txt")  # noqa: E731
        assert fetch() == 200
        check("fetch", *usual_and_attacked(fetch, attack))


def test_a_pdf_during_slow_pdfs(tenants: Tenants) -> None:
    slow = upload(tenants.greedy, "slow.pdf", pdf(b"(a) Tj " * 1_000_000))
    small = upload(tenants.other, "small.pdf", pdf(b"(hello) Tj"))
    attack = [lambda: show(tenants.greedy, file_id=slow)] * 6
    read = lambda: show(tenants.other, file_id=small)  # noqa: E731
    assert read() == 200
    check("pdf", *usual_and_attacked(read, attack))
