"""Checks of what the server keeps: its folder, its store, and the key that the store expects."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from antiphon.adapters.sealing import Sealer
from antiphon.adapters.stores.inspection import (
    StoreState,
    inspect_postgres,
    inspect_redis,
    inspect_sqlite,
)
from antiphon.adapters.stores.self_test import round_trips
from antiphon.adapters.stores.sqlite.store import SqliteStore
from antiphon.application.ports import Store
from antiphon.entrypoints.commands.doctor.findings import (
    Check,
    Finding,
    Installation,
    ok,
    problem,
    skipped,
    warning,
)
from antiphon.entrypoints.server.seal_key import FINGERPRINT_NAME
from antiphon.entrypoints.settings import Settings
from antiphon.entrypoints.wiring.stores import (
    file_store_kind,
    object_contents,
    own_store,
    postgres_store,
    redis_store,
    store_kind,
)

MIB = 1024**2
LITTLE_SPACE_BYTES = 1024 * MIB
NO_SPACE_BYTES = 100 * MIB
SLOW_S = 1.0
SKEW_WARNING_S = 1.0
SKEW_PROBLEM_S = 30.0
RISK = "warning:"
"""How a durability begins that operators should not accept without a thought."""


def check_data_folder(installation: Installation) -> Iterator[Finding]:
    """Yield whether the server can write to its folder, and whether only the server can."""
    folder = installation.settings.data_dir.absolute()
    existing = nearest_folder(folder)
    blocking = next((each for each in (folder, *folder.parents) if each.is_file()), None)
    if blocking is not None:
        yield problem(
            f"The folder {str(folder)!r} cannot be made: {str(blocking)!r} is a file.",
            "Choose another folder with --data-dir.",
        )
        return
    if not os.access(existing, os.W_OK | os.X_OK):
        yield problem(
            f"This user cannot write to {str(existing)!r}.",
            "Choose another folder with --data-dir, or give this one to the user of the server.",
        )
        return
    if existing != folder:
        yield ok(f"The server will create its folder {str(folder)!r}.")
    elif folder.stat().st_mode & stat.S_IWOTH:
        yield problem(
            f"Every user of this machine can replace the key and data in {str(folder)!r}.",
            f"Run `chmod o-w {folder}`.",
        )
    else:
        yield ok(f"The server can write to its folder {str(folder)!r}.")
    yield _check_space(existing)


def _check_space(folder: Path) -> Finding:
    free = shutil.disk_usage(folder).free
    found = f"The disk of {str(folder)!r} has {free // MIB:,} MiB free."
    advice = "Free some space, or choose another disk with --data-dir."
    if free < NO_SPACE_BYTES:
        return problem(found, advice)
    return warning(found, advice) if free < LITTLE_SPACE_BYTES else ok(found)


def nearest_folder(path: Path) -> Path:
    """Return the folder, or the nearest one above it that exists."""
    path = path.absolute()
    return next(each for each in (path, *path.parents) if each.is_dir())


async def check_store(installation: Installation) -> Sequence[Finding]:
    """Return whether the store returns what is written, how fast, and whether it is up to date."""
    settings = installation.settings
    kind = store_kind(settings)
    if kind == "memory":
        return [ok("The memory store loses all responses when the server stops.")]
    if kind == "own":
        return [await _try(own_store(settings), f"Your own store {settings.store!r}")]
    state = await inspect(settings)
    if kind == "sqlite":
        assert settings.sqlite_file is not None
        found = _check_version(settings, state)
        return [found, await _try_sqlite_folder(settings.sqlite_file)]
    assert state is not None
    findings = [_check_version(settings, state), _check_skew(state), *_check_durability(state)]
    if state.version == state.newest_version:  # only then does its start change nothing
        store = postgres_store(settings) if kind == "postgres" else redis_store(settings)
        findings.append(await _try(store, f"The store {settings.shown_store}"))
    return findings


async def inspect(settings: Settings) -> StoreState | None:
    """Return what the store says about itself, or None without one. Raises: SettingsError."""
    match store_kind(settings):
        case "sqlite":
            file = settings.sqlite_file
            assert file is not None
            return await inspect_sqlite(file, FINGERPRINT_NAME) if file.exists() else None
        case "postgres":
            return await inspect_postgres(settings.store, FINGERPRINT_NAME)
        case "redis":
            return await inspect_redis(settings.store, FINGERPRINT_NAME)
    return None


def _check_version(settings: Settings, state: StoreState | None) -> Finding:
    name = f"The store {settings.shown_store}"
    if state is None or state.version == 0:
        return ok(f"{name} is new: the server creates it when it starts.")
    if state.version > state.newest_version:
        return problem(
            f"{name} was written by a newer version of this server.", "Install that version."
        )
    if state.version < state.newest_version:
        return warning(
            f"{name} has version {state.version}; this server upgrades it to "
            f"{state.newest_version} when it starts.",
            "Make a copy of it before you start the server.",
        )
    return ok(f"{name} is up to date.")


def _check_skew(state: StoreState) -> Finding:
    skew = state.clock_skew_s or 0.0
    found = f"The store's clock and this machine's differ by {abs(skew):.1f} s."
    advice = "Synchronize both clocks, with NTP: leases and times depend on them."
    if abs(skew) > SKEW_PROBLEM_S:
        return problem(found, advice)
    return warning(found, advice) if abs(skew) > SKEW_WARNING_S else ok(found)


def _check_durability(state: StoreState) -> Iterator[Finding]:
    text = state.durability
    if text is not None and text.lower().startswith(RISK):
        risk = text[len(RISK) :].strip()
        yield warning(
            f"{risk[:1].upper()}{risk[1:]}",
            "Set `appendonly yes` in Redis, or choose another store.",
        )
    elif text is not None:
        yield ok(text)


async def _try_sqlite_folder(file: Path) -> Finding:
    """Try a file beside the store's, on the same disk: starting the store would change it."""
    folder = nearest_folder(file.parent)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".antiphon-doctor-") as scratch:
        return await _try(SqliteStore(Path(scratch) / "test.db"), f"SQLite in {str(folder)!r}")


