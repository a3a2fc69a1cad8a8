"""Prepare the turn that a request asks for: its checks, its tools, its conversation.

Creating a response and counting its tokens take the same way up to here, so that a count is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from antiphon.application.models import Models
from antiphon.application.ports import Model, ResponseStore, Turn
from antiphon.application.requested import turn_of
from antiphon.domain import conversation as c
from antiphon.domain import items as i
from antiphon.domain.content import ReasoningText
from antiphon.domain.decoding import decode_item, decode_tool
from antiphon.domain.errors import NotFound, RequestError
from antiphon.domain.offers import Offer, offer
from antiphon.domain.request import CreateResponse

Unseal = Callable[[str, str], str | None]
"""(tenant, sealed) -> the text, or None if it was not sealed by us for this tenant."""


class Prepared(Struct, frozen=True, kw_only=True):
    """A turn that may be begun; `added` are the items that the request itself brought."""

    model: Model
    offered: Offer
    added: Sequence[c.Entry]
    turn: Turn


class PrepareTurn:
    """What can be wrong with a request or its history is raised here, with the field's name."""

    def __init__(self, models: Models, store: ResponseStore, *, unseal: Unseal) -> None:
        self._models = models
        self._store = store
        self._unseal = unseal

    async def __call__(
        self,
        request: CreateResponse,
        *,
        tenant: str,
        trace_headers: Mapping[str, str] | None = None,
    ) -> Prepared:
        """Return the turn. Raises: RequestError, StoreError."""
        model = self._models.named(request.model) if request.model else self._models.all[0]
        offered = self._offer(request)
        added = await self._added(request, tenant)
        history = await self._history(request, tenant)
        conversation = [*history, *(entry.item for entry in added)]
        c.check_pairs(conversation)
        items = self._shown(request, conversation, tenant)
        turn = turn_of(request, offered, model, items=items, trace_headers=trace_headers or {})
        return Prepared(model=model, offered=offered, added=added, turn=turn)

    def _offer(self, request: CreateResponse) -> Offer:
        tools = [
            decode_tool(raw, f"tools[{position}]")
            for position, raw in enumerate(request.tools or ())
        ]
        return offer(tools, request.tool_choice)

    async def _added(self, request: CreateResponse, tenant: str) -> list[c.Entry]:
        added = c.entries(request.input)
        c.check_input(added)
        return [await self._resolved(entry, tenant) for entry in added]

    async def _resolved(self, entry: c.Entry, tenant: str) -> c.Entry:
        if not isinstance(entry.item, i.ItemReference):
            return entry
        try:
            stored = await self._store.item(tenant, entry.item.id)
        except NotFound:
            raise RequestError(
                f"Item with id {entry.item.id[:100]!r} not found.", param="input"
            ) from None
        return c.Entry(item=decode_item(stored.raw, "input"), raw=stored.raw)

    async def _history(self, request: CreateResponse, tenant: str) -> list[i.AnyItem]:
        previous = request.previous_response_id
        if previous is None:
            return []
        try:
            parent = await self._store.get(tenant, previous)
            stored = await self._store.conversation(tenant, previous)
        except NotFound:
            raise RequestError(
                f"Previous response with id {previous[:100]!r} not found.",
                param="previous_response_id",
                code="previous_response_not_found",
            ) from None
        if parent.status in ("queued", "in_progress", "failed"):
            raise RequestError(
                f"Previous response {previous!r} is {parent.status} and cannot be continued.",
                param="previous_response_id",
                code="invalid_value",
            )
        return [decode_item(item.raw, "previous_response_id") for item in stored]

    def _shown(
        self, request: CreateResponse, conversation: Sequence[i.AnyItem], tenant: str
    ) -> list[i.AnyItem]:
        """Return what the model is shown of the conversation, sealed reasoning opened."""
        every = request.reasoning is not None and request.reasoning.context == "all_turns"
        shown = c.shown(conversation, all_reasoning=every)
        return [self._opened(item, tenant) for item in shown]

    def _opened(self, item: i.AnyItem, tenant: str) -> i.AnyItem:
        """Return a reasoning item with its sealed text opened, where only that is there."""
        if not isinstance(item, i.Reasoning) or item.content or not item.encrypted_content:
            return item
        text = self._unseal(tenant, item.encrypted_content)
        if text is None:
            return item  # foreign or expired: what is readable of it is still shown
        return replace(item, content=(ReasoningText(text=text),))
