"""The fetcher reaches what it may and nothing else, within its limits."""

from __future__ import annotations

import gzip
import ipaddress
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from tests.loopback_server import LoopbackServer, answer, chunked, listening, redirect

from antiphon.adapters.fetching import HttpFetcher, NoFetcher, UrlPolicy
from antiphon.application.ports import FetchResult
from antiphon.domain.errors import FetchError, FetchFailed, FetchRefused, FetchTooLarge

LOOPBACK = ipaddress.ip_network("127.0.0.0/8")
MAX_BYTES = 10_000
TRUST = httpx.create_ssl_context(trust_env=False)  # once: it takes a while


@pytest.fixture
async def sink() -> AsyncIterator[LoopbackServer]:
    async with listening() as sink:
        yield sink


def names(**known: Sequence[str]) -> Callable[[str, int], Awaitable[Sequence[str]]]:
    async def resolve(host: str, port: int) -> Sequence[str]:
        if host not in known:
            raise OSError("no such name")
        return known[host]

    return resolve


def fetcher(sink: LoopbackServer | None = None, **options: Any) -> HttpFetcher:
    """One that may reach the sink, under its address and under any name that means it."""
    hosts: Sequence[str] = ()
    private = []
    if sink is not None:
        hosts = [f"{name}:{sink.port}" for name in ("127.0.0.1", "sink", "both", "moves")]
        private = [LOOPBACK]
    guard = options.pop("guard", UrlPolicy(hosts=hosts, private=private))
    limits = {"max_bytes": MAX_BYTES, "timeout_s": 5.0, "max_redirects": 2, "ssl_context": TRUST}
    return HttpFetcher(guard, **(limits | options))


@asynccontextmanager
async def refused(*kinds: type[FetchError]) -> AsyncIterator[None]:
    with pytest.raises(kinds or FetchError) as raised:
        yield
    # Nothing of the network behind this server.
    for secret in ("127.", "10.", "sink", "refused", "Errno", "resolve"):
        assert secret not in str(raised.value)


async def test_it_fetches(sink: LoopbackServer) -> None:
    sink.answers["/a?b=c"] = answer(b"hello", "content-type: Image/PNG; x=y")
    fetched = await fetcher(sink).fetch(f"http://127.0.0.1:{sink.port}/a?b=c#d")
    assert (fetched.status, fetched.content_type, fetched.content) == (200, "image/png", b"hello")


async def test_it_tells_the_status_of_what_is_not_there(sink: LoopbackServer) -> None:
    assert (await fetcher(sink).fetch(f"http://127.0.0.1:{sink.port}/none")).status == 404


async def test_it_sends_what_it_is_told_to_and_nothing_of_its_environment(
    sink: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    sink.answers["/hook"] = answer(b"", status="204 No Content").replace(b"content-length: 0", b"")
    url = f"http://127.0.0.1:{sink.port}/hook"
    fetched = await fetcher(sink).fetch(
        url, method="POST", headers={"Authorization": "Bearer x"}, content=b"{}"
    )
    assert fetched.status == 204
    [head] = sink.heads
    assert head.startswith("POST /hook HTTP/1.1\r\n")
    assert "authorization: Bearer x" in head
    assert f"host: 127.0.0.1:{sink.port}" in head
    assert "cookie" not in head.lower()


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["10.0.0.1"],
        ["8.8.8.8", "127.0.0.1"],
        ["127.0.0.1", "8.8.8.8"],
        ["::1"],
        ["::ffff:127.0.0.1"],
        ["fe80::1%2"],
        ["nonsense"],
        [],
    ],
)
async def test_a_name_that_means_something_inside_is_not_connected_to(
    sink: LoopbackServer, addresses: list[str]
) -> None:
    guard = UrlPolicy(hosts=[f"inward.example:{sink.port}"])
    asked = fetcher(guard=guard, resolve=names(**{"inward.example": addresses}))
    async with refused(FetchFailed):
        await asked.fetch(f"http://inward.example:{sink.port}/")
    assert sink.connections == 0


