"""Requests from one server of a store to another one, each with a voucher.

They are those of clients, which `relay.py` passes on, and questions about containers.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any

import httpx
import msgspec
from msgspec import Struct

from antiphon.application.ports import OtherServers
from antiphon.application.resources.server_addresses import server_tag_in
from antiphon.application.support.threads import run_in_thread
from antiphon.domain.access.callers import Caller
from antiphon.domain.errors import ServerUnreachable
from antiphon.domain.json import Json
from antiphon.entrypoints.http.relay.relayed_requests import (
    CONTAINERS,
    HEADER,
    STOPPING_HEADER,
    Voucher,
    Vouchers,
    digest_of,
    is_container_id,
)
from antiphon.entrypoints.process.sockets import socket_path

logger = logging.getLogger("antiphon.servers")

Headers = Sequence[tuple[bytes, bytes]]

CONNECT_S = 3.0
QUESTION_S = 5.0
"""How long another server may take to say which containers it has."""

KEPT_S = 2.0
"""How long an idle connection is kept: less than a server keeps it, which would end it in use."""

PAGE = 100

URL_OF_WORKER = "http://localhost"
"""It is reached at its socket, but HTTP wants a name."""

KEEPALIVE_OPTIONS = ("TCP_KEEPIDLE", 20), ("TCP_KEEPINTVL", 10), ("TCP_KEEPCNT", 3)
"""A response may be silent for long, so its time has no limit. But within a minute, the operating
system notices that the other machine is gone."""

_decode = msgspec.json.Decoder(dict[str, Any]).decode


class ServerRequest(Struct, frozen=True, kw_only=True):
    """A request to the server with the tag `receiver`; `target` is its path with the query."""

    method: str
    target: str
    caller: Caller
    receiver: str
    headers: Headers = ()
    body: bytes = b""
    silence_s: float | None = None


class ServerClient(OtherServers):
    """Sends requests to other servers; `vouchers` are those of this one.

    `others` returns their URLs by their tags. Raises: StoreError.
    """

    def __init__(
        self, others: Callable[[], Awaitable[Mapping[str, str]]], vouchers: Vouchers
    ) -> None:
        self._others = others
        self._vouchers = vouchers
        self._network = _client(socket_options=_socket_options())
        self._workers: dict[str, httpx.AsyncClient] = {}
        """By their URLs."""

    async def aclose(self) -> None:
        for client in (self._network, *self._workers.values()):
            await client.aclose()

    async def knows(self, tag: str) -> bool:
        """Whether the tag is that of another live server. Raises: StoreError."""
        return tag in await self._others()

    async def open(self, request: ServerRequest) -> httpx.Response:
        """Return the answer, whose body is still to be read.

        Raises: ServerUnreachable, also if the server has no address anymore; StoreError.
        """
        client, url = await self._find_client(request.receiver)
        digest = await run_in_thread(len(request.body), digest_of, request.body)
        outgoing = client.build_request(
            request.method,
            httpx.URL(url).copy_with(raw_path=request.target.encode("latin-1")),
            content=_once(request.body) if request.body else None,
            headers=self._headers_of(request, digest),
            timeout=httpx.Timeout(request.silence_s, connect=CONNECT_S),
        )
        del request  # a large body need not be kept until the answer is complete
        try:
            return await client.send(outgoing, stream=True)
        except httpx.HTTPError:
            raise _unreachable() from None

    async def find(self, tenant: str, container_id: str) -> str | None:
        tag = server_tag_in(container_id)
        if not is_container_id(container_id) or not await self.knows(tag):
            return None
        found = await self._ask(tag, tenant, f"{CONTAINERS}/{container_id}")
        # A server that stops starts nothing more, and its containers go with it.
        return None if found is None or STOPPING_HEADER in found.headers else tag

    async def containers(self, tenant: str) -> Sequence[Json]:
        tags = await self._others()
        lists = await asyncio.gather(*(self._containers_of(tag, tenant) for tag in tags))
        return [container for each in lists for container in each]

    async def _containers_of(self, tag: str, tenant: str) -> Sequence[Json]:
        found: list[Json] = []
        after = ""
        try:
            async with asyncio.timeout(QUESTION_S):
                while True:
                    target = f"{CONTAINERS}?order=asc&limit={PAGE}{after}"
                    answer = await self._ask(tag, tenant, target)
                    if answer is None:
                        return found
                    page = _decode(answer.content)
                    found += page["data"]
                    if not page["has_more"]:
                        return found
                    after = f"&after={page['last_id']}"
        except (ServerUnreachable, TimeoutError):
            logger.warning("the server %s does not answer: its containers are not listed", tag)
            return found

    async def _ask(self, tag: str, tenant: str, target: str) -> httpx.Response | None:
        """Return the whole answer, or None if it is a 404. Raises: ServerUnreachable."""
        question = ServerRequest(
            method="GET",
            target=target,
            caller=Caller(tenant=tenant),
            receiver=tag,
            silence_s=QUESTION_S,
        )
        answer = await self.open(question)
        try:
            await answer.aread()
        except httpx.HTTPError:
            raise _unreachable() from None
        finally:
            await answer.aclose()
        if answer.status_code == 404:
            return None
        if answer.status_code != 200:
            raise _unreachable()
        return answer

    async def _find_client(self, tag: str) -> tuple[httpx.AsyncClient, str]:
        """Return what sends requests to the server with this tag, and the URL to use with it.

        Raises: ServerUnreachable, StoreError.
        """
        urls = await self._others()
        if (url := urls.get(tag)) is None:
            raise _unreachable()
        path = socket_path(url)
        if path is None:
            return self._network, url
        client = self._workers.get(url)
        if client is None:
            client = self._workers[url] = _client(uds=path)
            for gone in self._workers.keys() - urls.values():
                await self._workers.pop(gone).aclose()
        return client, URL_OF_WORKER

    def _headers_of(self, request: ServerRequest, digest: str) -> list[tuple[bytes, bytes]]:
        voucher = Voucher(
            method=request.method,
            target=request.target,
            digest=digest,
            caller=request.caller,
            receiver=request.receiver,
            signed_at=time.time(),
            nonce=secrets.token_hex(16),
        )
        return [
            *request.headers,
            (b"accept-encoding", b"identity"),
            (b"content-length", str(len(request.body)).encode()),
            (HEADER.encode(), self._vouchers.encode(voucher).encode()),
        ]


def _client(**options: Any) -> httpx.AsyncClient:
    # Proxies of the environment are for the world outside, and redirects for nobody.
    limits = httpx.Limits(keepalive_expiry=KEPT_S)
    transport = httpx.AsyncHTTPTransport(limits=limits, trust_env=False, **options)
    return httpx.AsyncClient(transport=transport, trust_env=False)


async def _once(body: bytes) -> AsyncIterator[bytes]:
    yield body


def _socket_options() -> list[tuple[int, int, int]]:
    options = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)]
    for name, value in KEEPALIVE_OPTIONS:
        if (option := getattr(socket, name, None)) is not None:  # not on every system
            options.append((socket.IPPROTO_TCP, option, value))
    return options


def _unreachable() -> ServerUnreachable:
    return ServerUnreachable(
        "The server that has this container does not answer. If it has stopped, the container and "
        "its files are lost.",
        param="container_id",
        code="container_unreachable",
    )
