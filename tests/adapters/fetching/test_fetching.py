"""The make_fetcher connects only to allowed addresses, within its limits."""

from __future__ import annotations

import gzip
import ipaddress
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from tests.support.loopback_server import LoopbackServer, answer, chunked, listening, redirect

from antiphon.adapters.fetching import HttpFetcher
from antiphon.adapters.url_policy import NoFetcher, UrlPolicy
from antiphon.application.ports import FetchResult
from antiphon.domain.errors import FetchError, FetchFailed, FetchRefused, FetchTooLarge

LOOPBACK = ipaddress.ip_network("127.0.0.0/8")
MAX_BYTES = 10_000
SSL_CONTEXT = httpx.create_ssl_context(trust_env=False)  # once: it takes a while


@pytest.fixture
async def server() -> AsyncIterator[LoopbackServer]:
    async with listening() as server:
        yield server


def resolver(**addresses: Sequence[str]) -> Callable[[str, int], Awaitable[Sequence[str]]]:
    async def resolve(host: str, port: int) -> Sequence[str]:
        if host not in addresses:
            raise OSError("no such name")
        return addresses[host]

    return resolve


def make_fetcher(server: LoopbackServer | None = None, **options: Any) -> HttpFetcher:
    """Return a make_fetcher that may connect to the server, by its address and a few resolver."""
    hosts: Sequence[str] = ()
    private = []
    if server is not None:
        hosts = [f"{name}:{server.port}" for name in ("127.0.0.1", "loopback", "both", "moves")]
        private = [LOOPBACK]
    policy = options.pop("policy", UrlPolicy(hosts=hosts, private=private))
    limits = {
        "max_bytes": MAX_BYTES,
        "timeout_s": 5.0,
        "max_redirects": 2,
        "ssl_context": SSL_CONTEXT,
    }
    return HttpFetcher(policy, **(limits | options))


@asynccontextmanager
async def raises_without_details(*kinds: type[FetchError]) -> AsyncIterator[None]:
    with pytest.raises(kinds or FetchError) as raised:
        yield
    # The message reveals nothing about the network behind this server.
    for secret in ("127.", "10.", "loopback", "refused", "Errno", "resolve"):
        assert secret not in str(raised.value)


async def test_it_fetches_a_url(server: LoopbackServer) -> None:
    server.answers["/a?b=c"] = answer(b"hello", "content-type: Image/PNG; x=y")
    result = await make_fetcher(server).fetch(f"http://127.0.0.1:{server.port}/a?b=c#d")
    assert (result.status, result.content_type, result.content) == (200, "image/png", b"hello")


async def test_an_error_status_is_a_result(server: LoopbackServer) -> None:
    assert (await make_fetcher(server).fetch(f"http://127.0.0.1:{server.port}/none")).status == 404