async def _try(store: Store, name: str) -> Finding:
    await store.start()
    try:
        started_at = time.perf_counter()
        is_right = await round_trips(store)
        seconds = time.perf_counter() - started_at
    finally:
        await store.aclose()
    if not is_right:
        return problem(f"{name} does not return what was written.", "Check or replace it.")
    found = f"{name} returned a response that was written, in {seconds * 1000:.0f} ms."
    if seconds > SLOW_S:
        return warning(found, "This is slow: use a faster disk, or a database that is nearer.")
    return ok(found)


async def check_files(installation: Installation) -> Sequence[Finding]:
    """Return whether uploaded files can be written to their object store, if they have one."""
    settings = installation.settings
    if file_store_kind(settings) != "objects":
        return []
    contents = object_contents(settings)
    started_at = time.perf_counter()
    await contents.start()  # it writes an object, and deletes it
    seconds = time.perf_counter() - started_at
    found = f"The file store {contents.place} took an object in {seconds * 1000:.0f} ms."
    if seconds > SLOW_S:
        return [warning(found, "This is slow: use a bucket that is nearer.")]
    return [ok(found)]


async def check_seal_key(installation: Installation) -> Sequence[Finding]:
    """Return whether this server has the seal key of the other servers of its store."""
    settings = installation.settings
    state, file = await inspect(settings), settings.seal_key_path
    expected = state.fingerprint if state is not None else None
    if not file.exists():
        if expected is None:
            return [skipped("There is no seal key yet: the server creates one.")]
        return [problem(f"The seal key {str(file)!r} of the store is missing.", SEAL_KEY_ADVICE)]
    fingerprint = Sealer(file).fingerprint()
    if expected is not None and expected != fingerprint:
        return [problem(f"The store has another seal key than {str(file)!r}.", SEAL_KEY_ADVICE)]
    which = "can be read" if expected is None else "is the one of the store"
    return [ok(f"The seal key {str(file)!r} {which}.")]


SEAL_KEY_ADVICE = (
    "Copy the key of the store's other servers here, or name it with --seal-key-file. If it is "
    "lost, stop all servers and run `antiphon change-seal-key`."
)

CHECKS: Sequence[Check] = (
    Check(name="data folder", run=check_data_folder),
    Check(name="store", run=check_store, limit_s=30),
    Check(name="files", run=check_files, limit_s=30),
    Check(name="seal key", run=check_seal_key),
)
