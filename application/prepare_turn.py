"""Prepare the turn that a request asks for: its checks, its tools, its conversation.

Creating a response and counting its tokens take the same way up to here, so that a count is exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from msgspec import Raw, Struct

from antiphon.application.continuations import Remembered, item_in
from antiphon.application.load_history import LoadHistory
from antiphon.application.models import Models
from antiphon.application.pauses import in_turn
from antiphon.application.ports import Model, ResponseStore, Turn
from antiphon.application.requested import turn_of
from antiphon.application.show_items import ShowItems
from antiphon.domain import conversation as c
from antiphon.domain import items as i
from antiphon.domain.decoding import decode_item, decode_tool
from antiphon.domain.errors import NotFound, RequestError
from antiphon.domain.offers import EARLIER, Definition, Offer, offer
from antiphon.domain.request import CreateResponse
from antiphon.domain.response import InputTransformation
from antiphon.domain.visible import may_lack, restored


class Prepared(Struct, frozen=True, kw_only=True):
    """A turn that may be begun.

    `added` are the items that the request itself brought, `history` those that it continues;
    `removed` those that the model is not shown because nobody can read them.
    """

    model: Model
    offered: Offer
    history: Sequence[c.Entry]
    added: Sequence[c.Entry]
    turn: Turn
    removed: Sequence[InputTransformation] = ()


class PrepareTurn:
    """What can be wrong with a request or its history is raised here, with the field's name."""

    def __init__(
        self,
        models: Models,
        store: ResponseStore,
        load_history: LoadHistory,
        show_items: ShowItems,
    ) -> None:
        self._models = models
        self._store = store
        self._load_history = load_history
        self._show_items = show_items

    async def __call__(
        self,
        request: CreateResponse,
        *,
        tenant: str,
        trace_headers: Mapping[str, str] | None = None,
        remembered: Remembered | None = None,
    ) -> Prepared:
        """Return the turn. Raises: RequestError, StoreError."""
        remembered = remembered or {}
        model = self._models.named(request.model) if request.model else self._models.all[0]
        added = await self._added(request, tenant, remembered)
        history = await self._load_history(request, tenant=tenant, remembered=remembered)
        offered = offer(_definitions(request, history, added), request.tool_choice)
        new = [entry.item for entry in added]
        c.check_ids((entry.item for entry in history), new)
        conversation = [*(entry.item for entry in history), *new]
        c.check_pairs(conversation)
        every = request.reasoning is not None and request.reasoning.context == "all_turns"
        shown = await self._show_items(conversation, tenant=tenant, all_reasoning=every)
        turn = turn_of(
            request,
            offered,
            model,
            items=shown.items,
            in_force=c.in_force(conversation),
            trace_headers=trace_headers or {},
        )
        return Prepared(
            model=model,
            offered=offered,
            history=history,
            added=added,
            turn=turn,
            removed=shown.removed,
        )

    async def _added(
        self, request: CreateResponse, tenant: str, remembered: Remembered
    ) -> list[c.Entry]:
        added = await in_turn(_size(request.input), c.entries, request.input)
        c.check_input(added)
        return [await self._resolved(entry, tenant, remembered) for entry in added]

    async def _resolved(self, entry: c.Entry, tenant: str, remembered: Remembered) -> c.Entry:
        if may_lack(entry.item) and entry.item.id:
            return await self._restored(entry, entry.item.id, tenant)
        if not isinstance(entry.item, i.ItemReference):
            return entry
        try:
            stored = item_in(remembered, entry.item.id) or await self._store.item(
                tenant, entry.item.id
            )
        except NotFound:
            raise RequestError(
                f"Item with id {entry.item.id[:100]!r} not found.", param="input"
            ) from None
        return c.Entry(item=decode_item(stored.raw, "input"), raw=stored.raw)

    async def _restored(self, entry: c.Entry, item_id: str, tenant: str) -> c.Entry:
        try:
            stored = await self._store.item(tenant, item_id)
        except NotFound:
            return entry  # another server's, or never stored: it is what it is
        raw = restored(entry.raw, stored.raw)
        return c.Entry(item=decode_item(raw, "input"), raw=raw)


def _size(given: str | Sequence[Raw] | None) -> int:
    # A text is one item, however long.
    if given is None or isinstance(given, str):
        return 0
    return sum(len(memoryview(raw)) for raw in given)


def _definitions(
    request: CreateResponse, history: Sequence[c.Entry], added: Sequence[c.Entry]
) -> list[Definition]:
    """Return the request's tools and, later ones, those that items of the conversation bring."""
    found = [
        Definition(tool=decode_tool(raw, path), path=path)
        for position, raw in enumerate(request.tools or ())
        for path in (f"tools[{position}]",)
    ]
    for position, number, raw in c.brought_tools([*history, *added]):
        at = position - len(history)
        path = f"input[{at}].tools[{number}]" if at >= 0 else EARLIER
        found.append(Definition(tool=decode_tool(raw, path), path=path, later=True))
    return found
