"""How much each API key has used, counted exactly."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct


class Charge(Struct, frozen=True, kw_only=True):
    """An amount to add to a key's counter `name` in the window that starts at `start`.

    `limit` is the most that the counter may have then; None means no limit. The counter may be
    deleted after `expires_at`. Times are in seconds since the epoch.
    """

    name: str
    start: int
    amount: int
    expires_at: int
    limit: int | None = None

    def fits(self, count: int) -> bool:
        """Return whether the charge may be added to a counter with this count."""
        return not self.amount or self.limit is None or count + self.amount <= self.limit


class RunSlot(Struct, frozen=True, kw_only=True):
    """The place of a response among the runs of a key, which may have `limit` of them at a time.

    It is taken until `settle_usage`. Without that, it is free once its response has ended in the
    store; or, if its response is not stored, once its owner is dead (see RunStore).
    """

    tenant: str
    response_id: str
    owner: str
    limit: int | None = None

    def fits(self, taken: int) -> bool:
        """Return whether the slot may be taken beside so many others."""
        return self.limit is None or taken < self.limit


class KeyUsage(Struct, frozen=True, kw_only=True):
    """A key's counters, in the order of the charges, and its number of taken slots."""

    accepted: bool
    counts: Sequence[int]
    runs: int = 0


class UsageStore(Protocol):
    """The use of each API key, and the slots of its runs. Raises: StoreError."""

    @abstractmethod
    async def reserve_usage(
        self, key_id: str, charges: Sequence[Charge], slot: RunSlot | None = None
    ) -> KeyUsage:
        """Add all charges and take the slot; or nothing at all, if a charge with an amount or the
        slot would exceed its limit.

        Return the usage after that. Concurrent callers never exceed a limit together, on any number
        of servers. An amount of 0 only reads. A slot that the response has already is not taken
        twice.
        """

    @abstractmethod
    async def settle_usage(
        self, key_id: str, tenant: str, response_id: str, charges: Sequence[Charge] = ()
    ) -> bool:
        """Free the response's slot and add the charges, whatever their limits.

        Return False, and add nothing, if the response has no slot: so a run counts once. An amount
        may be negative; a counter never falls below 0.
        """
