"""What `antiphon keys` does, to make, list and revoke API keys; and what a server does about them
at its start.
"""

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

FORGETFUL = (
    "The store memory belongs to one process and forgets its keys: add --file keys.toml, and serve "
    "with --keys-file keys.toml."
)


def create(settings: Settings, name: str, tenant: str, file: Path | None) -> tuple[str, ApiKey]:
    """Make a key in this keys file, else in the store. Raises: SettingsError, StoreError."""
    key, kept = create_key(name, tenant, new_id=new_id, now=time.time)
    if file is not None:
        append(file, kept)
    elif settings.store == "memory":
        raise SettingsError(FORGETFUL)
    else:
        _run(settings, lambda store: store.add_key(kept))
    return key, kept


def collect_keys(settings: Settings) -> list[tuple[ApiKey, str]]:
    """Return all keys, each with where it is kept. Raises: SettingsError, StoreError."""
    found: list[tuple[ApiKey, str]] = []
    file = Container(settings=settings).keys_file()
    if file is not None:
        asyncio.run(file.start())
        found += [(key, str(settings.keys_file)) for key in asyncio.run(file.keys())]
    if settings.store != "memory":
        found += [(key, "store") for key in _run(settings, lambda store: store.keys())]
    return found


def revoke(settings: Settings, key_id: str) -> None:
    """Forget a key of the store. Raises: SettingsError, where there is none; StoreError."""
    if settings.store != "memory" and _run(settings, lambda store: store.revoke_key(key_id)):
        return
    where = next((where for key, where in collect_keys(settings) if key.id == key_id), None)
    if where is not None:
        raise SettingsError(f"The key {key_id!r} is in {where}: take its table out of that file.")
    raise SettingsError(f"There is no key {key_id!r}; `antiphon keys list` shows them all.")


async def start_keys(container: Container) -> None:
    """Read the keys file. Raises: SettingsError, if that fails, or if nobody could be let in."""
    settings: Settings = container.settings()
    file = container.keys_file()
    if file is not None:
        await file.start()
    command = await first_key_command(container)
    if command is None:
        return
    if _forgets_keys(settings):
        raise SettingsError(
            "Each request needs an API key, and this server has none and can be given none while "
            f"it runs: make one with `{command}` and serve with --keys-file {_file(settings)}, or "
            "serve without keys by --auth off."
        )
    if settings.auth != "on":  # who says "on" may want to make the first key later
        raise SettingsError(
            f"Requests to {settings.host} need an API key, since it is not this machine alone, and "
            f"there is none: make one with `{command}`, or serve without keys by --auth off."
        )


async def first_key_command(container: Container) -> str | None:
    """Return the command that makes the first key, None where one exists or none is needed."""
    settings: Settings = container.settings()
    if not settings.needs_keys:
        return None
    file = container.keys_file()
    if file is not None and await file.keys():
        return None
    if await container.store().keys():
        return None
    return shlex.join(["antiphon", "keys", "create", "--name", "me", *_options(settings)])


def _options(settings: Settings) -> list[str]:
    """Return what `antiphon keys create` needs so that a server with these settings has the key."""
    if settings.keys_file is not None or _forgets_keys(settings):
        return ["--file", _file(settings)]
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


def _file(settings: Settings) -> str:
    return str(settings.keys_file or "keys.toml")


def _run(settings: Settings, work: Callable[[Any], Awaitable[T]]) -> T:
    async def run() -> T:
        async with _opened(settings) as store:
            return await work(store)

    return asyncio.run(run())


@asynccontextmanager
async def _opened(settings: Settings) -> AsyncIterator[Any]:
    store = Container(settings=settings).store()
    await store.start()
    try:
        yield store
    finally:
        await store.aclose()
