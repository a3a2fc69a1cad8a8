"""Ports that are plain functions: the clock, ids and sealing."""

from __future__ import annotations

from collections.abc import Callable

Clock = Callable[[], float]
"""Seconds since the epoch."""

NewId = Callable[[str], str]
"""A new id with this prefix: `new_id("msg")` -> `msg_…`."""

Seal = Callable[[str, str], str]
"""(tenant, text) -> an opaque, authenticated string."""

Unseal = Callable[[str, str], str | None]
"""(tenant, sealed) -> the text, or None if this server did not seal it for this tenant."""

MakeSalt = Callable[[str, str | None], str]
"""(tenant, the client's `cache_salt` if any) -> the salt of the engine's prefix cache. Prompts
share cache entries only within one tenant and one `cache_salt`."""
