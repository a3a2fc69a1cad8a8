"""The one outgoing HTTP client: it reaches public addresses, and only those that were checked.

    Guard     which URL and which address may be reached
    _Dialer   resolves a name, checks every address of it, connects to one that was checked
    Checked   connections that are made so, for whoever speaks HTTP
    fetch     one exchange with its redirects, each checked anew, within limits of size and time

The check stands where the connection is made: no other parser reads the URL again, and no second
resolution of the name can give another address (DNS rebinding). What a client is told of a failure
is one sentence for all failures, so that it learns nothing of the network behind this server.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
import ssl
import zlib
from collections.abc import (
    AsyncGenerator,
    Awaitable,
    Callable,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any

import httpcore
import httpx
from msgspec import Struct

from antiphon.application.ports import Fetcher, FetchResult
from antiphon.domain.errors import FetchFailed, FetchRefused, FetchTooLarge

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""(host, port) -> its addresses as text. Raises: OSError."""

DEFAULT_PORTS: Mapping[str, int] = {"http": 80, "https": 443}
PORTS = range(1, 65_536)
REDIRECTS = (301, 302, 303, 307, 308)
MAX_CONCURRENT = 16
"""Fetches that run at the same time; further ones wait, within their own deadline."""

V6_UNICAST = ipaddress.IPv6Network("2000::/3")
"""All that is handed out of IPv6: mapped, NAT64, local, link-local, multicast lie outside of it."""

NOT_PUBLIC: Sequence[Network] = [
    ipaddress.ip_network(text)
    for text in (
        "0.0.0.0/8",  # this host
        "10.0.0.0/8",
        "100.64.0.0/10",  # carrier-grade NAT; one cloud's metadata
        "127.0.0.0/8",
        "168.63.129.16/32",  # a cloud's agent, at a public address
        "169.254.0.0/16",  # link-local; most clouds' metadata
        "172.16.0.0/12",
        "192.0.0.0/24",
        "192.0.2.0/24",
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",
        "198.18.0.0/15",
        "198.51.100.0/24",
        "203.0.113.0/24",
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, and broadcast
        "2001::/23",  # Teredo and other protocols
        "2001:db8::/32",
        "2002::/16",  # 6to4: holds an IPv4 address
        "3fff::/20",
    )
]
"""Written out, because what `ipaddress` calls global differs from one Python to the next."""

_URL = re.compile(r"[!-~]+")  # neither spaces nor control characters
_CANNOT = "The URL could not be fetched."


# Threads of its own: a name server that does not answer must not hold those that others work in.
_resolving = ThreadPoolExecutor(MAX_CONCURRENT, thread_name_prefix="resolving")


async def _resolve(host: str, port: int) -> Sequence[str]:
    look_up = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    found = await asyncio.get_running_loop().run_in_executor(_resolving, look_up)
    return [str(sockaddr[0]) for *_, sockaddr in found]


def read_url(url: str) -> httpx.URL:
    """Return an http(s) URL without credentials, read once and for all. Raises: FetchRefused."""
    if not _URL.fullmatch(url) or "\\" in url:
        raise FetchRefused("The URL holds characters that no URL has.")
    try:
        read = httpx.URL(url)
    except (httpx.InvalidURL, ValueError):
        raise FetchRefused("The URL cannot be read.") from None
    if read.port is not None and read.port not in PORTS:
        raise FetchRefused("The URL cannot be read.")
    if read.scheme not in DEFAULT_PORTS or not read.host:
        raise FetchRefused("Only http and https URLs can be fetched.")
    if read.userinfo:
        raise FetchRefused("The URL must not hold a user name or password.")
    return read


class UrlPolicy(Struct, frozen=True, kw_only=True):
    """What may be reached. `hosts`: `name`, `*.name` or either with `:port`; none is any host.

    `:*` is any port. `private` are networks that may be reached although they are not public.
    """

    hosts: Sequence[str] = ()
    private: Sequence[Network] = ()

    def check_url(self, url: str) -> httpx.URL:
        """Return the URL as `read_url` reads it, if its host may be asked. Raises: FetchRefused."""
        read = read_url(url)
        port = read.port or DEFAULT_PORTS[read.scheme]
        if not self._allows(read.host.rstrip(".").lower(), port):
            raise FetchRefused("This server may not fetch from that host or port.")
        return read

    def allows_address(self, text: str) -> bool:
        """Whether a resolved address may be connected to."""
        try:
            address = ipaddress.ip_address(text)
        except ValueError:  # with a zone: link-local
            return False
        return is_public(address) or any(address in network for network in self.private)

    def _allows(self, host: str, port: int) -> bool:
        if not self.hosts:
            return port in DEFAULT_PORTS.values()
        return any(_fits(host, port, each.lower()) for each in self.hosts)


