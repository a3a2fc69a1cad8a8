"""No way out of this server connects to anything inside, whatever a URL says (inward_urls.py)."""

from __future__ import annotations

import asyncio
import base64
import ipaddress
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence

import httpx
import pytest
from tests import inward_urls
from tests.inward_urls import LoopbackServer

from antiphon.adapters.fetching import GuardedPools, HttpFetcher, NoFetcher, Resolve, UrlPolicy
from antiphon.adapters.tool_servers.mcp import McpServers
from antiphon.adapters.web.page_reader import PageReader
from antiphon.adapters.web.search_service_web import SearchServiceWeb
from antiphon.adapters.web.search_services import SearxngService
from antiphon.application.resources.webhooks import WebhookEndpoint
from antiphon.domain.errors import FetchError, FetchRefused, ToolServerError, WebError
from antiphon.domain.tools import McpTool
from antiphon.entrypoints.container import webhook_fetcher
from antiphon.entrypoints.wiring.webhooks import operator_policy

TRUST = httpx.create_ssl_context(trust_env=False)  # once: it takes a while
ALLOWED = "127.0.0.2"
"""An address that a test's guard allows, as if it were public; the sink is not there."""
LIMIT_S = 2.0
FAILURES = (FetchError, ToolServerError, WebError)

Reach = Callable[[UrlPolicy, Resolve | None, str], Awaitable[object]]
"""Ask for a URL under a guard; what stands between is the adapter's."""


def fetcher(guard: UrlPolicy, resolve: Resolve | None) -> HttpFetcher:
    named = {} if resolve is None else {"resolve": resolve}
    return HttpFetcher(
        guard, max_bytes=1000, timeout_s=LIMIT_S, max_redirects=3, ssl_context=TRUST, **named
    )


async def fetch(guard: UrlPolicy, resolve: Resolve | None, url: str) -> object:
    return await fetcher(guard, resolve).fetch(url)


async def post(guard: UrlPolicy, resolve: Resolve | None, url: str) -> object:
    return await fetcher(guard, resolve).fetch(url, method="POST", content=b"{}")


async def list_tools(guard: UrlPolicy, resolve: Resolve | None, url: str) -> object:
    named = {} if resolve is None else {"resolve": resolve}
    checked = GuardedPools(guard, ssl_context=TRUST, **named)
    servers = McpServers(checked, timeout_s=LIMIT_S, max_bytes=1000)
    session = servers.session(McpTool(server_label="s", server_url=url, authorization="secret"))
    try:
        return await session.tools()
    finally:
        await session.aclose()


async def read_page(guard: UrlPolicy, resolve: Resolve | None, url: str) -> object:
    async def no_pdf(content: bytes) -> str:
        raise AssertionError("nothing was to be read")

    web = SearchServiceWeb(
        SearxngService("http://127.0.0.1:1/"),
        PageReader(no_pdf),
        service_fetcher=NoFetcher(),
        page_fetcher=fetcher(guard, resolve),
        most=1,
        timeout_s=LIMIT_S,
    )
    return await web.read(url)


WAYS_OUT: Mapping[str, Reach] = {
    "pictures and files": fetch,
    "webhooks": post,
    "MCP servers": list_tools,
    "pages of the web": read_page,
}
"""A way out that is new gets a row here."""


@pytest.fixture
def sink() -> Iterator[LoopbackServer]:
    with inward_urls.sink() as listening:
        yield listening


@pytest.fixture(params=WAYS_OUT)
def reach(request: pytest.FixtureRequest) -> Reach:
    return WAYS_OUT[request.param]


async def fails(
    reach: Reach, guard: UrlPolicy, url: str, *, resolve: Resolve | None = None
) -> None:
    with pytest.raises(FAILURES) as raised:
        await reach(guard, resolve, url)
    # Nothing of the network behind this server.
    for secret in ("127.", "10.", "169.", "refused", "Errno", "resolve"):
        assert secret not in str(raised.value), url


def names(**known: Sequence[str]) -> Resolve:
    async def resolve(host: str, port: int) -> Sequence[str]:
        if host not in known:
            raise OSError("no such name")
        return known[host]

    return resolve


