"""Webhooks: operators' servers are told of the end of background responses (Standard Webhooks).

    CreateDeliveries    what a response's end has to tell, for the transaction that keeps the end
    SendDeliveries  what the store has to tell, sent until it was received or 72 hours have passed

A notice is removed after it was received, so one that was sent twice is possible and one that was
lost is not: receivers tell by `webhook-id`.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import random
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec import Struct

from antiphon.application.ports import Clock, Fetcher, NewId, Outbox, WebhookDelivery
from antiphon.application.support.periodic import run_periodically
from antiphon.domain.errors import FetchError
from antiphon.domain.response import Response

logger = logging.getLogger("antiphon.webhooks")

EVENTS: Mapping[str, str] = {
    status: f"response.{status}" for status in ("completed", "failed", "cancelled", "incomplete")
}
"""What is told of, by the status that a response ends with."""

DELAYS_S: Sequence[float] = (5, 30, 120, 600, 1800, 3600, 7200, 14_400, 28_800)
"""Before the second attempt, the third, …; the last counts for all further ones."""
GIVE_UP_AFTER_S = 72 * 3600
AT_ONCE = 16
"""Notices that are sent at the same time."""
HOLD_S = 60.0
"""For which nobody else sends a notice: more than an attempt may take."""
FAILURES_BEFORE_REST = 3
REST_S = 60.0
"""An endpoint that failed so often in a row is left alone so long: others need the places."""
GONE = 410

_encode = msgspec.json.Encoder().encode


class WebhookEndpoint(Struct, frozen=True, kw_only=True):
    """Who is told. `name` stands in the store and in logs, where URL and secrets must not.

    With several `secrets`, each signs: a receiver may change from one to the next at any time.
    `tenant` None is every tenant's.
    """

    name: str
    url: str
    secrets: Sequence[bytes]
    events: Sequence[str] = tuple(EVENTS.values())
    tenant: str | None = None

    def wants(self, tenant: str, event: str) -> bool:
        return event in self.events and self.tenant in (None, tenant)

    def headers(self, delivery: WebhookDelivery, timestamp: int) -> Mapping[str, str]:
        signed = b"%b.%d.%b" % (delivery.id.encode(), timestamp, delivery.body)
        digests = (hmac.digest(secret, signed, hashlib.sha256) for secret in self.secrets)
        return {
            "content-type": "application/json",
            "webhook-id": delivery.id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": " ".join(
                f"v1,{base64.b64encode(each).decode()}" for each in digests
            ),
        }


class _About(Struct, frozen=True):
    id: str


class _Told(Struct, frozen=True, kw_only=True):
    """The body of a webhook, as OpenAI's: it names the response and holds nothing of it."""

    id: str
    object: str = "event"
    created_at: int
    type: str
    data: _About


class CreateDeliveries:
    def __init__(self, endpoints: Sequence[WebhookEndpoint], *, new_id: NewId, now: Clock) -> None:
        self._endpoints = endpoints
        self._new_id = new_id
        self._now = now

    def __call__(self, tenant: str, response: Response) -> Sequence[WebhookDelivery]:
        """Return what is to be told of a response that has ended: nothing of a foreground one."""
        event = EVENTS.get(response.status)
        if event is None or not response.background:
            return ()
        receivers = [each for each in self._endpoints if each.wants(tenant, event)]
        if not receivers:
            return ()
        body = _encode(
            _Told(
                id=self._new_id("evt"),
                created_at=int(self._now()),
                type=event,
                data=_About(response.id),
            )
        )
        return [
            WebhookDelivery(id=self._new_id("wh"), tenant=tenant, endpoint=each.name, body=body)
            for each in receivers
        ]


