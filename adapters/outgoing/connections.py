"""Connections to other servers: what they may cost, whom they trust, and why one failed."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterable
from typing import Any

import httpcore
import httpx

from antiphon.adapters.outgoing.egress import ClientCertificate
from antiphon.adapters.outgoing.tunnel import ProxyRefused

MAX_INTERIM_ANSWERS = 16
STATUS = re.compile(rb"\nHTTP/1\.\d (\d)")
STATUS_BYTES = len(b"\nHTTP/1.1 1")


class BoundedBackend(httpcore.AsyncNetworkBackend):
    """Connects, and bounds what comes before each answer.

    A server may send interim answers (100, 103; RFC 9110, section 15.2), which httpcore reads in a
    loop without an end. The head of the answer itself is bounded by h11.
    """

    def __init__(self) -> None:
        self._backend = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        stream = await self._backend.connect_tcp(host, port, timeout, local_address, socket_options)
        return _BoundedStream(stream)

    async def connect_unix_socket(
        self, path: str, timeout: float | None = None, socket_options: Iterable[Any] | None = None
    ) -> httpcore.AsyncNetworkStream:
        stream = await self._backend.connect_unix_socket(path, timeout, socket_options)
        return _BoundedStream(stream)

    async def sleep(self, seconds: float) -> None:
        await self._backend.sleep(seconds)


class _BoundedStream(httpcore.AsyncNetworkStream):
    def __init__(self, stream: httpcore.AsyncNetworkStream) -> None:
        self._stream = stream
        self._begin()

    def _begin(self) -> None:
        """Expect the answers to a request."""
        self._interim = 0
        self._has_answer = False
        self._tail = b"\n"

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        data = await self._stream.read(max_bytes, timeout)
        if not self._has_answer:
            self._look_for_answer(self._tail + data)
        return data

    def _look_for_answer(self, data: bytes) -> None:
        """Raises: httpcore.RemoteProtocolError."""
        # No header can begin a line so: h11 refuses its name.
        for status in STATUS.finditer(data):
            if status[1] != b"1":
                self._has_answer = True
                return
            self._interim += 1
            if self._interim > MAX_INTERIM_ANSWERS:
                raise httpcore.RemoteProtocolError("The server sent too many interim answers.")
        self._tail = data[1 - STATUS_BYTES :]

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._begin()
        await self._stream.write(buffer, timeout)

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def start_tls(
        self,
        ssl_context: ssl.SSLContext,
        server_hostname: str | None = None,
        timeout: float | None = None,
    ) -> httpcore.AsyncNetworkStream:
        return _BoundedStream(await self._stream.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        return self._stream.get_extra_info(info)


def client_tls(certificate: ClientCertificate | None = None) -> ssl.SSLContext:
    """Return how this server checks whom it calls: by the public certificate authorities, or by
    those of SSL_CERT_FILE or SSL_CERT_DIR, if set. `certificate` is shown to those who ask for one.

    Raises: OSError if the authorities cannot be read; SettingsError for the certificate."""
    context = httpx.create_ssl_context(trust_env=True)
    if certificate is not None:
        certificate.load_into(context)
    return context


_CAUSES: tuple[tuple[type[BaseException], str], ...] = (
    (ConnectionRefusedError, "it refused the connection"),
    (ConnectionError, "it closed the connection"),
    (socket.gaierror, "its name is not known"),
    (TimeoutError, "it did not answer in time"),
)


def cause_of(error: BaseException) -> str:
    """Return the cause of an error, "" if it is not known.

    >>> cause_of(ConnectionRefusedError(111, "Connection refused"))
    'it refused the connection'
    >>> cause_of(ValueError("x"))
    ''
    """
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        if isinstance(each, ProxyRefused):
            return str(each)
        # aiohttp's have the types of these, but only their causes have the reasons.
        if message := getattr(each, "verify_message", ""):
            return f"its certificate is not accepted ({message})"
        if isinstance(each, ssl.SSLError) and (reason := getattr(each, "reason", "")):
            return f"no TLS connection could be made ({reason})"
        for kind, cause in _CAUSES:
            if isinstance(each, kind):
                return cause
        each = each.__cause__ or each.__context__
    return ""
