"""`/v1/conversations`: create, retrieve, update, delete; and their items."""

from __future__ import annotations

from functools import partial

from litestar import Controller, handlers
from litestar.di import NamedDependency
from litestar.types import ASGIApp

from antiphon.application.input.items import ReadItems
from antiphon.application.ports import Clock, NewId, Seal, Store
from antiphon.application.resources import conversations as c
from antiphon.application.resources.quotas import CheckQuota
from antiphon.domain.history.include_filter import IncludeFilter
from antiphon.domain.requests.request import NewConversation, NewItems, NewMetadata
from antiphon.entrypoints.http.api.json_bodies import read_json, reading_json
from antiphon.entrypoints.http.api.pagination import (
    After,
    Include,
    IncludePlain,
    Limit,
    Order,
    encode_item,
    encode_list,
    view_of,
)
from antiphon.entrypoints.http.api.parameters import PathId
from antiphon.entrypoints.http.api.requests import HttpRequest, response_headers, tenant_of
from antiphon.entrypoints.http.api.response_lists import (
    PAGE_PARAMETERS,
    as_page,
    metadata_of,
    page_query,
)
from antiphon.entrypoints.http.options import HttpOptions
from antiphon.entrypoints.http.pages.openapi import operation
from antiphon.entrypoints.http.wire.asgi_responses import JsonResponse, StoredItems


class ConversationServices:
    """The services that these handlers call."""

    def __init__(
        self,
        store: Store,
        check_quota: CheckQuota,
        options: HttpOptions,
        *,
        seal: Seal,
        new_id: NewId,
        now: Clock,
    ) -> None:
        read_items = ReadItems(store)
        self.create = c.CreateConversation(store, read_items, check_quota, new_id=new_id, now=now)
        self.get = c.GetConversation(store)
        self.list = c.ListConversations(store)
        self.update = c.UpdateConversation(store)
        self.delete = c.DeleteConversation(store, check_quota)
        self.create_items = c.CreateConversationItems(store, read_items, check_quota, new_id=new_id)
        self.list_items = c.ListConversationItems(store)
        self.get_item = c.GetConversationItem(store)
        self.delete_item = c.DeleteConversationItem(store, check_quota)
        self.seal = seal
        self.options = options


Services = NamedDependency[ConversationServices]