def _fits(host: str, port: int, allowed: str) -> bool:
    name, colon, wanted = allowed.rpartition(":")
    ports: Sequence[int] = ()
    if not colon or not (wanted.isdecimal() or wanted == "*"):
        name, ports = allowed, tuple(DEFAULT_PORTS.values())
    else:
        ports = (port if wanted == "*" else int(wanted),)
    fits = host.endswith(name[1:]) if name.startswith("*.") else host == name.strip("[]")
    return fits and port in ports


def is_public(address: Address) -> bool:
    """Whether anyone on the Internet could reach this address.

    >>> [is_public(ipaddress.ip_address(a)) for a in ("9.9.9.9", "::ffff:9.9.9.9", "10.1.1.1")]
    [True, False, False]
    """
    if address.version == 6 and address not in V6_UNICAST:
        return False
    return not any(address in network for network in NOT_PUBLIC)


class _Dialer(httpcore.AsyncNetworkBackend):
    """Connects to an address that was checked; TLS still asks for the name's certificate.

    `aclose` closes what was opened, whatever became of it.
    """

    def __init__(self, guard: UrlPolicy, resolve: Resolve) -> None:
        self._guard = guard
        self._resolve = resolve
        self._backend = httpcore.AnyIOBackend()
        self._opened: list[httpcore.AsyncNetworkStream] = []

    async def aclose(self) -> None:
        # httpcore leaves a connection open that is given up in the middle of its TLS handshake.
        for stream in self._opened:
            await stream.aclose()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        try:
            addresses = await self._resolve(host, port)
        except (OSError, UnicodeError) as error:
            raise httpcore.ConnectError(_CANNOT) from error
        # All of them: a name with one public and one internal address is nobody's mistake.
        if not addresses or not all(map(self._guard.allows_address, addresses)):
            raise httpcore.ConnectError(_CANNOT)
        failure: Exception = httpcore.ConnectError(_CANNOT)
        for address in dict.fromkeys(addresses):
            try:
                stream = await self._backend.connect_tcp(
                    address, port, timeout, local_address, socket_options
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
            else:
                self._opened.append(stream)
                return stream
        raise failure

    async def connect_unix_socket(self, *_: Any, **__: Any) -> httpcore.AsyncNetworkStream:
        raise httpcore.ConnectError(_CANNOT)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class GuardedPools:
    """Pools of connections to what the guard allows; no proxy, no credentials of this machine's."""

    def __init__(
        self,
        guard: UrlPolicy,
        *,
        resolve: Resolve = _resolve,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self.guard = guard
        self._resolve = resolve
        self._ssl_context = ssl_context

    @asynccontextmanager
    async def pool(self, url: httpx.URL) -> AsyncGenerator[httpcore.AsyncConnectionPool]:
        """Yield a new pool, for URLs of this one's scheme, and close all that it opened.

        Of one's own: a connection to what was checked then is not used again later.
        """
        if url.scheme == "https" and self._ssl_context is None:
            self._ssl_context = await asyncio.to_thread(httpx.create_ssl_context, trust_env=False)
        async with (
            aclosing(_Dialer(self.guard, self._resolve)) as dialer,
            httpcore.AsyncConnectionPool(
                ssl_context=self._ssl_context, network_backend=dialer
            ) as pool,
        ):
            yield pool


class HttpFetcher(Fetcher):
    """Reads no proxy and no credentials from the environment, keeps no cookies and no connection.

    `timeout_s` is for the whole exchange, redirects and waiting for a place included. `reads` are
    the methods of whose answers the content is read too.
    """

    def __init__(
        self,
        guard: UrlPolicy,
        *,
        max_bytes: int,
        timeout_s: float,
        max_redirects: int,
        reads: Collection[str] = ("GET",),
        resolve: Resolve = _resolve,
        ssl_context: ssl.SSLContext | None = None,
    ) -> None:
        self._guard = guard
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._max_redirects = max_redirects
        self._reads = reads
        self._checked = GuardedPools(guard, resolve=resolve, ssl_context=ssl_context)
        self._places = asyncio.Semaphore(MAX_CONCURRENT)

    async def fetch(
        self,
        url: str,
        *,
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
    ) -> FetchResult:
        read = self._guard.check_url(url)
        try:
            async with asyncio.timeout(self._timeout_s), self._places:
                return await self._exchange(read, method, dict(headers or {}), content)
        except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as error:
            raise FetchFailed(_CANNOT) from error
        except (TimeoutError, OSError, zlib.error, RuntimeError, ValueError) as error:
            # RuntimeError: what anyio makes of a TLS failure that it cannot name.
            raise FetchFailed(_CANNOT) from error

    async def _exchange(
        self, url: httpx.URL, method: str, headers: dict[str, str], content: bytes
    ) -> FetchResult:
        redirects = self._max_redirects if method == "GET" else 0
        for _ in range(redirects + 1):
            fetched = await self._once(url, method, headers, content)
            location = fetched.headers.get("location")
            if method != "GET" or fetched.status not in REDIRECTS or not location:
                return fetched
            url, headers = self._next(url, location, headers)
        raise FetchFailed("The URL redirects too often.")

    def _next(
        self, url: httpx.URL, location: str, headers: dict[str, str]
    ) -> tuple[httpx.URL, dict[str, str]]:
        try:
            target = url.join(location)
        except (httpx.InvalidURL, ValueError):
            raise FetchFailed(_CANNOT) from None
        if url.scheme == "https" and target.scheme == "http":
            raise FetchFailed(_CANNOT)
        try:
            target = self._guard.check_url(str(target))
        except FetchRefused:
            raise FetchFailed(_CANNOT) from None  # what it redirects to is not the client's to know
        same = (target.scheme, target.host, target.port) == (url.scheme, url.host, url.port)
        return target, headers if same else {}

    async def _once(
        self, url: httpx.URL, method: str, headers: Mapping[str, str], content: bytes
    ) -> FetchResult:
        port = f":{url.port}" if url.port else ""
        host = f"[{url.host}]" if ":" in url.host else url.host
        sent = {
            "host": host + port,
            "user-agent": "antiphon",
            "accept": "*/*",
            "accept-encoding": "gzip",
            **{name.lower(): value for name, value in headers.items()},
        }
        if content:
            sent["content-length"] = str(len(content))
        target = httpcore.URL(
            scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
        )
        async with (
            self._checked.pool(url) as pool,
            pool.stream(
                method,
                target,
                headers=[(name.encode(), value.encode("latin-1")) for name, value in sent.items()],
                content=content or None,
            ) as answer,
        ):
            given = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in answer.headers}
            body = await self._body(answer, given) if method in self._reads else b""
        kind = given.get("content-type", "").partition(";")[0].strip().lower()
        return FetchResult(
            status=answer.status, url=str(url), headers=given, content_type=kind, content=body
        )

    async def _body(self, answer: httpcore.Response, headers: Mapping[str, str]) -> bytes:
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._max_bytes:
            raise self._too_large()
        encoding = headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("identity", "gzip", "x-gzip", ""):
            raise FetchFailed(_CANNOT)
        unpacker = zlib.decompressobj(31) if "gzip" in encoding else None
        body = bytearray()
        async for chunk in answer.aiter_stream():
            # At most one byte more than allowed is ever unpacked: a bomb costs no more than that.
            room = self._max_bytes - len(body) + 1
            body += unpacker.decompress(chunk, room) if unpacker else chunk
            if len(body) > self._max_bytes:
                raise self._too_large()
        if unpacker is not None and not unpacker.eof:
            raise FetchFailed(_CANNOT)
        return bytes(body)

    def _too_large(self) -> FetchTooLarge:
        return FetchTooLarge(f"The URL's content has more than {self._max_bytes} bytes.")


class NoFetcher(Fetcher):
    """What a server has that may not fetch: the default."""

    async def fetch(self, url: str, **_: Any) -> FetchResult:  # noqa: ARG002
        raise FetchRefused(
            "This server fetches no URLs (its operator can allow it with --fetch-urls)."
        )
