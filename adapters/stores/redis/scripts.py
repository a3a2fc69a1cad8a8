"""The operations of lua/*.lua, which Redis runs atomically."""

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

# Flags of Redis 7. Scripts that free memory also run when memory is full; scripts that only read
# also run where writes are impossible. Redis rejects all others there before their first line.
READS, WRITES, FREES = " flags=no-writes", "", " flags=allow-oom"

OPERATIONS: Mapping[str, Mapping[str, str]] = {
    "responses": {
        "create": WRITES,
        "finish": WRITES,
        "get": READS,
        "read_chain": READS,
        "read_item": READS,
        "delete": FREES,
        "storage_usage": READS,
        "sweep": FREES,
    },
    "conversations": {
        "create_conversation": WRITES,
        "conversation": READS,
        "update_conversation": WRITES,
        "delete_conversation": FREES,
        "conversation_items": READS,
        "conversation_item": READS,
        "add_items": WRITES,
        "remove_item": FREES,
        "claim": WRITES,
        "release": WRITES,
    },
    "runs": {
        "beat": FREES,
        "leave": FREES,
        "count_waiting": READS,
        "lease_runs": WRITES,
        "take_over": WRITES,
        "give_back": FREES,
        "held_leases": READS,
        "append": WRITES,
        "events": READS,
        "has_new_events": READS,
    },
    "idempotency_keys": {"reserve": WRITES, "unreserve": FREES},
    "webhook_deliveries": {
        "claim_deliveries": FREES,
        "delay_delivery": FREES,
        "delete_delivery": FREES,
    },
    "api_keys": {
        "add_key": WRITES,
        "keys": READS,
        "key": READS,
        "get_key": READS,
        "update_key": WRITES,
        "revoke_key": FREES,
    },
    "usage": {"reserve_usage": WRITES, "settle_usage": FREES},
    "traces": {"save_trace": WRITES, "trace": READS},
    "lists": {
        "list_responses": READS,
        "search_responses": READS,
        "response_body": READS,
        "list_conversations": READS,
    },
    "shared_values": {"compare_and_set": WRITES, "check": WRITES},
    "upgrade": {
        "start_upgrade": WRITES,
        "rename_keys": WRITES,
        "list_conversations_in_order": WRITES,
        "end_upgrade": WRITES,
    },
}

IDEMPOTENT = frozenset(
    {"append", "beat", "check", "compare_and_set", "leave", "update_conversation", "unreserve"}
) | frozenset({"start_upgrade", "rename_keys", "list_conversations_in_order", "end_upgrade"})
"""Writes that are retried once when the connection is lost. Reads are retried too."""

ERROR_MESSAGES: Mapping[type[BaseException], str] = {
    exceptions.AuthenticationError: "it rejected the user or password",
    exceptions.NoPermissionError: "its user lacks the permission",
    exceptions.BusyLoadingError: "it is still loading its data",
    exceptions.OutOfMemoryError: "its memory is full",
    exceptions.ReadOnlyError: "it is a replica, which is read-only",
    exceptions.MaxConnectionsError: "it accepts no more connections",
    exceptions.TimeoutError: "it did not answer in time",
    exceptions.ConnectionError: "it cannot be reached, or the connection was lost",
    OSError: "it cannot be reached, or the connection was lost",
}

LOST_CONNECTION = "the handler is closed"
"""What uvloop says if a connection is lost between its start and its first use. The client library
passes this RuntimeError on."""

# Errors for which the client library has no class, or another class if a script raised them.
ERROR_MESSAGES_BY_TEXT: Mapping[str, str] = {
    LOST_CONNECTION: "the connection was lost",
    "No connection available": "all connections to it are in use",
    "max number of clients": "it accepts no more connections",
    "NOAUTH": "it requires a password",
    "WRONGPASS": "it rejected the user or password",
    "NOPERM": "its user lacks the permission",
    "OOM": "its memory is full",
    "READONLY": "it is a replica, which is read-only",
    "MISCONF": "its disk failed, and it rejects writes until that is fixed",
    "MASTERDOWN": "it is a replica without a master",
    "NOREPLICAS": "it has too few replicas to write",
    "BUSY": "it is busy with a script that does not end",
    "WRONGTYPE": "other data is stored under the same prefix",
    "DB index is out of range": "it has no database with this number",
}


