"""Servers whose certificates a private authority signed, and those that ask for ours: for each kind
of outgoing connection."""

from __future__ import annotations

import http.server
import ipaddress
import json
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from tests.security.support.certificates import write_certificate

from antiphon.adapters.embeddings import HttpEmbeddings
from antiphon.adapters.fetching import GuardedPools, HttpFetcher
from antiphon.adapters.outgoing.egress import ClientCertificate, Egress
from antiphon.adapters.tool_servers.mcp import UrlServer
from antiphon.adapters.upstreams.client import UpstreamClient
from antiphon.adapters.upstreams.images_api import HttpImageGenerator
from antiphon.adapters.upstreams.options import UpstreamOptions
from antiphon.adapters.url_policy import UrlPolicy
from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.settings import Settings
from antiphon.entrypoints.settings.outgoing import Outgoing
from antiphon.entrypoints.wiring.fetching import egress
from antiphon.testing.images import an_image_request, make_images

LOOPBACK = UrlPolicy(hosts=["127.0.0.1:*"], private=[ipaddress.ip_network("127.0.0.1")])
UNTRUSTED = "certificate is not accepted"


class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *_: Any) -> None:
        pass

    def do_GET(self) -> None:
        self._answer(200, {"seen": True})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["content-length"]))
        if self.path.endswith("/embeddings"):
            self._answer(200, {"data": [{"index": 0, "embedding": [1.0, 0.0]}]})
        elif self.path.endswith("/images/generations"):
            self._answer(200, {"data": [{"b64_json": "aGk="}]})
        else:
            self._answer(418, {})

    def _answer(self, status: int, body: Any) -> None:
        content = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: Any) -> None:
        pass  # clients leave when they do not accept the certificate


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The certificate of a server at 127.0.0.1, which is its own authority, and its key."""
    name = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    is_authority = x509.BasicConstraints(ca=True, path_length=None)
    extensions = [(name, False), (is_authority, True)]
    return write_certificate(tmp_path_factory.mktemp("tls"), "here", extensions)


@pytest.fixture(scope="module")
def url(authority: tuple[Path, Path]) -> Iterator[str]:
    yield from serve(authority)


@pytest.fixture(scope="module")
def careful_url(authority: tuple[Path, Path]) -> Iterator[str]:
    """The URL of a server that asks who calls it."""
    yield from serve(authority, asks=True)


def serve(authority: tuple[Path, Path], *, asks: bool = False) -> Iterator[str]:
    server = Server(("127.0.0.1", 0), Handler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*authority)
    if asks:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority[0])
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield f"https://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


async def fetch(url: str, certificate: ClientCertificate | None = None) -> None:
    egress = Egress(certificate=certificate)
    fetcher = HttpFetcher(LOOPBACK, max_bytes=1000, timeout_s=10, max_redirects=0, egress=egress)
    assert (await fetcher.fetch(url)).status == 200


async def list_tools(url: str, certificate: ClientCertificate | None = None) -> None:
    pools = GuardedPools(LOOPBACK, egress=Egress(certificate=certificate))
    server = UrlServer("s", url=url, headers={}, pools=pools, timeout_s=10, max_bytes=1000)
    async with aclosing(server.session()) as session:
        try:
            await session.tools()
        except Exception as error:
            if "418" not in str(error):
                raise


async def ask_upstream(url: str, certificate: ClientCertificate | None = None) -> None:
    options = UpstreamOptions()
    if certificate is not None:
        cert, key = str(certificate.cert), str(certificate.key)
        options = UpstreamOptions(client_cert=cert, client_key=key)
    async with aclosing(UpstreamClient(url, options)) as client:
        await client.start()
        assert (await client.get("/models", timeout_s=10)).json() == {"seen": True}


async def embed(url: str, certificate: ClientCertificate | None = None) -> None:
    async with aclosing(HttpEmbeddings(url, model="m", certificate=certificate)) as embeddings:
        await embeddings.embed(["hi"])


async def draw(url: str, certificate: ClientCertificate | None = None) -> None:
    pools = GuardedPools(LOOPBACK, egress=Egress(certificate=certificate))
    generator = HttpImageGenerator(url, model="m", pools=pools, max_bytes=1000)
    [image] = await make_images(generator, an_image_request())
    assert image.content == b"hi"


Connect = Callable[..., Awaitable[None]]
KINDS = [fetch, list_tools, ask_upstream, embed, draw]


@pytest.mark.parametrize("connect", KINDS)
async def test_a_private_authority_is_trusted_if_the_usual_variable_names_it(
    url: str, authority: tuple[Path, Path], connect: Connect, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(authority[0]))
    await connect(url)


@pytest.mark.parametrize("connect", KINDS)
async def test_a_certificate_that_is_not_trusted_is_named_in_the_log_or_the_message(
    url: str, connect: Connect, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(Exception) as caught:  # noqa: PT011
        await connect(url)
    assert UNTRUSTED in f"{caught.value} {caplog.text}"


@pytest.mark.parametrize("connect", KINDS)
async def test_a_server_that_asks_who_calls_it_is_shown_our_certificate(
    careful_url: str,
    authority: tuple[Path, Path],
    connect: Connect,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cert, key = authority
    monkeypatch.setenv("SSL_CERT_FILE", str(cert))
    await connect(careful_url, ClientCertificate(cert=cert, key=key))
    with pytest.raises(Exception):  # noqa: B017, PT011 - each kind has its own
        await connect(careful_url)


def test_a_certificate_that_cannot_be_used_is_named_at_the_start(
    authority: tuple[Path, Path], tmp_path: Path
) -> None:
    cert, key = authority
    missing = tmp_path / "no.pem"
    settings = Settings(outgoing=Outgoing(cert=cert, key=missing))
    with pytest.raises(SettingsError, match=r"no\.pem.*cannot be used: No such file"):
        egress(settings)
    with pytest.raises(SettingsError, match="belong together"):
        egress(Settings(outgoing=Outgoing(cert=cert)))
    with pytest.raises(SettingsError, match="without outgoing.proxy"):
        egress(Settings(outgoing=Outgoing(no_proxy=("a",))))
    found = egress(Settings(outgoing=Outgoing(cert=cert, key=key)))
    assert found.certificate is not None
    assert found.without_certificate.certificate is None
