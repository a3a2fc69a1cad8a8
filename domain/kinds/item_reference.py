"""References to stored items, which stand for them in the input."""

from __future__ import annotations

from antiphon.domain.bounds import Text
from antiphon.domain.vocabulary.item import Item
from antiphon.domain.vocabulary.kind import NOT_SHOWN, ItemKind, Kind
from antiphon.domain.vocabulary.steps import INPUT_ONLY


class ItemReference(Item, frozen=True, kw_only=True, tag="item_reference"):
    """A reference to a stored item of the same tenant."""

    id: Text


ITEM = ItemKind(
    item=ItemReference, prefix=None, events=INPUT_ONLY, next="nobody", shown=NOT_SHOWN, include={}
)

KIND = Kind(name="item_reference", items=(ITEM,), tools=(), calls=())