async def test_names_that_mean_nothing_and_something_inside_are_told_alike(
    sink: LoopbackServer,
) -> None:
    guard = UrlPolicy(hosts=["*.example"])
    asked = fetcher(guard=guard, resolve=names(**{"inward.example": ["10.0.0.1"]}))
    said = []
    for host in ("inward.example", "none.example"):
        with pytest.raises(FetchFailed) as raised:
            await asked.fetch(f"http://{host}/")
        said.append(str(raised.value))
    assert said[0] == said[1]


async def test_the_address_that_was_checked_is_the_one_connected_to(sink: LoopbackServer) -> None:
    # A name that moves: what it means on a second look would be refused.
    looks = iter([["127.0.0.1"], ["10.0.0.1"], ["10.0.0.1"]])

    async def resolve(host: str, port: int) -> Sequence[str]:
        return next(looks)

    sink.answers["/"] = answer(b"once")
    asked = fetcher(sink, resolve=resolve)
    assert (await asked.fetch(f"http://moves:{sink.port}/")).content == b"once"
    assert f"host: moves:{sink.port}" in sink.heads[0]
    async with refused(FetchFailed):
        await asked.fetch(f"http://moves:{sink.port}/")
    assert sink.connections == 1


async def test_only_the_named_hosts_and_ports_are_fetched_from(sink: LoopbackServer) -> None:
    guard = UrlPolicy(hosts=["images.example", "*.cdn.example:8443"], private=[LOOPBACK])
    asked = fetcher(guard=guard)
    for url in (
        "http://example/",
        "http://images.example:8080/",
        "http://images.example.evil/",
        "http://ximages.example/",
        "https://cdn.example:8443/",
        "https://a.cdn.example/",
        f"http://127.0.0.1:{sink.port}/",
    ):
        async with refused(FetchRefused):
            await asked.fetch(url)
    for url in (
        "https://images.example/",
        "http://IMAGES.example./",
        "https://a.cdn.example:8443/",
    ):
        assert guard.check_url(url).host


async def test_other_ports_than_the_webs_are_refused_by_default() -> None:
    for port in (22, 6379, 8080):
        async with refused(FetchRefused):
            await fetcher().fetch(f"http://example.org:{port}/")


async def test_redirects_are_followed_as_far_as_allowed(sink: LoopbackServer) -> None:
    sink.answers |= {
        "/1": redirect("/2"),
        "/2": redirect(f"http://127.0.0.1:{sink.port}/3"),
        "/3": answer(b"there"),
        "/0": redirect("/1"),
    }
    base = f"http://127.0.0.1:{sink.port}"
    assert (await fetcher(sink).fetch(f"{base}/1")).content == b"there"
    async with refused(FetchFailed):
        await fetcher(sink).fetch(f"{base}/0")


@pytest.mark.parametrize(
    "target",
    [
        "http://127.0.0.2:{other}/",
        "http://127.0.0.1:{other}/",
        "http://[::1]:{port}/",
        "http://169.254.169.254/latest/meta-data/",
        "http://user@127.0.0.1:{port}/there",
        "file:///etc/passwd",
        "gopher://127.0.0.1:{port}/",
        "//127.0.0.1:{other}/",
        "http://\\127.0.0.1/",
        "http://[",
    ],
)
async def test_a_redirect_is_checked_like_the_url_itself(sink: LoopbackServer, target: str) -> None:
    to = target.replace("{port}", str(sink.port)).replace("{other}", str(sink.port + 1))
    sink.answers |= {"/go": redirect(to), "/there": answer(b"inside")}
    async with refused(FetchFailed):
        await fetcher(sink).fetch(f"http://127.0.0.1:{sink.port}/go")
    assert sink.connections == 1


