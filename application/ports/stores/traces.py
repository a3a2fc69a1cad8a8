"""Traces of runs."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

from antiphon.application.ports.stores.runs import Lease


class TraceStore(Protocol):
    """Traces of runs, by response: each is what the model read and wrote, sealed by the caller.

    A trace counts in `StorageUsage.bytes`, and is deleted and swept with its response.
    Raises: StoreError.
    """

    @abstractmethod
    async def save_trace(self, lease: Lease, trace: bytes) -> bool:
        """Store the trace of the response in place of an earlier one; it may be any bytes.

        Return False, and write nothing, if the lease is void.
        """

    @abstractmethod
    async def get_trace(self, tenant: str, response_id: str) -> bytes | None:
        """Return the trace, or None if the response has none. Raises: NotFound."""
