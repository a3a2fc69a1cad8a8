"""The profile that every engine on a pool has of each of its servers."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias

from msgspec import Struct

from antiphon.adapters.upstreams.client import UpstreamAnswer, UpstreamClient, UpstreamRefused
from antiphon.domain.errors import SettingsError


class ServerProfile(Struct, frozen=True, kw_only=True):
    """One server. All servers of a pool have the same `model_name`."""

    model_name: str
    context_length: int
    reads_images: bool = False


REFUSED_KEY = frozenset({401, 403})


async def ask_first(client: UpstreamClient, path: str, *, timeout_s: float) -> UpstreamAnswer:
    """Return the answer to the first question that a server is asked.

    Raises: SettingsError if it refuses the key; UpstreamRefused; EngineError.
    """
    try:
        return await client.get(path, timeout_s=timeout_s)
    except UpstreamRefused as error:
        if error.status in REFUSED_KEY:
            raise SettingsError(
                f"The server at {client.url!r} refuses the key: set `key_env` or `key_file`."
            ) from error
        raise


ReadProfile: TypeAlias = Callable[[UpstreamClient], Awaitable[ServerProfile]]
"""Asks a server for its profile. Raises: SettingsError if settings must change; EngineError."""
