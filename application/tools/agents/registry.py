"""The sub-agents of each tree, counted exactly over all servers of the store.

A tree's bounds hold for all of its agents together, and they may run on several servers. So each
one that starts is entered here first, in a value that all servers share.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

import msgspec
from msgspec import Struct

from antiphon.application.ports import SharedValues
from antiphon.domain.errors import StoreError

REMEMBERED_TREES = 64
"""The trees of a tenant that are counted, the newest ones. With 64 agents each they take 100 KB."""

MAX_ATTEMPTS = 50

Trees = list[tuple[bytes, list[bytes]]]
"""The root's id, and those of all sub-agents' responses of the tree; by age of the tree."""

_decode = msgspec.msgpack.Decoder(Trees).decode
_encode = msgspec.msgpack.Encoder().encode

IsActive = Callable[[str], Awaitable[bool]]
"""Returns whether a response has not ended."""


class AgentLimits(Struct, frozen=True, kw_only=True):
    """`depth`: the agents above one another, without the root. `total`: the sub-agents that a tree
    may ever start. `concurrent`: those that a request may let work at a time."""

    depth: int = 4
    total: int = 64
    concurrent: int = 16


class TreeIsFull(Exception):
    """The tree may have no more sub-agents; the message says which bound it is."""


class AgentRegistry:
    """The trees of each tenant."""

    def __init__(self, values: SharedValues) -> None:
        self._values = values

    async def add(
        self,
        tenant: str,
        root_id: str,
        response_id: str,
        is_active: IsActive,
        *,
        total: int,
        concurrent: int | None,
    ) -> None:
        """Enter a sub-agent's response; one that is entered already may always start.

        `concurrent` is None for one that goes on, which no bound holds up.
        Raises: TreeIsFull, StoreError.
        """
        name, root, own = f"agents:{tenant}", _to_bytes(root_id), _to_bytes(response_id)
        stored = await self._values.compare_and_set(name, b"")
        for _ in range(MAX_ATTEMPTS):
            trees = dict(_decode(stored)) if stored else {}
            members = trees.get(root, [])
            if own in members:
                return
            await _check_room(members, is_active, total=total, concurrent=concurrent)
            trees[root] = [*members, own]
            changed = _encode([*trees.items()][-REMEMBERED_TREES:])
            stored = await self._values.compare_and_set(name, changed, expected=stored)
            if stored == changed:
                return
        raise StoreError("Other requests keep changing the list of sub-agents.")


async def _check_room(
    members: Sequence[bytes], is_active: IsActive, *, total: int, concurrent: int | None
) -> None:
    """Raises: TreeIsFull."""
    if len(members) >= total:
        raise TreeIsFull(f"The tree of agents has had {total} sub-agents, which is the limit.")
    if concurrent is None or len(members) < concurrent:
        return
    active = sum([await is_active(_to_id(member)) for member in members])
    if active >= concurrent:
        raise TreeIsFull(
            f"{active} sub-agents work at this time, which is the limit. Wait for one of them."
        )


def _to_bytes(response_id: str) -> bytes:
    return bytes.fromhex(response_id.partition("_")[2])


def _to_id(member: bytes) -> str:
    return f"resp_{member.hex()}"
