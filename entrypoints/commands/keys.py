"""API keys: what the `antiphon keys` commands do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from antiphon.adapters.ids import new_id
from antiphon.adapters.keys.file import append
from antiphon.application.ports import ApiKey, Store
from antiphon.application.resources.keys import caller_of, create_key
from antiphon.application.resources.limits import EnforceLimits
from antiphon.domain.access.limits import (
    FULL_ACCESS,
    SCOPES,
    KeyPolicy,
    LimitState,
    parse_duration,
    parse_host,
    parse_limit,
    parse_limits,
)
from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.container import Container
from antiphon.entrypoints.settings import Settings

T = TypeVar("T")

MEMORY_STORE_ERROR = (
    "The memory store loses its keys when the server stops: add --file keys.toml, and start the "
    "server with --keys-file keys.toml."
)


class PolicyOptions(Struct, frozen=True, kw_only=True):
    """The options of the command line for what a key may do, as they are written.

    An empty tuple, or None, changes nothing. `all` and `never` restore the defaults.
    """

    limits: Sequence[str] = ()
    models: Sequence[str] = ()
    tools: Sequence[str] = ()
    hosts: Sequence[str] = ()
    guards: Sequence[str] = ()
    scopes: Sequence[str] = ()
    service_tier: str | None = None
    expires: str | None = None

    def apply(self, policy: KeyPolicy, now: float) -> KeyPolicy:
        """Return the policy with these changes. Raises: SettingsError."""
        limits: dict[str, int | None] = {**policy.limits, **dict(map(parse_limit, self.limits))}
        changed = {
            **msgspec.to_builtins(policy),
            "limits": {name: limit for name, limit in limits.items() if limit is not None},
            **_lists(models=self.models, tools=self.tools, guards=self.guards, scopes=self.scopes),
        }
        if hosts := _lists(hosts=self.hosts):
            changed["hosts"] = tuple(map(parse_host, hosts["hosts"]))
        if "scopes" in changed and not changed["scopes"]:
            changed["scopes"] = SCOPES
        if self.service_tier is not None:
            changed["service_tier"] = self.service_tier
        if self.expires is not None:
            is_never = self.expires == "never"
            changed["expires_at"] = None if is_never else int(now) + parse_duration(self.expires)
        try:
            return msgspec.convert(changed, KeyPolicy)
        except msgspec.ValidationError as error:
            raise SettingsError(f"These options do not fit: {error}.") from None


AS_IT_IS = PolicyOptions()


def _lists(**options: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the options that are set; `all` is the empty list, which allows all."""
    return {
        name: () if "all" in values else tuple(values) for name, values in options.items() if values
    }


def create(
    settings: Settings, name: str, tenant: str, file: Path | None, options: PolicyOptions = AS_IT_IS
) -> tuple[str, ApiKey]:
    """Create a key in this keys file, or in the store. Raises: SettingsError, StoreError."""
    policy = options.apply(FULL_ACCESS, time.time())
    key, api_key = create_key(name, tenant, new_id=new_id, now=time.time, policy=policy)
    if file is not None:
        append(file, api_key)
    elif settings.store == "memory":
        raise SettingsError(MEMORY_STORE_ERROR)
    else:
        _run_with_store(settings, lambda store: store.create_api_key(api_key))
    return key, api_key


def collect_keys(settings: Settings) -> list[tuple[ApiKey, str]]:
    """Return all keys, each with its location. Raises: SettingsError, StoreError."""
    keys: list[tuple[ApiKey, str]] = []
    file = Container(settings=settings).keys_file()
    if file is not None:
        asyncio.run(file.start())
        keys += [(key, str(settings.keys_file)) for key in asyncio.run(file.keys())]
    if settings.store != "memory":
        keys += [
            (key, "store") for key in _run_with_store(settings, lambda store: store.list_api_keys())
        ]
    return keys


def update(settings: Settings, key_id: str, options: PolicyOptions) -> KeyPolicy:
    """Change what a key of the store may do. Raises: SettingsError if it is not there; StoreError.

    A change at the same time, from another command, may be lost.
    """

    async def change(store: Store) -> KeyPolicy | None:
        for key in await store.list_api_keys():
            if key.id == key_id:
                policy = options.apply(key.policy, time.time())
                return policy if await store.update_api_key(key_id, policy) else None
        return None

    if settings.store != "memory":
        policy = _run_with_store(settings, change)
        if policy is not None:
            return policy
    raise _not_in_store(settings, key_id, "change")


class UsedLimit(Struct, frozen=True, kw_only=True):
    key: ApiKey
    state: LimitState


def collect_usage(settings: Settings, key_id: str | None) -> list[UsedLimit]:
    """Return what each key, or this one, has used of its limits.

    Raises: SettingsError, StoreError.
    """
    if settings.store == "memory":
        raise SettingsError(
            "The memory store counts inside of the server, where this command cannot read it. The "
            "server's answers have the counts in their x-ratelimit headers."
        )
    keys = [key for key, _ in collect_keys(settings) if key_id in (None, key.id)]
    if key_id is not None and not keys:
        raise _no_such_key(key_id)
    defaults = parse_limits(settings.default_limit)

    async def read(store: Store) -> list[UsedLimit]:
        limits = EnforceLimits(store, owner="", now=time.time, defaults=defaults)
        return [
            UsedLimit(key=key, state=state)
            for key in keys
            for state in await limits.usage(caller_of(key))
        ]

    return _run_with_store(settings, read)


def revoke(settings: Settings, key_id: str) -> None:
    """Delete a key from the store. Raises: SettingsError if it is not there; StoreError."""
    if settings.store != "memory" and _run_with_store(
        settings, lambda store: store.revoke_api_key(key_id)
    ):
        return
    raise _not_in_store(settings, key_id, "remove")


def _not_in_store(settings: Settings, key_id: str, verb: str) -> SettingsError:
    locations = (location for key, location in collect_keys(settings) if key.id == key_id)
    location = next(locations, None)
    if location is not None:
        return SettingsError(f"The key {key_id!r} is in {location}: {verb} its table in that file.")
    return _no_such_key(key_id)


def _no_such_key(key_id: str) -> SettingsError:
    return SettingsError(f"There is no key {key_id!r}; `antiphon keys list` shows them all.")


def _run_with_store(settings: Settings, work: Callable[[Any], Awaitable[T]]) -> T:
    async def run() -> T:
        async with _open_store(settings) as store:
            return await work(store)

    return asyncio.run(run())


@asynccontextmanager
async def _open_store(settings: Settings) -> AsyncIterator[Any]:
    store = Container(settings=settings).store()
    await store.start()
    try:
        yield store
    finally:
        await store.aclose()