async def test_what_means_something_inside_is_not_connected_to(
    sink: LoopbackServer, reach: Reach
) -> None:
    urls = inward_urls.urls(sink.port)
    assert len(set(urls)) >= 200
    for_the_web = [url.replace(f":{sink.port}", "") for url in urls]
    for guard, asked in (
        (UrlPolicy(hosts=inward_urls.allowed_hosts(urls)), urls),  # the address alone decides
        (UrlPolicy(), for_the_web),
        (UrlPolicy(), [url.replace("http:", "https:", 1) for url in for_the_web]),
    ):
        for url in asked:
            await fails(reach, guard, url)
    assert sink.connections == 0


async def test_a_url_that_is_not_plain_http_is_not_even_looked_up(sink: LoopbackServer) -> None:
    async def looked_up(host: str, port: int) -> Sequence[str]:
        raise AssertionError(f"{host!r} was looked up")

    guard = UrlPolicy(hosts=inward_urls.allowed_hosts(inward_urls.urls(sink.port)))
    for url in inward_urls.NO_PLAIN_URLS:
        with pytest.raises(FetchRefused):
            await fetch(guard, looked_up, url.replace("{port}", str(sink.port)))


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
async def test_a_name_that_means_something_inside_is_not_connected_to(
    sink: LoopbackServer, reach: Reach, addresses: list[str]
) -> None:
    guard = UrlPolicy(hosts=[f"inward.example:{sink.port}"])
    resolve = names(**{"inward.example": addresses})
    await fails(reach, guard, f"http://inward.example:{sink.port}/", resolve=resolve)
    assert sink.connections == 0


async def test_a_name_that_moves_is_looked_up_once_a_connection(
    sink: LoopbackServer, reach: Reach
) -> None:
    looks: list[str] = []

    async def rebinding(host: str, port: int) -> Sequence[str]:
        # What is checked first is allowed, and nobody answers there; all later ones are inside.
        looks.append(host)
        return [ALLOWED] if len(looks) == 1 else ["127.0.0.1"]

    guard = UrlPolicy(hosts=[f"moves.example:{sink.port}"], private=[ipaddress.ip_network(ALLOWED)])
    url = f"http://moves.example:{sink.port}/"
    for _ in range(2):
        await fails(reach, guard, url, resolve=rebinding)
    assert len(looks) == 2
    assert sink.connections == 0


# --- redirects ------------------------------------------------------------------------------------


class Redirector:
    """Answers each request with a redirect to the URL that is set."""

    def __init__(self) -> None:
        self.location = b""
        self.port = 0
        self.asked = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while line := await reader.readline():
                length = 0
                while line.strip():
                    name, _, value = line.lower().partition(b":")
                    length = int(value) if name == b"content-length" else length
                    line = await reader.readline()
                await reader.readexactly(length)
                self.asked += 1
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
    """Return the URLs that fit into a header as they are."""
    return [url for url in inward_urls.urls(port) if not {"\r", "\n", "\0"} & set(url)]


async def test_a_redirect_to_something_inside_is_not_followed(
    sink: LoopbackServer, redirector: Redirector, reach: Reach
) -> None:
    # Every host may be asked, but only the redirecting one's address is allowed.
    urls = locations(sink.port)
    begin = f"http://{ALLOWED}:{redirector.port}/"
    guard = UrlPolicy(
        hosts=inward_urls.allowed_hosts([begin, *urls]), private=[ipaddress.ip_network(ALLOWED)]
    )
    for number, url in enumerate(urls, 1):
        redirector.location = url.encode()
        try:
            answer = await reach(guard, None, begin)
        except FAILURES:
            pass
        else:
            assert getattr(answer, "status", None) == 307, url  # shown, not followed
        assert redirector.asked >= number
    assert sink.connections == 0


async def test_webhooks_go_where_the_settings_say_and_no_further(
    sink: LoopbackServer, redirector: Redirector
) -> None:
    hook = f"http://{ALLOWED}:{redirector.port}/hook"
    secret = base64.b64encode(b"s" * 32)
    sending = webhook_fetcher([WebhookEndpoint(name="a", url=hook, secrets=[secret])])
    for url in locations(sink.port):
        redirector.location = url.encode()
        answer = await sending.fetch(hook, method="POST", content=b"{}")
        assert answer.status == 307
    assert sink.connections == 0


async def test_not_even_an_operator_sends_webhooks_to_a_clouds_metadata(
    sink: LoopbackServer,
) -> None:
    metadata = [url for url in inward_urls.urls(sink.port) if "169.254" in url or "a9fe" in url]
    assert len(metadata) >= 15
    for url in metadata:
        try:
            guard = operator_policy([url])
        except FetchRefused:
            continue
        await fails(post, guard, url)
