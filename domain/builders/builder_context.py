"""What every builder is given: its place in the response, and how ids and seals are made."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct


class BuilderContext(Struct, frozen=True):
    """`seal` encrypts reasoning for the client to keep; None where nobody asked for it."""

    output_index: int
    new_id: Callable[[str], str]
    seal: Callable[[str], str] | None = None
