"""A proxy of the operator's: public addresses are reached through it, and nothing else is."""

from __future__ import annotations

import asyncio
import http.server
import ipaddress
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import closing
from typing import Any

import pytest

from antiphon.adapters.fetching import HttpFetcher
from antiphon.adapters.outgoing.egress import Egress, Proxy
from antiphon.adapters.url_policy import UrlPolicy
from antiphon.domain.errors import FetchFailed

PUBLIC, INSIDE = "93.184.216.34", "10.1.2.3"


class Tunnels:
    """A proxy that leads every tunnel to one port of this machine, and notes what it is asked."""

    def __init__(self) -> None:
        self.heads: list[str] = []
        self.answer = b"HTTP/1.1 200 Connection established\r\n\r\n"
        self.opens = True
        self.leads_to = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with closing(writer):
            self.heads.append((await reader.readuntil(b"\r\n\r\n")).decode())
            writer.write(self.answer)
            if self.opens:
                far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.leads_to)
                with closing(far_writer):
                    await asyncio.gather(pass_on(reader, far_writer), pass_on(far_reader, writer))


async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with closing(writer):
        while data := await reader.read(4096):
            writer.write(data)


class Site(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        content = f"asked as {self.headers['host']}".encode()
        self.send_response(200)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def site() -> Iterator[int]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Site)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
async def tunnels(site: int) -> AsyncIterator[Tunnels]:
    tunnels = Tunnels()
    tunnels.leads_to = site
    connections: set[asyncio.Task[None]] = set()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(tunnels.serve(reader, writer))
        connections.add(task)
        task.add_done_callback(connections.discard)

    async with await asyncio.start_server(accept, "127.0.0.1", 0) as server:
        tunnels.port = server.sockets[0].getsockname()[1]
        yield tunnels
        await asyncio.gather(*connections, return_exceptions=True)


def fetcher(tunnels: Tunnels, *addresses: str, login: str = "") -> HttpFetcher:
    async def resolve(host: str, port: int) -> Sequence[str]:
        return addresses

    proxy = Proxy(url=f"http://{login}127.0.0.1:{tunnels.port}")
    return HttpFetcher(
        UrlPolicy(hosts=["*.example:*"], private=[ipaddress.ip_network("127.0.0.0/8")]),
        max_bytes=1000,
        timeout_s=10,
        max_redirects=0,
        resolve=resolve,
        egress=Egress(proxy=proxy),
    )


async def test_a_public_address_is_reached_through_the_proxy_by_the_address_that_was_checked(
    tunnels: Tunnels,
) -> None:
    result = await fetcher(tunnels, PUBLIC).fetch("http://www.example/page")
    assert result.content == b"asked as www.example"
    assert tunnels.heads == [f"CONNECT {PUBLIC}:80 HTTP/1.1\r\nHost: {PUBLIC}:80\r\n\r\n"]


@pytest.mark.parametrize("addresses", [(INSIDE,), (PUBLIC, INSIDE), ("169.254.169.254",), ()])
async def test_a_name_that_leads_inside_is_refused_before_the_proxy_hears_of_it(
    tunnels: Tunnels, addresses: tuple[str, ...]
) -> None:
    with pytest.raises(FetchFailed):
        await fetcher(tunnels, *addresses).fetch("http://www.example/page")
    assert tunnels.heads == []


async def test_a_private_address_that_is_allowed_is_reached_directly(
    tunnels: Tunnels, site: int
) -> None:
    result = await fetcher(tunnels, "127.0.0.1").fetch(f"http://www.example:{site}/page")
    assert result.content == f"asked as www.example:{site}".encode()
    assert tunnels.heads == []


async def test_the_proxy_gets_its_password_and_the_site_does_not(tunnels: Tunnels) -> None:
    result = await fetcher(tunnels, PUBLIC, login="me:s%20t@").fetch("http://www.example/page")
    assert result.status == 200
    assert "Proxy-Authorization: Basic bWU6cyB0\r\n" in tunnels.heads[0]


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (b"HTTP/1.1 407 Login\r\n\r\n", "the proxy answered with status 407"),
        (b"HTTP/1.1 200 OK\r\n\r\nHTTP/1.1 200 OK\r\n\r\n", "sent more than its answer"),
        (b"SSH-2.0 200 \r\n\r\n", "the proxy answered with status"),
    ],
)
async def test_a_proxy_that_opens_no_tunnel_is_named_in_the_log(
    tunnels: Tunnels, answer: bytes, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    tunnels.answer, tunnels.opens = answer, False
    with pytest.raises(FetchFailed) as caught:
        await fetcher(tunnels, PUBLIC, login="me:secret@").fetch("http://www.example/page")
    assert str(caught.value) == "The URL could not be fetched."
    assert reason in caplog.text
    assert "secret" not in caplog.text
