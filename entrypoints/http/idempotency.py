"""The header Idempotency-Key: whether a request has one, and whether it has an effect."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.application.responses.idempotency import HEADER, IdempotencyKey, read_idempotency_key
from antiphon.application.support.threads import run_in_thread
from antiphon.domain.errors import RequestError
from antiphon.domain.request import CreateResponse
from antiphon.entrypoints.http.requests import HttpRequest, header_values

_NAME = HEADER.lower().encode()


async def idempotency_key_of(
    request: HttpRequest, asked: CreateResponse, body: bytes
) -> tuple[IdempotencyKey | None, Sequence[str]]:
    """Return the key, and what has no effect: a key of a response that nobody keeps.

    Raises: RequestError for a key that is none.
    """
    keys = header_values(request.scope, _NAME)
    if not keys:
        return None, ()
    if len(keys) > 1:
        raise RequestError(
            f"The header {HEADER} must be there once.", param=HEADER, code="invalid_value"
        )
    if asked.store is False:
        return None, (HEADER,)
    return await run_in_thread(len(body), read_idempotency_key, keys[0].decode("latin-1"), body), ()


def events_expired(response_id: str) -> RequestError:
    """Return the error of a stream that is asked for again after its events were swept."""
    return RequestError(
        f"The response of this {HEADER}, {response_id!r}, can no longer be streamed; retrieve it.",
        param="stream",
        code="invalid_request_error",
    )
