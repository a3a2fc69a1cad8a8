"""A bound on the bytes of all requests that are arriving, or have arrived and are not decoded yet.

The limit of one body does not bound the memory of many: a client can leave any number of them
unfinished.
"""

from __future__ import annotations

from antiphon.domain.errors import ConcurrencyLimitExceeded, ServerOverloaded

FREE_BYTES = 64 * 1024
"""Of each body. Most bodies are smaller, and a connection buffers as much anyway."""

TENANTS_SHARE = 2
"""A tenant may have one part in this many of all bytes."""

MAX_BYTES = 256 * 1024 * 1024


class IncomingBytes:
    """The bytes of all bodies and messages that are incomplete or not decoded yet."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._total = 0
        self._by_tenant: dict[str, int] = {}

    @property
    def total(self) -> int:
        return self._total

    def hold(self, tenant: str) -> HeldBytes:
        """Count the bytes of one body until the block that it opens ends."""
        return HeldBytes(self, tenant)

    def add(self, tenant: str, size: int) -> None:
        """Raises: ConcurrencyLimitExceeded, ServerOverloaded, and then counts nothing."""
        share = self._max_bytes // TENANTS_SHARE
        own = self._by_tenant.get(tenant, 0) + size
        if size > 0 and own > share:
            raise ConcurrencyLimitExceeded(
                f"Your unfinished requests have more than {share} bytes. Send this one again when "
                "others have arrived.",
                code="rate_limit_exceeded",
            )
        if size > 0 and self._total + size > self._max_bytes:
            raise ServerOverloaded(
                "The server is receiving too many large requests. Try again later."
            )
        self._total += size
        if own:
            self._by_tenant[tenant] = own
        else:
            self._by_tenant.pop(tenant, None)


class HeldBytes:
    """The bytes of one body or message, as far as they count."""

    __slots__ = ("_counted", "_incoming", "tenant")

    def __init__(self, incoming: IncomingBytes, tenant: str) -> None:
        self._incoming = incoming
        self.tenant = tenant
        self._counted = 0

    def __enter__(self) -> HeldBytes:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.resize(0)

    def resize(self, size: int) -> None:
        """Say how many bytes there are now.

        Raises: ConcurrencyLimitExceeded, ServerOverloaded if too many.
        """
        counted = size if size > FREE_BYTES else 0
        if counted != self._counted:
            self._incoming.add(self.tenant, counted - self._counted)
            self._counted = counted
