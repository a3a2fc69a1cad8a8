"""Idempotency-Keys and their responses."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

from msgspec import Struct


class IdempotencyRecord(Struct, frozen=True, kw_only=True):
    """The response that has an Idempotency-Key; `exists` says whether it is stored yet."""

    response_id: str
    fingerprint: bytes
    exists: bool


class IdempotencyStore(Protocol):
    """Idempotency-Keys: a key belongs to one response while that is being created or is stored.

    A key is taken literally and is case-sensitive; two tenants may use the same key.
    Raises: StoreError.
    """

    @abstractmethod
    async def reserve_idempotency_key(
        self,
        tenant: str,
        key: str,
        *,
        response_id: str,
        fingerprint: bytes,
        owner: str,
        expires_at: float,
    ) -> IdempotencyRecord:
        """Reserve the key for this response if it is free, and return the record that has it then.

        A key becomes free when its response is deleted, when it has expired (at the latest when it
        is swept), and when its owner dies before the response was created; then `create_response`
        rejects the response. The response that has the key may reserve it again.
        """

    @abstractmethod
    async def release_idempotency_key(self, tenant: str, key: str, response_id: str) -> None:
        """Free the key, if this response has it and is not stored."""
