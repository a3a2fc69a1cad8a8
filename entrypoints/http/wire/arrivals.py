"""Connections that were accepted and have no protocol yet: the order in which they get one.

The kernel hands connections out in the order of their arrival, so one that comes after thousands
of others waits for all of them. Accepting one costs a tenth of what serving it costs. So they are
accepted early, and what they have sent decides who is next: a look at it costs one call.
"""

from __future__ import annotations

import socket

from antiphon.application.support.round_robin import RoundRobin
from antiphon.entrypoints.http.access.credentials import credential_in, is_health_check

PEEKED_BYTES = 2048
"""Clients send the credential among their first headers."""

CHECKS_SHARE = 2
"""Health checks get at most one place in so many, or a flood of them would keep all others out."""


class Arrivals:
    """Health checks are next, then one connection of each credential in turn.

    Those that have sent nothing yet, or are encrypted, take the turns of one credential.
    """

    def __init__(self) -> None:
        self._checks: RoundRobin[bytes, socket.socket] = RoundRobin()
        self._others: RoundRobin[bytes, socket.socket] = RoundRobin()

    def __len__(self) -> int:
        return self._checks.count + self._others.count

    def add(self, connection: socket.socket) -> None:
        head = _peek(connection)
        if is_health_check(head):
            self._checks.add(b"", connection)
        else:
            self._others.add(credential_in(head), connection)

    def take(self, count: int) -> list[socket.socket]:
        """Remove the next `count` connections, or all if there are fewer, and return them."""
        checks = min(self._checks.count, max(count // CHECKS_SHARE, count - self._others.count))
        others = min(self._others.count, count - checks)
        return [
            *(self._checks.pop() for _ in range(checks)),
            *(self._others.pop() for _ in range(others)),
        ]


def _peek(connection: socket.socket) -> bytes:
    """Return the first bytes that have arrived, which stay to be read."""
    try:
        return connection.recv(PEEKED_BYTES, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except OSError:  # nothing has arrived, or the client has left, which its protocol will learn
        return b""
