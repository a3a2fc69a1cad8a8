"""What a store proves at its start: that it returns what it was given."""

from __future__ import annotations

import asyncio
import secrets
import time

from msgspec.structs import replace

from antiphon.application.ports import EventChunk, Lease, NewRun, Store, StoredResponse
from antiphon.domain.errors import NotFound
from antiphon.domain.response import Response

# Seconds. Longer than any start takes, or another server sweeps the proof while it is read.
_KEPT_S = 3600


async def round_trips(store: Store) -> bool:
    """Run, read and delete a response, just as clients' are. Raises: StoreError.

    It is a live owner's, so no other server takes it for a run; if this process dies now, it is
    swept when its time is over.
    """
    name = f"proof_{secrets.token_hex(8)}"
    proof = Response(id=name, created_at=0, model="")
    first, last = (EventChunk(first=n, count=1, body=b"proof") for n in range(2))
    lease = Lease(tenant="", response_id=name)
    run = NewRun(owner=name, job=b"proof", events=first)
    done = replace(proof, status="completed")
    try:
        await asyncio.to_thread(store.beat, name, 60)
        await store.create(
            "", StoredResponse(response=proof, expires_at=time.time() + _KEPT_S, run=run)
        )
        proved = [
            await store.held_leases(name) == [lease],
            await store.append(lease, last),
            (await store.events("", name)).chunks == [first, last],
            await store.finish(lease, done),
            await store.get("", name) == done,
        ]
        await store.delete("", name)
        await store.leave(name)
    except NotFound:
        return False
    return all(proved)
