"""API keys, hashed."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

from msgspec import Struct

from antiphon.domain.access.limits import FULL_ACCESS, KeyPolicy


class ApiKey(Struct, frozen=True, kw_only=True):
    """An API key. `hash` is its SHA-256; the key itself is not stored."""

    id: str
    name: str
    tenant: str
    hash: bytes
    created_at: int
    policy: KeyPolicy = FULL_ACCESS


class KeyStore(Protocol):
    """The API keys of all tenants. Raises: StoreError."""

    @abstractmethod
    async def create_api_key(self, key: ApiKey) -> None:
        """Store a new key. Raises: StoreError if this id or this hash exists."""

    @abstractmethod
    async def list_api_keys(self) -> list[ApiKey]:
        """Return all keys, oldest first; keys of the same age in the order of their addition."""

    @abstractmethod
    async def get_api_key(self, hash: bytes) -> ApiKey | None:
        """Return the key with this hash, or None."""

    @abstractmethod
    async def update_api_key(self, key_id: str, policy: KeyPolicy) -> bool:
        """Replace a key's policy. Return False if this id does not exist."""

    @abstractmethod
    async def revoke_api_key(self, key_id: str) -> bool:
        """Delete a key. Return False if this id does not exist."""
