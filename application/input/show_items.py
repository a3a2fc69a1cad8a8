"""What a model is shown of a conversation: what the rules leave, with what is sealed opened."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from antiphon.application.input.media import LoadMedia
from antiphon.application.ports import Model, Unseal
from antiphon.domain import conversation as c
from antiphon.domain import items as i
from antiphon.domain.compaction import expand_compaction, unreadable_compaction
from antiphon.domain.content import ReasoningText
from antiphon.domain.response import InputTransformation


class Shown(Struct, frozen=True, kw_only=True):
    """`removed` tells of reasoning that was to be shown and that nobody here can read."""

    items: Sequence[i.AnyItem]
    removed: Sequence[InputTransformation] = ()


class ShowItems:
    """From the items as they are kept to the items that a format writes into the prompt."""

    def __init__(self, load_media: LoadMedia, *, unseal: Unseal) -> None:
        self._show_media = load_media
        self._unseal = unseal

    async def __call__(
        self,
        conversation: Sequence[i.AnyItem],
        *,
        tenant: str,
        model: Model,
        added: Sequence[i.AnyItem] = (),
        all_reasoning: bool = False,
    ) -> Shown:
        """Return what is shown; `all_reasoning`: that of turns that are over too.

        `added` are the items of `conversation` that the request's input brought, in its order.

        Raises: RequestError for what cannot be shown.
        """
        items: list[i.AnyItem] = []
        removed: list[InputTransformation] = []
        for item in c.items_for_model(conversation, all_reasoning=all_reasoning):
            opened_ones = self._opened(item, tenant)
            if isinstance(item, i.Reasoning) and not opened_ones:
                removed.append(_told(item))
            items += opened_ones
        places = {id(item): f"input[{position}]" for position, item in enumerate(added)}
        seen = await self._show_media(
            items,
            tenant=tenant,
            reads_images=model.reads_images,
            path_of=lambda item: places.get(id(item)),
        )
        return Shown(items=seen, removed=removed)

    def _opened(self, item: i.AnyItem, tenant: str) -> list[i.AnyItem]:
        match item:
            case i.Reasoning(content=content) if not content:
                return self._with_thought(item, tenant)
            case i.Compaction(encrypted_content=sealed):
                text = self._unseal(tenant, sealed)
                if text is None:
                    raise unreadable_compaction()
                return expand_compaction(text)
        return [item]

    def _with_thought(self, item: i.Reasoning, tenant: str) -> list[i.AnyItem]:
        sealed = item.encrypted_content
        text = self._unseal(tenant, sealed) if sealed else None
        if text is not None:
            return [replace(item, content=(ReasoningText(text=text),))]
        # Foreign, expired or empty: what is readable of it is still shown.
        return [item] if item.summary else []


def _told(removed: i.Reasoning) -> InputTransformation:
    return InputTransformation(
        id=removed.id or None,
        reason="organization_mismatch" if removed.encrypted_content else "prefix_mismatch",
    )
