"""Select the items of a conversation that a model is shown, and unseal them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from antiphon.application.input.media import LoadMedia
from antiphon.application.ports import Model, Unseal
from antiphon.application.support.threads import ITEM_BYTES, run_in_thread
from antiphon.domain import items as i
from antiphon.domain.content import ReasoningText
from antiphon.domain.history import conversation as c
from antiphon.domain.history.compaction import expand_compaction, unreadable_compaction
from antiphon.domain.responses.response import InputTransformation


class ShownItems(Struct, frozen=True, kw_only=True):
    """`removed` names reasoning items that this server cannot read."""

    items: Sequence[i.AnyItem]
    removed: Sequence[InputTransformation] = ()


class ShowItems:
    """Turns stored items into the items that a format renders."""

    def __init__(self, load_media: LoadMedia, *, unseal: Unseal) -> None:
        self._load_media = load_media
        self._unseal = unseal

    async def __call__(
        self,
        conversation: Sequence[i.AnyItem],
        *,
        tenant: str,
        model: Model,
        added: Sequence[i.AnyItem] = (),
        all_reasoning: bool = False,
    ) -> ShownItems:
        """Return the items to show; `all_reasoning` includes the reasoning of finished turns.

        `added` are the items of `conversation` that came with the request, in its order.
        Raises: RequestError for items that cannot be shown.
        """
        model_items = partial(
            c.items_for_model,
            conversation,
            all_reasoning=all_reasoning,
            only_answers_end_turns=model.only_answers_end_turns,
        )
        items, removed = await run_in_thread(
            len(conversation) * ITEM_BYTES, self._select, model_items, tenant
        )
        places = {id(item): f"input[{position}]" for position, item in enumerate(added)}
        items_with_media = await self._load_media(
            items,
            tenant=tenant,
            reads_images=model.reads_images,
            path_of=lambda item: places.get(id(item)),
        )
        return ShownItems(items=items_with_media, removed=removed)

    def _select(
        self, model_items: Callable[[], Sequence[i.AnyItem]], tenant: str
    ) -> tuple[list[i.AnyItem], list[InputTransformation]]:
        """Return the items that the model is shown, and those that this server cannot read."""
        items: list[i.AnyItem] = []
        removed: list[InputTransformation] = []
        for item in model_items():
            readable_items = self._unseal_item(item, tenant)
            if isinstance(item, i.Reasoning) and not readable_items:
                removed.append(_transformation_of(item))
            items += readable_items
        return items, removed

    def _unseal_item(self, item: i.AnyItem, tenant: str) -> list[i.AnyItem]:
        match item:
            case i.Reasoning(content=content) if not content:
                return self._unseal_reasoning(item, tenant)
            case i.Compaction(encrypted_content=sealed):
                text = self._unseal(tenant, sealed)
                if text is None:
                    raise unreadable_compaction()
                return expand_compaction(text)
        return [item]

    def _unseal_reasoning(self, item: i.Reasoning, tenant: str) -> list[i.AnyItem]:
        sealed = item.encrypted_content
        text = self._unseal(tenant, sealed) if sealed else None
        if text is not None:
            return [replace(item, content=(ReasoningText(text=text),))]
        # Foreign, expired or empty: its readable summary is still shown.
        return [item] if item.summary else []


def _transformation_of(removed: i.Reasoning) -> InputTransformation:
    return InputTransformation(
        id=removed.id or None,
        reason="organization_mismatch" if removed.encrypted_content else "prefix_mismatch",
    )
