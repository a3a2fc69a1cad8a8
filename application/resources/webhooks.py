"""Webhooks: report the end of background responses to operators' servers (Standard Webhooks).

    CreateDeliveries  the deliveries of a response's end, for the transaction that stores the end
    SendDeliveries    sends the stored deliveries until they are received, for up to 72 hours

A delivery is removed after it is received. So it may be sent twice, but it is never lost; receivers
recognize a duplicate by its `webhook-id`.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import logging
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

import msgspec
from msgspec import Struct

from antiphon.application.ports import Clock, Fetcher, NewId, Outbox, WebhookDelivery
from antiphon.application.support.outages import Outages
from antiphon.application.support.periodic import run_periodically
from antiphon.application.support.tasks import start_shared_task
from antiphon.application.telemetry.log_context import log_as
from antiphon.application.telemetry.trace_context import Propagation
from antiphon.domain.errors import FetchError
from antiphon.domain.responses.response import Response

logger = logging.getLogger("antiphon.webhooks")

EVENT_TYPES: Mapping[str, str] = {
    status: f"response.{status}" for status in ("completed", "failed", "cancelled", "incomplete")
}
"""The type of the event, by the status with which a response ends."""

CONSEQUENCE = "webhooks are not delivered"

DELAYS_S: Sequence[float] = (5, 30, 120, 600, 1800, 3600, 7200, 14_400, 28_800)
"""Delays before the second attempt, the third, …; the last one is repeated."""
GIVE_UP_AFTER_S = 72 * 3600
CLAIMED_AT_ONCE = 8
MAX_PER_ENDPOINT = 8
"""An endpoint with so many attempts in progress is busy: nothing more is claimed for it until one
ends, so that others do not wait. One claim may bring as many again."""
MAX_IN_PROGRESS = 48
"""Attempts in progress, to all endpoints. An endpoint, and all of a tenant's own, may have half of
the places that the others leave: there is always one for who comes next."""
CLAIM_S = 60.0
"""Seconds for which no other server sends a delivery: more than an attempt may take."""
FAILURES_BEFORE_REST = 3
REST_S = 60.0
"""Seconds without attempts after so many failures of an endpoint in a row."""
HTTP_GONE = 410

_encode = msgspec.json.Encoder().encode


class WebhookEndpoint(Struct, frozen=True, kw_only=True):
    """A receiver of webhooks.

    The store and the logs contain its `name`, since they must not contain URL and secrets. Each of
    the `secrets` signs, so that a receiver can rotate them at any time. An endpoint without a
    `tenant` serves every tenant.
    """

    name: str
    url: str
    secrets: Sequence[bytes]
    events: Sequence[str] = tuple(EVENT_TYPES.values())
    tenant: str | None = None

    def wants(self, tenant: str, event_type: str) -> bool:
        return event_type in self.events and self.tenant in (None, tenant)

    def headers(self, delivery: WebhookDelivery, timestamp: int) -> Mapping[str, str]:
        content = b"%b.%d.%b" % (delivery.id.encode(), timestamp, delivery.body)
        digests = (hmac.digest(secret, content, hashlib.sha256) for secret in self.secrets)
        return {
            "content-type": "application/json",
            "webhook-id": delivery.id,
            "webhook-timestamp": str(timestamp),
            "webhook-signature": " ".join(
                f"v1,{base64.b64encode(digest).decode()}" for digest in digests
            ),
        }


class _EventData(Struct, frozen=True):
    id: str


class _Event(Struct, frozen=True, kw_only=True):
    """The body of a webhook, as OpenAI sends it: the response's id without its content."""

    id: str
    object: str = "event"
    created_at: int
    type: str
    data: _EventData


class CreateDeliveries:
    def __init__(self, endpoints: Sequence[WebhookEndpoint], *, new_id: NewId, now: Clock) -> None:
        self._endpoints = endpoints
        self._new_id = new_id
        self._now = now

    def __call__(self, tenant: str, response: Response) -> Sequence[WebhookDelivery]:
        """Return the deliveries for an ended response; only background responses have any."""
        event_type = EVENT_TYPES.get(response.status)
        if event_type is None or not response.background:
            return ()
        receivers = [each for each in self._endpoints if each.wants(tenant, event_type)]
        if not receivers:
            return ()
        body = _encode(
            _Event(
                id=self._new_id("evt"),
                created_at=int(self._now()),
                type=event_type,
                data=_EventData(response.id),
            )
        )
        return [
            WebhookDelivery(id=self._new_id("wh"), tenant=tenant, endpoint=each.name, body=body)
            for each in receivers
        ]


