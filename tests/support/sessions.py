"""What tests look for in a session that several clients share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

HEADER = "x-antiphon-session"


def answers_in(items: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return what the models did, in short: their texts, and the names of their calls."""
    found = []
    for item in items:
        if item["type"] == "function_call":
            found.append(item["name"])
        elif item.get("role") == "assistant":
            found.append(item["content"][0]["text"])
    return found
