"""Your own store: the memory store with a journal file that restores it after a restart.

    $ antiphon serve --store examples.custom_store:JournalStore

Every successful call that changes something is appended to the journal and synced to disk. At the
next start, the calls are replayed. The store keeps every promise of the port
(tests/contracts/test_custom_store.py) and shows the decisions that a store has to make.

Its limits: the file only grows, and deleted data can still be read in it; it serves one process;
with each start, webhook delivery attempts start again, and expired data is swept again.
"""

from __future__ import annotations

import fcntl
import inspect
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import partial, reduce
from io import FileIO
from operator import or_
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from antiphon.adapters.stores.memory.store import MemoryStore
from antiphon.application.ports import (
    Charge,
    IdempotencyRecord,
    KeyUsage,
    LeasedRun,
    RunSlot,
    Store,
)
from antiphon.domain.errors import SettingsError, StoreError

LENGTH_BYTES = 4
UNBOUNDED = 2**62

WRITES = (
    "create_response",
    "finish_response",
    "delete_response",
    "create_conversation",
    "update_conversation",
    "delete_conversation",
    "create_conversation_items",
    "delete_conversation_item",
    "claim_conversation",
    "release_conversation",
    "take_over_run",
    "give_back_run",
    "append_events",
    "reserve_idempotency_key",
    "release_idempotency_key",
    "delay_delivery",
    "delete_delivery",
    "create_api_key",
    "update_api_key",
    "revoke_api_key",
    "reserve_usage",
    "save_trace",
    "compare_and_set",
)
"""Methods that change persistent data. Heartbeats do not: no server is alive at a start."""


def _define_call(name: str) -> type[msgspec.Struct]:
    """Return the Struct of a call of this method, with one field per parameter."""
    types = get_type_hints(getattr(Store, name))
    del types["return"]
    return msgspec.defstruct(
        f"Call_{name}", types.items(), tag=name, tag_field="call", kw_only=True
    )


CALLS: Mapping[str, type[msgspec.Struct]] = {name: _define_call(name) for name in WRITES}
_decode = msgspec.json.Decoder(reduce(or_, CALLS.values())).decode


class JournalStore:
    """A store with all methods of the Store port, most of them through `__getattr__`.

    The default journal is `antiphon.journal` in the working folder.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path or Path("antiphon.journal")
        self._memory = MemoryStore(keep=UNBOUNDED)
        self._file: FileIO | None = None
        self._failure: StoreError | None = None

    async def start(self) -> None:
        try:
            self._file = self._path.open("a+b", buffering=0)
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            await self.aclose()
            raise SettingsError(
                f"The journal {str(self._path)!r} cannot be opened: {error}."
            ) from error
        for call in self._read_calls(self._file):
            method = getattr(self._memory, str(call.__struct_config__.tag))
            await method(**msgspec.structs.asdict(call))

    async def aclose(self) -> None:
        if self._file is not None:
            self._file.close()

    async def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def lease_runs(self, owner: str, **options: Any) -> list[LeasedRun]:
        # Which runs are free depends on the time, so the journal records the leased runs.
        leased_runs: list[LeasedRun] = await self._memory_method("lease_runs")(owner, **options)
        for run in leased_runs:
            response = {"tenant": run.lease.tenant, "response_id": run.lease.response_id}
            self._append(CALLS["take_over_run"](owner=owner, **response))
        return leased_runs

    async def reserve_idempotency_key(
        self, tenant: str, key: str, **options: Any
    ) -> IdempotencyRecord:
        record: IdempotencyRecord = await self._memory_method("reserve_idempotency_key")(
            tenant, key, **options
        )
        if record.response_id == options["response_id"]:
            self._append(CALLS["reserve_idempotency_key"](tenant=tenant, key=key, **options))
        return record

    async def reserve_usage(
        self, key_id: str, charges: Sequence[Charge], slot: RunSlot | None = None
    ) -> KeyUsage:
        usage: KeyUsage = await self._memory_method("reserve_usage")(key_id, charges, slot)
        if usage.accepted:
            self._append_charges(key_id, charges)
        return usage

    async def settle_usage(
        self, key_id: str, tenant: str, response_id: str, charges: Sequence[Charge] = ()
    ) -> bool:
        settle_usage = self._memory_method("settle_usage")
        is_settled: bool = await settle_usage(key_id, tenant, response_id, charges)
        if is_settled:
            self._append_charges(key_id, charges)
        return is_settled

    def _append_charges(self, key_id: str, charges: Sequence[Charge]) -> None:
        # Without limits and slots: no server is alive at a start, so all slots are free then.
        added = [msgspec.structs.replace(each, limit=None) for each in charges if each.amount]
        if added:
            self._append(CALLS["reserve_usage"](key_id=key_id, charges=added, slot=None))

    def __getattr__(self, name: str) -> Any:
        return partial(self._write, name) if name in CALLS else self._memory_method(name)

    def _memory_method(self, name: str) -> Any:
        if self._failure is not None:
            raise self._failure
        return getattr(self._memory, name)

    async def _write(self, name: str, *args: Any, **kwargs: Any) -> Any:
        method = self._memory_method(name)
        bound = inspect.signature(method).bind(*args, **kwargs)
        bound.apply_defaults()
        result = await method(*args, **kwargs)  # a refused call is not written
        self._append(CALLS[name](**bound.arguments))
        return result

    def _append(self, call: msgspec.Struct) -> None:
        """Write a call, and sync it to disk.

        This blocks the event loop, so that nobody sees data that could still be lost. A store for
        many clients would batch writes in its own thread.
        """
        assert self._file is not None
        record = msgspec.json.encode(call)
        remaining = len(record).to_bytes(LENGTH_BYTES) + record
        try:
            while remaining:
                remaining = remaining[self._file.write(remaining) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            # The memory is now ahead of the file. Only a restart makes them equal again.
            self._failure = StoreError(f"The journal {str(self._path)!r} failed: {error}.")
            raise self._failure from error

    def _read_calls(self, file: FileIO) -> Iterator[Any]:
        """Yield the calls in the journal, and remove the last one if it is incomplete."""
        file.seek(0)
        while True:
            start = file.tell()
            head = file.read(LENGTH_BYTES)
            record = file.read(int.from_bytes(head))
            if len(head) < LENGTH_BYTES or len(record) < int.from_bytes(head):
                file.truncate(start)
                return
            try:
                yield _decode(record)
            except msgspec.DecodeError as error:
                place = f"{str(self._path)!r} at byte {start}"
                raise SettingsError(f"The journal {place} cannot be read: {error}.") from error
