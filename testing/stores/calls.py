"""Short forms of calls that the contracts of stores make often."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from msgspec.structs import replace

from antiphon.application.ports import (
    EventChunk,
    Lease,
    LeasedRun,
    Store,
    StoredItem,
    StorePageQuery,
    WebhookDelivery,
)
from antiphon.domain.errors import ConversationLocked, NotFound
from antiphon.domain.history.conversation import Conversation
from antiphon.domain.responses.response import Response
from antiphon.testing.samples import (
    NEXT_OWNER,
    OWNER,
    US,
    chunk,
    finished_response,
    ids,
    item,
    new_response,
)

ReadPage = Callable[[StorePageQuery], Awaitable[Sequence[StoredItem]]]


async def finish(store: Store, response: Response, tenant: str = US) -> bool:
    """Finish the response as its first owner."""
    return await store.finish_response(Lease(tenant=tenant, response_id=response.id), response)


async def create_and_finish(
    store: Store, name: str, *, after: str | None = None, tenant: str = US
) -> None:
    """Create and finish a response with one item in, one out."""
    await store.create_response(tenant, new_response(name, after=after))
    assert await finish(store, finished_response(name, after=after), tenant)


async def beat(store: Store, *owners: str, ttl_s: float = 60) -> None:
    for owner in owners:
        await asyncio.to_thread(store.record_heartbeat, owner, ttl_s)


async def claim(
    store: Store, conversation: str, name: str, *, tenant: str = US, owner: str = OWNER
) -> None:
    """Claim a conversation for a response of an owner that is alive."""
    await beat(store, owner)
    await store.claim_conversation(tenant, f"conv_{conversation}", f"resp_{name}", owner=owner)


async def wait_until(condition: Callable[[], Awaitable[object]], limit_s: float = 10) -> None:
    """Return once the condition holds."""
    async with asyncio.timeout(limit_s):
        while not await condition():  # noqa: ASYNC110 -- another process may bring it about
            await asyncio.sleep(0.01)


async def claim_and_create(store: Store, conversation: str, name: str, tenant: str = US) -> None:
    """Claim a conversation and create a response in it."""
    await claim(store, conversation, name, tenant=tenant)
    await store.create_response(tenant, new_response(name, within=conversation))


async def run_in_conversation(store: Store, conversation: str, name: str, tenant: str = US) -> None:
    """Run a response in a conversation to its end."""
    await claim_and_create(store, conversation, name, tenant)
    assert await finish(store, finished_response(name, within=conversation), tenant)


async def create_conversation(store: Store, name: str, *items: str, tenant: str = US) -> None:
    """Create the conversation `conv_…`."""
    conversation = Conversation(id=f"conv_{name}", created_at=7, metadata={"k": "é"})
    await store.create_conversation(tenant, conversation, [item(one) for one in items])


async def input_of(store: Store, name: str) -> list[str]:
    return ids(await store.list_input_items(US, f"resp_{name}"))


async def context_of(store: Store, name: str) -> list[str]:
    return ids(await store.get_context(US, f"resp_{name}"))


async def items_of(store: Store, conversation: str, tenant: str = US) -> list[str]:
    return ids(await store.list_conversation_items(tenant, f"conv_{conversation}"))


async def pages_of(
    read: ReadPage, limit: int, *, is_descending: bool = False, max_bytes: int | None = None
) -> list[str]:
    """Return the names of all items of a list, read page by page."""
    query = StorePageQuery(limit=limit, is_descending=is_descending, max_bytes=max_bytes)
    found: list[str] = []
    while page := await read(query):
        assert len(page) <= limit
        found += ids(page)
        query = replace(query, after=page[-1].id)
    return found


async def is_locked(call: Awaitable[object]) -> bool:
    try:
        await call
    except ConversationLocked:
        return True
    return False


async def is_unknown(lookup: Awaitable[object]) -> bool:
    try:
        await lookup
    except NotFound:
        return True
    return False


async def is_gone(store: Store, name: str, *, tenant: str = US) -> bool:
    """Return whether every method treats the response as unknown."""
    response_id = f"resp_{name}"
    return all(
        [
            await is_unknown(store.get_response(tenant, response_id)),
            await is_unknown(store.list_input_items(tenant, response_id)),
            await is_unknown(store.get_context(tenant, response_id)),
            await is_unknown(store.delete_response(tenant, response_id)),
            not await finish(store, finished_response(name), tenant),
            response_id not in [lease.response_id for lease in await store.list_leases(OWNER)],
        ]
    )


async def sweep(store: Store, *, keep_events_s: float = 3600) -> int:
    """Sweep until nothing is left."""
    total_count = 0
    while count := await store.sweep(keep_events_s=keep_events_s):
        total_count += count
    return total_count


async def log_of(store: Store, name: str, *, after: int = -1, tenant: str = US) -> list[EventChunk]:
    """Read the whole log, slice by slice."""
    found: list[EventChunk] = []
    while True:
        piece = await store.read_events(tenant, f"resp_{name}", after=after)
        found += piece.chunks
        if piece.ends or not piece.chunks:
            return found
        after = last_number(piece.chunks)


def last_number(chunks: Sequence[EventChunk]) -> int:
    return chunks[-1].first + chunks[-1].count - 1


async def log_ends(store: Store, name: str, *, after: int) -> bool:
    return (await store.read_events(US, f"resp_{name}", after=after)).ends


def run_names(taken: Sequence[LeasedRun]) -> list[str]:
    return [one.lease.response_id.removeprefix("resp_") for one in taken]


async def lease_runs(store: Store, owner: str = NEXT_OWNER, *, limit: int = 100) -> list[LeasedRun]:
    """Lease runs as an owner that is alive."""
    await beat(store, owner)
    return await store.lease_runs(owner, limit=limit)


async def take_over(store: Store, name: str, owner: str = NEXT_OWNER) -> LeasedRun | None:
    await beat(store, owner)
    return await store.take_over_run(owner, US, f"resp_{name}")


async def try_to_write(store: Store, held: Lease, first: int = 2) -> bool:
    """Try to append, finish and give back under the lease; return whether any of them wrote."""
    name = held.response_id.removeprefix("resp_")
    delivery = WebhookDelivery(id=f"evt_{name}", tenant=held.tenant, endpoint="main", body=b"{}")
    done = [
        await store.append_events(held, chunk(first)),
        await store.finish_response(
            held, finished_response(name), events=chunk(first), deliveries=[delivery]
        ),
        await store.give_back_run(held),
    ]
    return any(done)
