"""The counters and slots of one API key in the memory store."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from antiphon.application.ports import Charge, KeyUsage, RunSlot

Counter = tuple[str, int]
"""A counter's name and the start of its window."""

IsTaken = Callable[[RunSlot], bool]


class KeyCounters:
    """Between two calls nothing is half done: no method waits."""

    def __init__(self) -> None:
        self._amounts: dict[Counter, int] = {}
        self._expires_at: dict[Counter, int] = {}
        self._next_expiry = math.inf
        self._slots: dict[tuple[str, str], RunSlot] = {}

    def clean_up(self, now: float, is_taken: IsTaken) -> None:
        """Delete expired counters, and the slots that are free."""
        self._delete_expired(now)
        self._delete_free(is_taken)

    @property
    def is_empty(self) -> bool:
        return not self._amounts and not self._slots

    def reserve(
        self, charges: Sequence[Charge], slot: RunSlot | None, *, now: float, is_taken: IsTaken
    ) -> KeyUsage:
        self._delete_expired(now)
        amounts = self._amounts
        counts = [amounts.get((charge.name, charge.start), 0) for charge in charges]
        accepted = all(map(Charge.fits, charges, counts))
        if slot is not None:
            if not self._has_slot_for(slot):  # to look at all of them takes long if they are many
                self._delete_free(is_taken)
            accepted = accepted and self._has_slot_for(slot)
        elif not any(charge.amount for charge in charges):  # somebody asks for what is used
            self._delete_free(is_taken)
        if accepted:
            counts = [
                self._add(charge) if charge.amount else count
                for charge, count in zip(charges, counts, strict=True)
            ]
            if slot is not None:
                self._slots.setdefault((slot.tenant, slot.response_id), slot)
        return KeyUsage(accepted=accepted, counts=counts, runs=len(self._slots))

    def settle(self, tenant: str, response_id: str, charges: Sequence[Charge]) -> bool:
        if self._slots.pop((tenant, response_id), None) is None:
            return False
        for charge in charges:
            self._add(charge)
        return True

    def _delete_expired(self, now: float) -> None:
        if now < self._next_expiry:
            return
        for counter, expires_at in [*self._expires_at.items()]:
            if expires_at <= now:
                del self._expires_at[counter], self._amounts[counter]
        self._next_expiry = min(self._expires_at.values(), default=math.inf)

    def _delete_free(self, is_taken: IsTaken) -> None:
        self._slots = {key: slot for key, slot in self._slots.items() if is_taken(slot)}

    def _has_slot_for(self, slot: RunSlot) -> bool:
        return (slot.tenant, slot.response_id) in self._slots or slot.fits(len(self._slots))

    def _add(self, charge: Charge) -> int:
        counter = (charge.name, charge.start)
        count = self._amounts.get(counter)
        if count is None:
            count = 0
            self._expires_at[counter] = charge.expires_at
            self._next_expiry = min(self._next_expiry, charge.expires_at)
        self._amounts[counter] = count = max(count + charge.amount, 0)
        return count
