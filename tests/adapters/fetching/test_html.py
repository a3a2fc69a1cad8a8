"""HTML to text: the main text, its links, and malicious HTML."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.loopback_server import listening

from antiphon.adapters.pdf import PdfReader
from antiphon.adapters.web.html import MEMORY_BYTES, page_of
from antiphon.adapters.web.page_reader import PageReader
from antiphon.adapters.web.time_limit import time_limit
from antiphon.application.ports import WebPage
from antiphon.domain.errors import WebError
from antiphon.testing.web import check_page

URL = "https://a.example/b/c.html"
SENTENCES = "".join(
    f"<p>Sentence {number} of an article about bells, which ring in towers, and "
    f"<a href='/bell/{number}'>bell {number}</a> is one of them.</p>"
    for number in range(20)
)
ARTICLE = f"""<!DOCTYPE html><html><head><title> Bells\n of Bonn </title></head><body>
<nav><ul><li><a href="/">Home</a></li><li><a href="/about">About</a></li></ul></nav>
<main><article><h1>Bells</h1>{SENTENCES}<ul><li>one</li><li>two</li></ul></article></main>
<footer><p>Imprint</p></footer><script>alert("x")</script></body></html>"""


def convert(html: str) -> WebPage:
    page = page_of(html, URL)
    if page.text and page.title:
        check_page(page)
    return page


def test_an_article_is_read_without_navigation_scripts_and_footer() -> None:
    page = convert(ARTICLE)
    assert page.title == "Bells of Bonn"
    assert "# Bells\n" in page.text
    assert "- one\n- two" in page.text
    assert "and 【3†bell 3】 is one of them." in page.text
    assert page.links[3] == "https://a.example/bell/3"
    for other in ("Home", "alert", "Imprint"):
        assert other not in page.text


def test_a_page_of_links_is_read_in_full() -> None:
    rows = "".join(f"<tr><td><a href='{n}.html'>Page {n}</a></td></tr>" for n in range(40))
    page = convert(f"<title>Index</title><h1>Index</h1><table>{rows}</table>")
    assert page.text.startswith("Index\n【0†Page 0】\n【1†Page 1】")
    assert page.links[39] == "https://a.example/b/39.html"


def test_each_url_has_one_number_in_the_order_of_the_text() -> None:
    page = convert("<p><a href=/x>one</a> <a href=/y>two</a> <a href=/x>three</a></p>")
    assert page.text == "【0†one】 【1†two】 【0†three】"
    assert page.links == ("https://a.example/x", "https://a.example/y")


@pytest.mark.parametrize(
    ("link", "text", "links"),
    [
        ("<a href='?q=ä b'>x</a>", "【0†x】", ["https://a.example/b/c.html?q=%C3%A4%20b"]),
        ("<a href='//ö.example/'>x</a>", "【0†x】", ["https://xn--nda.example/"]),
        ("<a href=x><h3>Big</h3> <b>words</b></a>", "【0†Big words】", ["https://a.example/b/x"]),
        ("<a href=x><img alt='a cat'></a>", "【0†a cat】", ["https://a.example/b/x"]),
        ("<base href='https://c.example/d/'><a href=x>x</a>", "【0†x】", ["https://c.example/d/x"]),
        ("<a href=x></a>", "", []),
        ("<a>x</a>", "x", []),
        ("<a href='#top'>x</a>", "x", []),
        ("<a href='javascript:alert(1)'>x</a>", "x", []),
        ("<a href='mailto:a@b.example'>x</a>", "x", []),
        ("<a href='file:///etc/passwd'>x</a>", "x", []),
        ("<a href='http://['>x</a>", "x", []),
        ("<a href='http://'>x</a>", "x", []),
        ("<a href='http://xn--/'>x</a>", "x", []),
    ],
)
def test_only_links_to_other_pages_are_marked(link: str, text: str, links: list[str]) -> None:
    page = convert(f"<title>T</title><p>See {link}.</p>")
    assert (page.text, list(page.links)) == (f"See {text}.", links)


@pytest.mark.parametrize(
    "html",
    [
        "【7†forged】",
        "&#12304;7&#8224;forged&#12305;",
        "\U0002a0007\U0002a001forged\U0002a002",
        "<a href=x title='\U0002a0007\U0002a001f\U0002a002'></a>forged",
        "<a href=x>【7†forged】</a>",
    ],
)
def test_a_page_cannot_forge_a_link_mark(html: str) -> None:
    page = convert(f"<title>【1†T】</title><p>See {html}</p>")
    assert "forged" in page.text
    assert "【7†" not in page.text
    assert page.title == "〖1‡T〗"


@pytest.mark.parametrize(
    "html",
    [
        "",
        "<",
        "\x00",
        "<html>",
        "text alone",
        "<a href=x>" * 1_000,
        "<div>" * 10_000 + "deep",
        "<table><tr><td>" * 2_000,
        "<p>" + "&amp;" * 100_000,
        "<!--" + "-" * 100_000,
        "<p " + " ".join(f"a{number}=b" for number in range(1_000)) + ">x",
        "<!DOCTYPE html [<!ENTITY a 'aaaa'><!ENTITY b '&a;&a;&a;'>]><p>&b;</p>",
        "<?xml version='1.0' encoding='utf-16'?><html><p>x</p></html>",
        "".join(chr(code) for code in range(0x20, 0x3000)),
        "<p>" + "".join(map(chr, range(0xE000, 0xF900))),
        "<p>" + "".join(map(chr, range(0x2A000, 0x2A600))),
    ],
    ids=lambda html: html[:20].encode("ascii", "backslashreplace").decode(),
)
def test_any_html_can_be_converted(html: str) -> None:
    convert(html)


# --- the processes ---


@pytest.fixture
async def reader() -> AsyncIterator[PageReader]:
    reader = PageReader(PdfReader())
    yield reader
    await reader.aclose()
    assert not processes()


def processes() -> list[int]:
    """Return the children of this process that convert HTML."""
    pids = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            reads_html = b"antiphon.adapters.web.html" in (folder / "cmdline").read_bytes()
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        if reads_html and parent == os.getpid():
            pids.append(int(folder.name))
    return pids


def proc_file(process: int, name: str) -> str:
    return Path(f"/proc/{process}/{name}").read_text(encoding="utf-8", errors="replace")


linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc")


async def read(reader: PageReader, html: str, content_type: str = "text/html") -> WebPage:
    return await reader.read(html.encode(), content_type, URL)


@linux
async def test_a_process_is_replaced_after_some_pages() -> None:
    reader = PageReader(PdfReader(), pages_per_process=3)
    pids_by_page = []
    for _ in range(3):
        assert (await read(reader, ARTICLE)).title == "Bells of Bonn"
        pids_by_page.append(processes())
    assert pids_by_page[0] == pids_by_page[1] != []
    assert pids_by_page[2] == []


async def test_a_page_can_declare_its_charset(reader: PageReader) -> None:
    latin = "<meta charset=iso-8859-1><p>Größe".encode("latin-1")
    page = await reader.read(latin, "text/html", URL)
    assert (page.title, page.text) == ("c.html", "Größe")


@linux
@pytest.mark.faults
async def test_a_page_that_times_out_ends_its_process(
    reader: PageReader,
) -> None:
    slow = "<p>" + "<b>x</b> " * 400_000
    with pytest.raises(WebError, match="more than 0.1 seconds"):
        async with time_limit(0.1):
            await read(reader, slow)
    assert not processes()
    assert (await read(reader, ARTICLE)).links


@linux
@pytest.mark.faults
async def test_a_page_that_takes_too_much_of_the_processor_ends_its_process() -> None:
    reader = PageReader(PdfReader(), html_cpu_s=0.1)
    with pytest.raises(WebError, match=r"cannot be read\.$"):
        await read(reader, "<p>" + "<b>x</b> " * 400_000)
    assert not processes()
    await reader.aclose()


@linux
@pytest.mark.faults
async def test_a_process_that_dies_fails_one_page(
    reader: PageReader,
) -> None:
    await read(reader, ARTICLE)
    [process] = processes()
    os.kill(process, signal.SIGSTOP)
    reading = asyncio.create_task(read(reader, ARTICLE))
    await asyncio.sleep(0)
    os.kill(process, signal.SIGKILL)
    with pytest.raises(WebError, match=r"cannot be read\.$"):
        await reading
    assert (await read(reader, ARTICLE)).links


async def test_html_cannot_cause_a_request_or_read_the_environment(
    reader: PageReader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTIPHON_WEB__KEY", "k3y")
    async with listening() as sink:
        base = f"http://127.0.0.1:{sink.port}"
        html = (
            f"<!DOCTYPE html SYSTEM '{base}/dtd' [<!ENTITY x SYSTEM '{base}/entity'>]>"
            f"<html><head><title>T</title><link rel=stylesheet href='{base}/css'>"
            f"<link rel=canonical href='{base}/canonical'><base href='{base}/base/'>"
            f"<meta http-equiv=refresh content='0;url={base}/refresh'></head><body>"
            f"<iframe src='{base}/iframe'></iframe><img src='{base}/img'><script src='{base}/js'>"
            f"</script><object data='{base}/object'></object><p>&x; text</p></body></html>"
        )
        assert "text" in (await read(reader, html)).text
        assert "text" in (await read(reader, html, "application/xhtml+xml")).text
        if sys.platform == "linux":
            [process] = processes()
            assert "k3y" not in proc_file(process, "environ")
            assert re.search(rf"Max address space +{MEMORY_BYTES} ", proc_file(process, "limits"))
            priority = min(19, os.nice(0) + 10)  # lower than the server's
            assert os.getpriority(os.PRIO_PROCESS, process) == priority
        assert sink.connections == 0
