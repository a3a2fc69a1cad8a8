"""API keys in a TOML file: for servers whose store is in memory, and for deployments by files."""

from __future__ import annotations

import asyncio
import logging
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from antiphon.application.ports import ApiKey
from antiphon.domain.errors import SettingsError

logger = logging.getLogger("antiphon.keys")

Text = Annotated[str, Meta(min_length=1, max_length=200)]


class Entry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table `[[keys]]`; `sha256` is the key's hash in lowercase hexadecimal digits."""

    id: Text
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
    name: Text = "unnamed"
    tenant: Text = "default"
    created_at: int = 0


class File(Struct, frozen=True, forbid_unknown_fields=True):
    keys: tuple[Entry, ...] = ()


class KeysFile:
    """The keys of a file; a changed file is read again."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file_state: tuple[int, ...] = ()
        self._keys: Mapping[bytes, ApiKey] = {}

    async def start(self) -> None:
        """Read the file. Raises: SettingsError."""
        self._file_state = _state_of(self._path)
        self._keys = await asyncio.to_thread(_read, self._path)

    async def keys(self) -> list[ApiKey]:
        """Return all keys in the file's order."""
        await self._reload()
        return list(self._keys.values())

    async def key(self, hash: bytes) -> ApiKey | None:
        """Return the key with this hash, or None."""
        await self._reload()
        return self._keys.get(hash)

    async def _reload(self) -> None:
        """Read the file again if it has changed."""
        if (state := _state_of(self._path)) == self._file_state:
            return
        self._file_state = state  # a file that fails to load is not read again until it changes
        try:
            self._keys = await asyncio.to_thread(_read, self._path)
        except SettingsError as error:
            # A mistake in the file must not lock everybody out.
            logger.warning("%s The keys that were in it before still work.", error)


def append(path: Path, key: ApiKey) -> None:
    """Add a key to the file, or to a new file if it does not exist. Raises: SettingsError."""
    if path.exists():
        _read(path)  # raises if this is not a valid keys file
    entry = (
        f"\n[[keys]]\nid = {_quoted(key.id)}\nname = {_quoted(key.name)}\n"
        f"tenant = {_quoted(key.tenant)}\nsha256 = {_quoted(key.hash.hex())}\n"
        f"created_at = {key.created_at}\n"
    )
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(entry)
    except OSError as error:
        raise SettingsError(f"The keys file {str(path)!r} cannot be written: {error}.") from None


def _quoted(text: str) -> str:
    # The JSON string of a printable text is a TOML string too.
    return msgspec.json.encode(text).decode()


def _state_of(path: Path) -> tuple[int, ...]:
    """Return the file's modification time, size and inode, or () if it does not exist."""
    try:
        status = path.stat()
    except OSError:
        return ()
    return (status.st_mtime_ns, status.st_size, status.st_ino)


def _read(path: Path) -> dict[bytes, ApiKey]:
    try:
        entries = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), File).keys
    except (
        OSError,
        UnicodeDecodeError,
        tomllib.TOMLDecodeError,
        msgspec.ValidationError,
    ) as error:
        raise SettingsError(f"The keys file {str(path)!r} cannot be used: {error}.") from None
    _refuse_duplicates(path, [entry.id for entry in entries])
    _refuse_duplicates(path, [entry.sha256 for entry in entries])
    return {bytes.fromhex(entry.sha256): _to_api_key(entry) for entry in entries}


def _refuse_duplicates(path: Path, values: Sequence[str]) -> None:
    for value, count in Counter(values).items():
        if count > 1:
            raise SettingsError(f"The keys file {str(path)!r} has {value!r} {count} times.")


def _to_api_key(entry: Entry) -> ApiKey:
    return ApiKey(
        id=entry.id,
        name=entry.name,
        tenant=entry.tenant,
        hash=bytes.fromhex(entry.sha256),
        created_at=entry.created_at,
    )
