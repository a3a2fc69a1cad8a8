"""The keys that a server starts with, and the command that creates the first one."""

from __future__ import annotations

import shlex

from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.container import Container
from antiphon.entrypoints.settings import Settings

_DEFAULTS = Settings()


async def start_keys(container: Container) -> None:
    """Read the keys file.

    Raises: SettingsError if that fails, or if all requests would be refused.
    """
    settings = container.settings()
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
    settings = container.settings()
    if not settings.needs_keys or settings.oidc.is_on or settings.trusted_proxy.is_on:
        return None
    file = container.keys_file()
    if file is not None and await file.keys():
        return None
    if await container.store().list_api_keys():
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
