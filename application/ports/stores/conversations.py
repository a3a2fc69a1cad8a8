"""Conversations, their items, and the response that has claimed one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Protocol

from antiphon.application.ports.stores.items import StoredItem, StorePageQuery
from antiphon.domain.history.conversation import Conversation


class ConversationStore(Protocol):
    """Conversations and their items, by tenant, and which response may add to one."""

    @abstractmethod
    async def create_conversation(
        self, tenant: str, conversation: Conversation, items: Sequence[StoredItem] = ()
    ) -> None:
        """Store a new conversation with these items.

        Raises: StoreError, and stores nothing, if the tenant has a conversation with this id.
        """

    @abstractmethod
    async def list_conversations(self, tenant: str, query: StorePageQuery) -> list[Conversation]:
        """Return a page of the tenant's conversations. Raises: NotFound if there is no `after`."""

    @abstractmethod
    async def get_conversation(self, tenant: str, conversation_id: str) -> Conversation:
        """Raises: NotFound."""

    @abstractmethod
    async def update_conversation(
        self, tenant: str, conversation_id: str, metadata: Mapping[str, str]
    ) -> Conversation:
        """Replace the metadata and return the conversation. Raises: NotFound."""

    @abstractmethod
    async def delete_conversation(self, tenant: str, conversation_id: str) -> None:
        """Delete the conversation and its items; responses keep their own. Raises: NotFound."""

    @abstractmethod
    async def list_conversation_items(
        self, tenant: str, conversation_id: str, query: StorePageQuery | None = None
    ) -> list[StoredItem]:
        """Return the items in order, or one page of them as `list_input_items` does.

        Raises: NotFound; NotInList if there is no `after`.
        """

    @abstractmethod
    async def get_conversation_item(
        self, tenant: str, conversation_id: str, item_id: str
    ) -> StoredItem:
        """Return the last item of the conversation that has this id. Raises: NotFound."""

    @abstractmethod
    async def create_conversation_items(
        self, tenant: str, conversation_id: str, items: Sequence[StoredItem]
    ) -> None:
        """Append items. Raises: NotFound; ConversationLocked while the conversation is claimed."""

    @abstractmethod
    async def delete_conversation_item(
        self, tenant: str, conversation_id: str, item_id: str
    ) -> None:
        """Remove all items with this id from this conversation only. Raises: NotFound."""

    @abstractmethod
    async def claim_conversation(
        self, tenant: str, conversation_id: str, response_id: str, *, owner: str
    ) -> None:
        """Lock the conversation for this response, until the response ends or releases it.

        Only one of several concurrent callers gets it. A claim whose owner is dead (see RunStore)
        is valid only while its response is stored and unfinished. Raises: NotFound;
        ConversationLocked.
        """

    @abstractmethod
    async def release_conversation(
        self,
        tenant: str,
        conversation_id: str,
        response_id: str,
        items: Sequence[StoredItem] = (),
    ) -> None:
        """Append `items` and free the conversation, if this response has claimed it.

        Otherwise do nothing, also if the conversation does not exist. For unstored responses, and
        for responses that were never created.
        """
