"""The `Idempotency-Key` header of a request."""

from __future__ import annotations

from collections.abc import Sequence

from antiphon.application.input.submission import IdempotencyKey
from antiphon.application.responses.idempotency import HEADER, read_idempotency_key
from antiphon.application.support.threads import run_in_thread
from antiphon.domain.errors import RequestError
from antiphon.domain.requests.request import CreateResponse
from antiphon.entrypoints.http.api.requests import HttpRequest, header_values

IDEMPOTENCY_HEADER = HEADER.lower().encode()


async def idempotency_key_of(
    request: HttpRequest, create_request: CreateResponse, body: bytes
) -> tuple[IdempotencyKey | None, Sequence[str]]:
    """Return the key, and the headers without effect: a key needs a stored response.

    Raises: RequestError for an invalid key.
    """
    keys = header_values(request.scope, IDEMPOTENCY_HEADER)
    if not keys:
        return None, ()
    if len(keys) > 1:
        raise RequestError(
            f"Send the header {HEADER} only once.", param=HEADER, code="invalid_value"
        )
    if create_request.store is False:
        return None, (HEADER,)
    return await run_in_thread(len(body), read_idempotency_key, keys[0].decode("latin-1"), body), ()


def events_expired(response_id: str) -> RequestError:
    """Return the error for a repeated stream whose events have expired."""
    return RequestError(
        f"The response of this {HEADER}, {response_id!r}, can no longer be streamed; retrieve it.",
        param="stream",
        code="invalid_request_error",
    )