_encode = msgspec.msgpack.Encoder().encode


class RedisScripts:
    """A client with at most `connections`, besides the one that listens.

    `connect_timeout_s` limits the wait for a free connection, `timeout_s` the wait for an answer.
    Error messages contain neither the user nor the password of `url`.
    """

    def __init__(
        self,
        url: str,
        *,
        prefix: str,
        connections: int = 16,
        connect_timeout_s: float = 2.0,
        timeout_s: float = 10.0,
    ) -> None:
        self.prefix = prefix
        self.address = _address(url)
        self._url = url
        self._connections = connections
        self._connect_timeout_s = connect_timeout_s
        # The client library must not retry by itself, because it could write twice.
        self._options: dict[str, Any] = {
            "protocol": 2,
            "socket_timeout": timeout_s,
            "socket_connect_timeout": min(connect_timeout_s, timeout_s),
        }
        if not url.lower().startswith("unix:"):
            self._options["socket_keepalive"] = True
        self._client: aio.Redis | None = None
        self._scripts: dict[str, AsyncScript] = {}
        self._blocking: Redis | None = None

    async def start(self) -> None:
        """Prepare the connections without connecting. Raises: SettingsError."""
        pool = aio.BlockingConnectionPool.from_url(
            self._url,
            max_connections=self._connections,
            timeout=self._connect_timeout_s,
            retry=Retry(NoBackoff(), 0),
            **self._options,
        )
        self._client = aio.Redis.from_pool(pool)
        try:
            self.connection()
        except TypeError:  # an unknown option in the URL
            raise _invalid_url_error() from None
        self._scripts = {name: AsyncScript(self._client, text) for name, text in _scripts()}

    async def aclose(self) -> None:
        client, self._client = self._client, None
        blocking, self._blocking = self._blocking, None
        if client is not None:
            await client.aclose()
        if blocking is not None:
            blocking.close()

    async def run(self, operation: str, **arguments: Any) -> list[Any]:
        """Run an operation and return its result. Raises: StoreError."""
        packed = _pack(arguments)
        with self.raising_store_errors():
            try:
                return await shielded(self._run(operation, packed))
            except exceptions.ConnectionError:
                if operation not in RETRIED or self._client is None:
                    raise
                return await shielded(self._run(operation, packed))

    async def _run(self, operation: str, packed: memoryview) -> list[Any]:
        client = self.client
        args: list[Any] = [operation, packed]
        result: list[Any] = await self._scripts[operation]([self.prefix], args, client)
        return result

    def run_sync(self, operation: str, **arguments: Any) -> None:
        """Run an operation in the calling thread, which blocks, over a separate connection."""
        if self._client is None:
            raise self._not_open_error()
        if self._blocking is None:
            # The timeout is shorter because the next heartbeat is due soon.
            options = self._options | {"socket_timeout": self._options["socket_connect_timeout"]}
            self._blocking = Redis.from_url(
                self._url, retry=BlockingRetry(NoBackoff(), 1), **options
            )
        text = str(self._scripts[operation].script)
        with self.raising_store_errors():
            self._blocking.eval(text, 1, self.prefix, operation, _pack(arguments))

    @property
    def client(self) -> aio.Redis:
        """The client. Raises: StoreError if it is not open."""
        if self._client is None:
            raise self._not_open_error()
        return self._client

    def connection(self) -> AbstractConnection:
        """Return a new connection outside of the pool, not yet connected."""
        pool = self.client.connection_pool
        connection: AbstractConnection = pool.connection_class(**pool.connection_kwargs)
        return connection

    @contextmanager
    def raising_store_errors(self) -> Iterator[None]:
        """Turn errors of Redis and its client into a StoreError of one sentence."""
        try:
            yield
        except (exceptions.RedisError, OSError, RuntimeError) as error:
            if isinstance(error, RuntimeError) and LOST_CONNECTION not in str(error):
                raise
            raise StoreError(
                f"The store at {self.address} cannot be used: {reason_of(error)}.",
                reason=_known_reason(error),
            ) from error

    def _not_open_error(self) -> StoreError:
        return StoreError(f"The store at {self.address} is not open.")


