"""Lists in the Redis store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from antiphon.adapters.stores.listing import MAX_LISTED_BYTES
from antiphon.adapters.stores.redis.scripts import RedisScripts
from antiphon.application.ports import StorePageQuery
from antiphon.domain.errors import NotFound
from antiphon.domain.history.conversation import Conversation
from antiphon.domain.responses.response_lists import ResponseSummary, summary_from


class RedisLists:
    """Pages of a tenant's responses and conversations."""

    def __init__(self, redis: RedisScripts) -> None:
        self._redis = redis

    async def responses(self, tenant: str, query: StorePageQuery) -> list[ResponseSummary]:
        found = await self._list("list_responses", tenant, query, max_bytes=MAX_LISTED_BYTES)
        summaries = []
        for response_id, short_body in zip(found[::2], found[1::2], strict=True):
            body = short_body or await self._read_long(tenant, response_id)
            if body:
                summaries.append(summary_from(body))
        return summaries

    async def conversations(self, tenant: str, query: StorePageQuery) -> list[Conversation]:
        return [
            Conversation(
                id=name.decode(),
                created_at=int(created_at),
                metadata=msgspec.json.decode(metadata),
            )
            for name, created_at, metadata in await self._list("list_conversations", tenant, query)
        ]

    async def _list(
        self, operation: str, tenant: str, query: StorePageQuery, **arguments: Any
    ) -> Sequence[Any]:
        outcome, *found = await self._redis.run(
            operation,
            tenant=quote(tenant, safe=""),
            after=query.after,
            descending=query.is_descending,
            limit=query.limit,
            **arguments,
        )
        if outcome != b"ok":
            raise NotFound(f"There is no {(query.after or '')[:100]!r}.")
        page: Sequence[Any] = found[0]
        return page

    async def _read_long(self, tenant: str, response_id: bytes) -> bytes | None:
        ref = f"{quote(tenant, safe='')}:{response_id.decode()}"
        body: bytes | None = (await self._redis.run("response_body", ref=ref))[0]
        return body  # None: it was deleted meanwhile
