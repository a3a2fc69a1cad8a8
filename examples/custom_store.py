"""A store of your own: the memory store, with a file that brings it back after a restart.

    $ antiphon serve --store examples.custom_store:JournalStore

Every call that changes something is written to the journal once it has succeeded, and waits until
the disk has it; at the next start the calls are made again. It keeps every promise of the port
(tests/contracts/test_custom_store.py) and shows what a store has to decide.

What it leaves out: the file only grows, and what was deleted can still be read in it; it serves one
process; with each start the attempts of notices begin anew, and what was swept is swept again.
"""

from __future__ import annotations

import fcntl
import inspect
import os
from collections.abc import Iterator, Mapping
from functools import partial, reduce
from io import FileIO
from operator import or_
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from antiphon.adapters.stores.memory import MemoryStore
from antiphon.application.ports import IdempotencyRecord, LeasedRun, Store
from antiphon.domain.errors import SettingsError, StoreError

LENGTH_BYTES = 4
UNBOUNDED = 2**62

WRITES = (
    "create",
    "finish",
    "delete",
    "create_conversation",
    "update_conversation",
    "delete_conversation",
    "add_items",
    "remove_item",
    "claim",
    "release",
    "take_over",
    "give_back",
    "append",
    "reserve",
    "unreserve",
    "delay",
    "remove",
    "add_key",
    "revoke_key",
    "compare_and_set",
)
"""What changes something that outlives a server. Who is alive does not: nobody is at a start."""


def _call_of(name: str) -> type[msgspec.Struct]:
    """Return the Struct that a call of this method is written as: a field a parameter."""
    types = get_type_hints(getattr(Store, name))
    del types["return"]
    return msgspec.defstruct(
        f"Call_{name}", types.items(), tag=name, tag_field="call", kw_only=True
    )


CALLS: Mapping[str, type[msgspec.Struct]] = {name: _call_of(name) for name in WRITES}
_decode = msgspec.json.Decoder(reduce(or_, CALLS.values())).decode


class JournalStore:
    """Has all methods of the port Store, most of them through `__getattr__`.

    Without a path, the journal is `antiphon.journal` in the folder where the server was started.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or Path("antiphon.journal")
        self._kept = MemoryStore(keep=UNBOUNDED)
        self._file: FileIO | None = None
        self._failure: StoreError | None = None

    async def start(self) -> None:
        try:
            self._file = self._path.open("a+b", buffering=0)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            await self.aclose()
            raise SettingsError(f"The journal {str(self._path)!r} is not ours: {error}.") from error
        for call in self._calls(self._file):
            method = getattr(self._kept, str(call.__struct_config__.tag))
            await method(**msgspec.structs.asdict(call))

    async def aclose(self) -> None:
        if self._file is not None:
            self._file.close()

    async def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def lease_runs(self, owner: str, *, limit: int, waiting: bool = True) -> list[LeasedRun]:
        # Which runs are free depends on the time: what was taken is written, not what was asked.
        taken: list[LeasedRun] = await self._read("lease_runs")(owner, limit=limit, waiting=waiting)
        for one in taken:
            where = {"tenant": one.lease.tenant, "response_id": one.lease.response_id}
            self._append(CALLS["take_over"](owner=owner, **where))
        return taken

    async def reserve(self, tenant: str, key: str, **asked: Any) -> IdempotencyRecord:
        repeat: IdempotencyRecord = await self._read("reserve")(tenant, key, **asked)
        if repeat.response_id == asked["response_id"]:
            self._append(CALLS["reserve"](tenant=tenant, key=key, **asked))
        return repeat

    def __getattr__(self, name: str) -> Any:
        return partial(self._write, name) if name in CALLS else self._read(name)

    def _read(self, name: str) -> Any:
        if self._failure is not None:
            raise self._failure
        return getattr(self._kept, name)

    async def _write(self, name: str, *args: Any, **kwargs: Any) -> Any:
        method = self._read(name)
        given = inspect.signature(method).bind(*args, **kwargs)
        given.apply_defaults()
        result = await method(*args, **kwargs)  # what is refused here is not written
        self._append(CALLS[name](**given.arguments))
        return result

    def _append(self, call: msgspec.Struct) -> None:
        """Write a call, and wait for the disk. Nothing else happens meanwhile: nobody sees what
        could still be lost. A store for many clients would gather writes in a thread of its own.
        """
        assert self._file is not None
        record = msgspec.json.encode(call)
        rest = len(record).to_bytes(LENGTH_BYTES) + record
        try:
            while rest:
                rest = rest[self._file.write(rest) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            # The memory is ahead of the file now: only a new start makes them the same again.
            self._failure = StoreError(f"The journal {str(self._path)!r} failed: {error}.")
            raise self._failure from error

    def _calls(self, file: FileIO) -> Iterator[Any]:
        """Return the calls in the journal, and cut off the last if it was not written whole."""
        file.seek(0)
        while True:
            begin = file.tell()
            head = file.read(LENGTH_BYTES)
            record = file.read(int.from_bytes(head))
            if len(head) < LENGTH_BYTES or len(record) < int.from_bytes(head):
                file.truncate(begin)
                return
            try:
                yield _decode(record)
            except msgspec.DecodeError as error:
                place = f"{str(self._path)!r} at byte {begin}"
                raise SettingsError(f"The journal {place} cannot be read: {error}.") from error
