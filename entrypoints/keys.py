"""What `antiphon keys` does, to make, list and revoke API keys; and what a server does about them
at its start.
"""

from __future__ import annotations

import asyncio
import logging
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

logger = logging.getLogger("antiphon.keys")

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
    if not settings.needs_keys or (file is not None and await file.keys()):
        return
    if await container.store().keys():
        return
    if settings.auth == "on":  # who says so may want to make the first key later
        logger.warning("There is no API key yet: %s. Until then all is refused.", _advice(settings))
        return
    raise SettingsError(
        f"Requests to {settings.host} need an API key, since it is not this machine alone, and "
        f"there is none: {_advice(settings)}, or serve without keys by --auth off."
    )


def _advice(settings: Settings) -> str:
    """Return how the first key of a server with these settings is made."""
    if settings.store == "memory":
        file = settings.keys_file or "keys.toml"
        return (
            f"make one with `antiphon keys create --name me --file {file}` and serve with "
            f"--keys-file {file}"
        )
    # Not the store itself: its address may hold a password.
    return (
        "make one with `antiphon keys create --name me` (which takes --store, --data-dir and "
        "--config as this server does)"
    )


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
