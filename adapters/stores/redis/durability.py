"""Durability of a Redis: its configuration is checked at startup and reported to the operator."""

from __future__ import annotations

import logging
from collections.abc import Mapping

import redis.asyncio as aio
from redis.exceptions import ResponseError

from antiphon.domain.errors import SettingsError

logger = logging.getLogger("antiphon.stores")

MIN_VERSION = (7, 0)
"""In older versions, a script could stop halfway when memory was full."""

DURABILITY: Mapping[str, str] = {
    "always": "Confirmed writes survive a power cut (appendfsync always).",
    "everysec": "A power cut may lose the last second or two (appendfsync everysec).",
    "no": "A power cut may lose the last half minute (appendfsync no).",
}
NOT_DURABLE = "Warning: all stored data may be lost when Redis stops (appendonly no)."
UNKNOWN = "It is unknown what Redis loses when it stops: it does not show its configuration."

CONFIGURATION_NAMES = ("appendonly", "appendfsync", "maxmemory-policy")


async def durability_of(client: aio.Redis, address: str) -> str:
    """Return a sentence on what may be lost. Raises: SettingsError where Redis cannot be used."""
    info = await _server_info(client)
    version = str(info.get("redis_version", "7.0"))
    if tuple(map(int, version.split(".")[:2])) < MIN_VERSION:
        raise SettingsError(
            f"The Redis at {address} is too old: {version}; 7.0 or newer is required."
        )
    if info.get("cluster_enabled") == 1:
        raise SettingsError(f"The Redis at {address} is a cluster, which is not supported.")
    configuration = await _read_configuration(client)
    policy = configuration.get("maxmemory-policy") or info.get("maxmemory_policy", "noeviction")
    if policy != "noeviction":
        raise SettingsError(
            f"The Redis at {address} evicts data when its memory is full "
            f"(maxmemory-policy {policy}); set maxmemory-policy to noeviction."
        )
    if configuration.get("appendonly") == "no" or info.get("aof_enabled") == 0:
        return NOT_DURABLE
    return DURABILITY.get(configuration.get("appendfsync", ""), UNKNOWN)


def warn_of(durability: str) -> None:
    """Log what no operator should accept without a thought."""
    if durability == NOT_DURABLE:
        logger.warning("%s", NOT_DURABLE.removeprefix("Warning: ").capitalize())


async def _read_configuration(client: aio.Redis) -> dict[str, str]:
    """Return the relevant settings, or nothing if Redis hides them, as managed services do."""
    try:
        values = await client.config_get(*CONFIGURATION_NAMES)
    except ResponseError:
        return {}
    return {_to_text(name): _to_text(value) for name, value in values.items()}


async def _server_info(client: aio.Redis) -> dict[str, object]:
    try:
        return dict(await client.info())
    except ResponseError:
        return {}


def _to_text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
