"""Answers to approval requests of MCP calls: each counts for one response, whichever server of the
store runs it.

    find    looks at the answers, to refuse a second one and to show which requests wait
    use     gives answers to the response that uses them first, before anything is called
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256

import msgspec

from antiphon.application.ports import SharedValues
from antiphon.domain.errors import StoreError

REMEMBERED = 500
"""The answers of a tenant that are remembered, the newest ones: a client that sends one again
does so soon. They take 36 KB."""
APPROVAL_BYTES = 16
MAX_ATTEMPTS = 20

Entries = list[tuple[bytes, str]]
"""The hash of an approval request's id, and the id of the response that answered it; by age."""

_decode = msgspec.msgpack.Decoder(Entries).decode


class ApprovalAnswers:
    """The answers of each tenant."""

    def __init__(self, values: SharedValues) -> None:
        self._values = values

    async def find(self, tenant: str, approval_ids: Iterable[str]) -> Mapping[str, str]:
        """Return the ids of the responses that have answered these requests. Raises: StoreError."""
        wanted = [(each, _digest(each)) for each in approval_ids]
        if not wanted:
            return {}
        users = dict(_entries(await self._values.compare_and_set(_name(tenant), b"")))
        return {each: users[digest] for each, digest in wanted if digest in users}

    async def use(self, tenant: str, response_id: str, approval_ids: Sequence[str]) -> list[str]:
        """Return those that another response has used; the others are this response's now.

        They stay its own if it asks again, on any server. Raises: StoreError.
        """
        name = _name(tenant)
        wanted = {_digest(each): each for each in approval_ids}
        stored = await self._values.compare_and_set(name, b"")
        for _ in range(MAX_ATTEMPTS):
            entries = _entries(stored)
            users = dict(entries)
            used = [
                each
                for digest, each in wanted.items()
                if users.get(digest, response_id) != response_id
            ]
            new = [(digest, response_id) for digest in wanted if digest not in users]
            if not new:
                return used
            changed = msgspec.msgpack.encode([*entries, *new][-REMEMBERED:])
            before, stored = (
                stored,
                await self._values.compare_and_set(name, changed, expected=stored),
            )
            if stored == changed:
                return used
            if stored == before:
                break
        raise StoreError("Other requests keep changing the list of used approvals.")


def _name(tenant: str) -> str:
    return f"mcp_approval_answers:{tenant}"


def _entries(stored: bytes) -> Entries:
    return _decode(stored) if stored else []


def _digest(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogatepass")).digest()[:APPROVAL_BYTES]
