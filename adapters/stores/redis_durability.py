"""What a Redis loses, as it is set up: looked up at the start, and told to whoever operates it."""

from __future__ import annotations

from collections.abc import Mapping

import redis.asyncio as aio
from redis.exceptions import ResponseError

from antiphon.domain.errors import SettingsError

OLDEST = (7, 0)
"""Before it, a script that found the memory full could stop in its middle."""

DURABILITY: Mapping[str, str] = {
    "always": "What was confirmed survives a power cut (appendfsync always).",
    "everysec": "A power cut may take the last second or two (appendfsync everysec).",
    "no": "A power cut may take the last half minute (appendfsync no).",
}
NOT_DURABLE = "Warning: whatever is kept may be lost when Redis stops (appendonly no)."
UNKNOWN = "What Redis loses when it stops is unknown: it does not show its configuration."

NEEDED = ("appendonly", "appendfsync", "maxmemory-policy")


async def durability_of(client: aio.Redis, address: str) -> str:
    """Return a sentence on what may be lost. Raises: SettingsError where Redis cannot be used."""
    about = await _about(client)
    version = str(about.get("redis_version", "7.0"))
    if tuple(map(int, version.split(".")[:2])) < OLDEST:
        raise SettingsError(f"The Redis at {address} is too old: {version}; 7.0 is needed.")
    if about.get("cluster_enabled") == 1:
        raise SettingsError(f"The Redis at {address} is a Cluster; one that is none is needed.")
    shown = await _configuration(client)
    policy = shown.get("maxmemory-policy") or about.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise SettingsError(
            f"The Redis at {address} deletes what it likes when its memory is full "
            f"(maxmemory-policy {policy}); set maxmemory-policy to noeviction."
        )
    if shown.get("appendonly") == "no" or about.get("aof_enabled") == 0:
        return NOT_DURABLE
    return DURABILITY.get(shown.get("appendfsync", ""), UNKNOWN)


async def _configuration(client: aio.Redis) -> dict[str, str]:
    """Return the settings that matter, or nothing where they are not shown (managed services)."""
    try:
        shown = await client.config_get(*NEEDED)
    except ResponseError:
        return {}
    return {_text(name): _text(value) for name, value in shown.items()}


async def _about(client: aio.Redis) -> dict[str, object]:
    try:
        return dict(await client.info())
    except ResponseError:
        return {}


def _text(given: object) -> str:
    return given.decode() if isinstance(given, bytes) else str(given)
