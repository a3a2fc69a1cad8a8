"""Build what shares this server's capacity between tenants."""

from __future__ import annotations

from antiphon.entrypoints.settings import Settings

RESERVE_DIVISOR = 4
"""A quarter of each capacity is kept for the other tenants."""


def tenant_share(total: int, settings: Settings) -> int:
    """Return how much of a capacity one tenant may use: all of it if there are no keys, since all
    requests are then of one tenant."""
    if not settings.needs_keys:
        return total
    return max(1, total - max(1, total // RESERVE_DIVISOR))
