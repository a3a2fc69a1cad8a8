"""TLS: the server's certificate, read again when it changes, and handshakes that count.

uvicorn learns of a connection only after its handshake. Until then it would cost a client nothing,
and no limit would hold.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from antiphon.adapters.file_state import state_of
from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.http.wire.connections import Connections

logger = logging.getLogger("antiphon.tls")

HANDSHAKE_S = 10.0
SHUTDOWN_S = 1.0
"""Seconds for a client to answer that the connection is closed."""
CHECK_INTERVAL_S = 5.0
"""Seconds between two looks at the files of the certificate."""


class Certificate:
    """A certificate with its key. New connections use the newest pair that fits together.

    Raises: SettingsError if the pair cannot be used at the start.
    """

    def __init__(self, cert: Path, *, key: Path) -> None:
        self._files = (cert, key)
        self._states = [*map(state_of, self._files)]
        try:
            self.context = self._load()
        except OSError as exc:
            reason = self._reason_of(exc)
            raise SettingsError(f"{self._describe()} cannot be used: {reason}.") from None

    async def watch_forever(self, interval_s: float = CHECK_INTERVAL_S) -> None:
        """Read the files again whenever they change, until cancelled."""
        while True:
            await asyncio.sleep(interval_s)
            await asyncio.to_thread(self.reload_if_changed)

    def reload_if_changed(self) -> None:
        """Use the files if they changed and fit together; otherwise keep the pair in use."""
        states = [*map(state_of, self._files)]
        if states == self._states:
            return
        self._states = states
        problem: OSError | None = None
        try:
            self.context = self._load()
        except OSError as exc:
            problem = exc
        if problem is None:
            logger.info("read the certificate again")
        else:
            reason = self._reason_of(problem)
            logger.error("%s cannot be used, the old pair stays: %s", self._describe(), reason)

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.set_alpn_protocols(["http/1.1"])
        # An encrypted key would ask for its password at the terminal.
        context.load_cert_chain(*self._files, password="")
        return context

    def _reason_of(self, error: OSError) -> str:
        missing = next((file for file in self._files if not file.exists()), None)
        if missing is not None:
            return f"there is no file {str(missing)!r}"
        if not isinstance(error, ssl.SSLError):
            return str(error.strerror or error)
        if error.reason == "KEY_VALUES_MISMATCH":
            return "the key is that of another certificate"
        return (
            "one of them is not in PEM format, with lines like '-----BEGIN CERTIFICATE-----', or "
            f"the key is encrypted ({error.reason or 'unreadable'})"
        )

    def _describe(self) -> str:
        return f"The certificate {str(self._files[0])!r} with the key {str(self._files[1])!r}"


class TlsProtocol(asyncio.Protocol):
    """A new connection until its handshake is complete. Then the next protocol takes it over."""

    def __init__(
        self,
        make_protocol: Callable[[], asyncio.Protocol],
        certificate: Certificate,
        connections: Connections,
    ) -> None:
        self._make_protocol = make_protocol
        self._certificate = certificate
        self._connections = connections
        self._task: asyncio.Task[None] | None = None
        self._hello = bytearray()

    @classmethod
    def before(
        cls, http: Callable[..., asyncio.Protocol], certificate: Certificate, shared: Connections
    ) -> Callable[..., asyncio.Protocol]:
        """Return what uvicorn calls for each new connection, to serve `http` over TLS."""
        return lambda **options: cls(partial(http, **options), certificate, shared)

    def connection_made(self, transport: Any) -> None:
        if self._connections.add(transport):
            self._task = asyncio.get_running_loop().create_task(self._shake_hands(transport))
        else:
            transport.abort()

    def data_received(self, data: bytes) -> None:
        self._hello += data  # before the handshake has taken the connection over

    async def _shake_hands(self, transport: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        early = _EarlyBytes()
        try:
            handshake = loop.create_task(
                loop.start_tls(
                    transport,
                    early,
                    self._certificate.context,
                    server_side=True,
                    ssl_handshake_timeout=HANDSHAKE_S,
                    ssl_shutdown_timeout=SHUTDOWN_S,
                )
            )
            await asyncio.sleep(0)
            # It has paused reading, and schedules what follows: this comes after it.
            loop.call_soon(self._pass_hello_on, transport)
            tls = await handshake
        except (OSError, RuntimeError) as exc:  # RuntimeError: closed to make room
            logger.debug("a TLS handshake failed: %s", exc)
            transport.abort()
            return
        finally:
            self._connections.remove(transport)
        if tls is None or early.is_lost or tls.is_closing():
            transport.abort()
            return
        protocol = self._make_protocol()
        tls.set_protocol(protocol)
        protocol.connection_made(tls)
        if early.data:
            protocol.data_received(bytes(early.data))

    def _pass_hello_on(self, transport: asyncio.Transport) -> None:
        """Give the handshake the bytes that arrived before it."""
        receiver: Any = transport.get_protocol()
        while self._hello and receiver is not self and not transport.is_closing():
            buffer = receiver.get_buffer(len(self._hello))
            size = min(len(buffer), len(self._hello))
            buffer[:size] = self._hello[:size]
            del self._hello[:size]
            receiver.buffer_updated(size)


class _EarlyBytes(asyncio.Protocol):
    """Bytes that arrive with the end of the handshake, before the next protocol is in place."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.is_lost = False

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, _exc: Exception | None) -> None:
        self.is_lost = True
