"""Idempotency-Keys: a request that a client repeats is run once, and shown again.

    read_key    the header, and what of the body makes another request the same
    Repeats     gives a key to one response, whoever else asks with it at the same time

A key keeps its first outcome, a failure too, for as long as that is stored, a day at the most. What
came to nothing, answered with a 4xx before anything was stored, leaves the key free.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import partial

import msgspec
from msgspec import Struct

from antiphon.application.ports import Clock, IdempotencyStore, NewId
from antiphon.application.responses.create import CreateResponseService
from antiphon.application.responses.start import AcceptedResponse
from antiphon.application.support.compensation import Compensation
from antiphon.application.support.tasks import run_to_completion
from antiphon.domain.decoding import decode_any
from antiphon.domain.errors import IdempotencyKeyInUse, RequestError
from antiphon.domain.request import CreateResponse

HEADER = "Idempotency-Key"
KEY_TTL_S = 24 * 3600
WAIT_S = 10.0
"""For another request with the same key, until its response is stored."""
FIRST_PAUSE_S, MAX_PAUSE_S = 0.01, 0.25
_KEY = re.compile(r"[!-~]{1,255}")
_encode = msgspec.json.Encoder(order="deterministic").encode


class IdempotencyKey(Struct, frozen=True, kw_only=True):
    """What a client calls a request, and a digest of what it asks for."""

    key: str
    fingerprint: bytes


class ExistingResponse(Struct, frozen=True, kw_only=True):
    """The response that a key has, where it is another request's."""

    response_id: str


def read_idempotency_key(header: str, body: bytes) -> IdempotencyKey:
    """Return the key of a request; `body` is JSON that was read before. Raises: RequestError."""
    if not _KEY.fullmatch(header):
        raise RequestError(
            f"The header {HEADER} must be 1 to 255 visible ASCII characters.",
            param=HEADER,
            code="invalid_value",
        )
    return IdempotencyKey(key=header, fingerprint=fingerprint(body))


def fingerprint(body: bytes) -> bytes:
    """Return what the same JSON has in common, in whatever order and spacing it was written.

    >>> fingerprint(b'{"a": 1, "b": [2]}') == fingerprint(b'{"b":[2],"a":1}')
    True
    """
    return hashlib.sha256(_encode(decode_any(body))).digest()


class IdempotencyKeys:
    """Gives keys to responses. `owner` is this server, `clock` gives seconds of any origin."""

    def __init__(
        self,
        store: IdempotencyStore,
        *,
        owner: str,
        now: Clock,
        clock: Callable[[], float],
        wait_s: float = WAIT_S,
    ) -> None:
        self._store = store
        self._owner = owner
        self._now = now
        self._clock = clock
        self._wait_s = wait_s
        self._compensation = Compensation()

    async def reserve(
        self, tenant: str, repeat: IdempotencyKey, response_id: str
    ) -> ExistingResponse | None:
        """Give the key to this response, or return which has it, once that is stored.

        Raises: RequestError for a key of another request; IdempotencyKeyInUse; StoreError.
        """
        deadline, pause_s = self._clock() + self._wait_s, FIRST_PAUSE_S
        while True:
            held = await self._store.reserve(
                tenant,
                repeat.key,
                response_id=response_id,
                fingerprint=repeat.fingerprint,
                owner=self._owner,
                expires_at=self._now() + KEY_TTL_S,
            )
            if held.response_id == response_id:
                return None
            if held.fingerprint != repeat.fingerprint:
                raise _reused()
            if held.exists:
                return ExistingResponse(response_id=held.response_id)
            if self._clock() >= deadline:
                raise IdempotencyKeyInUse
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, MAX_PAUSE_S)

    async def unreserve(self, tenant: str, repeat: IdempotencyKey, response_id: str) -> None:
        """Free the key if this response has it, now or as soon as the store can; never raises."""
        await self._compensation.run(
            partial(self._store.unreserve, tenant, repeat.key, response_id),
            log_message=f"an Idempotency-Key stays with {response_id}, which came to nothing",
        )

    @asynccontextmanager
    async def reserved(
        self, tenant: str, repeat: IdempotencyKey, response_id: str
    ) -> AsyncIterator[ExistingResponse | None]:
        """As `reserve`; an exception inside the block frees the key."""
        try:
            yield await self.reserve(tenant, repeat, response_id)
        except BaseException:
            # Also where asking was cancelled: the store may have given the key all the same.
            await run_to_completion(self.unreserve(tenant, repeat, response_id))
            raise


class CreateOnce:
    """The first request with a key runs, and outlives its client; the others are told of it."""

    def __init__(
        self, create: CreateResponseService, repeats: IdempotencyKeys, *, new_id: NewId
    ) -> None:
        self._create = create
        self._repeats = repeats
        self._new_id = new_id

    async def __call__(
        self,
        request: CreateResponse,
        repeat: IdempotencyKey | None,
        *,
        tenant: str,
        body: bytes | None = None,
        trace_headers: Mapping[str, str] | None = None,
        strict: bool = False,
    ) -> AcceptedResponse | ExistingResponse:
        """Return a new response, or the stored one that has the key. None is no key.

        Raises: what creating raises, and then the key is free; RequestError for a key of another
        request; IdempotencyKeyInUse.
        """
        create = partial(
            self._create,
            request,
            tenant=tenant,
            body=body,
            trace_headers=trace_headers,
            strict=strict,
        )
        if repeat is None:
            return await create()
        response_id = self._new_id("resp")
        async with self._repeats.reserved(tenant, repeat, response_id) as taken:
            return taken or await create(response_id=response_id, key=repeat.key)


def _reused() -> RequestError:
    return RequestError(
        f"This {HEADER} was used with another request body. Use a new key for a new request.",
        param=HEADER,
        code="idempotency_key_reused",
    )
