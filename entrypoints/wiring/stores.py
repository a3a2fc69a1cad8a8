"""Build the store, the keys file, and the prompt templates that the settings choose."""

from __future__ import annotations

from pathlib import Path

from antiphon.adapters.keys.file import KeysFile
from antiphon.application.ports import PromptTemplates, Store
from antiphon.entrypoints.own_classes import load_instance
from antiphon.entrypoints.settings import Settings


def sqlite_store(settings: Settings) -> Store:
    from antiphon.adapters.stores.sqlite import SqliteStore

    assert settings.sqlite_file is not None
    return SqliteStore(settings.sqlite_file)


def postgres_store(settings: Settings) -> Store:
    from antiphon.adapters.stores.postgres import PostgresStore

    return PostgresStore(settings.store)


def redis_store(settings: Settings) -> Store:
    from antiphon.adapters.stores.redis import RedisStore

    return RedisStore(settings.store)


def own_store(settings: Settings) -> Store:
    """Return an instance of the operator's class, `package.module:Class`."""
    store: Store = load_instance(settings.store, what="The store")
    return store


def keys_file(path: Path | None) -> KeysFile | None:
    return None if path is None else KeysFile(path)


def prompt_templates(folder: Path | None) -> PromptTemplates | None:
    from antiphon.adapters.prompts.folder import FolderPromptTemplates

    return None if folder is None else FolderPromptTemplates(folder)


STORE_KINDS = {
    "memory": "memory",
    "sqlite": "sqlite",
    "postgres": "postgres",
    "postgresql": "postgres",
    "redis": "redis",
    "rediss": "redis",
}


def store_kind(settings: Settings) -> str:
    return STORE_KINDS.get(settings.store.partition("://")[0], "own")


def file_store_kind(settings: Settings) -> str:
    return "memory" if settings.store == "memory" else "folder"
