"""JSON bodies of the smaller endpoints: read, decode, and log them if the settings say so."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeVar

from msgspec import Struct

from antiphon.domain.requests.decoding import DecodedRequest, decode_request_body
from antiphon.entrypoints.http.api.requests import HttpRequest, request_id
from antiphon.entrypoints.http.options import HttpOptions
from antiphon.entrypoints.http.wire.bodies import (
    decode_in_thread,
    hold_body,
    receive_body,
    redact_body,
    reject_unknown_fields,
)

logger = logging.getLogger("antiphon.requests")
B = TypeVar("B", bound=Struct)


async def read_json(request: HttpRequest, kind: type[B], options: HttpOptions) -> DecodedRequest[B]:
    """Return the decoded JSON body. Raises: RequestError."""
    async with reading_json(request, kind, options) as decoded:
        return decoded


@asynccontextmanager
async def reading_json(
    request: HttpRequest, kind: type[B], options: HttpOptions
) -> AsyncIterator[DecodedRequest[B]]:
    """Yield the decoded JSON body, which is in work until the block ends. Raises: RequestError."""
    with hold_body(request, options.limits) as held:
        body = await receive_body(request, options.limits, held)
        decoded = await decode_in_thread(body, decode_request_body, kind)
        if options.strict_unknown_fields:
            reject_unknown_fields(decoded)
        if options.log_requests:
            logger.info("request %s: %s", request_id(request), redact_body(body))
        del body  # what was decoded has texts of its own
        yield decoded