async def shielded(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end, even if the caller is canceled.

    If the client library is canceled in the middle of an exchange, it may return normally.
    """
    return await asyncio.shield(asyncio.ensure_future(work))


def reason_of(error: BaseException) -> str:
    """Return the reason for an error, to end a sentence with.

    >>> reason_of(exceptions.ResponseError("MISCONF Redis is configured to save RDB snapshots"))
    'its disk failed, and it rejects writes until that is fixed'
    """
    return _known_reason(error) or str(error).removeprefix("-").partition("\n")[0].rstrip(".")


def _known_reason(error: BaseException) -> str:
    """Return a reason of ours, which names no machine; "" if the error is unknown."""
    message = str(error)[:200]
    for text, reason in ERROR_MESSAGES_BY_TEXT.items():
        if text in message:
            return reason
    return next(
        (ERROR_MESSAGES[kind] for kind in type(error).__mro__ if kind in ERROR_MESSAGES), ""
    )


RETRIED = IDEMPOTENT | {
    name for script in OPERATIONS.values() for name, flags in script.items() if flags == READS
}


def _scripts() -> Iterator[tuple[str, str]]:
    """Yield each operation with its script. Operations of one file and flag share a script."""
    folder = files(__package__) / "lua"
    records = (folder / "records.lua").read_text("utf-8")
    call = "return operation[ARGV[1]](cmsgpack.unpack(ARGV[2]))\n"
    for name, operations in OPERATIONS.items():
        body = (folder / f"{name}.lua").read_text("utf-8")
        for operation, flags in operations.items():
            yield operation, f"#!lua{flags}\n{records}\n{body}\n{call}"


def _pack(value: Any) -> memoryview:
    """Return MessagePack in the old format that Redis reads, with one type for bytes and text.

    >>> _pack({"a": [b"\\0"], "b": None}).hex(" ")
    'df 00 00 00 01 a1 61 dd 00 00 00 01 db 00 00 00 01 00'
    """
    packed = bytearray()
    _pack_into(packed, value)
    return memoryview(packed)  # bytes would be a copy


def _pack_into(packed: bytearray, value: Any) -> None:
    match value:
        case bytes() | memoryview():
            packed += b"\xdb" + len(value).to_bytes(4)
            packed += value
        case list():
            packed += b"\xdd" + len(value).to_bytes(4)
            for each in value:
                _pack_into(packed, each)
        case dict():
            fields = [(name, field) for name, field in value.items() if field is not None]
            packed += b"\xdf" + len(fields).to_bytes(4)
            for name, field in fields:
                packed += _encode(name)
                _pack_into(packed, field)
        case _:
            packed += _encode(value)


def _invalid_url_error() -> SettingsError:
    # The error of the client library may contain a part of the password.
    return SettingsError(
        "The Redis URL cannot be read: it looks like redis://user@host:6379/0; in its password, "
        "write %2F for /, %3F for ?, %23 for #, %40 for @."
    )


def _address(url: str) -> str:
    """Return the address of Redis without the user and password.

    >>> _address("redis://user:secret@cache.example:6380/2")
    "'redis://cache.example:6380/2'"
    """
    try:
        parts: Mapping[str, Any] = parse_url(url)
    except ValueError:
        raise _invalid_url_error() from None
    if "path" in parts:
        return repr(f"unix://{parts['path']}")
    host, port, database = (
        parts.get("host", "localhost"),
        parts.get("port", 6379),
        parts.get("db", 0),
    )
    return repr(f"{url.partition(':')[0]}://{host}:{port}/{database}")
