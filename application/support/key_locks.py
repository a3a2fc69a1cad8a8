"""A lock for each key, such as an API key: work for one key waits for its own work alone."""

from __future__ import annotations

import asyncio
from weakref import WeakValueDictionary


class KeyLocks:
    """The locks that somebody holds or waits for; all others are forgotten."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    def of(self, key: str) -> asyncio.Lock:
        return self._locks.setdefault(key, asyncio.Lock())
