"""Idempotency-Keys: a request that a client repeats runs once, and each repetition returns the
same response.

    read_idempotency_key    checks the header and takes a fingerprint of the body
    IdempotencyKeys         reserves a key for one of several concurrent requests
    CreateOnce              creates the response, or returns the one that has the key

A key stands for the first response, also a failed one, as long as it is stored, but at most a day.
A request that got a 4xx before anything was stored leaves the key free.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.application.input.submission import IdempotencyKey, Submission
from antiphon.application.ports import Clock, IdempotencyStore
from antiphon.application.responses.create import CreateResponseService
from antiphon.application.responses.start import AcceptedResponse
from antiphon.application.support.compensation import Compensation
from antiphon.application.support.tasks import run_to_completion
from antiphon.domain.errors import IdempotencyKeyInUse, RequestError
from antiphon.domain.requests.decoding import decode_any

HEADER = "Idempotency-Key"
KEY_TTL_S = 24 * 3600
WAIT_S = 10.0
"""The longest wait for another request with the same key to store its response."""
INITIAL_DELAY_S, MAX_DELAY_S = 0.01, 0.25
_KEY = re.compile(r"[!-~]{1,255}")
_encode = msgspec.json.Encoder(order="deterministic").encode


class ExistingResponse(Struct, frozen=True, kw_only=True):
    """The response that an earlier request with the same key created."""

    response_id: str


def read_idempotency_key(header: str, body: bytes) -> IdempotencyKey:
    """Return the key of a request; `body` is known to be JSON. Raises: RequestError."""
    if not _KEY.fullmatch(header):
        raise RequestError(
            f"The header {HEADER} must be 1 to 255 visible ASCII characters.",
            param=HEADER,
            code="invalid_value",
        )
    return IdempotencyKey(key=header, fingerprint=fingerprint_of(body))


def fingerprint_of(body: bytes) -> bytes:
    """Return a digest of the JSON that ignores spaces and the order of object members.

    >>> fingerprint_of(b'{"a": 1, "b": [2]}') == fingerprint_of(b'{"b":[2],"a":1}')
    True
    """
    return hashlib.sha256(_encode(decode_any(body))).digest()


class IdempotencyKeys:
    """Reserves keys for responses. `owner` is this server; `clock` has seconds of any origin."""

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
        self, tenant: str, key: IdempotencyKey, response_id: str
    ) -> ExistingResponse | None:
        """Reserve the key for this response, or wait for the response that has it, and return that.

        Raises: RequestError if the key belongs to another request; IdempotencyKeyInUse; StoreError.
        """
        deadline, delay_s = self._clock() + self._wait_s, INITIAL_DELAY_S
        while True:
            record = await self._store.reserve_idempotency_key(
                tenant,
                key.key,
                response_id=response_id,
                fingerprint=key.fingerprint,
                owner=self._owner,
                expires_at=self._now() + KEY_TTL_S,
            )
            if record.response_id == response_id:
                return None
            if record.fingerprint != key.fingerprint:
                raise _key_reused()
            if record.exists:
                return ExistingResponse(response_id=record.response_id)
            if self._clock() >= deadline:
                raise IdempotencyKeyInUse
            await asyncio.sleep(delay_s)
            delay_s = min(delay_s * 2, MAX_DELAY_S)

    async def unreserve(self, tenant: str, key: IdempotencyKey, response_id: str) -> None:
        """Free the key if this response has it, now or as soon as the store can; never raises."""
        await self._compensation.run(
            partial(self._store.release_idempotency_key, tenant, key.key, response_id),
            log_message=f"an Idempotency-Key is reserved for {response_id}, which does not exist",
        )

    @asynccontextmanager
    async def reservation(
        self, tenant: str, key: IdempotencyKey, response_id: str
    ) -> AsyncIterator[ExistingResponse | None]:
        """Call `reserve` and yield its result; free the key if the block raises."""
        try:
            yield await self.reserve(tenant, key, response_id)
        except BaseException:
            # Also if `reserve` was cancelled: the store may have reserved the key nevertheless.
            await run_to_completion(self.unreserve(tenant, key, response_id))
            raise


class CreateOnce:
    """Runs the first request with a key, also if its client leaves; the others get its response."""

    def __init__(self, create: CreateResponseService, keys: IdempotencyKeys) -> None:
        self._create = create
        self._keys = keys

    async def __call__(
        self, submission: Submission, key: IdempotencyKey
    ) -> AcceptedResponse | ExistingResponse:
        """Return a new response, or the stored one that has the key.

        Raises: RequestError if the key belongs to another request; IdempotencyKeyInUse; any error
        of CreateResponseService, which leaves the key free.
        """
        tenant, response_id = submission.caller.tenant, submission.response_id
        async with self._keys.reservation(tenant, key, response_id) as existing:
            return existing or await self._create(replace(submission, idempotency_key=key))


def _key_reused() -> RequestError:
    return RequestError(
        f"This {HEADER} was used with another request body. Use a new key for a new request.",
        param=HEADER,
        code="idempotency_key_reused",
    )
