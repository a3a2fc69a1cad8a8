"""Values that all servers of a store share."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol


class SharedValues(Protocol):
    """Named values that all servers of a store share, as long as the store exists.

    Raises: StoreError.
    """

    @abstractmethod
    async def compare_and_set(
        self, name: str, value: bytes, *, expected: bytes | None = None
    ) -> bytes:
        """Set `value` if the name has no value, or has `expected`; return the name's value.

        A value may be any bytes, also empty. Concurrent callers all get the same value.
        """
