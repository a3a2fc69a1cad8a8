"""No outgoing connection reaches an internal address, whatever the URL says (inward_urls.py)."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import suppress

import httpx
import pytest
from tests.support import inward_urls
from tests.support.inward_urls import LoopbackServer

from antiphon.adapters.fetching import GuardedPools, HttpFetcher, Resolve
from antiphon.adapters.tool_servers.mcp import McpServers
from antiphon.adapters.url_policy import NoFetcher, UrlPolicy
from antiphon.adapters.web.page_reader import PageReader
from antiphon.adapters.web.search_service_web import SearchServiceWeb
from antiphon.adapters.web.search_services import SearxngService
from antiphon.application.resources.webhooks import WebhookEndpoint
from antiphon.domain.errors import FetchError, FetchRefused, ToolServerError, WebError
from antiphon.domain.tools import McpTool
from antiphon.entrypoints.settings import Settings
from antiphon.entrypoints.wiring.webhooks import operator_policy, webhook_fetcher

pytestmark = pytest.mark.slow

SSL_CONTEXT = httpx.create_ssl_context(trust_env=False)  # once: it takes a while
ALLOWED = "127.0.0.2"
"""An address that a test's policy allows as if it were public; the sink does not listen on it."""
LIMIT_S = 2.0
FAILURES = (FetchError, ToolServerError, WebError)

Request = Callable[[UrlPolicy, Resolve | None, str], Awaitable[object]]
"""Requests a URL through one of the adapters, under a policy."""


def make_fetcher(policy: UrlPolicy, resolve: Resolve | None) -> HttpFetcher:
    options = {} if resolve is None else {"resolve": resolve}
    return HttpFetcher(
        policy,
        max_bytes=1000,
        timeout_s=LIMIT_S,
        max_redirects=3,
        ssl_context=SSL_CONTEXT,
        **options,
    )


async def fetch(policy: UrlPolicy, resolve: Resolve | None, url: str) -> object:
    return await make_fetcher(policy, resolve).fetch(url)


async def post(policy: UrlPolicy, resolve: Resolve | None, url: str) -> object:
    return await make_fetcher(policy, resolve).fetch(url, method="POST", content=b"{}")


async def list_tools(policy: UrlPolicy, resolve: Resolve | None, url: str) -> object:
    options = {} if resolve is None else {"resolve": resolve}
    pools = GuardedPools(policy, ssl_context=SSL_CONTEXT, **options)
    servers = McpServers(pools, timeout_s=LIMIT_S, max_bytes=1000)
    session = servers.session(McpTool(server_label="s", server_url=url, authorization="secret"))
    try:
        return await session.tools()
    finally:
        await session.aclose()


async def read_page(policy: UrlPolicy, resolve: Resolve | None, url: str) -> object:
    async def no_pdf(content: bytes) -> str:
        raise AssertionError("there is nothing to read")

    web = SearchServiceWeb(
        SearxngService("http://127.0.0.1:1/"),
        PageReader(no_pdf),
        service_fetcher=NoFetcher(),
        page_fetcher=make_fetcher(policy, resolve),
        limit=1,
        timeout_s=LIMIT_S,
    )
    return await web.read(url)


CLIENTS: Mapping[str, Request] = {
    "images and files": fetch,
    "webhooks": post,
    "MCP servers": list_tools,
    "web pages": read_page,
}
"""Every client of the guarded fetcher; a new one needs a row here."""


@pytest.fixture
def sink() -> Iterator[LoopbackServer]:
    with inward_urls.sink() as listening:
        yield listening


@pytest.fixture(params=CLIENTS)
def send(request: pytest.FixtureRequest) -> Request:
    return CLIENTS[request.param]


async def assert_fails(
    send: Request, policy: UrlPolicy, url: str, *, resolve: Resolve | None = None
) -> None:
    with pytest.raises(FAILURES) as raised:
        await send(policy, resolve, url)
    # The message reveals nothing about the network behind this server.
    for secret in ("127.", "10.", "169.", "refused", "Errno", "resolve"):
        assert secret not in str(raised.value), url


def resolver(**addresses: Sequence[str]) -> Resolve:
    async def resolve(host: str, port: int) -> Sequence[str]:
        if host not in addresses:
            raise OSError("no such name")
        return addresses[host]

    return resolve


async def test_an_internal_url_is_not_connected_to(sink: LoopbackServer, send: Request) -> None:
    urls = inward_urls.urls(sink.port)
    assert len(set(urls)) >= 230
    default_port_urls = [url.replace(f":{sink.port}", "") for url in urls]
    for policy, internal_urls in (
        (UrlPolicy(hosts=inward_urls.allowed_hosts(urls)), urls),  # only the address is refused
        (UrlPolicy(), default_port_urls),
        (UrlPolicy(), [url.replace("http:", "https:", 1) for url in default_port_urls]),
    ):
        for url in internal_urls:
            await assert_fails(send, policy, url)
    assert sink.connections == 0


async def test_a_refused_url_is_not_resolved(sink: LoopbackServer) -> None:
    async def fail(host: str, port: int) -> Sequence[str]:
        raise AssertionError(f"{host!r} was resolved")

    policy = UrlPolicy(hosts=inward_urls.allowed_hosts(inward_urls.urls(sink.port)))
    for url in inward_urls.NO_PLAIN_URLS:
        with pytest.raises(FetchRefused):
            await fetch(policy, fail, url.replace("{port}", str(sink.port)))


