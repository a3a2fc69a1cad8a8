"""The operations of lua/*.lua, each run by Redis as one: all of it is done, or nothing."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from importlib.resources import files
from typing import Any, TypeVar

import msgspec
import redis.asyncio as aio
from redis import Redis, exceptions
from redis.asyncio.connection import AbstractConnection, parse_url
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.commands.core import AsyncScript
from redis.retry import Retry as BlockingRetry

from antiphon.domain.errors import SettingsError, StoreError

T = TypeVar("T")

# Flags of Redis 7: a script that frees is run also when memory is full, one that only reads also
# where nothing can be written. All others are refused there as a whole, before their first line.
READS, WRITES, FREES = " flags=no-writes", "", " flags=allow-oom"

OPERATIONS: Mapping[str, Mapping[str, str]] = {
    "responses": {
        "create": WRITES,
        "finish": WRITES,
        "get": READS,
        "read_chain": READS,
        "read_item": READS,
        "delete": FREES,
        "use": READS,
        "sweep": FREES,
    },
    "conversations": {
        "create_conversation": WRITES,
        "conversation": READS,
        "update_conversation": WRITES,
        "delete_conversation": FREES,
        "conversation_items": READS,
        "add_items": WRITES,
        "remove_item": FREES,
        "claim": WRITES,
        "release": WRITES,
    },
    "runs": {
        "beat": FREES,
        "leave": FREES,
        "take": WRITES,
        "take_over": WRITES,
        "give_back": FREES,
        "held": READS,
        "append": WRITES,
        "events": READS,
        "has_news": READS,
    },
    "repeats": {"reserve": WRITES, "unreserve": FREES},
    "outbox": {"due": FREES, "delay": FREES, "remove": FREES},
    "api_keys": {"add_key": WRITES, "keys": READS, "key": READS, "revoke_key": FREES},
    "agreements": {"agree": WRITES},
}

REPEATABLE = frozenset({"agree", "append", "beat", "leave", "update_conversation", "unreserve"})
"""What comes to the same when it is done twice, as reading does: it is tried again, once."""

REASONS: Mapping[type[BaseException], str] = {
    exceptions.AuthenticationError: "it refuses the user or the password",
    exceptions.NoPermissionError: "its user has no permission for that",
    exceptions.BusyLoadingError: "it is still loading what it keeps",
    exceptions.OutOfMemoryError: "its memory is full",
    exceptions.ReadOnlyError: "it is a replica, which cannot be written",
    exceptions.MaxConnectionsError: "it takes no more connections",
    exceptions.TimeoutError: "it did not answer in time",
    exceptions.ConnectionError: "it cannot be reached, or the connection broke off",
    OSError: "it cannot be reached, or the connection broke off",
}

# What the client library has no class for, or another one where a script met it.
REASONS_BY_TEXT: Mapping[str, str] = {
    "No connection available": "all connections to it are in use",
    "max number of clients": "it takes no more connections",
    "NOAUTH": "it asks for a password",
    "WRONGPASS": "it refuses the user or the password",
    "NOPERM": "its user has no permission for that",
    "OOM": "its memory is full",
    "READONLY": "it is a replica, which cannot be written",
    "MISCONF": "its disk fails, and it takes no writes until that is mended",
    "MASTERDOWN": "it is a replica without a master",
    "NOREPLICAS": "it has too few replicas to write",
    "BUSY": "a script that does not end keeps it busy",
    "WRONGTYPE": "something else is kept under the same prefix",
    "DB index is out of range": "it has no database of this number",
}


_encode = msgspec.msgpack.Encoder().encode


class RedisScripts:
    """`connections` at most are open, besides one that listens; who needs one waits `retry_s`.

    No answer takes longer than `timeout_s`. A URL may bring a user and a password; they are told
    to nobody.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str,
        connections: int = 16,
        retry_s: float = 2.0,
        timeout_s: float = 10.0,
    ) -> None:
        self.prefix = prefix
        self.address = _address(url)
        self._url = url
        self._connections = connections
        self._patience_s = retry_s
        # Nothing is tried again behind our back: what was written twice is not what was asked for.
        self._options: dict[str, Any] = {
            "protocol": 2,
            "socket_timeout": timeout_s,
            "socket_connect_timeout": min(retry_s, timeout_s),
            "socket_keepalive": True,
        }
        self._client: aio.Redis | None = None
        self._scripts: dict[str, AsyncScript] = {}
        self._blocking: Redis | None = None

    async def start(self) -> None:
        """Be ready to connect; nothing is sent yet. Raises: SettingsError."""
        pool = aio.BlockingConnectionPool.from_url(
            self._url,
            max_connections=self._connections,
            timeout=self._patience_s,
            retry=Retry(NoBackoff(), 0),
            **self._options,
        )
        self._client = aio.Redis.from_pool(pool)
        try:
            self.connection()
        except TypeError:  # an option that there is none of
            raise _unreadable() from None
        self._scripts = {operation: AsyncScript(self._client, text) for operation, text in _texts()}

    async def aclose(self) -> None:
        client, self._client = self._client, None
        blocking, self._blocking = self._blocking, None
        if client is not None:
            await client.aclose()
        if blocking is not None:
            blocking.close()

    async def run(self, operation: str, **given: Any) -> list[Any]:
        """Return what the operation returned. Raises: StoreError."""
        packed = _packed(given)
        with self.raising_store_errors():
            try:
                return await whole(self._run(operation, packed))
            except exceptions.ConnectionError:
                if operation not in AGAIN or self._client is None:
                    raise
                return await whole(self._run(operation, packed))

    async def _run(self, operation: str, packed: bytes) -> list[Any]:
        client = self.client
        args: list[str | bytes] = [operation, packed]
        found: list[Any] = await self._scripts[operation]([self.prefix], args, client)
        return found

    def run_sync(self, operation: str, **given: Any) -> None:
        """As `run`, from a thread other than the event loop's, over a connection of its own."""
        if self._client is None:
            raise self._not_open()
        if self._blocking is None:
            # Less patient: whoever beats has to beat again soon.
            options = self._options | {"socket_timeout": self._options["socket_connect_timeout"]}
            self._blocking = Redis.from_url(
                self._url, retry=BlockingRetry(NoBackoff(), 1), **options
            )
        text = str(self._scripts[operation].script)
        with self.raising_store_errors():
            self._blocking.eval(text, 1, self.prefix, operation, _packed(given))

    @property
    def client(self) -> aio.Redis:
        """Raises: StoreError where this is not open."""
        if self._client is None:
            raise self._not_open()
        return self._client

    def connection(self) -> AbstractConnection:
        """Return a connection that no pool knows, not yet connected."""
        pool = self.client.connection_pool
        made: AbstractConnection = pool.connection_class(**pool.connection_kwargs)
        return made

    @contextmanager
    def raising_store_errors(self) -> Iterator[None]:
        """Turn what Redis and its client raise into StoreError, in one sentence."""
        try:
            yield
        except (exceptions.RedisError, OSError) as error:
            raise StoreError(
                f"The store at {self.address} cannot be used: {reason(error)}."
            ) from error

    def _not_open(self) -> StoreError:
        return StoreError(f"The store at {self.address} is not open.")


