"""Lists in the Redis store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import msgspec
from msgspec import Raw
from msgspec.structs import asdict

from antiphon.adapters.stores.listing import MAX_LISTED_BYTES
from antiphon.adapters.stores.redis.scripts import RedisScripts
from antiphon.application.ports import (
    MAX_SEARCHED_BYTES,
    FoundPage,
    FoundResponse,
    StorePageQuery,
)
from antiphon.domain.errors import NotFound
from antiphon.domain.history.conversation import Conversation
from antiphon.domain.responses.response_lists import ResponseSummary, summary_from
from antiphon.domain.responses.text_search import TextSearch

SEARCHED_AT_ONCE = 200
"""Responses. With as many bytes as below, Redis does nothing else for two or three milliseconds."""

SEARCHED_BYTES_AT_ONCE = 1024 * 1024


class RedisLists:
    """Pages of a tenant's responses and conversations."""

    def __init__(self, redis: RedisScripts) -> None:
        self._redis = redis

    async def responses(self, tenant: str, query: StorePageQuery) -> list[ResponseSummary]:
        [found] = await self._run("list_responses", tenant, query, max_bytes=MAX_LISTED_BYTES)
        summaries = []
        for response_id, short_body in zip(found[::2], found[1::2], strict=True):
            body = short_body or await self._read_long(tenant, response_id)
            if body:
                summaries.append(summary_from(body))
        return summaries

    async def search(self, tenant: str, search: TextSearch, query: StorePageQuery) -> FoundPage:
        """Search some responses. Raises: NotFound."""
        found, searched, last_id, is_last = await self._run(
            "search_responses",
            tenant,
            query,
            pieces=[
                {name: [text.encode() for text in texts] for name, texts in asdict(piece).items()}
                for piece in search.pieces
            ],
            portion=SEARCHED_AT_ONCE,
            portion_bytes=SEARCHED_BYTES_AT_ONCE,
            max_bytes=MAX_SEARCHED_BYTES,
        )
        return FoundPage(
            found=[
                FoundResponse(response=summary_from(body), items=[Raw(item) for item in items])
                for body, items in found
            ],
            searched=searched,
            last_id=last_id.decode() if last_id else query.after,
            is_last=bool(is_last),
        )

    async def conversations(self, tenant: str, query: StorePageQuery) -> list[Conversation]:
        [found] = await self._run("list_conversations", tenant, query)
        return [
            Conversation(
                id=name.decode(),
                created_at=int(created_at),
                metadata=msgspec.json.decode(metadata),
            )
            for name, created_at, metadata in found
        ]

    async def _run(
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
        return found

    async def _read_long(self, tenant: str, response_id: bytes) -> bytes | None:
        ref = f"{quote(tenant, safe='')}:{response_id.decode()}"
        body: bytes | None = (await self._redis.run("response_body", ref=ref))[0]
        return body  # None: it was deleted meanwhile
