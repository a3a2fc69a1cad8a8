"""Compactions: summaries in place of what came before, and requests for one."""

from __future__ import annotations

from antiphon.domain.bounds import Text
from antiphon.domain.vocabulary.event import ItemEvent
from antiphon.domain.vocabulary.item import Item
from antiphon.domain.vocabulary.kind import ItemKind, Kind
from antiphon.domain.vocabulary.steps import INPUT_ONLY, ItemSteps


class Compaction(Item, frozen=True, kw_only=True, tag="compaction"):
    """A sealed summary; the items before it need not be rendered."""

    encrypted_content: Text


class CompactionTrigger(Item, frozen=True, kw_only=True, tag="compaction_trigger"):
    """Requests a compaction now; must be the last item."""


class Compacting(
    ItemEvent, frozen=True, kw_only=True, gc=False, tag="response.compaction.compacting"
):
    pass


COMPACTION = ItemKind(
    item=Compaction,
    id_prefix="cmp",
    events=ItemSteps(repeatable_steps={"compacting": Compacting}),
    answered_by=None,
    acts_next="nobody",
    call=None,
    result=None,
    includable={},
)

TRIGGER = ItemKind(
    item=CompactionTrigger,
    id_prefix="cmpt",
    events=INPUT_ONLY,
    answered_by=None,
    acts_next="nobody",
    call=None,
    result=None,
    includable={},
)

KIND = Kind(name="compaction", items=(COMPACTION, TRIGGER), tools=(), calls=())