async def test_what_is_sent_is_not_sent_on_to_another_host(sink: LoopbackServer) -> None:
    sink.answers |= {"/go": redirect(f"http://sink:{sink.port}/there"), "/there": answer(b"ok")}
    asked = fetcher(sink, resolve=names(**{"127.0.0.1": ["127.0.0.1"], "sink": ["127.0.0.1"]}))
    await asked.fetch(f"http://127.0.0.1:{sink.port}/go", headers={"authorization": "secret"})
    assert ["secret" in head for head in sink.heads] == [True, False]


async def test_what_is_posted_follows_no_redirect(sink: LoopbackServer) -> None:
    sink.answers |= {"/go": redirect("/there"), "/there": answer(b"ok")}
    url = f"http://127.0.0.1:{sink.port}/go"
    assert (await fetcher(sink).fetch(url, method="POST", content=b"x")).status == 302
    assert sink.connections == 1


BOMB = gzip.compress(bytes(20_000_000))
LARGE = {
    "declared": answer(b"x" * (MAX_BYTES + 1)),
    "chunked": chunked(*[b"x" * 1000] * 11),
    "packed": answer(BOMB, "content-encoding: gzip"),
    "packed and chunked": chunked(BOMB).replace(b"\r\n", b"\r\ncontent-encoding: gzip\r\n", 1),
}


@pytest.mark.parametrize("kind", LARGE)
async def test_what_is_too_large_is_not_taken_in(sink: LoopbackServer, kind: str) -> None:
    sink.answers["/"] = LARGE[kind]
    async with refused(FetchTooLarge):
        await fetcher(sink).fetch(f"http://127.0.0.1:{sink.port}/")


async def test_what_is_just_small_enough_is_taken_in(sink: LoopbackServer) -> None:
    sink.answers["/"] = answer(gzip.compress(b"x" * MAX_BYTES, mtime=0), "content-encoding: gzip")
    fetched: FetchResult = await fetcher(sink).fetch(f"http://127.0.0.1:{sink.port}/")
    assert fetched.content == b"x" * MAX_BYTES


@pytest.mark.parametrize(
    "broken",
    [
        b"",
        b"HTTP/1.1 OK\r\n\r\n",
        b"nonsense\r\n\r\n",
        answer(b"half").replace(b"half", b"ha"),
        answer(gzip.compress(b"x" * 99, mtime=0)[:-9], "content-encoding: gzip"),
        answer(b"not gzip", "content-encoding: gzip"),
        answer(zlib.compress(b"x"), "content-encoding: br"),
        b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 100_000 + b"\r\n",
    ],
)
async def test_an_answer_that_is_none_is_a_failure(sink: LoopbackServer, broken: bytes) -> None:
    sink.answers["/"] = broken
    async with refused(FetchFailed):
        await fetcher(sink).fetch(f"http://127.0.0.1:{sink.port}/")


async def test_a_server_that_does_not_go_on_is_left_in_time(sink: LoopbackServer) -> None:
    sink.answers["/hang"] = answer(b"half of it")[:-5]
    async with refused(FetchFailed):
        await fetcher(sink, timeout_s=0.2).fetch(f"http://127.0.0.1:{sink.port}/hang")


async def test_a_port_where_nobody_listens_is_a_failure(sink: LoopbackServer) -> None:
    guard = UrlPolicy(hosts=["127.0.0.1:1"], private=[LOOPBACK])
    async with refused(FetchFailed):
        await fetcher(guard=guard).fetch("http://127.0.0.1:1/")


async def test_a_server_without_a_certificate_is_a_failure(sink: LoopbackServer) -> None:
    async with refused(FetchFailed):
        await fetcher(sink, timeout_s=0.5).fetch(f"https://127.0.0.1:{sink.port}/")


async def test_a_server_that_may_not_fetch_says_who_can_change_that() -> None:
    with pytest.raises(FetchRefused, match="--fetch-urls"):
        await NoFetcher().fetch("https://example.org/")
