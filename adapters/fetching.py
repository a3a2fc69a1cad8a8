"""The guarded HTTP client: it connects only to addresses that it has checked.

    _Dialer       resolves a name, checks all its addresses, and connects to one of them
    GuardedPools  connection pools that connect only through a _Dialer
    HttpFetcher   one exchange with its redirects, each checked again, with limits of size and time
    FairNames     resolves names in threads that tenants share fairly

The check is part of making the connection: no other parser reads the URL again, and the name is not
resolved a second time, which could return another address (DNS rebinding). Clients get the same
message for every failure, so that they learn nothing about the network behind this server.
"""

from __future__ import annotations

import asyncio
import logging
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
from contextlib import aclosing, asynccontextmanager
from functools import partial
from typing import Any, NamedTuple

import httpcore
import httpx

from antiphon.adapters.outgoing.connections import BoundedBackend, cause_of, client_tls
from antiphon.adapters.outgoing.egress import DIRECT, Egress, Proxy
from antiphon.adapters.outgoing.tunnel import open_tunnel
from antiphon.adapters.url_policy import UrlPolicy, is_public_address
from antiphon.application.ports import Fetcher, FetchResult
from antiphon.application.support.fair_queue import FairQueue, FairQueues
from antiphon.application.support.fair_threads import FairThreads
from antiphon.domain.access.limits import KeyPolicy
from antiphon.domain.errors import FetchFailed, FetchRefused, FetchTooLarge

logger = logging.getLogger("antiphon.fetching")

Resolve = Callable[[str, int], Awaitable[Sequence[str]]]
"""(host, port) -> its addresses as text. Raises: OSError."""
LookUp = Callable[..., Sequence[tuple[Any, ...]]]
"""`socket.getaddrinfo`, or a function like it."""

REDIRECTS = (301, 302, 303, 307, 308)
MAX_CONCURRENT = 64
"""Fetches that run at the same time; others wait, within their own timeout."""

MAX_PER_TENANT = 16
"""Those of one tenant, so that slow sites of a few tenants leave slots to others."""

MAX_PER_HOST = 16
"""Fetches of one host that run at the same time, half of them at most for one tenant."""

MAX_RESOLVING = 32
"""Names that are resolved at the same time; no look-up can be stopped before it ends."""

_FAILED = "The URL could not be fetched."


