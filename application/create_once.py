"""Create a response under an Idempotency-Key: once, however often and wherever it is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from antiphon.application.create_response import Created, CreateResponseService
from antiphon.application.ports import NewId
from antiphon.application.repeats import RepeatKey, Repeats, Taken
from antiphon.domain.request import CreateResponse


class CreateOnce:
    """The first request with a key runs, and outlives its client; the others are told of it."""

    def __init__(self, create: CreateResponseService, repeats: Repeats, *, new_id: NewId) -> None:
        self._create = create
        self._repeats = repeats
        self._new_id = new_id

    async def __call__(
        self,
        request: CreateResponse,
        repeat: RepeatKey | None,
        *,
        tenant: str,
        body: bytes | None = None,
        trace_headers: Mapping[str, str] | None = None,
        strict: bool = False,
    ) -> Created | Taken:
        """Return a new response, or the stored one that has the key. None is no key.

        Raises: what creating raises, and then the key is free; RequestError for a key of another
        request; RepeatPending.
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
