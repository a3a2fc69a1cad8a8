"""Ids: ours, random, and long enough that nobody guesses one."""

from __future__ import annotations

from secrets import token_hex


def new_id(prefix: str) -> str:
    """Return a fresh id: `new_id("resp")` -> `resp_…` with 48 hexadecimal digits."""
    return f"{prefix}_{token_hex(24)}"
