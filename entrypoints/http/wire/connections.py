"""All open connections: how many there may be, and which of them make room for new ones.

A connection waits until it has a request to answer: until the head of its first request is
complete, and between two requests. Anyone can open connections, so if there are too many, those
that wait make room, and never those that work. The address with the most waiting connections
loses its oldest one. So nobody can push out those of others, and a proxy, whose clients all share
one address, only loses connections that it opens again.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from msgspec import Struct

logger = logging.getLogger("antiphon.connections")

REPORT_INTERVAL_S = 10.0
"""Seconds between two lines of the log about connections that were refused or closed."""

CHECKS_PER_STALL = 4
"""How often a connection is checked before its client counts as stalled."""

Address = str


class ConnectionLimits(Struct, frozen=True, kw_only=True):
    """The limits of all connections. `write_stall_s` is how long a client may read nothing.

    `max_arrivals` is how many may be accepted and not served yet.
    """

    max_connections: int = 10_000
    max_arrivals: int = 2048
    max_per_address: int | None = None
    write_stall_s: float = 60.0


class _Connection:
    """The state of an open connection."""

    __slots__ = ("address", "is_stalled_since", "transport", "unsent_bytes")

    def __init__(self, transport: asyncio.Transport, address: Address) -> None:
        self.transport = transport
        self.address = address
        self.unsent_bytes = 0
        self.is_stalled_since: float | None = None


class Connections:
    """The open connections of a server, by their transports."""

    def __init__(
        self, limits: ConnectionLimits, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._limits = limits
        self._clock = clock
        self._all: dict[asyncio.Transport, _Connection] = {}
        self._waiting: dict[Address, dict[asyncio.Transport, None]] = {}
        self._per_address: dict[Address, int] = {}
        self._report = _Report(limits, clock)

    @property
    def limits(self) -> ConnectionLimits:
        return self._limits

    def __len__(self) -> int:
        return len(self._all)

    def unsent_bytes(self) -> list[int]:
        """Return how much the client of each connection has not read yet."""
        return [transport.get_write_buffer_size() for transport in self._all]

    def add(self, transport: asyncio.Transport) -> bool:
        """Add a connection that waits, and return True; or return False if there is no room."""
        address = address_of(transport)
        if not self._make_room(address):
            self._report.count_refused()
            return False
        self._all[transport] = _Connection(transport, address)
        self._per_address[address] = self._per_address.get(address, 0) + 1
        self._waiting.setdefault(address, {})[transport] = None
        return True

    def remove(self, transport: asyncio.Transport) -> None:
        """Forget a connection. It may be forgotten already."""
        connection = self._all.pop(transport, None)
        if connection is None:
            return
        self.mark_working(transport, connection)
        self._per_address[connection.address] -= 1
        if not self._per_address[connection.address]:
            del self._per_address[connection.address]

    def mark_working(
        self, transport: asyncio.Transport, connection: _Connection | None = None
    ) -> None:
        """The connection has a request to answer."""
        connection = connection or self._all.get(transport)
        if connection is None:
            return
        waiting = self._waiting.get(connection.address)
        if waiting is not None:
            waiting.pop(transport, None)
            if not waiting:
                del self._waiting[connection.address]

    def mark_waiting(self, transport: asyncio.Transport) -> None:
        """The connection's requests are answered."""
        connection = self._all.get(transport)
        if connection is not None:
            self._waiting.setdefault(connection.address, {})[transport] = None

    def mark_progress(self, transport: asyncio.Transport) -> None:
        """The client has read what was written."""
        connection = self._all.get(transport)
        if connection is not None:
            connection.is_stalled_since = None

    async def abort_stalled_forever(self) -> None:
        """Abort connections whose clients do not read, until cancelled.

        One task looks at all of them now and then, so that a write costs nothing more. It also
        finds connections that are closed on our side, and wait for their last bytes to be read.
        """
        while True:
            await asyncio.sleep(self._limits.write_stall_s / CHECKS_PER_STALL)
            for transport in self._find_stalled():
                if transport in self._all:
                    logger.debug("disconnected a client that did not read")
                    reset(transport)
                await asyncio.sleep(0)  # ending its response takes time

    def _find_stalled(self) -> list[asyncio.Transport]:
        now = self._clock()
        stalled = []
        for connection in self._all.values():
            unsent = connection.transport.get_write_buffer_size()
            if not unsent or unsent < connection.unsent_bytes:
                connection.is_stalled_since = None
            elif connection.is_stalled_since is None:
                connection.is_stalled_since = now
            elif now - connection.is_stalled_since >= self._limits.write_stall_s:
                stalled.append(connection.transport)
            connection.unsent_bytes = unsent
        return stalled

    def _make_room(self, address: Address) -> bool:
        """Return whether one more connection from this address has a place."""
        most = self._limits.max_per_address
        if (
            most is not None
            and address  # a worker of this server has none
            and self._per_address.get(address, 0) >= most
            and not self._close_oldest(self._waiting.get(address))
        ):
            return False
        if len(self._all) < self._limits.max_connections:
            return True
        return self._close_oldest(max(self._waiting.values(), key=len, default=None))

    def _close_oldest(self, waiting: dict[asyncio.Transport, None] | None) -> bool:
        if not waiting:
            return False
        transport = next(iter(waiting))
        self.remove(transport)
        self._report.count_closed()
        reset(transport)
        return True


class _Report:
    """Says in the log what connections were refused or closed: one line for many."""

    def __init__(self, limits: ConnectionLimits, clock: Callable[[], float]) -> None:
        self._limits = limits
        self._clock = clock
        self._refused = 0
        self._closed = 0
        self._last: float | None = None

    def count_refused(self) -> None:
        self._refused += 1
        self._log()

    def count_closed(self) -> None:
        self._closed += 1
        self._log()

    def _log(self) -> None:
        now = self._clock()
        if self._last is not None and now - self._last < REPORT_INTERVAL_S:
            return
        self._last = now
        logger.error(
            "too many connections (max_connections is %d): since the last such line, %d were "
            "refused, and %d without a request were closed to make room",
            self._limits.max_connections,
            self._refused,
            self._closed,
        )
        self._refused = self._closed = 0


def reset(transport: asyncio.Transport) -> None:
    """Close a connection immediately, and drop what its client has not read."""
    sock = transport.get_extra_info("socket")
    if sock is not None:
        with suppress(OSError):  # or the kernel would keep those bytes for minutes
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    transport.abort()


def address_of(transport: asyncio.BaseTransport) -> Address:
    """Return the client's address: for IPv6, the network of 64 bits that one client controls."""
    peer: Any = transport.get_extra_info("peername")
    host = str(peer[0]) if isinstance(peer, tuple) and peer else ""
    if ":" not in host:
        return host
    with suppress(ValueError):
        address = ipaddress.IPv6Address(host.partition("%")[0])
        if address.ipv4_mapped is not None:
            return str(address.ipv4_mapped)
        return str(ipaddress.IPv6Network((int(address) >> 64 << 64, 64)))
    return host
