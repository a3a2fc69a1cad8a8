"""Ids: ours, random, and long enough that nobody guesses one."""

from __future__ import annotations

import os
import secrets

ID_BYTES = 24
POOL_BYTES = ID_BYTES * 128


class _Randomness:
    """Reads the system's randomness for many ids at once: a call for each is dearer than the id."""

    def __init__(self) -> None:
        self._pool = b""
        self._used = 0

    def take(self) -> bytes:
        if self._used >= len(self._pool):
            self._pool, self._used = secrets.token_bytes(POOL_BYTES), 0
        self._used += ID_BYTES
        return self._pool[self._used - ID_BYTES : self._used]

    def forget(self) -> None:
        self._pool, self._used = b"", 0


_randomness = _Randomness()
if hasattr(os, "register_at_fork"):  # two processes must not give out the same ids
    os.register_at_fork(after_in_child=_randomness.forget)


def new_id(prefix: str) -> str:
    """Return a fresh id: `new_id("resp")` -> `resp_…` with 48 hexadecimal digits."""
    return f"{prefix}_{_randomness.take().hex()}"
