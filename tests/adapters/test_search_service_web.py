"""Search services and web pages, with the answers of real and malicious servers."""

from __future__ import annotations

import gzip
import json
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from tests.support.loopback_server import LoopbackServer, answer, chunked, listening, redirect
from tests.support.search_web import LOOPBACK, searched

from antiphon.adapters.url_policy import UrlPolicy
from antiphon.adapters.web.search_service_web import SearchServiceWeb
from antiphon.adapters.web.search_services import (
    BraveService,
    SearchService,
    SearxngService,
    TavilyService,
)
from antiphon.application.ports import DomainFilter, WebPage
from antiphon.domain.errors import WebError

KEY = "k3y-of-a-service"
NO_FILTER = DomainFilter()
LOCATION = {"type": "approximate", "country": "DE", "city": "Bonn", "region": "Nordrhein\r\nx: y"}

SERVICES: dict[str, Callable[[str], SearchService]] = {
    "searxng": lambda url: SearxngService(url.removesuffix("/search")),
    "brave": lambda url: BraveService(KEY, url),
    "tavily": lambda url: TavilyService(KEY, url),
}
RESULTS = {"results": [{"url": "https://a.example/", "title": "A", "content": "x"}]}


@pytest.fixture
async def sink() -> AsyncIterator[LoopbackServer]:
    async with listening() as sink:
        yield sink


@pytest.fixture(params=SERVICES)
def service(request: pytest.FixtureRequest, sink: LoopbackServer) -> SearchService:
    return SERVICES[request.param](f"http://127.0.0.1:{sink.port}/search")


@asynccontextmanager
async def raises_web_error(*words: str) -> AsyncIterator[None]:
    with pytest.raises(WebError) as raised:
        yield
    message = str(raised.value)
    assert all(word in message for word in words), message
    for secret in ("127.", "10.", "k3y", "Errno", "\n"):
        assert secret not in message


async def search(web: SearchServiceWeb, query: str = "bells", **options: Any) -> list[str]:
    results = await web.search(query, **{"limit": 5, "domains": NO_FILTER, **options})
    return [each.url for each in results]


# --- requests to services, and their failures ---


async def test_a_searxng_request_asks_for_json_and_has_sites_in_the_query(
    sink: LoopbackServer,
) -> None:
    sink.answers["/sx/search"] = answer(json.dumps(RESULTS).encode())
    web = searched(sink, SearxngService(f"http://127.0.0.1:{sink.port}/sx/"))
    domains = DomainFilter(allowed=("a.example",), blocked=("b.a.example",))
    assert await search(web, "größe & \n#1", domains=domains) == ["https://a.example/"]
    target = urlsplit(sink.heads[0].split(" ")[1])
    assert parse_qs(target.query) == {
        "q": ["größe & #1 site:a.example -site:b.a.example"],
        "format": ["json"],
    }


async def test_a_brave_request_has_the_key_and_the_location_of_the_user(
    sink: LoopbackServer,
) -> None:
    result = {"url": "https://a.example/", "title": "A &amp; B", "description": "a <b>c</b> 1 < 2"}
    sink.answers["/search"] = answer(json.dumps({"web": {"results": [result]}}).encode())
    web = searched(sink, BraveService(KEY, f"http://127.0.0.1:{sink.port}/search"))
    [web_result] = await web.search("bells", limit=3, domains=NO_FILTER, location=LOCATION)
    assert (web_result.title, web_result.text) == ("A & B", "a c 1 < 2")
    [head] = sink.heads
    assert parse_qs(urlsplit(head.split(" ")[1]).query)["count"] == ["3"]
    assert f"x-subscription-token: {KEY}\r\n" in head
    assert "x-loc-city: Bonn\r\n" in head
    assert "x-loc-country: DE\r\n" in head
    assert "x: y" not in head
    assert KEY not in head.split("\r\n", 1)[0]


async def test_a_brave_answer_may_have_no_web_results(sink: LoopbackServer) -> None:
    sink.answers["/search"] = answer(b'{"query": {}, "mixed": {}}')
    assert not await search(
        searched(sink, BraveService(KEY, f"http://127.0.0.1:{sink.port}/search"))
    )


