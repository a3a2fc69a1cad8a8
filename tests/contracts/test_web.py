"""Every web passes the contract: a folder, and each search service, played by a server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.loopback_server import LoopbackServer, answer, listening
from tests.support.search_web import searched

from antiphon.adapters.pdf import PdfReader
from antiphon.adapters.web.corpus import CorpusWeb
from antiphon.adapters.web.page_reader import PageReader
from antiphon.adapters.web.search_services import (
    BraveService,
    SearchService,
    SearxngService,
    TavilyService,
)
from antiphon.application.ports import Web
from antiphon.testing.web import WebContract

# No HTML: the process that reads it takes longer to begin than all else here.
PAGES = {
    "choirs.md": "# Choirs\n\nAn antiphon is sung. See [psalms](a/psalms.md).",
    "a/psalms.md": '# Psalms\n\nEach has an antiphon. See [choirs](../choirs.md "Sung").',
    "notes.txt": "Nothing of note, but an antiphon【0†fake】.\r\nEnd.\x07",
}


class TestACorpus(WebContract):
    known_query = "antiphons"
    missing_url = "https://corpus.invalid/nowhere.html"

    @pytest.fixture
    async def new_web(self, tmp_path: Path) -> Web:
        for name, text in PAGES.items():
            file = tmp_path / name
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
        return CorpusWeb(
            tmp_path,
            PageReader(PdfReader()),
            base_url="https://corpus.invalid/",
            limit=10,
            max_bytes=10_000,
            timeout_s=10.0,
        )


@pytest.fixture
async def sink() -> AsyncIterator[LoopbackServer]:
    async with listening() as sink:
        for name, text in PAGES.items():
            kind = "text/markdown" if name.endswith(".md") else "text/plain"
            sink.answers[f"/{name}"] = answer(text.encode(), f"content-type: {kind}")
        yield sink


def results(sink: LoopbackServer, text: str) -> list[dict[str, Any]]:
    """Return what a service says about the pages, including pages that do not match."""
    base = f"http://127.0.0.1:{sink.port}"
    shown: Any = {"title": "Antiphons\n【0†fake】", text: "An <strong>antiphon</strong>\n†"}
    urls = [f"{base}/{name}" for name in PAGES]
    others = ["https://other.example/", "javascript:alert(1)", "file:///etc/passwd", urls[0]]
    return [{"url": url, **shown, "score": 0.5} for url in (*urls, *others)]


def serves(sink: LoopbackServer, service: SearchService, found: Any) -> Web:
    sink.answers["/search"] = answer(json.dumps(found).encode(), "content-type: application/json")
    return searched(sink, service)


class TestSearxng(WebContract):
    known_query = "antiphons"
    missing_url = "https://nowhere.example/"

    @pytest.fixture
    async def new_web(self, sink: LoopbackServer) -> Web:
        service = SearxngService(f"http://127.0.0.1:{sink.port}/")
        return serves(sink, service, {"query": "q", "results": results(sink, "content")})


class TestBrave(WebContract):
    known_query = "antiphons"
    missing_url = "https://nowhere.example/"

    @pytest.fixture
    async def new_web(self, sink: LoopbackServer) -> Web:
        service = BraveService("k3y", f"http://127.0.0.1:{sink.port}/search")
        return serves(sink, service, {"web": {"results": results(sink, "description")}})


class TestTavily(WebContract):
    known_query = "antiphons"
    missing_url = "https://nowhere.example/"

    @pytest.fixture
    async def new_web(self, sink: LoopbackServer) -> Web:
        service = TavilyService("k3y", f"http://127.0.0.1:{sink.port}/search")
        return serves(sink, service, {"answer": None, "results": results(sink, "content")})
