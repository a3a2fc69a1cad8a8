"""Conversations and their items (docs/reference/api.md#conversations)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from antiphon.application.input.items import ReadItems, to_new_stored_items
from antiphon.application.ports import Clock, ConversationStore, NewId, StoredItem, StorePageQuery
from antiphon.application.resources.quotas import CheckQuota, len_of
from antiphon.application.support.listing import ListPage, list_matching, read_items
from antiphon.application.support.paging import Page
from antiphon.domain.errors import NotFound
from antiphon.domain.history.conversation import Conversation, check_ids
from antiphon.domain.items import AnyItem
from antiphon.domain.requests.request import NewConversation, NewItems, NewMetadata


class CreateConversation:
    def __init__(
        self,
        store: ConversationStore,
        read_items: ReadItems,
        check_quota: CheckQuota,
        *,
        new_id: NewId,
        now: Clock,
    ) -> None:
        self._store = store
        self._read_items = read_items
        self._check_quota = check_quota
        self._new_id = new_id
        self._now = now

    async def __call__(self, tenant: str, request: NewConversation) -> Conversation:
        """Raises: QuotaExceeded; RequestError, with the path of the invalid item."""
        await self._check_quota(tenant, size=sum(map(len_of, request.items or ())))
        entries = await self._read_items(request.items, tenant=tenant, path="items")
        check_ids((), [each.item for each in entries], "items")
        conversation = Conversation(
            id=self._new_id("conv"),
            created_at=int(self._now()),
            metadata=request.metadata or {},
        )
        items = to_new_stored_items(entries, self._new_id)
        await self._store.create_conversation(tenant, conversation, items)
        return conversation


class GetConversation:
    def __init__(self, store: ConversationStore) -> None:
        self._store = store

    async def __call__(self, tenant: str, conversation_id: str) -> Conversation:
        """Raises: NotFound."""
        return await self._store.get_conversation(tenant, conversation_id)


class ListConversations:
    """A request reads a limited number of conversations, whatever the filter."""

    def __init__(self, store: ConversationStore) -> None:
        self._store = store

    async def __call__(
        self, tenant: str, query: StorePageQuery, metadata: Mapping[str, str]
    ) -> ListPage[Conversation]:
        """List those with this metadata. Raises: RequestError if there is no `after`."""

        def has_metadata(conversation: Conversation) -> bool:
            return metadata.items() <= conversation.metadata.items()

        read = partial(self._store.list_conversations, tenant)
        return await list_matching(read, query, has_metadata)


class UpdateConversation:
    def __init__(self, store: ConversationStore) -> None:
        self._store = store

    async def __call__(
        self, tenant: str, conversation_id: str, request: NewMetadata
    ) -> Conversation:
        """Replace the metadata. Raises: NotFound."""
        metadata = request.metadata or {}
        return await self._store.update_conversation(tenant, conversation_id, metadata)


class DeleteConversation:
    def __init__(self, store: ConversationStore, check_quota: CheckQuota) -> None:
        self._store = store
        self._check_quota = check_quota

    async def __call__(self, tenant: str, conversation_id: str) -> None:
        """Raises: NotFound."""
        await self._store.delete_conversation(tenant, conversation_id)
        self._check_quota.forget(tenant)


class CreateConversationItems:
    def __init__(
        self,
        store: ConversationStore,
        read_items: ReadItems,
        check_quota: CheckQuota,
        *,
        new_id: NewId,
    ) -> None:
        self._store = store
        self._read_items = read_items
        self._check_quota = check_quota
        self._new_id = new_id

    async def __call__(
        self, tenant: str, conversation_id: str, request: NewItems
    ) -> Page[StoredItem]:
        """Add items and return them.

        Raises: NotFound, ConversationLocked, QuotaExceeded, RequestError.
        """
        await self._check_quota(tenant, size=sum(map(len_of, request.items)))
        entries = await self._read_items(request.items, tenant=tenant, path="items")
        new_items = [each.item for each in entries]
        check_ids(await self._used_ids(tenant, conversation_id, new_items), new_items, "items")
        items = to_new_stored_items(entries, self._new_id)
        await self._store.create_conversation_items(tenant, conversation_id, items)
        return Page(items=items, has_more=False)

    async def _used_ids(
        self, tenant: str, conversation_id: str, items: Sequence[AnyItem]
    ) -> list[str]:
        """Return the ids of these that items of the conversation have already."""
        used_ids = []
        for item_id in {item.id for item in items if item.id}:
            with suppress(NotFound):  # of the conversation, too: adding the items says so
                await self._store.get_conversation_item(tenant, conversation_id, item_id)
                used_ids.append(item_id)
        return used_ids


class ListConversationItems:
    def __init__(self, store: ConversationStore) -> None:
        self._store = store

    async def __call__(
        self, tenant: str, conversation_id: str, query: StorePageQuery
    ) -> Page[StoredItem]:
        """Raises: NotFound; NotInList."""
        read = partial(self._store.list_conversation_items, tenant, conversation_id)
        return await read_items(read, query)


class GetConversationItem:
    def __init__(self, store: ConversationStore) -> None:
        self._store = store

    async def __call__(self, tenant: str, conversation_id: str, item_id: str) -> StoredItem:
        """Raises: NotFound."""
        return await self._store.get_conversation_item(tenant, conversation_id, item_id)


class DeleteConversationItem:
    def __init__(self, store: ConversationStore, check_quota: CheckQuota) -> None:
        self._store = store
        self._check_quota = check_quota

    async def __call__(self, tenant: str, conversation_id: str, item_id: str) -> Conversation:
        """Delete the item and return its conversation. Raises: NotFound."""
        await self._store.delete_conversation_item(tenant, conversation_id, item_id)
        self._check_quota.forget(tenant)
        return await self._store.get_conversation(tenant, conversation_id)
