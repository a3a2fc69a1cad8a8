"""The schema version of the data in Redis, and the upgrade to it (lua/upgrade.lua)."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

from antiphon.adapters.stores.redis.scripts import RedisScripts
from antiphon.domain.errors import SettingsError

SCHEMA_VERSION = 2

SCANNED = 1000
"""Keys that Redis looks at in one step of a scan."""

REFUSALS = {
    b"newer": "was written by a newer version of this server.",
    b"in use": "cannot be used: servers of an older version are using it; stop them first.",
}

UPGRADED_KINDS = frozenset({"response", "conversation", "repeat", "reserved", "notice", "use"})


async def schema_version(redis: RedisScripts) -> int:
    """Return the version of the stored data: 0 if there is none. Raises: RedisError, OSError."""
    version = await redis.client.get(f"{redis.prefix}schema_version")
    # The first version had no number.
    return int(version or await redis.client.exists(f"{redis.prefix}agreed"))


async def upgrade(redis: RedisScripts, *, portion: int = SCANNED) -> None:
    """Upgrade the stored data, unless it is up to date.

    After a kill in the middle, the next start continues. Several servers may upgrade at once.

    Raises: StoreError; SettingsError where a newer version has written, or an older one is running.
    """
    [outcome] = await redis.run("start_upgrade", version=SCHEMA_VERSION)
    if outcome == b"done":
        return
    if outcome != b"started":
        raise SettingsError(f"The store at {redis.address} {REFUSALS[outcome]}")
    conversations: list[str] = []
    async for keys in _scan(redis, portion):
        await redis.run("rename_keys", keys=[list(key) for key in keys])
        conversations += [ref for kind, ref in keys if kind == "conversation"]
    refs = await _oldest_first(redis, conversations)
    for start in range(0, len(refs), portion):
        await redis.run("list_conversations_in_order", refs=refs[start : start + portion])
    await redis.run("end_upgrade", version=SCHEMA_VERSION)


async def _oldest_first(redis: RedisScripts, conversations: list[str]) -> list[str]:
    ages: dict[str, int] = {}
    with redis.raising_store_errors():
        for ref in conversations:
            key = f"{redis.prefix}conversation:{ref}"
            ages[ref] = int(await redis.client.hget(key, "created_at") or 0)
    return sorted(ages, key=lambda ref: (ages[ref], ref))


async def _scan(redis: RedisScripts, portion: int) -> AsyncIterator[list[tuple[str, str]]]:
    """Yield the keys to upgrade as kind and rest, in portions."""
    cursor = 0
    while True:
        with redis.raising_store_errors():
            cursor, names = await redis.client.scan(
                cursor, match=f"{_escape(redis.prefix)}*", count=portion
            )
        found: list[Any] = names  # bytes: the client decodes nothing
        parts = [name.decode().removeprefix(redis.prefix).partition(":") for name in found]
        yield [(kind, rest) for kind, _, rest in parts if kind in UPGRADED_KINDS]
        if not cursor:
            return


def _escape(text: str) -> str:
    r"""Return a pattern that matches the text alone.

    >>> _escape("a*[b]:")
    'a\\*\\[b\\]:'
    """
    return "".join(f"\\{each}" if each in "*?[]\\" else each for each in text)
