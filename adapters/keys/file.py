"""API keys in a TOML file: for servers whose store is in memory, and for deployments by files.

A changed file is read again. If it is gone, so are its keys. If it cannot be read, its keys work
for `grace_s` more: long enough to correct a mistake, and not long enough to keep a key that
somebody meant to revoke (docs/decisions/0074).
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

from antiphon.adapters.file_state import state_of
from antiphon.application.ports import ApiKey
from antiphon.domain.access.limits import (
    SCOPES,
    Amount,
    KeyPolicy,
    Names,
    Scope,
    Tier,
    check_limit_names,
    parse_host,
)
from antiphon.domain.errors import SettingsError

logger = logging.getLogger("antiphon.keys")

GRACE_S = 60.0
"""The time for which the keys of a file that cannot be read still work."""

Text = Annotated[str, Meta(min_length=1, max_length=200)]


class KeyEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table `[[keys]]`; `sha256` is the key's hash in lowercase hexadecimal digits."""

    id: Text
    sha256: Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$")]
    name: Text = "unnamed"
    tenant: Text = "default"
    created_at: int = 0
    limits: dict[str, Amount] = {}
    models: Names = ()
    tools: Names = ()
    hosts: Names = ()
    guards: Names = ()
    scopes: tuple[Scope, ...] = SCOPES
    service_tier: Tier = "default"
    expires_at: datetime | int | None = None


class KeyEntries(Struct, frozen=True, forbid_unknown_fields=True):
    keys: tuple[KeyEntry, ...] = ()


class KeysFile:
    """The keys of a file. `clock` returns seconds from any starting point."""

    def __init__(
        self, path: Path, *, clock: Callable[[], float] = time.monotonic, grace_s: float = GRACE_S
    ) -> None:
        self._path = path
        self._clock = clock
        self._grace_s = grace_s
        self._void_at = math.inf
        self._file_state: tuple[int, ...] = ()
        self._keys: Mapping[bytes, ApiKey] = {}

    async def start(self) -> None:
        """Read the file. Raises: SettingsError."""
        self._file_state = state_of(self._path)
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
        if (state := state_of(self._path)) != self._file_state:
            self._file_state = state  # a file that fails to load is not read again until it changes
            await self._read_changed(exists=bool(state))
        if self._clock() >= self._void_at:
            self._keys, self._void_at = {}, math.inf
            logger.error("The keys file %r still cannot be used: no key in it works.", self._name)

    async def _read_changed(self, *, exists: bool) -> None:
        try:
            self._keys = await asyncio.to_thread(_read, self._path) if exists else {}
        except SettingsError as error:
            self._void_at = min(self._void_at, self._clock() + self._grace_s)
            logger.error(  # noqa: TRY400 -- the error is a sentence
                "%s The keys that were in it before work for %g seconds more.",
                error,
                self._grace_s,
            )
            return
        self._void_at = math.inf
        if not exists:
            logger.error("The keys file %r is gone: no key in it works any more.", self._name)

    @property
    def _name(self) -> str:
        return str(self._path)


def append(path: Path, key: ApiKey) -> None:
    """Add a key to the file, or to a new file if it does not exist. Raises: SettingsError."""
    if path.exists():
        _read(path)  # raises if this is not a valid keys file
    entry = (
        f"\n[[keys]]\nid = {_quoted(key.id)}\nname = {_quoted(key.name)}\n"
        f"tenant = {_quoted(key.tenant)}\nsha256 = {_quoted(key.hash.hex())}\n"
        f"created_at = {key.created_at}\n{_policy_lines(key.policy)}"
    )
    try:
        with path.open("a", encoding="utf-8") as file:
            file.write(entry)
    except OSError as error:
        raise SettingsError(f"The keys file {str(path)!r} cannot be written: {error}.") from None


def _policy_lines(policy: KeyPolicy) -> str:
    """Return the lines of what is not the default."""
    fields = msgspec.to_builtins(policy)  # omits defaults
    limits = fields.pop("limits", None)
    lines = [f"{name} = {_quoted_value(value)}\n" for name, value in fields.items()]
    if limits:
        amounts = ", ".join(f"{_quoted(name)} = {limit}" for name, limit in limits.items())
        lines.append(f"limits = {{{amounts}}}\n")
    return "".join(lines)


def _quoted_value(value: Any) -> str:
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, int):
        return str(value)
    return f"[{', '.join(map(_quoted, value))}]"


def _quoted(text: str) -> str:
    # The JSON string of a printable text is a TOML string too.
    return msgspec.json.encode(text).decode()


def _read(path: Path) -> dict[bytes, ApiKey]:
    try:
        entries = msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), KeyEntries).keys
        keys = {bytes.fromhex(entry.sha256): _to_api_key(entry) for entry in entries}
    except (
        OSError,
        UnicodeDecodeError,
        tomllib.TOMLDecodeError,
        msgspec.ValidationError,
        SettingsError,
    ) as error:
        raise SettingsError(
            f"The keys file {str(path)!r} cannot be used: {_reason(error)}."
        ) from None
    _refuse_duplicates(path, [entry.id for entry in entries])
    _refuse_duplicates(path, [entry.sha256 for entry in entries])
    return keys


def _reason(error: Exception) -> str:
    return str(error).rstrip(".")


def _refuse_duplicates(path: Path, values: Sequence[str]) -> None:
    for value, count in Counter(values).items():
        if count > 1:
            raise SettingsError(f"The keys file {str(path)!r} has {value!r} {count} times.")


def _to_api_key(entry: KeyEntry) -> ApiKey:
    """Raises: SettingsError."""
    check_limit_names(entry.limits)
    expires_at = entry.expires_at
    if isinstance(expires_at, datetime):
        zoned = expires_at if expires_at.tzinfo else expires_at.replace(tzinfo=UTC)
        expires_at = int(zoned.timestamp())
    policy = KeyPolicy(
        limits=entry.limits,
        models=entry.models,
        tools=entry.tools,
        hosts=tuple(map(parse_host, entry.hosts)),
        guards=entry.guards,
        scopes=entry.scopes,
        service_tier=entry.service_tier,
        expires_at=expires_at,
    )
    return ApiKey(
        id=entry.id,
        name=entry.name,
        tenant=entry.tenant,
        hash=bytes.fromhex(entry.sha256),
        created_at=entry.created_at,
        policy=policy,
    )