class FairNames:
    """Resolves names with the functions of the operating system, in threads of its own.

    A name server that does not answer must not block the default executor, nor the look-ups of
    other tenants: a thread stays busy until its look-up ends, even if nobody waits for it any more.
    """

    def __init__(self, look_up: LookUp = socket.getaddrinfo) -> None:
        self._look_up = partial(look_up, type=socket.SOCK_STREAM)
        self._threads = FairThreads(MAX_RESOLVING, per_tenant=MAX_RESOLVING // 4, name="resolving")

    async def resolve(self, tenant: str, host: str, port: int) -> Sequence[str]:
        """Return the addresses of a host as text. Raises: OSError."""
        results = await self._threads.run(tenant, self._look_up, host, port)
        return [str(sockaddr[0]) for *_, sockaddr in results]


class _Dialer(httpcore.AsyncNetworkBackend):
    """Connects only to addresses that the policy allows; TLS still verifies the name.

    `aclose` closes every connection that it has opened.
    """

    def __init__(self, policy: UrlPolicy, resolve: Resolve, proxy: Proxy | None = None) -> None:
        self._policy = policy
        self._proxy = proxy
        self._resolve = resolve
        self._backend = BoundedBackend()
        self._opened: list[httpcore.AsyncNetworkStream] = []

    async def aclose(self) -> None:
        # httpcore does not close a connection that is canceled during its TLS handshake.
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
            raise httpcore.ConnectError(_FAILED) from error
        # All of them: a name with a public and an internal address is an attack, not a mistake.
        if not addresses or not all(map(self._policy.allows_address, addresses)):
            raise httpcore.ConnectError(_FAILED)
        # To the addresses that were checked: a proxy would look up the name again.
        is_proxied = (
            self._proxy is not None
            and self._proxy.is_for(host)
            and all(map(is_public_address, addresses))
        )
        failure: Exception = httpcore.ConnectError(_FAILED)
        for address in dict.fromkeys(addresses):
            try:
                if self._proxy is not None and is_proxied:
                    stream = await open_tunnel(self._backend, self._proxy, address, port, timeout)
                else:
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
        raise httpcore.ConnectError(_FAILED)

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class GuardedPools:
    """Connection pools that enforce a policy. They leave by `egress` alone, and know no other
    proxies or credentials of this machine."""

    def __init__(
        self,
        policy: UrlPolicy,
        *,
        resolve: Resolve | None = None,
        ssl_context: ssl.SSLContext | None = None,
        egress: Egress = DIRECT,
    ) -> None:
        self.policy = policy
        self._egress = egress
        self._resolve = resolve
        self._names = FairNames()
        self._ssl_context = ssl_context

    @asynccontextmanager
    async def pool(
        self, url: httpx.URL, *, tenant: str = ""
    ) -> AsyncGenerator[httpcore.AsyncConnectionPool]:
        """Yield a new pool for URLs of this scheme, and close all its connections afterwards.

        A pool is never kept, so that no connection is reused without a new check. `tenant` shares
        the look-ups of names fairly; without one, the host counts as one.
        """
        resolve = self._resolve or partial(self._names.resolve, tenant or f"host {url.host}")
        if url.scheme == "https" and self._ssl_context is None:
            self._ssl_context = await asyncio.to_thread(client_tls, self._egress.certificate)
        async with (
            aclosing(_Dialer(self.policy, resolve, self._egress.proxy)) as dialer,
            httpcore.AsyncConnectionPool(
                ssl_context=self._ssl_context, network_backend=dialer
            ) as pool,
        ):
            yield pool


class _Exchange(NamedTuple):
    tenant: str
    method: str
    content: bytes
    hosts: Sequence[str]


class HttpFetcher(Fetcher):
    """Fetches URLs by `egress`, without cookies, kept connections or the environment's proxies.

    `timeout_s` limits the whole exchange, including redirects and the wait for a free slot. Tenants
    share the slots fairly, all of them and those of each host. The fetcher reads the body of an
    answer only for the methods in `reads`.
    """

    def __init__(
        self,
        policy: UrlPolicy,
        *,
        max_bytes: int,
        timeout_s: float,
        max_redirects: int,
        reads: Collection[str] = ("GET",),
        resolve: Resolve | None = None,
        ssl_context: ssl.SSLContext | None = None,
        egress: Egress = DIRECT,
    ) -> None:
        self._policy = policy
        self._max_bytes = max_bytes
        self._timeout_s = timeout_s
        self._max_redirects = max_redirects
        self._reads = reads
        self._pools = GuardedPools(policy, resolve=resolve, ssl_context=ssl_context, egress=egress)
        self._slots = FairQueue(MAX_CONCURRENT, per_tenant=MAX_PER_TENANT)
        self._host_slots = FairQueues(MAX_PER_HOST, per_tenant=MAX_PER_HOST // 2)

    async def fetch(
        self,
        url: str,
        *,
        tenant: str = "",
        method: str = "GET",
        headers: Mapping[str, str] | None = None,
        content: bytes = b"",
        hosts: Sequence[str] = (),
    ) -> FetchResult:
        checked_url = self._check(url, hosts)
        try:
            async with asyncio.timeout(self._timeout_s):
                exchange = _Exchange(tenant, method, content, hosts)
                return await self._follow(checked_url, exchange, dict(headers or {}))
        except (httpcore.NetworkError, httpcore.TimeoutException, httpcore.ProtocolError) as error:
            if cause := cause_of(error):
                origin = f"{checked_url.scheme}://{checked_url.netloc.decode()}"
                logger.warning("a URL of %s could not be fetched: %s", origin, cause)
            raise FetchFailed(_FAILED) from error
        except (TimeoutError, OSError, zlib.error, RuntimeError, ValueError) as error:
            # anyio raises RuntimeError for some TLS failures.
            raise FetchFailed(_FAILED) from error

    def _check(self, url: str, hosts: Sequence[str]) -> httpx.URL:
        """Return the URL. Raises: FetchRefused."""
        if not KeyPolicy(hosts=tuple(hosts)).allows_url(url):
            raise FetchRefused("The API key may not have the server connect to this host.")
        return self._policy.check_url(url)

    async def _follow(
        self, url: httpx.URL, exchange: _Exchange, headers: dict[str, str]
    ) -> FetchResult:
        redirects = self._max_redirects if exchange.method == "GET" else 0
        for _ in range(redirects + 1):
            # A fetch that waits for a busy host holds no slot that another host could use.
            async with (
                self._host_slots.slot(url.host, exchange.tenant),
                self._slots.slot(exchange.tenant),
            ):
                result = await self._request(url, exchange, headers)
            location = result.headers.get("location")
            if exchange.method != "GET" or result.status not in REDIRECTS or not location:
                return result
            url, headers = self._follow_redirect(url, location, headers, exchange.hosts)
        raise FetchFailed("The URL redirects too many times.")

    def _follow_redirect(
        self, url: httpx.URL, location: str, headers: dict[str, str], hosts: Sequence[str]
    ) -> tuple[httpx.URL, dict[str, str]]:
        try:
            target = url.join(location)
        except (httpx.InvalidURL, ValueError):
            raise FetchFailed(_FAILED) from None
        if url.scheme == "https" and target.scheme == "http":
            raise FetchFailed(_FAILED)
        try:
            target = self._check(str(target), hosts)
        except FetchRefused:
            raise FetchFailed(_FAILED) from None  # do not reveal the target of the redirect
        is_same_origin = (target.scheme, target.host, target.port) == (
            url.scheme,
            url.host,
            url.port,
        )
        return target, headers if is_same_origin else {}

    async def _request(
        self, url: httpx.URL, exchange: _Exchange, headers: Mapping[str, str]
    ) -> FetchResult:
        method, content = exchange.method, exchange.content
        port = f":{url.port}" if url.port else ""
        host = f"[{url.host}]" if ":" in url.host else url.host
        request_headers = {
            "host": host + port,
            "user-agent": "antiphon",
            "accept": "*/*",
            "accept-encoding": "gzip",
            **{name.lower(): value for name, value in headers.items()},
        }
        if content:
            request_headers["content-length"] = str(len(content))
        target = httpcore.URL(
            scheme=url.raw_scheme, host=url.raw_host, port=url.port, target=url.raw_path
        )
        async with (
            self._pools.pool(url, tenant=exchange.tenant) as pool,
            pool.stream(
                method,
                target,
                headers=[
                    (name.encode(), value.encode("latin-1"))
                    for name, value in request_headers.items()
                ],
                content=content or None,
            ) as answer,
        ):
            answer_headers = {
                name.decode("latin-1").lower(): value.decode("latin-1")
                for name, value in answer.headers
            }
            body = await self._read_body(answer, answer_headers) if method in self._reads else b""
        content_type = answer_headers.get("content-type", "").partition(";")[0].strip().lower()
        return FetchResult(
            status=answer.status,
            url=str(url),
            headers=answer_headers,
            content_type=content_type,
            content=body,
        )

    async def _read_body(self, answer: httpcore.Response, headers: Mapping[str, str]) -> bytes:
        length = headers.get("content-length", "")
        if length.isdecimal() and int(length) > self._max_bytes:
            raise self._too_large_error()
        encoding = headers.get("content-encoding", "identity").strip().lower()
        if encoding not in ("identity", "gzip", "x-gzip", ""):
            raise FetchFailed(_FAILED)
        decompressor = zlib.decompressobj(31) if "gzip" in encoding else None
        body = bytearray()
        async for chunk in answer.aiter_stream():
            # A decompression bomb expands to at most one byte more than allowed.
            remaining_bytes = self._max_bytes - len(body) + 1
            body += decompressor.decompress(chunk, remaining_bytes) if decompressor else chunk
            if len(body) > self._max_bytes:
                raise self._too_large_error()
        if decompressor is not None and not decompressor.eof:
            raise FetchFailed(_FAILED)
        return bytes(body)

    def _too_large_error(self) -> FetchTooLarge:
        return FetchTooLarge(f"The URL's content has more than {self._max_bytes} bytes.")
