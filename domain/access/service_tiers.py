"""Service tiers: which requests come first, in the queue of their tenant and in the engine."""

from __future__ import annotations

import msgspec
from msgspec.structs import replace

from antiphon.domain.access.callers import ANYBODY, Caller
from antiphon.domain.access.limits import Tier
from antiphon.domain.requests.request import CreateResponse

SERVED_AS: dict[str, Tier] = {"fast": "priority", "priority": "priority", "flex": "flex"}
"""Requested tier -> the tier that serves it. All others are served as `default`."""

PRIORITIES: dict[Tier, int] = {"priority": -100, "default": 0, "flex": 100}
"""The engine's priority in each tier; a lower one comes first."""


def highest_tier_of(caller: Caller) -> Tier:
    """Return the highest tier that a caller may use.

    Without keys, all requests are of one tenant, which may order them as it likes. With keys, a
    higher tier than the default passes other tenants in the engine: the key's policy allows it.
    """
    return "priority" if caller == ANYBODY else caller.policy.service_tier


def tier_of(request: CreateResponse) -> Tier:
    """Return the tier that serves the request."""
    return SERVED_AS.get(request.service_tier or "", "default")


def priority_of(request: CreateResponse) -> int:
    """Return the request's own priority, or that of its tier."""
    return PRIORITIES[tier_of(request)] if request.priority is None else request.priority


def limit_tier(request: CreateResponse, highest: Tier) -> CreateResponse:
    """Return the request with a tier and a priority that are not above the highest tier.

    >>> request = CreateResponse(model="m", input="Hi", service_tier="priority", priority=-5)
    >>> limited = limit_tier(request, "default")
    >>> limited.service_tier, limited.priority
    ('default', 0)
    >>> limit_tier(request, "priority") is request
    True
    """
    if highest == "priority":
        return request
    least = PRIORITIES[highest]
    if PRIORITIES[tier_of(request)] < least:
        request = replace(request, service_tier=highest)
    if request.priority is not None and request.priority < least:
        request = replace(request, priority=least)
    return request


def with_tier_of(request: CreateResponse, body: bytes) -> bytes:
    """Return the body with the request's tier and priority: another server may run it later."""
    fields = msgspec.json.decode(body, type=dict[str, msgspec.Raw])
    fields["service_tier"] = msgspec.Raw(msgspec.json.encode(request.service_tier))
    fields["priority"] = msgspec.Raw(msgspec.json.encode(request.priority))
    return msgspec.json.encode(fields)
