"""How the model itself wrote its latest messages, token by token.

A conversation comes back as items, and the same words can be written as other tokens, the same
call with another header. Rendered anew, one different token makes the engine compute all that
follows it again. So the format remembers the tokens of what it parsed and renders an unchanged
message with them: the next prompt then continues the last prompt and its output exactly. What was
forgotten, or parsed by another replica, is rendered in the one canonical way.
"""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

REMEMBERED_TOKENS = 1_000_000


class Recall:
    """The tokens of messages, newest `limit` tokens only.

    Kept apart by cache salt: how one tenant's model wrote a text says nothing to another.
    """

    def __init__(self, limit: int = REMEMBERED_TOKENS) -> None:
        self._limit = limit
        self._size = 0
        self._written: OrderedDict[bytes, array[int]] = OrderedDict()

    def keep(self, key: bytes, token_ids: Sequence[int]) -> None:
        if len(token_ids) > self._limit:
            return
        self._forget(key)
        self._written[key] = array("I", token_ids)
        self._size += len(token_ids)
        while self._size > self._limit:
            self._forget(next(iter(self._written)))

    def find(self, key: bytes) -> Sequence[int] | None:
        written = self._written.get(key)
        if written is not None:
            self._written.move_to_end(key)
        return written

    def _forget(self, key: bytes) -> None:
        forgotten = self._written.pop(key, None)
        if forgotten is not None:
            self._size -= len(forgotten)


def key_of(salt: str | None, kind: str, name: str, text: str) -> bytes:
    """Return the key of a message: `kind` is its channel, or the kind of call of `name`."""
    digest = blake2b(digest_size=16)
    for part in (salt or "", kind, name, text):
        part_bytes = part.encode("utf-8", "surrogatepass")
        digest.update(len(part_bytes).to_bytes(8, "big") + part_bytes)
    return digest.digest()