async def test_a_tavily_request_has_the_domains(sink: LoopbackServer) -> None:
    sink.answers["/search"] = answer(json.dumps(RESULTS).encode())
    web = searched(sink, TavilyService(KEY, f"http://127.0.0.1:{sink.port}/search"))
    domains = DomainFilter(allowed=("a.example",), blocked=("b.example",))
    assert await search(web, domains=domains) == ["https://a.example/"]
    assert f"authorization: Bearer {KEY}\r\n" in sink.heads[0]
    assert json.loads(sink.bodies[0]) == {
        "query": "bells",
        "max_results": 5,
        "include_domains": ["a.example"],
        "exclude_domains": ["b.example"],
    }


async def test_a_query_is_truncated_to_the_limit_of_the_services(sink: LoopbackServer) -> None:
    sink.answers["/search"] = answer(b"{}")
    web = searched(sink, SearxngService(f"http://127.0.0.1:{sink.port}"))
    domains = DomainFilter(allowed=tuple(f"{number}.example" for number in range(100)))
    assert not await search(web, "long " * 1000, domains=domains)
    [query] = parse_qs(urlsplit(sink.heads[0].split(" ")[1]).query)["q"]
    assert len(query) <= 400


async def test_an_empty_query_is_not_sent(sink: LoopbackServer, service: SearchService) -> None:
    assert not await search(searched(sink, service), " \n\x00")
    assert sink.connections == 0


REFUSED = dict.fromkeys((401, 402, 403, 422, 432, 433), "refuses")
STATUSES = {**REFUSED, 429: "no more", 500: "failed", 503: "no more"}


