"""Webhook deliveries that are due."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection
from typing import Protocol

from msgspec import Struct


class WebhookDelivery(Struct, frozen=True, kw_only=True):
    """A webhook to deliver. `id` is the same for each attempt; `endpoint` names the receiver."""

    id: str
    tenant: str
    endpoint: str
    body: bytes
    attempts: int = 0


class Outbox(Protocol):
    """Webhook deliveries, from the end of a response until they succeed or are given up.

    Raises: StoreError.
    """

    @abstractmethod
    async def claim_due_deliveries(
        self, *, limit: int, claim_s: float, leave_out: Collection[str] = ()
    ) -> list[WebhookDelivery]:
        """Claim and return due deliveries, longest due first. A new delivery is due immediately.

        Those to the endpoints of `leave_out` stay as they are, however many come first.

        Only one of several concurrent callers gets a delivery. After `claim_s`, it is due again.
        `attempts` counts the earlier claims. A delivery does not depend on its response, which may
        be deleted or swept.
        """

    @abstractmethod
    async def delay_delivery(self, delivery_id: str, seconds: float) -> None:
        """Make it due `seconds` from now; it may be gone already."""

    @abstractmethod
    async def delete_delivery(self, delivery_id: str) -> None:
        """Delete it; it may be gone already."""
