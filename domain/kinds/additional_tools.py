"""Tools that are available from one point of the conversation onward."""

from __future__ import annotations

from typing import Literal

from antiphon.domain.bounds import Long
from antiphon.domain.json import Json
from antiphon.domain.vocabulary.item import Item
from antiphon.domain.vocabulary.kind import NOT_SHOWN, ItemKind, Kind
from antiphon.domain.vocabulary.steps import INPUT_ONLY


class AdditionalTools(Item, frozen=True, kw_only=True, tag="additional_tools"):
    """Tools that are available from this point of the conversation onward."""

    role: Literal["developer"]
    tools: Long[Json]


ITEM = ItemKind(
    item=AdditionalTools, prefix="at", events=INPUT_ONLY, next="nobody", shown=NOT_SHOWN, include={}
)

KIND = Kind(name="additional_tools", items=(ITEM,), tools=(), calls=())
