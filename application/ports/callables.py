"""What services are given as plain functions: the clock, ids, sealing."""

from __future__ import annotations

from collections.abc import Callable

Clock = Callable[[], float]
"""Seconds since the epoch."""

NewId = Callable[[str], str]
"""A fresh id with this prefix: `new_id("msg")` -> `msg_…`."""

Seal = Callable[[str, str], str]
"""(tenant, text) -> an opaque, authenticated string."""

Unseal = Callable[[str, str], str | None]
"""(tenant, sealed) -> the text, or None if it was not sealed by us for this tenant."""

MakeSalt = Callable[[str, str | None], str]
"""What the prompts of a tenant share in the engine's prefix cache, and no other tenant's do; apart
for each `cache_salt` of the client's, if it gave one."""