async def test_it_sends_the_headers_it_is_passed_and_nothing_from_its_environment(
    server: LoopbackServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    server.answers["/hook"] = answer(b"", status="204 No Content").replace(
        b"content-length: 0", b""
    )
    url = f"http://127.0.0.1:{server.port}/hook"
    result = await make_fetcher(server).fetch(
        url, method="POST", headers={"Authorization": "Bearer x"}, content=b"{}"
    )
    assert result.status == 204
    [head] = server.heads
    assert head.startswith("POST /hook HTTP/1.1\r\n")
    assert "authorization: Bearer x" in head
    assert f"host: 127.0.0.1:{server.port}" in head
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
async def test_a_name_with_an_internal_address_is_not_connected_to(
    server: LoopbackServer, addresses: list[str]
) -> None:
    policy = UrlPolicy(hosts=[f"inward.example:{server.port}"])
    fetcher = make_fetcher(policy=policy, resolve=resolver(**{"inward.example": addresses}))
    async with raises_without_details(FetchFailed):
        await fetcher.fetch(f"http://inward.example:{server.port}/")
    assert server.connections == 0


async def test_an_unknown_name_and_an_internal_one_are_the_same_error() -> None:
    policy = UrlPolicy(hosts=["*.example"])
    fetcher = make_fetcher(policy=policy, resolve=resolver(**{"inward.example": ["10.0.0.1"]}))
    messages = []
    for host in ("inward.example", "none.example"):
        with pytest.raises(FetchFailed) as raised:
            await fetcher.fetch(f"http://{host}/")
        messages.append(str(raised.value))
    assert messages[0] == messages[1]


async def test_it_connects_to_the_address_that_it_has_checked(server: LoopbackServer) -> None:
    # DNS rebinding: a second resolution would return an address that is raises_without_details.
    resolutions = iter([["127.0.0.1"], ["10.0.0.1"], ["10.0.0.1"]])

    async def resolve(host: str, port: int) -> Sequence[str]:
        return next(resolutions)

    server.answers["/"] = answer(b"once")
    fetcher = make_fetcher(server, resolve=resolve)
    assert (await fetcher.fetch(f"http://moves:{server.port}/")).content == b"once"
    assert f"host: moves:{server.port}" in server.heads[0]
    async with raises_without_details(FetchFailed):
        await fetcher.fetch(f"http://moves:{server.port}/")
    assert server.connections == 1


async def test_it_fetches_only_from_the_hosts_that_the_caller_may_use(
    server: LoopbackServer,
) -> None:
    server.answers["/"] = answer(b"hello")
    server.answers["/moved"] = redirect(f"http://both:{server.port}/")
    fetcher = make_fetcher(server, resolve=resolver(both=["127.0.0.1"], loopback=["127.0.0.1"]))
    both, loopback = f"http://both:{server.port}", f"http://loopback:{server.port}"
    assert (await fetcher.fetch(f"{loopback}/moved", hosts=["loopback", "both"])).status == 200
    with pytest.raises(FetchRefused, match="API key"):
        await fetcher.fetch(both, hosts=["loopback"])
    async with raises_without_details(FetchFailed):
        await fetcher.fetch(f"{loopback}/moved", hosts=["loopback"])


async def test_it_fetches_only_from_the_hosts_and_ports_of_its_policy(
    server: LoopbackServer,
) -> None:
    policy = UrlPolicy(hosts=["images.example", "*.cdn.example:8443"], private=[LOOPBACK])
    fetcher = make_fetcher(policy=policy)
    for url in (
        "http://example/",
        "http://images.example:8080/",
        "http://images.example.evil/",
        "http://ximages.example/",
        "https://cdn.example:8443/",
        "https://a.cdn.example/",
        f"http://127.0.0.1:{server.port}/",
    ):
        async with raises_without_details(FetchRefused):
            await fetcher.fetch(url)
    for url in (
        "https://images.example/",
        "http://IMAGES.example./",
        "https://a.cdn.example:8443/",
    ):
        assert policy.check_url(url).host


async def test_by_default_only_the_ports_of_http_and_https_are_allowed() -> None:
    for port in (22, 6379, 8080):
        async with raises_without_details(FetchRefused):
            await make_fetcher().fetch(f"http://example.org:{port}/")


async def test_redirects_are_followed_up_to_the_limit(server: LoopbackServer) -> None:
    server.answers |= {
        "/1": redirect("/2"),
        "/2": redirect(f"http://127.0.0.1:{server.port}/3"),
        "/3": answer(b"there"),
        "/0": redirect("/1"),
    }
    base = f"http://127.0.0.1:{server.port}"
    assert (await make_fetcher(server).fetch(f"{base}/1")).content == b"there"
    async with raises_without_details(FetchFailed):
        await make_fetcher(server).fetch(f"{base}/0")


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
async def test_a_redirect_is_checked_like_the_url_itself(
    server: LoopbackServer, target: str
) -> None:
    location = target.replace("{port}", str(server.port)).replace("{other}", str(server.port + 1))
    server.answers |= {"/go": redirect(location), "/there": answer(b"inside")}
    async with raises_without_details(FetchFailed):
        await make_fetcher(server).fetch(f"http://127.0.0.1:{server.port}/go")
    assert server.connections == 1


async def test_a_redirect_to_another_host_does_not_get_the_headers(server: LoopbackServer) -> None:
    server.answers |= {
        "/go": redirect(f"http://loopback:{server.port}/there"),
        "/there": answer(b"ok"),
    }
    fetcher = make_fetcher(
        server, resolve=resolver(**{"127.0.0.1": ["127.0.0.1"], "loopback": ["127.0.0.1"]})
    )
    await fetcher.fetch(f"http://127.0.0.1:{server.port}/go", headers={"authorization": "secret"})
    assert ["secret" in head for head in server.heads] == [True, False]


async def test_a_post_does_not_follow_redirects(server: LoopbackServer) -> None:
    server.answers |= {"/go": redirect("/there"), "/there": answer(b"ok")}
    url = f"http://127.0.0.1:{server.port}/go"
    assert (await make_fetcher(server).fetch(url, method="POST", content=b"x")).status == 302
    assert server.connections == 1


BOMB = gzip.compress(bytes(20_000_000))
LARGE = {
    "declared": answer(b"x" * (MAX_BYTES + 1)),
    "chunked": chunked(*[b"x" * 1000] * 11),
    "compressed": answer(BOMB, "content-encoding: gzip"),
    "compressed and chunked": chunked(BOMB).replace(b"\r\n", b"\r\ncontent-encoding: gzip\r\n", 1),
}


@pytest.mark.parametrize("kind", LARGE)
async def test_content_above_the_size_limit_is_refused(server: LoopbackServer, kind: str) -> None:
    server.answers["/"] = LARGE[kind]
    async with raises_without_details(FetchTooLarge):
        await make_fetcher(server).fetch(f"http://127.0.0.1:{server.port}/")


async def test_content_at_the_size_limit_is_fetched(server: LoopbackServer) -> None:
    server.answers["/"] = answer(gzip.compress(b"x" * MAX_BYTES, mtime=0), "content-encoding: gzip")
    result: FetchResult = await make_fetcher(server).fetch(f"http://127.0.0.1:{server.port}/")
    assert result.content == b"x" * MAX_BYTES


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
async def test_an_invalid_answer_is_a_failure(server: LoopbackServer, broken: bytes) -> None:
    server.answers["/"] = broken
    async with raises_without_details(FetchFailed):
        await make_fetcher(server).fetch(f"http://127.0.0.1:{server.port}/")


async def test_a_server_that_hangs_is_a_failure_after_the_timeout(server: LoopbackServer) -> None:
    server.answers["/hang"] = answer(b"half of it")[:-5]
    async with raises_without_details(FetchFailed):
        await make_fetcher(server, timeout_s=0.2).fetch(f"http://127.0.0.1:{server.port}/hang")


async def test_a_closed_port_is_a_failure() -> None:
    policy = UrlPolicy(hosts=["127.0.0.1:1"], private=[LOOPBACK])
    async with raises_without_details(FetchFailed):
        await make_fetcher(policy=policy).fetch("http://127.0.0.1:1/")


async def test_a_server_without_a_certificate_is_a_failure(server: LoopbackServer) -> None:
    async with raises_without_details(FetchFailed):
        await make_fetcher(server, timeout_s=0.5).fetch(f"https://127.0.0.1:{server.port}/")


async def test_the_default_refusal_names_the_setting() -> None:
    with pytest.raises(FetchRefused, match="--fetch-urls"):
        await NoFetcher().fetch("https://example.org/")