async def whole(work: Coroutine[Any, Any, T]) -> T:
    """Do all of `work`; whoever is cancelled meanwhile leaves it to itself.

    Cancelled in the middle of an exchange, the client library may return as if nobody had.
    """
    return await asyncio.shield(asyncio.ensure_future(work))


def reason(error: BaseException) -> str:
    """Return what is wrong, for the end of a sentence.

    >>> reason(exceptions.ResponseError("MISCONF Redis is configured to save RDB snapshots"))
    'its disk fails, and it takes no writes until that is mended'
    """
    told = str(error).removeprefix("-")
    for text, why in REASONS_BY_TEXT.items():
        if text in told[:200]:
            return why
    kinds = (REASONS[kind] for kind in type(error).__mro__ if kind in REASONS)
    return next(kinds, told.partition("\n")[0].rstrip("."))


AGAIN = REPEATABLE | {
    name for theme in OPERATIONS.values() for name, flags in theme.items() if flags == READS
}


def _texts() -> Iterator[tuple[str, str]]:
    """Yield each operation with the script that has it. Few scripts differ: one a file and flag."""
    folder = files(__package__) / "lua"
    records = (folder / "records.lua").read_text("utf-8")
    last = "return operation[ARGV[1]](cmsgpack.unpack(ARGV[2]))\n"
    for theme, operations in OPERATIONS.items():
        body = (folder / f"{theme}.lua").read_text("utf-8")
        for operation, flags in operations.items():
            yield operation, f"#!lua{flags}\n{records}\n{body}\n{last}"


def _packed(given: Any) -> bytes:
    """Return MessagePack as Redis reads it: of an age in which bytes and text were one type.

    >>> _packed({"a": [b"\\0"], "b": None}).hex(" ")
    'df 00 00 00 01 a1 61 dd 00 00 00 01 db 00 00 00 01 00'
    """
    match given:
        case bytes():
            return b"\xdb" + len(given).to_bytes(4) + given
        case list():
            return b"\xdd" + len(given).to_bytes(4) + b"".join(map(_packed, given))
        case dict():
            there = [(name, value) for name, value in given.items() if value is not None]
            packed = (_encode(name) + _packed(value) for name, value in there)
            return b"\xdf" + len(there).to_bytes(4) + b"".join(packed)
        case _:
            return _encode(given)


def _unreadable() -> SettingsError:
    # What the client library says of it may be a part of the password.
    return SettingsError(
        "The Redis URL cannot be read: it is redis://user@host:6379/0, and a password in it has "
        "%2F for /, %3F for ?, %23 for #, %40 for @."
    )


def _address(url: str) -> str:
    """Return where Redis is, without the password.

    >>> _address("redis://user:secret@cache.example:6380/2")
    "'redis://cache.example:6380/2'"
    """
    try:
        parts: Mapping[str, Any] = parse_url(url)
    except ValueError:
        raise _unreadable() from None
    if "path" in parts:
        return repr(f"unix://{parts['path']}")
    host, port, database = (
        parts.get("host", "localhost"),
        parts.get("port", 6379),
        parts.get("db", 0),
    )
    return repr(f"{url.partition(':')[0]}://{host}:{port}/{database}")
