"""Build what keeps data: the store, files, vector stores, the event log, prompt templates."""

from __future__ import annotations

from pathlib import Path

from antiphon.adapters.keys.file import KeysFile
from antiphon.adapters.stores.files import FolderFileStore, MemoryFileStore
from antiphon.adapters.stores.memory_event_log import MemoryEventLog
from antiphon.adapters.stores.vector_stores import SqliteVectorStores
from antiphon.application.ports import EventLog, FileStore, PromptTemplates, Store, VectorStores
from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.settings import Settings
from antiphon.entrypoints.settings.options import is_own_class
from antiphon.entrypoints.wiring.own_ports import load_port


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
    store: Store = load_port(settings, "store", Store, data_dir=settings.data_dir)
    return store


def file_store(settings: Settings) -> FileStore:
    files: FileStore
    if is_own_class(settings.file_store):
        files = load_port(settings, "file_store", FileStore, data_dir=settings.data_dir)
    elif settings.store == "memory":
        files = MemoryFileStore()
    else:
        files = FolderFileStore(settings.files_folder)
    return files


def vector_stores(settings: Settings) -> VectorStores:
    stores: VectorStores
    if is_own_class(settings.vector_stores):
        stores = load_port(settings, "vector_stores", VectorStores, data_dir=settings.data_dir)
    else:
        stores = SqliteVectorStores(settings.vector_stores_file)
    return stores


def event_log(settings: Settings) -> EventLog:
    log: EventLog
    keep_events, keep_s = settings.keep_events, settings.keep_events_s
    if is_own_class(settings.event_log):
        log = load_port(settings, "event_log", EventLog, keep_events=keep_events, keep_s=keep_s)
    else:
        log = MemoryEventLog(keep_events=keep_events, keep_s=keep_s)
    return log


def keys_file(path: Path | None) -> KeysFile | None:
    return None if path is None else KeysFile(path)


def prompt_templates(settings: Settings) -> PromptTemplates | None:
    """Return the prompt templates, or None if there are none. Raises: SettingsError."""
    from antiphon.adapters.prompts.folder import FolderPromptTemplates

    folder = settings.prompts_dir
    if settings.prompt_templates is None:
        return None if folder is None else FolderPromptTemplates(folder)
    if folder is not None:
        raise SettingsError("prompt_templates replaces prompts_dir: set one of them.")
    templates: PromptTemplates = load_port(settings, "prompt_templates", PromptTemplates)
    return templates


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
