"""Service tiers within what a caller may use."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.domain.access.callers import ANYBODY, Caller
from antiphon.domain.access.limits import KeyPolicy
from antiphon.domain.access.service_tiers import (
    highest_tier_of,
    limit_tier,
    priority_of,
    tier_of,
    with_tier_of,
)
from antiphon.domain.requests.decoding import decode_request


def decode(body: bytes) -> Any:
    return decode_request(body).request


@pytest.mark.parametrize(
    ("fields", "tier", "priority"),
    [
        ("", "default", 0),
        (', "service_tier": "auto"', "default", 0),
        (', "service_tier": "flex"', "flex", 100),
        (', "service_tier": "fast"', "default", 0),
        (', "service_tier": "flex", "priority": 7', "flex", 7),
        (', "priority": -9223372036854775808', "default", 0),
    ],
)
def test_a_caller_with_a_key_passes_nobody_by_default(
    fields: str, tier: str, priority: int
) -> None:
    request = decode(b'{"model": "m", "input": "hi"%b}' % fields.encode())
    limited = limit_tier(request, highest_tier_of(Caller(tenant="a", key_id="key_1")))
    assert (tier_of(limited), priority_of(limited)) == (tier, priority)
    assert limit_tier(request, highest_tier_of(ANYBODY)) is request


def test_a_run_that_starts_later_keeps_the_limits_of_its_request() -> None:
    body = b'{"model": "m", "service_tier": "priority", "input": "\\u00e9", "priority": -1}'
    request = limit_tier(decode(body), "default")
    later = decode(with_tier_of(request, body))
    assert later == request
    assert (tier_of(later), priority_of(later)) == ("default", 0)


def test_the_policy_of_a_key_allows_a_higher_or_only_a_lower_tier() -> None:
    for tier in ("flex", "default", "priority"):
        caller = Caller(tenant="a", key_id="key_1", policy=KeyPolicy(service_tier=tier))
        assert highest_tier_of(caller) == tier