@pytest.mark.parametrize(
    "addresses",
    [
        ["127.0.0.1"],
        ["10.0.0.1"],
        ["169.254.169.254"],
        ["8.8.8.8", "127.0.0.1"],
        ["127.0.0.1", "8.8.8.8"],
        ["2606:4700::1111", "::1"],
        ["::1"],
        ["::"],
        ["::ffff:127.0.0.1"],
        ["64:ff9b::7f00:1"],
        ["2002:7f00:1::"],
        ["fe80::1%2"],
        ["127.1"],
        ["nonsense"],
        [],
    ],
)
async def test_a_name_with_an_internal_address_is_not_connected_to(
    sink: LoopbackServer, send: Request, addresses: list[str]
) -> None:
    policy = UrlPolicy(hosts=[f"inward.example:{sink.port}"])
    resolve = resolver(**{"inward.example": addresses})
    await assert_fails(send, policy, f"http://inward.example:{sink.port}/", resolve=resolve)
    assert sink.connections == 0


async def test_a_name_is_resolved_once_for_each_connection(
    sink: LoopbackServer, send: Request
) -> None:
    resolutions: list[str] = []

    async def rebind(host: str, port: int) -> Sequence[str]:
        # The first address is allowed, and nothing listens there; all later ones are internal.
        resolutions.append(host)
        return [ALLOWED] if len(resolutions) == 1 else ["127.0.0.1"]

    policy = UrlPolicy(
        hosts=[f"moves.example:{sink.port}"], private=[ipaddress.ip_network(ALLOWED)]
    )
    url = f"http://moves.example:{sink.port}/"
    for _ in range(2):
        await assert_fails(send, policy, url, resolve=rebind)
    assert len(resolutions) == 2
    assert sink.connections == 0


# --- redirects ------------------------------------------------------------------------------------


class Redirector:
    """Answers every request with a redirect to `location`."""

    def __init__(self) -> None:
        self.location = b""
        self.port = 0
        self.requests = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                length = 0
                while line.strip():
                    name, _, value = line.lower().partition(b":")
                    length = int(value) if name == b"content-length" else length
                    line = await reader.readline()
                await reader.readexactly(length)
                self.requests += 1
                head = b"HTTP/1.1 307 Moved\r\ncontent-length: 0\r\nlocation: "
                writer.write(head + self.location + b"\r\n\r\n")
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@pytest.fixture
async def redirector() -> AsyncIterator[Redirector]:
    redirector = Redirector()
    server = await asyncio.start_server(redirector.serve, ALLOWED, 0)
    redirector.port = server.sockets[0].getsockname()[1]
    async with server:
        yield redirector


def locations(port: int) -> list[str]:
    """Return the URLs that are valid in a header without encoding."""
    return [url for url in inward_urls.urls(port) if not {"\r", "\n", "\0"} & set(url)]


async def test_a_redirect_to_an_internal_address_is_not_followed(
    sink: LoopbackServer, redirector: Redirector, send: Request
) -> None:
    # Every host is allowed, but only the address of the redirector.
    urls = locations(sink.port)
    start = f"http://{ALLOWED}:{redirector.port}/"
    policy = UrlPolicy(
        hosts=inward_urls.allowed_hosts([start, *urls]), private=[ipaddress.ip_network(ALLOWED)]
    )
    for number, url in enumerate(urls, 1):
        redirector.location = url.encode()
        try:
            answer = await send(policy, None, start)
        except FAILURES:
            pass
        else:
            assert getattr(answer, "status", None) == 307, url  # returned, not followed
        assert redirector.requests >= number
    assert sink.connections == 0


INSIDE = (
    *("127.0.0.1", "127.255.255.254", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1"),
    *("100.64.0.1", "169.254.169.254", "168.63.129.16", "224.0.0.1", "255.255.255.255"),
    *("::", "::1", "::ffff:127.0.0.1", "::ffff:10.0.0.1", "fe80::1", "fc00::1", "ff02::1"),
    *("64:ff9b::7f00:1", "2002:7f00:1::", "2001:0:7f00:1::", "2001:db8::1", "fd00:ec2::254"),
)


async def test_a_redirect_to_a_name_that_moves_inside_is_not_followed(
    sink: LoopbackServer, redirector: Redirector, send: Request
) -> None:
    # The name is the redirector's at first, and then an address inside, alone or beside it.
    names: dict[str, Sequence[str]] = {"start.example": [ALLOWED]}

    async def move(host: str, port: int) -> Sequence[str]:
        return names[host]

    policy = UrlPolicy(
        hosts=["start.example:*", "moves.example:*"], private=[ipaddress.ip_network(ALLOWED)]
    )
    redirector.location = f"http://moves.example:{sink.port}/".encode()
    for address in INSIDE:
        for addresses in ([address], [ALLOWED, address], [address, ALLOWED]):
            names["moves.example"] = addresses
            seen = redirector.requests
            with suppress(*FAILURES):
                answer = await send(policy, move, f"http://start.example:{redirector.port}/")
                assert getattr(answer, "status", None) == 307  # returned, not followed
            assert redirector.requests > seen
    assert sink.connections == 0


async def test_webhooks_do_not_follow_redirects(
    sink: LoopbackServer, redirector: Redirector
) -> None:
    hook = f"http://{ALLOWED}:{redirector.port}/hook"
    secret = base64.b64encode(b"s" * 32)
    fetcher = webhook_fetcher([WebhookEndpoint(name="a", url=hook, secrets=[secret])], Settings())
    for url in locations(sink.port):
        redirector.location = url.encode()
        answer = await fetcher.fetch(hook, method="POST", content=b"{}")
        assert answer.status == 307
    assert sink.connections == 0


async def test_an_operator_cannot_send_webhooks_to_cloud_metadata(
    sink: LoopbackServer,
) -> None:
    metadata = [url for url in inward_urls.urls(sink.port) if "169.254" in url or "a9fe" in url]
    assert len(metadata) >= 15
    for url in metadata:
        try:
            policy = operator_policy([url])
        except FetchRefused:
            continue
        await assert_fails(post, policy, url)