class _Failures:
    """Which endpoints have failed lately, and rest."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._in_a_row: dict[str, int] = {}
        self._rest_until: dict[str, float] = {}

    def note(self, endpoint: str, *, received: bool) -> None:
        count = 0 if received else self._in_a_row.get(endpoint, 0) + 1
        self._in_a_row[endpoint] = count
        if count >= FAILURES_BEFORE_REST:
            self._rest_until[endpoint] = self._clock() + REST_S

    def rest_s(self, endpoint: str) -> float:
        return self._rest_until.get(endpoint, 0.0) - self._clock()


class SendDeliveries:
    """Sends what is due, several at a time. What it leaves undone, any later one does.

    `clock` gives seconds of any origin. `jitter` varies a delay, so that receivers are not called
    by all at the same moment.
    """

    def __init__(
        self,
        outbox: Outbox,
        fetcher: Fetcher,
        endpoints: Sequence[WebhookEndpoint],
        *,
        now: Clock,
        clock: Callable[[], float],
        delays_s: Sequence[float] = DELAYS_S,
        claim_s: float = HOLD_S,
        jitter: Callable[[float], float] = lambda seconds: seconds * random.uniform(0.8, 1.2),
    ) -> None:
        self._outbox = outbox
        self._fetcher = fetcher
        self._endpoints = {each.name: each for each in endpoints}
        self._now = now
        self._delays_s = delays_s
        self._hold_s = claim_s
        self._jitter = jitter
        self._failures = _Failures(clock)

    async def run_every(self, seconds: float) -> None:
        """Look for notices about every so many seconds, until cancelled."""
        if self._endpoints:
            await run_periodically("webhooks are not delivered", self._all_due, every_s=seconds)

    async def __call__(self) -> int:
        """Try notices that are due, once each. Return how many those were. Raises: StoreError."""
        deliveries = await self._outbox.claim_due(limit=AT_ONCE, claim_s=self._hold_s)
        done = await asyncio.gather(*map(self._deliver, deliveries), return_exceptions=True)
        # All of them were tried before the first failure of the store is told.
        for failure in done:
            if failure is not None:
                raise failure
        return len(deliveries)

    async def _all_due(self) -> None:
        while await self() == AT_ONCE:
            pass

    async def _deliver(self, delivery: WebhookDelivery) -> None:
        endpoint = self._endpoints.get(delivery.endpoint)
        if endpoint is None:  # perhaps another server's settings have it, or soon this one's
            await self._later(delivery, "no settings name its endpoint")
        elif (rest_s := self._failures.rest_s(endpoint.name)) > 0:
            await self._outbox.delay(delivery.id, self._jitter(rest_s))
        else:
            await self._attempt(delivery, endpoint)

    async def _attempt(self, delivery: WebhookDelivery, endpoint: WebhookEndpoint) -> None:
        status, reason = await self._post(delivery, endpoint)
        received = 200 <= status < 300
        self._failures.note(endpoint.name, received=received)
        if received:
            await self._outbox.remove(delivery.id)
        elif status == GONE:
            await self._give_up(delivery, reason)
        else:
            await self._later(delivery, reason)

    async def _post(self, delivery: WebhookDelivery, endpoint: WebhookEndpoint) -> tuple[int, str]:
        """Return what the endpoint answered, as status and in words; status 0 if nothing."""
        headers = endpoint.headers(delivery, int(self._now()))
        try:
            answer = await self._fetcher.fetch(
                endpoint.url, method="POST", headers=headers, content=delivery.body
            )
        except FetchError as exc:
            return 0, str(exc)
        return answer.status, f"status {answer.status}"

    async def _later(self, delivery: WebhookDelivery, reason: str) -> None:
        told = msgspec.json.decode(delivery.body, type=_Told)
        if self._now() - told.created_at > GIVE_UP_AFTER_S:
            await self._give_up(delivery, reason)
            return
        delay_s = self._delays_s[min(delivery.attempts, len(self._delays_s) - 1)]
        if delivery.attempts == 0:  # the rest would be the same line again
            logger.warning("webhook %s to %s: %s; it is tried again", *_named(delivery), reason)
        await self._outbox.delay(delivery.id, self._jitter(delay_s))

    async def _give_up(self, delivery: WebhookDelivery, reason: str) -> None:
        logger.error("webhook %s to %s is given up: %s", *_named(delivery), reason)
        await self._outbox.remove(delivery.id)


def _named(delivery: WebhookDelivery) -> tuple[str, str]:
    return delivery.id, delivery.endpoint
