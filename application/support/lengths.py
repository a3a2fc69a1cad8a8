"""How long a value is, without a walk over the characters of its texts."""

from __future__ import annotations

import math
from typing import Any

from msgspec import Struct


def length_of(value: Any, limit: float = math.inf) -> int:
    """Return the number of characters of the texts in a value; stop counting beyond `limit`."""
    size = 0
    waiting = [value]
    while waiting and size <= limit:
        value = waiting.pop()
        size += 1
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, dict):
            waiting += value.values()
            waiting += value
        elif isinstance(value, list | tuple):
            waiting += value
        elif isinstance(value, Struct):
            # No model is shown whose item it is.
            waiting += [getattr(value, name) for name in value.__struct_fields__ if name != "agent"]
    return size
