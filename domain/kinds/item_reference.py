"""References to stored items, which stand for them in the input."""

from __future__ import annotations

from antiphon.domain.bounds import Text
from antiphon.domain.vocabulary.item import Item
from antiphon.domain.vocabulary.kind import ItemKind, Kind
from antiphon.domain.vocabulary.steps import INPUT_ONLY


class ItemReference(Item, frozen=True, kw_only=True, tag="item_reference"):
    """A reference to a stored item of the same tenant."""

    id: Text


ITEM = ItemKind(
    item=ItemReference,
    id_prefix=None,
    events=INPUT_ONLY,
    answered_by=None,
    acts_next="nobody",
    call=None,
    result=None,
    includable={},
)

KIND = Kind(name="item_reference", items=(ITEM,), tools=(), calls=())