@pytest.mark.parametrize(("status", "word"), STATUSES.items())
async def test_an_error_status_of_a_service_is_an_error(
    sink: LoopbackServer,
    service: SearchService,
    status: int,
    word: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    sink.answers["/search"] = answer(b"secret of theirs", status=f"{status} X")
    async with raises_web_error(word):
        await search(searched(sink, service))
    assert str(status) in caplog.text
    assert KEY not in caplog.text


GZIP_BOMB = gzip.compress(bytes(20_000_000))
BROKEN = {
    "not http": b"nonsense\r\n\r\n",
    "empty": b"",
    "not json": answer(b"<html>"),
    "a list": answer(b"[]"),
    "a number": answer(b"7"),
    "other shapes": answer(b'{"results": {"a": 1}, "web": 3}'),
    "invalid urls": answer(b'{"results": [{"url": 1}], "web": {"results": [{"url": 1}]}}'),
    "deep": answer(b"[" * 90_000),
    "not utf-8": answer(b'{"results": "\xff", "web": "\xff"}'),
    "half of it": answer(b"{}")[:-1],
    "large": answer(b"x" * 100_001),
    "a bomb": answer(GZIP_BOMB, "content-encoding: gzip"),
    "a redirect": redirect("/elsewhere"),
}


@pytest.mark.parametrize("broken", BROKEN)
async def test_an_invalid_answer_of_a_service_is_an_error(
    sink: LoopbackServer, service: SearchService, broken: str
) -> None:
    sink.answers |= {"/search": BROKEN[broken], "/elsewhere": answer(b"{}")}
    async with raises_web_error("search service failed"):
        await search(searched(sink, service))
    assert sink.connections == 1


ODD_ROWS: list[Any] = [
    {"title": "An answer without a URL"},
    {"url": None},
    "a text",
    {"url": "https://b.example/", "title": 7, "content": ["x"], "extra_snippets": "x"},
]


async def test_an_odd_result_hides_no_other(sink: LoopbackServer, service: SearchService) -> None:
    rows = {"results": [*ODD_ROWS, *RESULTS["results"]]}
    sink.answers["/search"] = answer(json.dumps({**rows, "web": rows}).encode())
    found = await search(searched(sink, service))
    assert found == ["https://b.example/", *(row["url"] for row in RESULTS["results"])]


async def test_no_results_since_no_engine_answered_is_an_error(
    sink: LoopbackServer, caplog: pytest.LogCaptureFixture
) -> None:
    engines = {"results": [], "unresponsive_engines": [["bing", "timeout"]]}
    sink.answers["/search"] = answer(json.dumps(engines).encode())
    async with raises_web_error("search service failed"):
        await search(searched(sink, SearxngService(f"http://127.0.0.1:{sink.port}")))
    assert "these engines did not answer: [['bing', 'timeout']]" in caplog.text


@pytest.mark.parametrize("kind", SERVICES)
async def test_an_endless_answer_of_a_service_is_cut_off(sink: LoopbackServer, kind: str) -> None:
    sink.answers["/endless/search"] = b"HTTP/1.1 200 OK\r\n\r\n"
    service = SERVICES[kind](f"http://127.0.0.1:{sink.port}/endless/search")
    async with raises_web_error("failed"):
        await search(searched(sink, service))
    assert sink.endless_bytes < 20_000_000


async def test_a_service_that_hangs_times_out(sink: LoopbackServer) -> None:
    sink.answers["/hang/search"] = b"HTTP/1.1 200 OK\r\n"
    web = searched(sink, SearxngService(f"http://127.0.0.1:{sink.port}/hang"), timeout_s=0.2)
    with pytest.raises(WebError):
        await search(web)


async def test_a_redirect_of_a_service_does_not_get_the_key(
    sink: LoopbackServer, service: SearchService
) -> None:
    async with listening() as other:
        sink.answers["/search"] = redirect(f"http://127.0.0.1:{other.port}/search")
        async with raises_web_error("failed"):
            await search(searched(sink, service))
        assert other.connections == 0


# --- pages ---


async def read(sink: LoopbackServer, path: str = "/page", **options: Any) -> WebPage:
    web = searched(sink, SearxngService("http://127.0.0.1:1"), **options)
    try:
        return await web.read(f"http://127.0.0.1:{sink.port}{path}")
    finally:
        await web.aclose()


async def test_a_page_has_the_url_after_its_redirects(sink: LoopbackServer) -> None:
    sink.answers |= {
        "/page": redirect("/b/there#x"),
        "/b/there": answer(b"# T\n\n[next](c)", "content-type: text/markdown"),
    }
    page = await read(sink)
    assert page.url == f"http://127.0.0.1:{sink.port}/b/there"
    assert page.links == (f"http://127.0.0.1:{sink.port}/b/c",)


TEXTS = {
    "text/plain": (b"a\r\nb", "a\nb"),
    "text/plain; charset=iso-8859-1": (b"\xe4", "ä"),
    "text/plain; charset=nonsense": ("ä".encode(), "ä"),
    "text/plain; charset=base64": (b"aaaa", "aaaa"),
    "text/plain; charset=punycode": (b"abc", "abc"),
    "text/plain; charset=Unicode_Escape": (rb"\x41", r"\x41"),
    "text/csv": (b"a,b", "a,b"),
    "application/json": (b'{"a": 1}', '{"a": 1}'),
    "application/ld+json": (b"{}", "{}"),
    "application/xml": (b"<a>b</a>", "<a>b</a>"),
    "": (b"plain", "plain"),
    "text/x-utf-16": ("\ufeffä".encode("utf-16-le"), "ä"),
}


@pytest.mark.parametrize("kind", TEXTS)
async def test_many_types_of_text_are_read(sink: LoopbackServer, kind: str) -> None:
    content, text = TEXTS[kind]
    sink.answers["/page"] = answer(content, f"content-type: {kind}")
    page = await read(sink)
    assert (page.title, page.text, page.links) == ("page", text, ())


async def test_text_is_clean_and_limited(sink: LoopbackServer) -> None:
    hidden = "a\x08\x1b[2J\u202eb\u2028c【0†d】" + "".join(chr(0xE0000 + ord(c)) for c in "hidden")
    sink.answers["/page"] = answer(hidden.encode() + b"x" * 2_000_000)
    page = await read(sink, max_bytes=3_000_000)
    assert page.text.startswith("a[2Jb\nc〖0‡d〗xxx")
    assert 1_000_000 < len(page.text.encode()) <= 1024 * 1024


@pytest.mark.parametrize(
    ("content", "word"),
    [
        (answer(b"", status="404 Not Found"), "404 (Not Found)"),
        (answer(b"x", status="500 Oops"), "500"),
        (answer(b"x", status="799 Oops"), "799"),
        (answer(b"x", status="304 Not Modified"), "304"),
        (answer(b"\x89PNG", "content-type: image/png"), "'image/png'"),
        (answer(b"x", "content-type: application/octet-stream"), "not text"),
        (answer(b"x", "content-type: " + "x" * 1000), "not text"),
        (answer(b"a\0b", "content-type: text/plain"), "not text"),
        (answer(b" \n", "content-type: text/plain"), "has no text"),
        (answer(b"%PDF-", "content-type: application/pdf"), "PDF"),
        (answer(b"x" * 100_001), "100000 bytes"),
        (answer(GZIP_BOMB, "content-encoding: gzip"), "100000 bytes"),
        (chunked(GZIP_BOMB).replace(b"\r\n", b"\r\ncontent-encoding: gzip\r\n", 1), "100000"),
        (redirect("/page"), "redirects too many times"),
        (redirect("http://10.0.0.1/"), "could not be fetched"),
        (redirect("file:///etc/passwd"), "could not be fetched"),
        (b"nonsense\r\n\r\n", "could not be fetched"),
    ],
)
async def test_a_page_that_cannot_be_read_is_an_error(
    sink: LoopbackServer, content: bytes, word: str
) -> None:
    sink.answers["/page"] = content
    async with raises_web_error(word):
        await read(sink)


async def test_a_page_that_hangs_times_out(sink: LoopbackServer) -> None:
    sink.answers["/hang"] = answer(b"half")[:-2]
    with pytest.raises(WebError):
        await read(sink, "/hang", timeout_s=0.2)


async def test_an_endless_page_is_cut_off(sink: LoopbackServer) -> None:
    sink.answers["/endless"] = b"HTTP/1.1 200 OK\r\n\r\n"
    async with raises_web_error("bytes"):
        await read(sink, "/endless")
    assert sink.endless_bytes < 20_000_000


async def test_cookies_are_not_kept(sink: LoopbackServer) -> None:
    sink.answers["/page"] = answer(b"text", "set-cookie: a=b; Path=/")
    web = searched(sink, SearxngService("http://127.0.0.1:1"))
    for _ in range(2):
        await web.read(f"http://127.0.0.1:{sink.port}/page")
    assert not any("cookie" in head.lower() for head in sink.heads)


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:{port}/",
        "http://localhost:{port}/",
        "http://[::ffff:127.0.0.1]:{port}/",
        "http://2130706433:{port}/",
        "http://169.254.169.254/latest/meta-data/",
        "http://10.0.0.1/",
        "http://[::1]:{port}/",
        "https://inward.example/",
        "http://moves.example/",
    ],
)
async def test_an_internal_page_is_not_read(sink: LoopbackServer, url: str) -> None:
    resolutions = iter([["8.8.8.8", "127.0.0.1"], ["127.0.0.1"]])

    async def resolve(host: str, port: int) -> Sequence[str]:
        return next(resolutions) if host == "moves.example" else ["127.0.0.1"]

    web = searched(sink, SearxngService("http://127.0.0.1:1"), pages=UrlPolicy(), resolve=resolve)
    async with raises_web_error():
        await web.read(url.replace("{port}", str(sink.port)))
    assert sink.connections == 0


async def test_pages_of_an_allowed_private_network_are_read(sink: LoopbackServer) -> None:
    sink.answers["/page"] = answer(b"intranet")
    policy = UrlPolicy(hosts=[f"127.0.0.1:{sink.port}"], private=[LOOPBACK])
    assert (await read(sink, pages=policy)).text == "intranet"
