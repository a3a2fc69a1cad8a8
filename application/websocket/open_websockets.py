"""How many WebSockets each tenant has open."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from antiphon.domain.errors import ConcurrencyLimitExceeded


class OpenWebSockets:
    """The number of open WebSockets of each tenant, up to a limit."""

    def __init__(self, max_per_tenant: int) -> None:
        self._max_per_tenant = max_per_tenant
        self._open: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(self._open.values())

    @contextmanager
    def opened(self, tenant: str) -> Iterator[None]:
        """Count a connection until the block ends. Raises: ConcurrencyLimitExceeded."""
        count = self._open.get(tenant, 0)
        if count >= self._max_per_tenant:
            raise ConcurrencyLimitExceeded(
                f"You have {count} open WebSocket connections, and no more are allowed. Close one, "
                "or send this request on one of them.",
                code="rate_limit_exceeded",
            )
        self._open[tenant] = count + 1
        try:
            yield
        finally:
            self._open[tenant] -= 1
            if not self._open[tenant]:
                del self._open[tenant]