class Conversations(Controller):
    """Handlers decode, call one service, and encode."""

    path = "/v1/conversations"
    tags = ("Conversations",)

    @handlers.post(
        summary="Create a conversation",
        operation_class=operation(
            "The conversation.", takes="NewConversation", takes_always=False, gives="Conversation"
        ),
        status_code=200,
    )
    async def create(self, request: HttpRequest, conversations: Services) -> ASGIApp:
        """A new conversation can contain up to 20 items."""
        async with reading_json(request, NewConversation, conversations.options) as decoded:
            created = await conversations.create(tenant_of(request), decoded.request)
        return JsonResponse(created, response_headers(request, decoded.ignored))

    @handlers.get(
        summary="List conversations",
        operation_class=operation("A page of conversations.", gives="ConversationList"),
    )
    async def list(
        self,
        request: HttpRequest,
        conversations: Services,
        after: After = None,
        limit: Limit = 20,
        order: Order = "desc",
    ) -> ASGIApp:
        """Those with the metadata of the parameters `metadata[NAME]`."""
        metadata = metadata_of(request, PAGE_PARAMETERS)
        query = page_query(limit, after, order)
        page = await conversations.list(tenant_of(request), query, metadata)
        return JsonResponse(as_page(page), response_headers(request))

    @handlers.get(
        "/{conversation_id:str}",
        summary="Retrieve a conversation",
        operation_class=operation("The conversation.", gives="Conversation"),
    )
    async def get(
        self, request: HttpRequest, conversations: Services, conversation_id: PathId
    ) -> ASGIApp:
        conversation = await conversations.get(tenant_of(request), conversation_id)
        return JsonResponse(conversation, response_headers(request))

    @handlers.post(
        "/{conversation_id:str}",
        summary="Replace a conversation's metadata",
        operation_class=operation("The conversation.", takes="NewMetadata", gives="Conversation"),
        status_code=200,
    )
    async def update(
        self, request: HttpRequest, conversations: Services, conversation_id: PathId
    ) -> ASGIApp:
        decoded = await read_json(request, NewMetadata, conversations.options)
        updated = await conversations.update(tenant_of(request), conversation_id, decoded.request)
        return JsonResponse(updated, response_headers(request, decoded.ignored))

    @handlers.delete(
        "/{conversation_id:str}",
        summary="Delete a conversation",
        operation_class=operation("Confirmation of the deletion.", gives="Deleted"),
        status_code=200,
    )
    async def delete(
        self, request: HttpRequest, conversations: Services, conversation_id: PathId
    ) -> ASGIApp:
        """Responses created in the conversation keep their own items."""
        await conversations.delete(tenant_of(request), conversation_id)
        answer = {"id": conversation_id, "object": "conversation.deleted", "deleted": True}
        return JsonResponse(answer, response_headers(request))

    @handlers.post(
        "/{conversation_id:str}/items",
        summary="Add items to a conversation",
        operation_class=operation("The added items.", takes="NewItems", gives="ItemList"),
        status_code=200,
    )
    async def add_items(
        self,
        request: HttpRequest,
        conversations: Services,
        conversation_id: PathId,
        include_bracketed: Include = None,
        include_plain: IncludePlain = None,
    ) -> ASGIApp:
        """Adds up to 20 items per request, and returns them."""
        view = _view(request, conversations, include_bracketed, include_plain)
        async with reading_json(request, NewItems, conversations.options) as decoded:
            page = await conversations.create_items(
                tenant_of(request), conversation_id, decoded.request
            )
            added = await encode_list(page, view)
        return JsonResponse(added, response_headers(request, decoded.ignored))

    @handlers.get(
        "/{conversation_id:str}/items",
        summary="List a conversation's items",
        operation_class=operation("A page of its items.", gives="ItemList"),
    )
    async def list_items(
        self,
        request: HttpRequest,
        conversations: Services,
        conversation_id: PathId,
        include_bracketed: Include = None,
        include_plain: IncludePlain = None,
        after: After = None,
        limit: Limit = 20,
        order: Order = "desc",
    ) -> ASGIApp:
        view = _view(request, conversations, include_bracketed, include_plain)
        query = page_query(limit, after, order)

        async def read() -> bytes:
            page = await conversations.list_items(tenant_of(request), conversation_id, query)
            return await encode_list(page, view)

        return StoredItems(read, response_headers(request))

    @handlers.get(
        "/{conversation_id:str}/items/{item_id:str}",
        summary="Retrieve a conversation item",
        operation_class=operation("The item.", gives="Item"),
    )
    async def get_item(
        self,
        request: HttpRequest,
        conversations: Services,
        conversation_id: PathId,
        item_id: PathId,
        include_bracketed: Include = None,
        include_plain: IncludePlain = None,
    ) -> ASGIApp:
        view = _view(request, conversations, include_bracketed, include_plain)

        async def read() -> bytes:
            item = await conversations.get_item(tenant_of(request), conversation_id, item_id)
            return await encode_item(item, view)

        return StoredItems(read, response_headers(request))

    @handlers.delete(
        "/{conversation_id:str}/items/{item_id:str}",
        summary="Delete an item from a conversation",
        operation_class=operation("The conversation.", gives="Conversation"),
        status_code=200,
    )
    async def delete_item(
        self,
        request: HttpRequest,
        conversations: Services,
        conversation_id: PathId,
        item_id: PathId,
    ) -> ASGIApp:
        """Returns the conversation."""
        conversation = await conversations.delete_item(tenant_of(request), conversation_id, item_id)
        return JsonResponse(conversation, response_headers(request))


def _view(
    request: HttpRequest, conversations: ConversationServices, *include: list[str] | None
) -> IncludeFilter:
    return view_of(*include, seal=partial(conversations.seal, tenant_of(request)))
