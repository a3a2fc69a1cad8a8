"""The addresses at which the servers of a store reach each other.

Each server that has one announces it in a value that all of them share, again and again. An address
that was not announced for a while is that of a dead server.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from hashlib import sha256

import msgspec
from msgspec import Struct

from antiphon.application.ports import Clock, SharedValues
from antiphon.application.support.periodic import run_periodically
from antiphon.domain.errors import StoreError

logger = logging.getLogger("antiphon.servers")

TAG_DIGITS = 16

NAME = "server addresses"
"""The name of the shared value."""

ANNOUNCE_EVERY_S = 20.0
ALIVE_S = 90.0
"""How long an address counts after it was announced. Clocks of servers may differ by less."""

REMEMBER_S = 1.0
"""How long addresses are remembered: clients may name any server, and each look-up has a cost."""

MAX_ATTEMPTS = 100
NONE = b"{}"


def server_tag(owner: str) -> str:
    """Return the tag of a server, with which the ids of its containers begin.

    >>> len(server_tag("srv_1"))
    16
    """
    return sha256(owner.encode()).hexdigest()[:TAG_DIGITS]


def server_tag_in(container_id: str) -> str:
    """Return the tag with which a container's id begins, if it is one of a server.

    >>> server_tag_in("cntr_0123456789abcdef" + 32 * "0")
    '0123456789abcdef'
    """
    return container_id.partition("_")[2][:TAG_DIGITS]


class Address(Struct, frozen=True, kw_only=True):
    """The URL of a server, and the time until which it counts."""

    url: str
    until: float


_decode = msgspec.json.Decoder(dict[str, Address]).decode


class ServerAddresses:
    """Announces the `url` of this server under its tag, and finds those of others."""

    def __init__(self, values: SharedValues, *, tag: str, url: str, now: Clock) -> None:
        self._values = values
        self._tag = tag
        self._url = url
        self._now = now
        self._remembered: Mapping[str, Address] = {}
        self._remembered_until = 0.0

    async def announce(self) -> None:
        """Raises: StoreError."""
        await self._change(Address(url=self._url, until=self._now() + ALIVE_S))

    async def withdraw(self) -> None:
        """Tell the others that this server stops. Raises: StoreError."""
        await self._change(None)

    async def announce_forever(self) -> None:
        await run_periodically(
            "the other servers find no containers of this one",
            self.announce,
            every_s=ANNOUNCE_EVERY_S,
        )

    async def others(self) -> Mapping[str, str]:
        """Return the URLs of the other live servers by their tags. Raises: StoreError."""
        now = self._now()
        if now >= self._remembered_until:
            self._remembered = _decode(await self._values.compare_and_set(NAME, NONE))
            self._remembered_until = now + REMEMBER_S
        return {
            tag: address.url
            for tag, address in self._remembered.items()
            if address.until > now and tag != self._tag
        }

    async def _change(self, own: Address | None) -> None:
        """Replace this server's address, and remove those of dead servers."""
        stored = await self._values.compare_and_set(NAME, NONE)
        for _ in range(MAX_ATTEMPTS):
            now = self._now()
            addresses = {
                tag: address
                for tag, address in _decode(stored).items()
                if address.until > now and tag != self._tag
            }
            if own is not None:
                addresses[self._tag] = own
            wanted = msgspec.json.encode(addresses)
            before, stored = (
                stored,
                await self._values.compare_and_set(NAME, wanted, expected=stored),
            )
            if stored in (wanted, before):
                return
        raise StoreError("Other servers of the store keep changing the list of addresses.")
