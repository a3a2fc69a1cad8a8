"""Random ids, too long to guess."""

from __future__ import annotations

import os
import secrets

ID_BYTES = 24
POOL_BYTES = ID_BYTES * 128


class _Randomness:
    """Reads random bytes for many ids at a time, because a system call for each id costs more."""

    def __init__(self) -> None:
        self._pool = b""
        self._used = 0

    def take(self) -> bytes:
        if self._used >= len(self._pool):
            self._pool, self._used = secrets.token_bytes(POOL_BYTES), 0
        self._used += ID_BYTES
        return self._pool[self._used - ID_BYTES : self._used]

    def discard(self) -> None:
        self._pool, self._used = b"", 0


_randomness = _Randomness()
if hasattr(os, "register_at_fork"):  # two processes must not return the same ids
    os.register_at_fork(after_in_child=_randomness.discard)


def new_id(prefix: str) -> str:
    """Return a new id: `new_id("resp")` -> `resp_…` with 48 hexadecimal digits."""
    return f"{prefix}_{_randomness.take().hex()}"


def new_tagged_id(tag: str, prefix: str) -> str:
    """Return a new id whose digits begin with `tag`. It is as long as others.

    >>> new_tagged_id("0123456789abcdef", "cntr").startswith("cntr_0123456789abcdef")
    True
    """
    return f"{prefix}_{tag}{_randomness.take().hex()[len(tag) :]}"
