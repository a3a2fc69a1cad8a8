"""One seal key a store: what a server asks at its start, and `antiphon change-seal-key` changes."""

from __future__ import annotations

import asyncio

from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.container import Container
from antiphon.entrypoints.settings import Settings

AGREED = "seal key"
"""The name under which the store has the fingerprint of its servers' key."""


async def start_sealing(container: Container) -> None:
    """Read or make the key. Raises: SettingsError, if it is not that of the store; StoreError."""
    sealer = container.sealer()
    sealer.start()
    ours = sealer.fingerprint()
    if await container.store().compare_and_set(AGREED, ours) != ours:
        settings: Settings = container.settings()
        raise SettingsError(
            f"The servers of the store {settings.shown_store} have another seal key than "
            f"{settings.seal_key_path}: name theirs with --seal-key-file or, if it is lost or is "
            "to be changed, stop them all and run `antiphon change-seal-key`, which takes --store, "
            "--data-dir, --seal-key-file and --config as this server does."
        )


def change(settings: Settings) -> None:
    """Make the key of these settings that of their store. Raises: SettingsError, StoreError."""
    asyncio.run(_change(Container(settings=settings)))


async def _change(container: Container) -> None:
    sealer, store = container.sealer(), container.store()
    sealer.start()
    ours: bytes = sealer.fingerprint()
    await store.start()
    try:
        kept = await store.compare_and_set(AGREED, ours)
        while kept != ours:
            kept = await store.compare_and_set(AGREED, ours, expected=kept)
    finally:
        await store.aclose()
