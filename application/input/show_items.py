"""Select the items of a conversation that a model is shown, and unseal them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from msgspec import Struct
from msgspec.structs import replace

from antiphon.application.input.media import LoadMedia
from antiphon.application.ports import Model, Unseal
from antiphon.application.support.threads import ITEM_BYTES, run_in_thread
from antiphon.domain import items as i
from antiphon.domain.access.limits import KeyPolicy
from antiphon.domain.content import ReasoningText
from antiphon.domain.history import conversation as c
from antiphon.domain.history.compaction import expand_compaction, unreadable_compaction
from antiphon.domain.kinds.image_generation import without_image
from antiphon.domain.kinds.mcp import shorten_output
from antiphon.domain.responses.response import InputTransformation

CHARS_OF_TOKEN = 1
"""An output of so many characters for each token of the context takes a quarter of it, as English,
half of it, as numbers, and no more than all of it."""


class ShownItems(Struct, frozen=True, kw_only=True):
    """`removed` names reasoning items that this server cannot read. `loaded` has the items of the
    conversation whose images and files were loaded, by the `id()` of the item."""

    items: Sequence[i.AnyItem]
    removed: Sequence[InputTransformation] = ()
    loaded: Mapping[int, i.AnyItem] = {}


class ShowItems:
    """Turns stored items into the items that a format renders."""

    def __init__(
        self, load_media: LoadMedia, *, unseal: Unseal, max_output_chars: int | None = None
    ) -> None:
        """`max_output_chars`: of a tool's output that a model is shown; None for what fits it."""
        self._load_media = load_media
        self._unseal = unseal
        self._max_output_chars = max_output_chars

    async def __call__(
        self,
        conversation: Sequence[i.AnyItem],
        *,
        tenant: str,
        policy: KeyPolicy,
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
            len(conversation) * ITEM_BYTES,
            self._select,
            model_items,
            tenant,
            model,
        )
        places = {id(item): f"input[{position}]" for position, item in enumerate(added)}
        items_with_media = await self._load_media(
            items,
            tenant=tenant,
            policy=policy,
            reads_images=model.reads_images,
            path_of=lambda item: places.get(id(item)),
        )
        return ShownItems(
            items=items_with_media,
            removed=removed,
            loaded={
                id(item): loaded
                for item, loaded in zip(items, items_with_media, strict=True)
                if loaded is not item
            },
        )

    def show_outputs(self, items: Sequence[i.AnyItem], model: Model) -> list[i.AnyItem]:
        """Return what the next turn is shown of the items of this response."""
        return self.shorten_outputs([*map(_show_text, items)], model)

    def shorten_outputs(self, items: Sequence[i.AnyItem], model: Model) -> list[i.AnyItem]:
        """Return the items with no more of each tool's output than this model should be shown.

        A model that reads no images is told of those that were made.
        """
        limit = self._max_output_chars or CHARS_OF_TOKEN * model.context_length
        return [_shorten(item, limit, reads_images=model.reads_images) for item in items]

    def _select(
        self, model_items: Callable[[], Sequence[i.AnyItem]], tenant: str, model: Model
    ) -> tuple[list[i.AnyItem], list[InputTransformation]]:
        """Return the items that the model is shown, and those that this server cannot read."""
        items: list[i.AnyItem] = []
        removed: list[InputTransformation] = []
        for item in model_items():
            readable_items = self._unseal_item(item, tenant)
            if isinstance(item, i.Reasoning) and not readable_items:
                removed.append(_transformation_of(item))
            items += readable_items
        return self.shorten_outputs(items, model), removed

    def _unseal_item(self, item: i.AnyItem, tenant: str) -> list[i.AnyItem]:
        match item:
            case i.Reasoning(content=content) if not content:
                return self._unseal_reasoning(item, tenant)
            case i.Compaction(encrypted_content=sealed):
                text = self._unseal(tenant, sealed)
                if text is None:
                    raise unreadable_compaction()
                return expand_compaction(text)
        return [_show_text(item)]

    def _unseal_reasoning(self, item: i.Reasoning, tenant: str) -> list[i.AnyItem]:
        sealed = item.encrypted_content
        text = self._unseal(tenant, sealed) if sealed else None
        if text is not None:
            return [replace(item, content=(ReasoningText(text=text),))]
        # Foreign, expired or empty: its readable summary is still shown.
        return [item] if item.summary else []


def _show_text(item: i.AnyItem) -> i.AnyItem:
    to_text = i.kind_of(item).shown.text
    return item if to_text is None else i.Message(role="user", content=to_text(item))


def _shorten(item: i.AnyItem, max_chars: int, *, reads_images: bool) -> i.AnyItem:
    if isinstance(item, i.McpCall):
        return shorten_output(item, max_chars)
    if isinstance(item, i.ImageGenerationCall):
        return without_image(item, reads_images=reads_images)
    return item


def _transformation_of(removed: i.Reasoning) -> InputTransformation:
    return InputTransformation(
        id=removed.id or None,
        reason="organization_mismatch" if removed.encrypted_content else "prefix_mismatch",
    )
