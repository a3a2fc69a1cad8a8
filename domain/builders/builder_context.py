"""The context of a builder: its index in the response, and functions for ids and sealing."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct


class BuilderContext(Struct, frozen=True):
    """The context of a builder; `seal` encrypts reasoning for the client, None if not requested."""

    output_index: int
    new_id: Callable[[str], str]
    seal: Callable[[str], str] | None = None