class _Failures:
    """The endpoints that have failed several times in a row and now get no attempts."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._in_a_row: dict[str, int] = {}
        self._rest_until: dict[str, float] = {}

    def record(self, endpoint: str, *, received: bool) -> None:
        count = 0 if received else self._in_a_row.get(endpoint, 0) + 1
        self._in_a_row[endpoint] = count
        if count >= FAILURES_BEFORE_REST:
            self._rest_until[endpoint] = self._clock() + REST_S

    def resting(self) -> set[str]:
        now = self._clock()
        return {endpoint for endpoint, until in self._rest_until.items() if until > now}


class DeliverySchedule(Struct, frozen=True, kw_only=True):
    """When a delivery is attempted again.

    `claim_s`: for how long no other server attempts it. `jitter` varies a delay, so that servers do
    not all call a receiver at the same moment.
    """

    delays_s: Sequence[float] = DELAYS_S
    claim_s: float = CLAIM_S
    jitter: Callable[[float], float] = lambda seconds: seconds * random.uniform(0.8, 1.2)


class SendDeliveries:
    """Sends the deliveries that are due, several at a time to each endpoint.

    Those to an endpoint that is busy, or rests after failures, stay in the store: they count no
    attempt, and hold up no others.

    `clock` returns seconds from any starting point. With `propagation`, a receiver gets the trace
    of the response.
    """

    def __init__(
        self,
        outbox: Outbox,
        fetcher: Fetcher,
        endpoints: Sequence[WebhookEndpoint],
        *,
        now: Clock,
        clock: Callable[[], float],
        schedule: DeliverySchedule = DeliverySchedule(),  # noqa: B008 - frozen
        propagation: Propagation | None = None,
    ) -> None:
        self._outbox = outbox
        self._fetcher = fetcher
        self._endpoints = {each.name: each for each in endpoints}
        self._now = now
        self._schedule = schedule
        self._propagation = propagation
        self._failures = _Failures(clock)
        self._outages = Outages(logger, CONSEQUENCE)
        self._claiming = asyncio.Lock()
        self._in_progress: Counter[str] = Counter()  # by endpoint
        self._left_out: set[str] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def run_every(self, seconds: float) -> None:
        """Send due deliveries about every `seconds`, until cancelled."""
        if self._endpoints:
            try:
                await run_periodically(CONSEQUENCE, self._start_due, every_s=seconds)
            finally:
                for task in self._tasks:
                    task.cancel()

    async def __call__(self) -> int:
        """Attempt due deliveries once each. Return how many. Raises: StoreError."""
        tasks = await self._start_due()
        await asyncio.gather(*tasks)
        return len(tasks)

    async def _start_due(self) -> Sequence[asyncio.Task[None]]:
        """Start to deliver what is due, except to endpoints that are busy or rest."""
        started: list[asyncio.Task[None]] = []
        async with self._claiming:
            while deliveries := await self._claim():
                for delivery in deliveries:
                    self._in_progress[delivery.endpoint] += 1
                    task = start_shared_task(self._deliver_and_go_on(delivery))
                    task.add_done_callback(self._tasks.discard)
                    started.append(task)
                self._tasks.update(started)
        return started

    async def _claim(self) -> Sequence[WebhookDelivery]:
        self._left_out = self._busy() | self._failures.resting()
        free = MAX_IN_PROGRESS - self._in_progress.total()
        if free <= 0:
            self._left_out |= self._endpoints.keys()
            return ()
        return await self._outbox.claim_due_deliveries(
            limit=min(CLAIMED_AT_ONCE, max(1, free // 2)),
            claim_s=self._schedule.claim_s,
            leave_out=self._left_out,
        )

    def _busy(self) -> set[str]:
        """Return the endpoints that have their share of the places."""
        names = self._endpoints.keys() | self._in_progress.keys()
        used: Counter[str] = Counter()
        for name in names:
            used[self._sharer(name)] += self._in_progress[name]
        free = MAX_IN_PROGRESS - used.total()
        return {
            name
            for name in names
            if self._in_progress[name] >= MAX_PER_ENDPOINT
            or used[self._sharer(name)] >= (free + used[self._sharer(name)] + 1) // 2
        }

    def _sharer(self, name: str) -> str:
        """Return who uses the places: the tenant whose own the endpoint is, or the endpoint."""
        endpoint = self._endpoints.get(name)
        if endpoint is None or endpoint.tenant is None:
            return f"endpoint {name}"
        return f"tenant {endpoint.tenant}"

    async def _deliver_and_go_on(self, delivery: WebhookDelivery) -> None:
        """Deliver it, then start what has waited because its endpoint was busy."""
        endpoint = delivery.endpoint
        with self._outages.log_outages():
            try:
                await self._deliver(delivery)
            finally:
                self._in_progress[endpoint] -= 1
            if endpoint in self._left_out and self._in_progress[endpoint] < MAX_PER_ENDPOINT:
                await self._start_due()

    async def _deliver(self, delivery: WebhookDelivery) -> None:
        log_as(request_id="", response_id=_response_of(delivery))
        endpoint = self._endpoints.get(delivery.endpoint)
        if endpoint is None:  # another server may have it in its settings, or this one soon
            await self._retry_later(delivery, "its endpoint is not in the settings")
        else:
            await self._attempt(delivery, endpoint)

    async def _attempt(self, delivery: WebhookDelivery, endpoint: WebhookEndpoint) -> None:
        started_at = self._now()
        status, reason = await self._post(delivery, endpoint)
        received = 200 <= status < 300
        self._failures.record(endpoint.name, received=received)
        if received:
            seconds, attempt = self._now() - started_at, delivery.attempts + 1
            ids = _ids_of(delivery)
            logger.info("webhook %s to %s: received in %.3f s, attempt %d", *ids, seconds, attempt)
            await self._outbox.delete_delivery(delivery.id)
        elif status == HTTP_GONE:
            await self._give_up(delivery, reason)
        else:
            await self._retry_later(delivery, reason)

    async def _post(self, delivery: WebhookDelivery, endpoint: WebhookEndpoint) -> tuple[int, str]:
        """Return the status of the answer, 0 if there was none, and a reason for the log."""
        headers = {**endpoint.headers(delivery, int(self._now())), **self._trace_headers(delivery)}
        try:
            answer = await self._fetcher.fetch(
                endpoint.url,
                tenant=delivery.tenant,
                method="POST",
                headers=headers,
                content=delivery.body,
            )
        except FetchError as exc:
            return 0, str(exc)
        return answer.status, f"status {answer.status}"

    def _trace_headers(self, delivery: WebhookDelivery) -> Mapping[str, str]:
        if self._propagation is None:
            return {}
        trace = self._propagation.trace_in_background(_response_of(delivery))
        return trace.headers_of_response()

    async def _retry_later(self, delivery: WebhookDelivery, reason: str) -> None:
        event = msgspec.json.decode(delivery.body, type=_Event)
        if self._now() - event.created_at > GIVE_UP_AFTER_S:
            await self._give_up(delivery, reason)
            return
        delays_s = self._schedule.delays_s
        delay_s = delays_s[min(delivery.attempts, len(delays_s) - 1)]
        if delivery.attempts == 0:  # later attempts would log the same line
            logger.warning(
                "webhook %s to %s failed and will be retried: %s", *_ids_of(delivery), reason
            )
        await self._outbox.delay_delivery(delivery.id, self._schedule.jitter(delay_s))

    async def _give_up(self, delivery: WebhookDelivery, reason: str) -> None:
        logger.error("giving up on webhook %s to %s: %s", *_ids_of(delivery), reason)
        await self._outbox.delete_delivery(delivery.id)


def _response_of(delivery: WebhookDelivery) -> str:
    return msgspec.json.decode(delivery.body, type=_Event).data.id


def _ids_of(delivery: WebhookDelivery) -> tuple[str, str]:
    return delivery.id, delivery.endpoint
