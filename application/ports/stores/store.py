"""The store: one class with all parts."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

from antiphon.application.ports.stores.api_keys import KeyStore
from antiphon.application.ports.stores.conversations import ConversationStore
from antiphon.application.ports.stores.events import EventStore
from antiphon.application.ports.stores.idempotency import IdempotencyStore
from antiphon.application.ports.stores.responses import ResponseStore
from antiphon.application.ports.stores.runs import RunStore
from antiphon.application.ports.stores.shared_values import SharedValues
from antiphon.application.ports.stores.traces import TraceStore
from antiphon.application.ports.stores.usage import UsageStore
from antiphon.application.ports.stores.webhooks import Outbox


class Store(
    ResponseStore,
    ConversationStore,
    RunStore,
    EventStore,
    IdempotencyStore,
    Outbox,
    KeyStore,
    UsageStore,
    SharedValues,
    TraceStore,
    Protocol,
):
    """The whole persistent state. It is one class because many operations write several parts in
    one transaction: the end of a run writes five of them.

    In every process, reads return all writes that have finished. Ids of other tenants are unknown;
    two tenants may use the same ids. Ids and names of tenants may be any text and are taken
    literally. Calls may run concurrently; one that fails or is cancelled affects no other. Raises:
    StoreError, from any method, when the store fails.
    """

    @abstractmethod
    async def start(self) -> None:
        """Open, migrate, and check that a write can be read back. Raises: SettingsError."""

    @abstractmethod
    async def aclose(self) -> None: ...

    @abstractmethod
    async def check(self) -> None:
        """Raises: StoreError when nothing can be written now."""
