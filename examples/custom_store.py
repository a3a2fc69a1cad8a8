"""Your own store: the memory store with a journal file that restores it after a restart.

    $ antiphon serve --store examples.custom_store:JournalStore

Each method that changes something calls the memory store, then appends the call to the journal and
syncs it to disk. At the next start, the calls are repeated. The store keeps every promise of the
port (tests/contracts/test_custom_store.py) and shows the decisions that a store has to make. A
store on a database implements the same methods, and inherits `Store`.

Its limits: the file only grows, and deleted data can still be read in it; it serves one process;
with each start, webhook delivery attempts start again, and expired data is swept again.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator, Mapping, Sequence
from io import FileIO
from pathlib import Path
from typing import Any

import msgspec

from antiphon.adapters.stores.memory.store import MemoryStore
from antiphon.application.ports import (
    NO_RUNS,
    ApiKey,
    Charge,
    EventChunk,
    IdempotencyRecord,
    KeyUsage,
    Lease,
    LeasedRun,
    RunSlot,
    StoredItem,
    StoredResponse,
    WebhookDelivery,
)
from antiphon.domain.access.limits import KeyPolicy
from antiphon.domain.errors import SettingsError, StoreError
from antiphon.domain.history.conversation import Conversation
from antiphon.domain.responses.response import Response

LENGTH_BYTES = 4
UNBOUNDED = 2**62

CALLS: Mapping[str, Any] = {
    "create_response": tuple[str, StoredResponse],
    "finish_response": tuple[Lease, Response, EventChunk | None, list[WebhookDelivery]],
    "delete_response": tuple[str, str],
    "create_conversation": tuple[str, Conversation, list[StoredItem]],
    "update_conversation": tuple[str, str, dict[str, str]],
    "delete_conversation": tuple[str, str],
    "create_conversation_items": tuple[str, str, list[StoredItem]],
    "delete_conversation_item": tuple[str, str, str],
    "claim_conversation": tuple[str, str, str, str],
    "release_conversation": tuple[str, str, str, list[StoredItem]],
    "take_over_run": tuple[str, str, str],
    "give_back_run": tuple[Lease],
    "append_events": tuple[Lease, EventChunk],
    "reserve_idempotency_key": tuple[str, str, str, bytes, str, float],
    "release_idempotency_key": tuple[str, str, str],
    "delay_delivery": tuple[str, float],
    "delete_delivery": tuple[str],
    "create_api_key": tuple[ApiKey],
    "update_api_key": tuple[str, KeyPolicy],
    "revoke_api_key": tuple[str],
    "reserve_usage": tuple[str, list[Charge]],
    "save_trace": tuple[Lease, bytes],
    "compare_and_set": tuple[str, bytes, bytes | None],
}
"""The methods in the journal, with their arguments. Heartbeats are not in it: no server is alive at
a start."""

_decode_call = msgspec.json.Decoder(tuple[str, msgspec.Raw]).decode
_decode_arguments = {name: msgspec.json.Decoder(types).decode for name, types in CALLS.items()}


class JournalStore(MemoryStore):
    """The default journal is `antiphon.journal` in the working folder."""

    def __init__(self, path: Path | None = None) -> None:
        super().__init__(keep=UNBOUNDED)
        self._path = path or Path("antiphon.journal")
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
        for name, arguments in self._read_calls(self._file):
            await self._repeat(name, arguments)

    async def aclose(self) -> None:
        if self._file is not None:
            self._file.close()

    async def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    # --- responses and conversations --------------------------------------------------------------
    # A call that is refused raises before it is written.

    async def create_response(self, tenant: str, stored: StoredResponse) -> None:
        await super().create_response(tenant, stored)
        self._write("create_response", tenant, stored)

    async def finish_response(
        self,
        lease: Lease,
        response: Response,
        *,
        events: EventChunk | None = None,
        deliveries: Sequence[WebhookDelivery] = (),
    ) -> bool:
        is_valid = await super().finish_response(
            lease, response, events=events, deliveries=deliveries
        )
        self._write("finish_response", lease, response, events, deliveries)
        return is_valid

    async def delete_response(self, tenant: str, response_id: str) -> None:
        await super().delete_response(tenant, response_id)
        self._write("delete_response", tenant, response_id)

    async def create_conversation(
        self, tenant: str, conversation: Conversation, items: Sequence[StoredItem] = ()
    ) -> None:
        await super().create_conversation(tenant, conversation, items)
        self._write("create_conversation", tenant, conversation, items)

    async def update_conversation(
        self, tenant: str, conversation_id: str, metadata: Mapping[str, str]
    ) -> Conversation:
        conversation = await super().update_conversation(tenant, conversation_id, metadata)
        self._write("update_conversation", tenant, conversation_id, metadata)
        return conversation

    async def delete_conversation(self, tenant: str, conversation_id: str) -> None:
        await super().delete_conversation(tenant, conversation_id)
        self._write("delete_conversation", tenant, conversation_id)

    async def create_conversation_items(
        self, tenant: str, conversation_id: str, items: Sequence[StoredItem]
    ) -> None:
        await super().create_conversation_items(tenant, conversation_id, items)
        self._write("create_conversation_items", tenant, conversation_id, items)

    async def delete_conversation_item(
        self, tenant: str, conversation_id: str, item_id: str
    ) -> None:
        await super().delete_conversation_item(tenant, conversation_id, item_id)
        self._write("delete_conversation_item", tenant, conversation_id, item_id)

    async def claim_conversation(
        self, tenant: str, conversation_id: str, response_id: str, *, owner: str
    ) -> None:
        await super().claim_conversation(tenant, conversation_id, response_id, owner=owner)
        self._write("claim_conversation", tenant, conversation_id, response_id, owner)

    async def release_conversation(
        self,
        tenant: str,
        conversation_id: str,
        response_id: str,
        items: Sequence[StoredItem] = (),
    ) -> None:
        await super().release_conversation(tenant, conversation_id, response_id, items)
        self._write("release_conversation", tenant, conversation_id, response_id, items)

    # --- runs -------------------------------------------------------------------------------------

    async def lease_runs(
        self,
        owner: str,
        *,
        limit: int,
        waiting: bool = True,
        held: Mapping[str, int] = NO_RUNS,
        per_tenant: int | None = None,
    ) -> list[LeasedRun]:
        runs = await super().lease_runs(
            owner, limit=limit, waiting=waiting, held=held, per_tenant=per_tenant
        )
        # Which runs are free depends on the time, so the journal names those that were leased.
        for run in runs:
            self._write("take_over_run", owner, run.lease.tenant, run.lease.response_id)
        return runs

    async def take_over_run(self, owner: str, tenant: str, response_id: str) -> LeasedRun | None:
        run = await super().take_over_run(owner, tenant, response_id)
        self._write("take_over_run", owner, tenant, response_id)
        return run

    async def give_back_run(self, lease: Lease) -> bool:
        is_valid = await super().give_back_run(lease)
        self._write("give_back_run", lease)
        return is_valid

    async def append_events(self, lease: Lease, events: EventChunk) -> bool:
        is_valid = await super().append_events(lease, events)
        self._write("append_events", lease, events)
        return is_valid

    async def save_trace(self, lease: Lease, trace: bytes) -> bool:
        is_valid = await super().save_trace(lease, trace)
        self._write("save_trace", lease, trace)
        return is_valid

    # --- Idempotency-Keys and webhooks ------------------------------------------------------------

    async def reserve_idempotency_key(
        self,
        tenant: str,
        key: str,
        *,
        response_id: str,
        fingerprint: bytes,
        owner: str,
        expires_at: float,
    ) -> IdempotencyRecord:
        record = await super().reserve_idempotency_key(
            tenant,
            key,
            response_id=response_id,
            fingerprint=fingerprint,
            owner=owner,
            expires_at=expires_at,
        )
        if record.response_id == response_id:
            self._write(
                "reserve_idempotency_key", tenant, key, response_id, fingerprint, owner, expires_at
            )
        return record

    async def release_idempotency_key(self, tenant: str, key: str, response_id: str) -> None:
        await super().release_idempotency_key(tenant, key, response_id)
        self._write("release_idempotency_key", tenant, key, response_id)

    async def delay_delivery(self, delivery_id: str, seconds: float) -> None:
        await super().delay_delivery(delivery_id, seconds)
        self._write("delay_delivery", delivery_id, seconds)

    async def delete_delivery(self, delivery_id: str) -> None:
        await super().delete_delivery(delivery_id)
        self._write("delete_delivery", delivery_id)

    # --- API keys, their use, and shared values ---------------------------------------------------

    async def create_api_key(self, key: ApiKey) -> None:
        await super().create_api_key(key)
        self._write("create_api_key", key)

    async def update_api_key(self, key_id: str, policy: KeyPolicy) -> bool:
        is_known = await super().update_api_key(key_id, policy)
        self._write("update_api_key", key_id, policy)
        return is_known

    async def revoke_api_key(self, key_id: str) -> bool:
        is_known = await super().revoke_api_key(key_id)
        self._write("revoke_api_key", key_id)
        return is_known

    async def reserve_usage(
        self, key_id: str, charges: Sequence[Charge], slot: RunSlot | None = None
    ) -> KeyUsage:
        usage = await super().reserve_usage(key_id, charges, slot)
        if usage.accepted:
            self._write_charges(key_id, charges)
        return usage

    async def settle_usage(
        self, key_id: str, tenant: str, response_id: str, charges: Sequence[Charge] = ()
    ) -> bool:
        is_settled = await super().settle_usage(key_id, tenant, response_id, charges)
        if is_settled:
            self._write_charges(key_id, charges)
        return is_settled

    def _write_charges(self, key_id: str, charges: Sequence[Charge]) -> None:
        # Without limits and slots: no server is alive at a start, so all slots are free then.
        added = [msgspec.structs.replace(each, limit=None) for each in charges if each.amount]
        if added:
            self._write("reserve_usage", key_id, added)

    async def compare_and_set(
        self, name: str, value: bytes, *, expected: bytes | None = None
    ) -> bytes:
        current = await super().compare_and_set(name, value, expected=expected)
        self._write("compare_and_set", name, value, expected)
        return current

    # --- the journal ------------------------------------------------------------------------------

    def _write(self, name: str, *arguments: Any) -> None:
        """Append a call, and sync it to disk.

        This blocks the event loop, so that nobody sees data that could still be lost. A store for
        many clients would batch writes in its own thread.
        """
        if self._failure is not None:
            raise self._failure
        assert self._file is not None
        record = msgspec.json.encode((name, arguments))
        remaining = len(record).to_bytes(LENGTH_BYTES) + record
        try:
            while remaining:
                remaining = remaining[self._file.write(remaining) :]
            os.fsync(self._file.fileno())
        except OSError as error:
            # The memory is now ahead of the file. Only a restart makes them equal again.
            self._failure = StoreError(f"The journal {str(self._path)!r} failed: {error}.")
            raise self._failure from error

    def _read_calls(self, file: FileIO) -> Iterator[tuple[str, Sequence[Any]]]:
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
                name, arguments = _decode_call(record)
                yield name, _decode_arguments[name](arguments)
            except (KeyError, msgspec.DecodeError) as error:
                place = f"{str(self._path)!r} at byte {start}"
                raise SettingsError(f"The journal {place} cannot be read: {error}.") from error

    async def _repeat(self, name: str, arguments: Sequence[Any]) -> None:
        """Call the memory store as before; some methods have arguments by name."""
        match name, arguments:
            case "finish_response", (lease, response, events, deliveries):
                await super().finish_response(lease, response, events=events, deliveries=deliveries)
            case "claim_conversation", (*ids, owner):
                await super().claim_conversation(*ids, owner=owner)
            case "reserve_idempotency_key", (tenant, key, response_id, fingerprint, owner, until):
                await super().reserve_idempotency_key(
                    tenant,
                    key,
                    response_id=response_id,
                    fingerprint=fingerprint,
                    owner=owner,
                    expires_at=until,
                )
            case "compare_and_set", (key, value, expected):
                await super().compare_and_set(key, value, expected=expected)
            case _:
                await getattr(super(), name)(*arguments)
