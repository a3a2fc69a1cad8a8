"""A store's self-test at startup: it must return what was written."""

from __future__ import annotations

import asyncio
import secrets
import time

from msgspec.structs import replace

from antiphon.application.ports import EventChunk, Lease, NewRun, Store, StoredResponse
from antiphon.domain.errors import NotFound
from antiphon.domain.responses.response import Response

# Longer than any start takes; otherwise another server could sweep the test response too early.
EXPIRES_AFTER_S = 3600


async def round_trips(store: Store) -> bool:
    """Create, finish, read and delete a response, and return whether all went well.

    The response has a live owner, so no other server leases its run. If this process dies in
    between, the response is swept once it expires. Raises: StoreError.
    """
    name = f"proof_{secrets.token_hex(8)}"
    response = Response(id=name, created_at=0, model="")
    first, last = (EventChunk(first=n, count=1, body=b"proof") for n in range(2))
    lease = Lease(tenant="", response_id=name)
    run = NewRun(owner=name, job=b"proof", events=first)
    finished = replace(response, status="completed")
    try:
        await asyncio.to_thread(store.record_heartbeat, name, 60)
        await store.create_response(
            "", StoredResponse(response=response, expires_at=time.time() + EXPIRES_AFTER_S, run=run)
        )
        checks = [
            await store.list_leases(name) == [lease],
            await store.append_events(lease, last),
            (await store.read_events("", name)).chunks == [first, last],
            await store.finish_response(lease, finished),
            await store.get_response("", name) == finished,
        ]
        await store.delete_response("", name)
        await store.end_heartbeat(name)
    except NotFound:
        return False
    return all(checks)
