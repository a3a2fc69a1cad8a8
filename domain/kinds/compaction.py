"""Compactions: summaries in place of what came before, and requests for one."""

from __future__ import annotations

from antiphon.domain.bounds import Text
from antiphon.domain.vocabulary.event import ItemEvent
from antiphon.domain.vocabulary.item import Item
from antiphon.domain.vocabulary.kind import NOT_SHOWN, ItemKind, Kind
from antiphon.domain.vocabulary.steps import INPUT_ONLY, ItemSteps


class Compaction(Item, frozen=True, kw_only=True, tag="compaction"):
    """A sealed summary; the items before it need not be rendered."""

    encrypted_content: Text


class CompactionTrigger(Item, frozen=True, kw_only=True, tag="compaction_trigger"):
    """Requests a compaction now; must be the last item."""


class Compacting(ItemEvent, frozen=True, tag="response.compaction.compacting"):
    pass


COMPACTION = ItemKind(
    item=Compaction,
    prefix="cmp",
    events=ItemSteps(repeatable_steps={"compacting": Compacting}),
    next="nobody",
    shown=NOT_SHOWN,
    include={},
)

TRIGGER = ItemKind(
    item=CompactionTrigger,
    prefix="cmpt",
    events=INPUT_ONLY,
    next="nobody",
    shown=NOT_SHOWN,
    include={},
)

KIND = Kind(name="compaction", items=(COMPACTION, TRIGGER), tools=(), calls=())
