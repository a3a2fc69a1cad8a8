"""A folder as the web: which of its files are pages, and what a search finds."""

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

BASE_URL = "https://corpus.invalid/"
NO_FILTER = DomainFilter()


def make_corpus(folder: Path, **options: Any) -> CorpusWeb:
    defaults = {"base_url": BASE_URL, "limit": 10, "max_bytes": 1000, "timeout_s": 10.0}
    return CorpusWeb(folder, PageReader(PdfReader()), **(defaults | options))


@asynccontextmanager
async def running_corpus(folder: Path, **options: Any) -> AsyncIterator[CorpusWeb]:
    web = make_corpus(folder, **options)
    await web.start()
    try:
        yield web
    finally:
        await web.aclose()


def write(folder: Path, **texts: str) -> None:
    for name, text in texts.items():
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")


async def search(web: CorpusWeb, query: str) -> list[str]:
    results = await web.search(query, limit=10, domains=NO_FILTER)
    return [each.url.removeprefix(BASE_URL).removesuffix(".txt") for each in results]


async def test_the_best_page_comes_first(tmp_path: Path) -> None:
    write(
        tmp_path,
        often="Bells ring. The bell of Bonn, a bell.",
        once="There is one bell among many other words of a much longer text about towers.",
        never="Nothing rings here.",
        bell="Named for it.",
    )
    async with running_corpus(tmp_path) as web:
        assert await search(web, "Which bells?") == ["bell", "often", "once"]
        assert set(await search(web, "bell OR ring*")) == {"bell", "often", "once", "never"}
        assert await search(web, "silence") == []


async def test_a_page_is_read_by_the_url_of_its_search_result(tmp_path: Path) -> None:
    (tmp_path / "a b").mkdir()
    (tmp_path / "a b" / "ö#1.md").write_text("# Ö\n\nText. [c](../c.txt) [d](#d)", "utf-8")
    async with running_corpus(tmp_path, base_url="https://docs.example/x/") as web:
        url = "https://docs.example/x/a%20b/%C3%B6%231.md"
        [result] = await web.search("text", limit=5, domains=NO_FILTER)
        assert (result.url, result.title) == (url, "Ö")
        page = await web.read(f"{url}#part")
        assert page.text == "# Ö\n\nText. 【0†c】 [d](#d)"
        assert page.links == ("https://docs.example/x/c.txt",)
        assert not await web.search("text", limit=5, domains=DomainFilter(blocked=("example",)))


async def test_an_html_file_is_read_as_text(tmp_path: Path) -> None:
    html = "<title>Bells</title><script>x()</script><p>They <a href=/more>ring</a>.</p>"
    (tmp_path / "bells.html").write_text(html, encoding="utf-8")
    async with running_corpus(tmp_path) as web:
        page = await web.read(f"{BASE_URL}bells.html")
        assert (page.title, page.text) == ("Bells", "They 【0†ring】.")
        assert page.links == (f"{BASE_URL}more",)


async def test_the_example_corpus_works() -> None:
    async with running_corpus(
        Path(__file__).parents[2] / "examples" / "corpus", max_bytes=10_000
    ) as web:
        [first, *_] = await web.search("Which antiphons are sung?", limit=5, domains=NO_FILTER)
        assert first.title == "Antiphon"
        links = (await web.read(first.url)).links
        assert links == (f"{BASE_URL}instruments/bells.html", f"{BASE_URL}psalms.txt")
        assert [(await web.read(link)).title for link in links] == ["Bells", "psalms.txt"]


async def test_only_files_of_the_folder_are_pages(tmp_path: Path) -> None:
    folder, outside = tmp_path / "pages", tmp_path / "outside"
    for each in (folder, folder / ".git", folder / "deep", outside):
        each.mkdir()
    write(outside, secret="bell")
    write(folder, page="bell", **{".hidden": "bell", ".git/config": "bell", "deep/page": "bell"})
    (folder / "program.py").write_text("bell")
    (folder / "link.txt").symlink_to(outside / "secret.txt")
    (folder / "up").symlink_to(outside)
    (folder / "round").symlink_to(folder)
    (folder / "nowhere.txt").symlink_to(folder / "gone.txt")
    (folder / "within.txt").symlink_to(folder / "deep" / "page.txt")
    os.mkfifo(folder / "pipe.txt")
    async with running_corpus(folder) as web:
        assert await search(web, "bell") == ["deep/page", "page", "within"]
        for path in ("../outside/secret.txt", "up/secret.txt", "%2e%2e/outside/secret.txt"):
            with pytest.raises(WebError):
                await web.read(BASE_URL + path)


async def test_a_file_that_cannot_be_a_page_is_left_out_and_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path, large="bell " * 1000, empty=" \n", binary="bell \0", good="bell")
    async with running_corpus(tmp_path) as web:
        assert await search(web, "bell") == ["good"]
    for name in ("large", "empty", "binary"):
        assert f"{name}.txt is left out" in caplog.text


@pytest.mark.parametrize("name", ["none", "empty"])
async def test_a_folder_without_pages_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    web = make_corpus(tmp_path / name)
    with pytest.raises(SettingsError, match=name):
        await web.start()
    await web.aclose()
