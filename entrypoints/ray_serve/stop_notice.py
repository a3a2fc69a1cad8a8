"""How a replica learns that Serve stops it.

Serve first waits until no request is open, and only then tells the application. A stream or a
WebSocket may be open for an hour, so Serve would kill the replica with all that it runs. Serve has
no hook for the beginning, only a flag in the actor of the replica, in the same process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def stop_flag() -> Callable[[], bool] | None:
    """Return what says whether Serve is stopping this replica; None if this Serve does not say."""
    from ray._private.worker import global_worker

    for actor in global_worker.actors.values():
        replica: Any = getattr(actor, "_replica_impl", None)
        if hasattr(replica, "_shutting_down"):
            return lambda: bool(replica._shutting_down)
    return None
