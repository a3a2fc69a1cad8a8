"""Lists in the Redis store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import msgspec

from antiphon.adapters.stores.listing import MAX_LISTED_BYTES
from antiphon.adapters.stores.redis.scripts import RedisScripts
from antiphon.application.ports import StorePageQuery
from antiphon.domain.conversation import Conversation
from antiphon.domain.errors import NotFound
from antiphon.domain.response_lists import ResponseSummary, summary_from

SCANNED = 1000
"""Keys that Redis looks at in one step of a scan."""

LISTED = "listed"
"""The key that says that everything in this database is listed."""


class RedisLists:
    """Pages of a tenant's responses and conversations."""

    def __init__(self, redis: RedisScripts) -> None:
        self._redis = redis

    async def start(self) -> None:
        """List what an earlier version has written, once. Raises: StoreError."""
        with self._redis.raising_store_errors():
            client, prefix = self._redis.client, self._redis.prefix
            if await client.get(f"{prefix}{LISTED}"):
                return
            async for keys in self._scan("response"):
                await self._redis.run("list_earlier", responses=keys, conversations=[])
            conversations = [each async for keys in self._scan("conversation") for each in keys]
            ages = [
                await client.hget(f"{prefix}conversation:{ref}", "created_at")
                for ref in conversations
            ]
            by_age = sorted(zip([int(age or 0) for age in ages], conversations, strict=True))
            for start in range(0, len(by_age), SCANNED):
                refs = [ref for _, ref in by_age[start : start + SCANNED]]
                await self._redis.run("list_earlier", responses=[], conversations=refs)
            await client.set(f"{prefix}{LISTED}", 1)

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
        body: bytes | None = (await self._redis.run("body", ref=ref))[0]
        return body  # None: it was deleted meanwhile

    async def _scan(self, kind: str) -> Any:
        """Yield the refs of all keys of a kind, in portions."""
        start = f"{self._redis.prefix}{kind}:"
        cursor = 0
        while True:
            cursor, keys = await self._redis.client.scan(
                cursor, match=f"{_escape(start)}*", count=SCANNED
            )
            found: list[Any] = keys  # bytes: the client decodes nothing
            yield [key.decode()[len(start) :] for key in found]
            if not cursor:
                return


def _escape(text: str) -> str:
    r"""Return a pattern that matches the text alone.

    >>> _escape("a*[b]:")
    'a\\*\\[b\\]:'
    """
    return "".join(f"\\{each}" if each in "*?[]\\" else each for each in text)
