"""A folder as the web: which files are pages, and what is found in them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from antiphon.adapters.pdf import PdfReader
from antiphon.adapters.web.corpus import CorpusWeb
from antiphon.adapters.web.page_reader import PageReader
from antiphon.application.ports import DomainFilter
from antiphon.domain.errors import SettingsError, WebError

BASE = "https://corpus.invalid/"
EVERYWHERE = DomainFilter()


def corpus(folder: Path, **given: Any) -> CorpusWeb:
    limits = {"base_url": BASE, "limit": 10, "max_bytes": 1000, "timeout_s": 10.0}
    return CorpusWeb(folder, PageReader(PdfReader()), **(limits | given))


@asynccontextmanager
async def started(folder: Path, **given: Any) -> AsyncIterator[CorpusWeb]:
    web = corpus(folder, **given)
    await web.start()
    try:
        yield web
    finally:
        await web.aclose()


def write(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")


async def found(web: CorpusWeb, query: str) -> list[str]:
    pages = await web.search(query, limit=10, domains=EVERYWHERE)
    return [each.url.removeprefix(BASE).removesuffix(".txt") for each in pages]


async def test_the_best_page_comes_first(tmp_path: Path) -> None:
    write(
        tmp_path,
        often="Bells ring. The bell of Bonn, a bell.",
        once="There is one bell among many other words of a much longer text about towers.",
        never="Nothing rings here.",
        bell="Named for it.",
    )
    async with started(tmp_path) as web:
        assert await found(web, "Which bells?") == ["bell", "often", "once"]
        assert set(await found(web, "bell OR ring*")) == {"bell", "often", "once", "never"}
        assert await found(web, "silence") == []


async def test_a_page_keeps_its_address_and_is_read_from_it(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "ö#1.md").write_text("# Ö\n\nText. [c](../c.txt) [d](#d)", "utf-8")
    async with started(tmp_path, base_url="https://docs.example/x/") as web:
        url = "https://docs.example/x/a%20b/%C3%B6%231.md"
        [page] = await web.search("text", limit=5, domains=EVERYWHERE)
        assert (page.url, page.title) == (url, "Ö")
        read = await web.read(f"{url}#part")
        assert read.text == "# Ö\n\nText. 【0†c】 [d](#d)"
        assert read.links == ("https://docs.example/x/c.txt",)
        assert not await web.search("text", limit=5, domains=DomainFilter(blocked=("example",)))


async def test_html_of_the_folder_is_read_as_text(tmp_path: Path) -> None:
    page = "<title>Bells</title><script>x()</script><p>They <a href=/more>ring</a>.</p>"
    (tmp_path / "bells.html").write_text(page, encoding="utf-8")
    async with started(tmp_path) as web:
        read = await web.read(f"{BASE}bells.html")
        assert (read.title, read.text) == ("Bells", "They 【0†ring】.")
        assert read.links == (f"{BASE}more",)


async def test_the_example_is_a_corpus() -> None:
    async with started(Path(__file__).parents[2] / "examples" / "corpus", max_bytes=10_000) as web:
        [first, *_] = await web.search("Which antiphons are sung?", limit=5, domains=EVERYWHERE)
        assert first.title == "Antiphon"
        links = (await web.read(first.url)).links
        assert links == (f"{BASE}instruments/bells.html", f"{BASE}psalms.txt")
        assert [(await web.read(link)).title for link in links] == ["Bells", "psalms.txt"]


async def test_only_files_of_the_folder_are_pages(tmp_path: Path) -> None:
    folder, outside = tmp_path / "pages", tmp_path / "outside"
    for each in (folder, folder / ".git", folder / "deep", outside):
        each.mkdir()
    write(outside, secret="bell")
    write(folder, page="bell", **{".hidden": "bell", ".git/config": "bell", "deep/page": "bell"})
    (folder / "program.py").write_text("bell")
    (folder / "linked.txt").symlink_to(outside / "secret.txt")
    (folder / "up").symlink_to(outside)
    (folder / "round").symlink_to(folder)
    (folder / "nowhere.txt").symlink_to(folder / "gone.txt")
    (folder / "within.txt").symlink_to(folder / "deep" / "page.txt")
    os.mkfifo(folder / "pipe.txt")
    async with started(folder) as web:
        assert await found(web, "bell") == ["deep/page", "page", "within"]
        for path in ("../outside/secret.txt", "up/secret.txt", "%2e%2e/outside/secret.txt"):
            with pytest.raises(WebError):
                await web.read(BASE + path)


async def test_what_cannot_be_a_page_is_left_out_and_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, large="bell " * 1000, empty=" \n", binary="bell \0", good="bell")
    async with started(tmp_path) as web:
        assert await found(web, "bell") == ["good"]
    for name in ("large", "empty", "binary"):
        assert f"{name}.txt is left out" in caplog.text


@pytest.mark.parametrize("name", ["none", "empty"])
async def test_a_folder_without_pages_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    web = corpus(tmp_path / name)
    with pytest.raises(SettingsError, match=name):
        await web.start()
    await web.aclose()
