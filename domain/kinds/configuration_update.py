"""Settings for the rest of a conversation."""

from __future__ import annotations

from msgspec import UNSET, Struct, UnsetType

from antiphon.domain.vocabulary.item import Item
from antiphon.domain.vocabulary.kind import NOT_SHOWN, ItemKind, Kind
from antiphon.domain.vocabulary.steps import INPUT_ONLY
from antiphon.domain.vocabulary.text_formats import AnyFormat, Effort


class ReasoningUpdate(Struct, frozen=True, kw_only=True):
    effort: Effort | None = None


class TextUpdate(Struct, frozen=True, kw_only=True):
    format: AnyFormat | None = None


class ConfigurationUpdate(Item, frozen=True, kw_only=True, tag="configuration_update"):
    """Settings for the rest of the conversation, until another update changes them."""

    reasoning: ReasoningUpdate | None | UnsetType = UNSET
    text: TextUpdate | None | UnsetType = UNSET


ITEM = ItemKind(
    item=ConfigurationUpdate,
    prefix="cfg",
    events=INPUT_ONLY,
    next="nobody",
    shown=NOT_SHOWN,
    include={},
)

KIND = Kind(name="configuration_update", items=(ITEM,), tools=(), calls=())
