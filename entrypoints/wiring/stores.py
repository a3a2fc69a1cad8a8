"""Build what keeps data: the store, files, vector stores, the event log, prompt templates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from antiphon.adapters.keys.file import KeysFile
from antiphon.adapters.stores.batches.store import SqliteBatches
from antiphon.adapters.stores.files.contents import FileContents
from antiphon.adapters.stores.files.store import FolderFileStore, MemoryFileStore
from antiphon.adapters.stores.memory.event_log import MemoryEventLog
from antiphon.adapters.stores.memory.store import MemoryStore
from antiphon.adapters.stores.vectors.store import SqliteVectorStores
from antiphon.application.ports import (
    Batches,
    EventLog,
    FileStore,
    PromptTemplates,
    Store,
    VectorStores,
)
from antiphon.application.support.bytes_in_work import BytesInWork
from antiphon.domain.errors import SettingsError
from antiphon.entrypoints.settings import Settings
from antiphon.entrypoints.settings.options import is_own_class
from antiphon.entrypoints.wiring.own_ports import load_port


def memory_store(settings: Settings) -> Store:
    return MemoryStore(keep=settings.keep_responses)


def sqlite_store(settings: Settings) -> Store:
    from antiphon.adapters.stores.sqlite.store import SqliteStore

    assert settings.sqlite_file is not None
    return SqliteStore(settings.sqlite_file)


def postgres_store(settings: Settings) -> Store:
    from antiphon.adapters.stores.postgres.store import PostgresStore

    return PostgresStore(settings.store)


def redis_store(settings: Settings) -> Store:
    from antiphon.adapters.stores.redis.store import RedisStore

    return RedisStore(settings.store)


def own_store(settings: Settings) -> Store:
    """Return an instance of the operator's class, `package.module:Class`."""
    store: Store = load_port(settings, "store", Store, data_dir=settings.data_dir)
    return store


def file_store(settings: Settings) -> FileStore:
    """Return the chosen file store. Raises: SettingsError."""
    if is_own_class(settings.file_store):
        own: FileStore = load_port(settings, "file_store", FileStore, data_dir=settings.data_dir)
        return own
    kind = file_store_kind(settings)
    if settings.file_store_endpoint is not None and kind != "objects":
        raise SettingsError("file_store_endpoint is for a file_store at s3://… alone.")
    return FILE_STORES[kind](settings)


def file_store_kind(settings: Settings) -> str:
    if "://" in settings.file_store:
        return "objects"
    if settings.file_store == "auto":
        return {"memory": "memory", "postgres": "postgres"}.get(store_kind(settings), "folder")
    return settings.file_store


def postgres_file_store(settings: Settings) -> FileStore:
    from antiphon.adapters.stores.postgres.files import PostgresFileStore

    return PostgresFileStore(_dsn_for(settings, "file_store"))


def object_file_store(settings: Settings) -> FileStore:
    from antiphon.adapters.stores.postgres.files import PostgresFileStore

    dsn = _dsn_for(settings, "file_store")
    return PostgresFileStore(dsn, contents=object_contents(settings))


def object_contents(settings: Settings) -> FileContents:
    from antiphon.adapters.stores.files.object_contents import ObjectContents

    return ObjectContents(settings.file_store, endpoint=settings.file_store_endpoint)


def _dsn_for(settings: Settings, setting: str) -> str:
    """Return the address of the store, which is PostgreSQL. Raises: SettingsError."""
    if store_kind(settings) == "postgres":
        return settings.store
    raise SettingsError(
        f"{setting} {getattr(settings, setting)} needs a PostgreSQL store: set store to "
        f"postgresql://…, or leave {setting} at auto."
    )


FILE_STORES: Mapping[str, Callable[[Settings], FileStore]] = {
    "memory": lambda _: MemoryFileStore(),
    "folder": lambda settings: FolderFileStore(settings.files_folder),
    "postgres": postgres_file_store,
    "objects": object_file_store,
}


def vector_stores(settings: Settings) -> VectorStores:
    """Return the chosen vector stores. Raises: SettingsError."""
    if is_own_class(settings.vector_stores):
        own: VectorStores = load_port(
            settings, "vector_stores", VectorStores, data_dir=settings.data_dir
        )
        return own
    kind = settings.vector_stores
    if kind == "auto":
        kind = "postgres" if store_kind(settings) == "postgres" else "sqlite"
    if kind == "sqlite":
        return SqliteVectorStores(settings.vector_stores_file)
    from antiphon.adapters.stores.postgres.vector_stores import PostgresVectorStores

    return PostgresVectorStores(_dsn_for(settings, "vector_stores"))


def batches(settings: Settings) -> Batches:
    """Return the batches, which are where the files are: in PostgreSQL, or in the data folder."""
    is_beside_folder = not is_own_class(settings.file_store) and (
        file_store_kind(settings) == "folder"
    )
    if is_beside_folder or store_kind(settings) != "postgres":
        return SqliteBatches(settings.batches_file)
    from antiphon.adapters.stores.postgres.batches import PostgresBatches

    return PostgresBatches(settings.store)


def hidden_places(settings: Settings) -> Iterator[str]:
    """Yield a sentence for each place in the data folder whose files and vector stores are no
    longer shown, since `auto` means another place with a PostgreSQL store."""
    if store_kind(settings) != "postgres":
        return
    folder, file = settings.files_folder, settings.vector_stores_file
    if settings.file_store == "auto" and folder.is_dir() and any(folder.iterdir()):
        yield (
            f"{str(folder)!r} has uploaded files that are not shown: with a PostgreSQL store, "
            "file_store is postgres. Set it to folder to see them, or remove the folder."
        )
    if settings.vector_stores == "auto" and file is not None and _has_vector_stores(file):
        yield (
            f"{str(file)!r} has vector stores that are not shown: with a PostgreSQL store, "
            "vector_stores is postgres. Set it to sqlite to see them, or remove the file."
        )


def _has_vector_stores(file: Path) -> bool:
    if not file.is_file():
        return False
    import sqlite3

    try:
        with closing(sqlite3.connect(f"file:{quote(str(file))}?mode=ro", uri=True)) as database:
            return database.execute("SELECT 1 FROM stores LIMIT 1").fetchone() is not None
    except sqlite3.Error:
        return False


def event_log(settings: Settings, bytes_in_work: BytesInWork) -> EventLog:
    log: EventLog
    keep_events, keep_s = settings.keep_events, settings.keep_events_s
    if is_own_class(settings.event_log):
        log = load_port(settings, "event_log", EventLog, keep_events=keep_events, keep_s=keep_s)
    else:
        log = MemoryEventLog(keep_events=keep_events, keep_s=keep_s, bytes_in_work=bytes_in_work)
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
    "unix": "redis",
}


def store_kind(settings: Settings) -> str:
    return STORE_KINDS.get(settings.store.partition("://")[0], "own")
