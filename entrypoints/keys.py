"""API keys: the `antiphon keys` commands, and the checks when a server starts."""

from __future__ import annotations

import asyncio
import shlex
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

from antiphon.adapters.ids import new_id
from antiphon.adapters.keys.file import append
from antiphon.application.ports import ApiKey
from antiphon.application.resources.keys import create_key
from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.container import Container
from antiphon.entrypoints.settings import Settings

T = TypeVar("T")

_DEFAULTS = Settings()

MEMORY_STORE_ERROR = (
    "The memory store loses its keys when the server stops: add --file keys.toml, and start the "
    "server with --keys-file keys.toml."
)


def create(settings: Settings, name: str, tenant: str, file: Path | None) -> tuple[str, ApiKey]:
    """Create a key in this keys file, or in the store. Raises: SettingsError, StoreError."""
    key, api_key = create_key(name, tenant, new_id=new_id, now=time.time)
    if file is not None:
        append(file, api_key)
    elif settings.store == "memory":
        raise SettingsError(MEMORY_STORE_ERROR)
    else:
        _run_with_store(settings, lambda store: store.add_key(api_key))
    return key, api_key


def collect_keys(settings: Settings) -> list[tuple[ApiKey, str]]:
    """Return all keys, each with its location. Raises: SettingsError, StoreError."""
    keys: list[tuple[ApiKey, str]] = []
    file = Container(settings=settings).keys_file()
    if file is not None:
        asyncio.run(file.start())
        keys += [(key, str(settings.keys_file)) for key in asyncio.run(file.keys())]
    if settings.store != "memory":
        keys += [(key, "store") for key in _run_with_store(settings, lambda store: store.keys())]
    return keys


def revoke(settings: Settings, key_id: str) -> None:
    """Delete a key from the store. Raises: SettingsError if it is not there; StoreError."""
    if settings.store != "memory" and _run_with_store(
        settings, lambda store: store.revoke_key(key_id)
    ):
        return
    locations = (location for key, location in collect_keys(settings) if key.id == key_id)
    location = next(locations, None)
    if location is not None:
        raise SettingsError(
            f"The key {key_id!r} is in {location}: remove its table from that file."
        )
    raise SettingsError(f"There is no key {key_id!r}; `antiphon keys list` shows them all.")


async def start_keys(container: Container) -> None:
    """Read the keys file.

    Raises: SettingsError if that fails, or if all requests would be refused.
    """
    settings: Settings = container.settings()
    file = container.keys_file()
    if file is not None:
        await file.start()
    command = await first_key_command(container)
    if command is None:
        return
    if _forgets_keys(settings):
        raise SettingsError(
            "Each request needs an API key, but this server has no keys and cannot get one while "
            f"it runs: create a key with `{command}` and start the server with "
            f"--keys-file {_keys_file_name(settings)}, or turn keys off with --auth off."
        )
    if settings.auth != "on":  # with "on", the operator may want to create the first key later
        raise SettingsError(
            f"Requests to {settings.host} need an API key, because other machines can reach it, "
            f"and there are no keys: create one with `{command}`, or turn keys off with --auth off."
        )


async def first_key_command(container: Container) -> str | None:
    """Return the command that creates the first key, or None if one exists or none is needed."""
    settings: Settings = container.settings()
    if not settings.needs_keys or settings.oidc.is_on or settings.trusted_proxy.is_on:
        return None
    file = container.keys_file()
    if file is not None and await file.keys():
        return None
    if await container.store().keys():
        return None
    return shlex.join(["antiphon", "keys", "create", "--name", "me", *_create_options(settings)])


def _create_options(settings: Settings) -> list[str]:
    """Return the options of `antiphon keys create` that add a key for a server like this."""
    if settings.keys_file is not None or _forgets_keys(settings):
        return ["--file", _keys_file_name(settings)]
    options = []
    if settings.shown_store != settings.store:  # never a password
        options += ["--store", "URL"]
    elif settings.store != _DEFAULTS.store:
        options += ["--store", settings.store]
    if settings.data_dir != _DEFAULTS.data_dir:
        options += ["--data-dir", str(settings.data_dir)]
    return options


def _forgets_keys(settings: Settings) -> bool:
    return settings.store == "memory" and settings.keys_file is None


def _keys_file_name(settings: Settings) -> str:
    return str(settings.keys_file or "keys.toml")


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
