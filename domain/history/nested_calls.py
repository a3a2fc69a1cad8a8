"""Calls that programs make: items whose `caller` names the program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from antiphon.domain import items as i


def caller_of(item: i.Item) -> str | None:
    """Return the call_id of the program that made this call, None if no program did."""
    caller = getattr(item, "caller", None)
    if not isinstance(caller, dict) or caller.get("type") != "program":
        return None
    caller_id = caller.get("caller_id")
    return caller_id if isinstance(caller_id, str) else None


def nested_calls(conversation: Sequence[i.AnyItem]) -> Mapping[int, str]:
    """Return the calls of programs, without their outputs: the caller's id, by position."""
    return {
        position: caller_id
        for position, item in enumerate(conversation)
        if (caller_id := caller_of(item)) is not None and i.kind_of(item).shown.call is not None
    }
