"""Claims of the webhook deliveries that are due, in steps that hold up no other client of Redis."""

from __future__ import annotations

from collections.abc import Collection

from antiphon.adapters.stores.redis.scripts import RedisScripts
from antiphon.application.ports import WebhookDelivery

MAX_STEPS = 10
"""Each step looks at up to 1,000 deliveries (lua/webhook_deliveries.lua)."""


class RedisDeliveries:
    """Where very many are due to endpoints that are left out, a claim goes on where the one before
    it stopped."""

    def __init__(self, scripts: RedisScripts) -> None:
        self._redis = scripts
        self._first = 0

    async def claim_due(
        self, *, limit: int, claim_s: float, leave_out: Collection[str]
    ) -> list[WebhookDelivery]:
        claimed: list[WebhookDelivery] = []
        first: int | None = self._first if leave_out else 0
        for _ in range(MAX_STEPS):
            found, first = await self._redis.run(
                "claim_deliveries",
                limit=limit - len(claimed),
                claim_s=claim_s,
                leave_out=[*leave_out],
                first=first,
            )
            claimed += [_to_delivery(*delivery) for delivery in found]
            if first is None or len(claimed) == limit:
                break
        self._first = first or 0
        return claimed


def _to_delivery(
    delivery_id: bytes, tenant: bytes, endpoint: bytes, body: bytes, attempts: int
) -> WebhookDelivery:
    return WebhookDelivery(
        id=delivery_id.decode(),
        tenant=tenant.decode(),
        endpoint=endpoint.decode(),
        body=body,
        attempts=attempts,
    )
