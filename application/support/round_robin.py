"""A queue whose items are taken in turns: one of each key, and those of a key in their order."""

from __future__ import annotations

from collections import OrderedDict, deque
from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class RoundRobin(Generic[K, V]):
    """Items by key.

    >>> queue = RoundRobin[str, int]()
    >>> for key, item in ("a", 1), ("a", 2), ("a", 3), ("b", 4):
    ...     queue.add(key, item)
    >>> [queue.pop() for _ in range(queue.count)]
    [1, 4, 2, 3]
    """

    def __init__(self) -> None:
        # In the order of their turns: a key whose item is taken goes to the end.
        self._items: OrderedDict[K, deque[V]] = OrderedDict()
        self.count = 0

    def add(self, key: K, item: V) -> None:
        self._items.setdefault(key, deque()).append(item)
        self.count += 1

    def pop(self) -> V:
        """Return the next item. There must be one."""
        key = next(iter(self._items))
        items = self._items[key]
        item = items.popleft()
        self.count -= 1
        if items:
            self._items.move_to_end(key)
        else:
            del self._items[key]
        return item
