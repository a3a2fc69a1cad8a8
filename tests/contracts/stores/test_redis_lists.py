"""What an earlier version of the server has written to Redis is listed, too."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import redis.asyncio as aio
from tests.contracts.conftest import REDIS, redis_prefix

from antiphon.adapters.stores.redis.store import RedisStore
from antiphon.application.ports import StorePageQuery
from antiphon.domain.history.conversation import Conversation
from antiphon.testing.samples import THEM, US, new_response
from antiphon.testing.stores.calls import create_and_finish

ALL = StorePageQuery(limit=5000)


@pytest.fixture(params=["a:", "a*[b]?\\:"])
async def prefix(request: pytest.FixtureRequest) -> AsyncIterator[str]:
    async with redis_prefix() as prefix:
        yield prefix + request.param


async def forget_lists(prefix: str) -> None:
    """Make the data look as if an earlier version had written it."""
    async with aio.Redis.from_url(REDIS) as client:
        keys = [key async for key in client.scan_iter(count=1000)]
        for key in keys:
            name = key.decode()
            if not name.startswith(prefix):
                continue
            kind = name.removeprefix(prefix).partition(":")[0]
            if kind in ("responses_of", "conversations_of", "schema_version"):
                await client.delete(key)
            if kind == "conversation":
                await client.hdel(key, "number")


async def test_earlier_responses_and_conversations_are_listed(prefix: str) -> None:
    store = RedisStore(REDIS, prefix=prefix)
    await store.start()
    names = [f"r{number}" for number in range(30)]
    for name in names:
        await store.create_response(US, new_response(name))
    await store.create_response(THEM, new_response("theirs"))
    await create_and_finish(store, "gone")
    await create_and_finish(store, "child", after="gone")
    await store.delete_response(US, "resp_gone")
    for number in (3, 1, 2):
        conversation = Conversation(id=f"conv_{number}", created_at=number)
        await store.create_conversation(US, conversation)
    await store.aclose()
    await forget_lists(prefix)

    store = RedisStore(REDIS, prefix=prefix)
    await store.start()
    try:
        listed = [response.id for response in await store.list_responses(US, ALL)]
        assert listed == [f"resp_{name}" for name in (*names, "child")]
        [theirs] = await store.list_responses(THEM, ALL)
        assert theirs.id == "resp_theirs"
        conversations = await store.list_conversations(US, ALL)
        assert [each.created_at for each in conversations] == [1, 2, 3]
        await store.create_conversation(US, Conversation(id="conv_new", created_at=0))
        newest = await store.list_conversations(US, StorePageQuery(limit=1, is_descending=True))
        assert newest[0].id == "conv_new"
    finally:
        await store.aclose()
