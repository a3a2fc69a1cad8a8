"""The seal key of a store: checked when a server starts, changed by `antiphon change-seal-key`."""

from __future__ import annotations

import asyncio
import logging
import stat
from pathlib import Path

from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.container import Container
from antiphon.entrypoints.settings import Settings

logger = logging.getLogger("antiphon.settings")

FINGERPRINT_NAME = "seal key"
"""The name of the shared value that holds the fingerprint of the store's seal key."""


async def start_sealing(container: Container) -> None:
    """Read or create the key. Raises: SettingsError if the store has another key; StoreError."""
    warn_of_writers(container.settings().seal_key_path.parent)
    sealer = container.sealer()
    sealer.start()
    fingerprint = sealer.fingerprint()
    if await container.store().compare_and_set(FINGERPRINT_NAME, fingerprint) != fingerprint:
        settings = container.settings()
        raise SettingsError(
            f"The servers of the store {settings.shown_store} have another seal key than "
            f"{settings.seal_key_path}: pass their key with --seal-key-file. To change the key, or "
            "if it is lost, stop all servers and run `antiphon change-seal-key` with the same "
            "--store, --data-dir, --seal-key-file, and --config as this server."
        )


def warn_of_writers(folder: Path) -> None:
    """Log a warning if every user could replace the files of an existing folder.

    A group may: on many systems, each user has one of its own.
    """
    if folder.exists() and folder.stat().st_mode & stat.S_IWOTH:
        logger.warning(
            "all users of this machine can replace the key and data in %s: run `chmod o-w` on it",
            folder,
        )


def change(settings: Settings) -> None:
    """Set the store's seal key to the key of these settings. Raises: SettingsError, StoreError."""
    asyncio.run(_change(Container(settings=settings)))


async def _change(container: Container) -> None:
    sealer, store = container.sealer(), container.store()
    sealer.start()
    fingerprint = sealer.fingerprint()
    await store.start()
    try:
        stored = await store.compare_and_set(FINGERPRINT_NAME, fingerprint)
        while stored != fingerprint:
            stored = await store.compare_and_set(FINGERPRINT_NAME, fingerprint, expected=stored)
    finally:
        await store.aclose()
