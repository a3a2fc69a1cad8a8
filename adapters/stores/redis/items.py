"""The items of contexts and conversations in the Redis store."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any
from urllib.parse import quote

from msgspec import Raw

from antiphon.adapters.stores.not_found import conversation_not_found, response_not_found
from antiphon.adapters.stores.redis.scripts import RedisScripts
from antiphon.application.ports import StoredItem, StorePageQuery
from antiphon.domain.errors import NotInList

READ_AT_ONCE = 500
"""Redis does nothing else meanwhile: some 3 ms."""


class RedisItems:
    """Contexts and conversations, whole or in pages."""

    def __init__(self, redis: RedisScripts) -> None:
        self._redis = redis

    async def of_response(
        self,
        tenant: str,
        response_id: str,
        query: StorePageQuery | None = None,
        *,
        with_output: bool,
    ) -> list[StoredItem]:
        """Return the items of a context, or a page of them. Raises: NotFound, NotInList."""
        ref = to_ref(tenant, response_id)
        found = await self._read("read_chain", query, ref=ref, output=with_output)
        if found is None:
            raise response_not_found(response_id)
        return found

    async def of_conversation(
        self, tenant: str, conversation_id: str, query: StorePageQuery | None
    ) -> list[StoredItem]:
        """Return a conversation's items, or a page of them. Raises: NotFound, NotInList."""
        found = await self._read("conversation_items", query, ref=to_ref(tenant, conversation_id))
        if found is None:
            raise conversation_not_found(conversation_id)
        return found

    async def _read(
        self, operation: str, query: StorePageQuery | None, **arguments: Any
    ) -> list[StoredItem] | None:
        """Return what `query` asks for, or everything, in portions; None if nothing is there."""
        found: list[StoredItem] = []
        page = query or StorePageQuery(limit=READ_AT_ONCE)
        ended_at: Sequence[int] | None = None
        while True:
            outcome, *rest = await self._redis.run(
                operation,
                after=page.after,
                descending=page.is_descending,
                limit=page.limit,
                max_bytes=page.max_bytes,
                **{"from": ended_at},
                **arguments,
            )
            if outcome == b"no item":
                raise NotInList(page.after or "")
            if outcome != b"ok":
                return None
            found += to_items(rest[0])
            ended_at = rest[1] if len(rest) > 1 else None
            if query is not None or ended_at is None:
                return found


def to_ref(tenant: str, name: str) -> str:
    """Return the name of a tenant's object, which differs from those of all other tenants.

    >>> to_ref("a:b", "c"), to_ref("a", "b:c")
    ('a%3Ab:c', 'a:b:c')
    """
    return f"{quote(tenant, safe='')}:{name}"


def to_items(flat: Sequence[bytes]) -> list[StoredItem]:
    return [StoredItem(id=item_id.decode(), raw=Raw(body)) for item_id, body in pairs(flat)]


def pairs(flat: Sequence[bytes]) -> Iterator[tuple[bytes, bytes]]:
    return zip(flat[::2], flat[1::2], strict=True)
