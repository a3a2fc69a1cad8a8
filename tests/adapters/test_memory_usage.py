"""Counting a request of a key takes as long, however many runs the key has."""

from __future__ import annotations

from antiphon.adapters.stores.memory.usage import KeyCounters
from antiphon.application.ports import Charge, RunSlot

LIMIT = 5


def _slot(number: int) -> RunSlot:
    return RunSlot(tenant="t", response_id=f"resp_{number}", owner="a", limit=LIMIT)


def _charge(start: int) -> Charge:
    return Charge(name="requests/min", start=start, amount=1, expires_at=start + 120, limit=1)


def test_runs_are_looked_at_when_they_fill_the_limit() -> None:
    counters, looked_at = KeyCounters(), []

    def is_taken(slot: RunSlot) -> bool:
        looked_at.append(slot)
        return slot != _slot(0)

    for number in range(LIMIT):
        assert counters.reserve([], _slot(number), now=0, is_taken=is_taken).accepted
    assert looked_at == []
    assert counters.reserve([], _slot(LIMIT), now=0, is_taken=is_taken).accepted
    assert len(looked_at) == LIMIT
    assert not counters.reserve([], _slot(LIMIT + 1), now=0, is_taken=is_taken).accepted


def test_a_counter_is_forgotten_when_it_expires() -> None:
    counters = KeyCounters()
    for start, accepted in ((0, True), (0, False), (60, True), (60, False)):
        usage = counters.reserve([_charge(start)], None, now=start, is_taken=lambda _: True)
        assert usage.accepted == accepted
    assert not counters.reserve([_charge(60)], None, now=179, is_taken=lambda _: True).accepted
    assert counters.reserve([_charge(60)], None, now=180, is_taken=lambda _: True).accepted
