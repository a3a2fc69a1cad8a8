"""Whatever one tenant does, short requests of another take at most 100 ms, and nothing freezes.

`pytest -s` prints what was seen. ANTIPHON_TEST_GREEDY multiplies the sizes of
files: with 10 they are those of the first attack that was measured, in which others waited for half
a minute.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.security.fairness.test_fair_pdfs import SLOW, pdf
from tests.security.support.other_tenant import (
    LIMIT_S,
    Attack,
    client_of,
    compare,
    make_keys,
    request_of,
)
from tests.security.support.server_probe import ProbedServer, probe_server

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

SIZE = int(os.environ.get("ANTIPHON_TEST_GREEDY", "1"))
FILES = 990 * SIZE
BIG_FILE = 1_600_000 * SIZE
SITES = 40
STREAMS = 200 * SIZE
RUNS = 120 * SIZE
PAUSE_S = 0.04

HANG = '@@script [[{"say": "Once"}, {"hang": 600}]]'
FORM = {"purpose": "user_data"}
MODEL = "scripted-chat"


class Tenants:
    """A server, and a client of each of its two tenants."""

    def __init__(self, server: ProbedServer, greedy: httpx.Client, other: httpx.Client) -> None:
        self.server = server
        self.greedy = greedy
        self.other = other


@pytest.fixture
def tenants(tmp_path: Path) -> Iterator[Tenants]:
    keys, options = make_keys(tmp_path)
    fetching = ("--fetch-urls", "--fetch-hosts", "127.0.0.1:*", "--fetch-private", "127.0.0.1/32")
    with (
        probe_server(tmp_path, "--store", "sqlite", *options, *fetching) as server,
        client_of(server, keys["greedy"]) as greedy,
        client_of(server, keys["other"]) as other,
    ):
        yield Tenants(server, greedy, other)


def upload(client: httpx.Client, content: bytes = b"a text", name: str = "a.txt") -> str:
    answer = client.post("/files", data=FORM, files={"file": (name, content)})
    answer.raise_for_status()
    return str(answer.json()["id"])


def upload_request(client: httpx.Client, content: bytes = b"a text") -> bytes:
    return request_of(client, "POST", "/files", data=FORM, files={"file": ("a.txt", content)})


def index(client: httpx.Client, file_id: str) -> str:
    """Return a new vector store, once it has the file."""
    store = str(client.post("/vector_stores", json={"file_ids": [file_id]}).json()["id"])
    while client.get(f"/vector_stores/{store}").json()["status"] == "in_progress":
        time.sleep(0.002)
    return store


def body_of(**part: Any) -> dict[str, Any]:
    content: Any = [{"type": "input_file", **part}] if part else "hi"
    return {"model": MODEL, "input": [{"role": "user", "content": content}], "store": False}


def respond(client: httpx.Client, **part: Any) -> None:
    client.post("/responses", json=body_of(**part)).raise_for_status()


def respond_in_background(client: httpx.Client) -> None:
    body = {"model": MODEL, "input": "hi", "background": True}
    created = client.post("/responses", json=body).raise_for_status().json()
    while client.get(f"/responses/{created['id']}").json()["status"] != "completed":
        time.sleep(0.002)


def check_short_work(
    server: ProbedServer,
    folder: Path,
    work: Callable[[], Any],
    attacks: Sequence[Attack],
    name: str,
) -> None:
    """Check what takes only a few milliseconds, of clients that send it with and without pauses."""
    for pause_s, detail in ((0.0, ""), (PAUSE_S, ", with pauses")):
        waits = compare(server, folder, work, attacks, pause_s=pause_s)
        waits.check(f"{name}{detail}")


def test_an_upload_and_a_list_during_uploads_and_lists_of_many_files(
    tenants: Tenants, tmp_path: Path
) -> None:
    with ThreadPoolExecutor(4) as threads:
        list(threads.map(lambda _: upload(tenants.greedy), range(FILES)))
    listing = request_of(tenants.greedy, "GET", "/files")
    attacks = [Attack(listing, 20), Attack(upload_request(tenants.greedy), 20)]
    for name, work in {
        "an upload": lambda: upload(tenants.other),
        "a list": lambda: tenants.other.get("/files").raise_for_status(),
        "a response": lambda: respond(tenants.other),
    }.items():
        check_short_work(tenants.server, tmp_path, work, attacks, name)


def test_a_small_file_and_a_search_during_big_files_and_searches(
    tenants: Tenants, tmp_path: Path
) -> None:
    text = b"word another " * (BIG_FILE // 13)
    file_id, big_id = upload(tenants.other), upload(tenants.greedy, text)
    store, big_store = index(tenants.other, file_id), index(tenants.greedy, big_id)
    search = {"query": "word"}
    attacks = [
        Attack(
            request_of(tenants.greedy, "POST", "/vector_stores", json={"file_ids": [big_id]}),
            8,
            once=True,
        ),
        Attack(
            request_of(tenants.greedy, "POST", f"/vector_stores/{big_store}/search", json=search),
            30,
        ),
    ]
    for name, work in {
        "a small file's index": lambda: index(tenants.other, file_id),
        "a search": lambda: tenants.other.post(
            f"/vector_stores/{store}/search", json=search
        ).raise_for_status(),
    }.items():
        check_short_work(tenants.server, tmp_path, work, attacks, name)


@contextmanager
def site() -> Iterator[str]:
    """Yield the address of a site whose `/slow` pages hang until the block ends."""
    ends = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if self.path.startswith("/slow"):
                ends.wait(LIMIT_S)
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


def test_a_fetch_during_fetches_from_slow_sites(tenants: Tenants, tmp_path: Path) -> None:
    with site() as address:
        slow = request_of(
            tenants.greedy, "POST", "/responses", json=body_of(file_url=f"{address}/slow")
        )
        work = lambda: respond(tenants.other, file_url=f"{address}/a.txt")  # noqa: E731
        compare(tenants.server, tmp_path, work, [Attack(slow, SITES)]).check("a fetch")


def test_a_pdf_during_slow_pdfs(tenants: Tenants, tmp_path: Path) -> None:
    slow = upload(tenants.greedy, pdf(b"0 0 Td " * (SLOW // 70 * SIZE)), "slow.pdf")
    small = upload(tenants.other, pdf(b"(hello) Tj"), "small.pdf")
    attack = request_of(tenants.greedy, "POST", "/responses", json=body_of(file_id=slow))
    work = lambda: respond(tenants.other, file_id=small)  # noqa: E731
    compare(tenants.server, tmp_path, work, [Attack(attack, 6)]).check("a PDF")


def test_a_response_during_compactions(tenants: Tenants, tmp_path: Path) -> None:
    text = "lorem ipsum dolor sit amet, " * (30_000 * SIZE // 28)
    attack = request_of(
        tenants.greedy, "POST", "/responses/compact", json={"model": MODEL, "input": text}
    )
    work = lambda: respond(tenants.other)  # noqa: E731
    waits = compare(tenants.server, tmp_path, work, [Attack(attack, 40)])
    waits.check("a response")


def test_a_response_during_streams_that_hang(tenants: Tenants, tmp_path: Path) -> None:
    body = {"model": MODEL, "input": HANG, "stream": True, "store": False}
    attack = request_of(tenants.greedy, "POST", "/responses", json=body)
    work = lambda: respond(tenants.other)  # noqa: E731
    attacks = [Attack(attack, STREAMS, once=True)]
    waits = compare(tenants.server, tmp_path, work, attacks, full_load_s=STREAMS / 400)
    waits.check(f"a response during {STREAMS} streams")


def test_a_background_response_during_those_that_hang(tenants: Tenants, tmp_path: Path) -> None:
    body = {"model": MODEL, "input": HANG, "background": True}
    attack = request_of(tenants.greedy, "POST", "/responses", json=body)
    work = lambda: respond_in_background(tenants.other)  # noqa: E731
    attacks = [Attack(attack, RUNS, once=True)]
    waits = compare(tenants.server, tmp_path, work, attacks, full_load_s=RUNS / 100)
    waits.check(f"a background response during {RUNS}")


def test_a_response_during_the_streams_of_a_paced_engine(tmp_path: Path) -> None:
    keys, options = make_keys(tmp_path)
    paced = ("--scripted-slots", "256", "--scripted-tokens-per-s", "20")
    script = '@@script [[{"say": "word ", "repeat": 2000}]]'
    body = {"model": MODEL, "input": script, "stream": True, "store": False}
    with (
        probe_server(tmp_path, "--store", "sqlite", *options, *paced) as server,
        client_of(server, keys["greedy"]) as greedy,
        client_of(server, keys["other"]) as other,
    ):
        attack = request_of(greedy, "POST", "/responses", json=body)
        work = lambda: respond(other)  # noqa: E731
        attacks = [Attack(attack, STREAMS, once=True)]
        waits = compare(server, tmp_path, work, attacks, full_load_s=STREAMS / 400)
    waits.check(f"a response during {STREAMS} streams of an engine")
