"""Builders of output items, one for each kind: open the item, add deltas to it, and close it.

A builder's events have no numbers yet. The same code closes an item whether it is complete or was
cut off by a limit or a failure; only the status differs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from antiphon.domain import deltas as d
from antiphon.domain import events as e
from antiphon.domain.builders.builder_context import BuilderContext
from antiphon.domain.builders.message import MessageBuilder
from antiphon.domain.builders.reasoning import ReasoningBuilder
from antiphon.domain.builders.restored import RestoredItem
from antiphon.domain.builders.tool import open_tool
from antiphon.domain.builders.typed_call import open_call

__all__ = ["BUILDERS", "Builder", "BuilderContext", "RestoredItem"]


class Builder(Protocol):
    """Builds the open item for the sequencer."""

    def open(self) -> Sequence[e.Event]:
        """Return ItemAdded and what opens the item with it; nothing if it is too early."""

    def accepts(self, delta: d.Delta) -> bool: ...

    def add(self, delta: d.Delta) -> Sequence[e.Event]: ...

    def close(self, status: str) -> Sequence[e.Event]:
        """Return the closing events, ItemDone last; `item` is final afterwards."""

    @property
    def item(self) -> Any:
        """The current item, one of AnyItem."""


class BuilderFactory(Protocol):
    def __call__(self, delta: d.Delta, context: BuilderContext, /) -> Builder: ...


BUILDERS: Mapping[type[d.Delta], BuilderFactory] = {
    d.TextDelta: MessageBuilder,
    d.RefusalDelta: MessageBuilder,
    d.AnnotationDelta: MessageBuilder,
    d.ReasoningDelta: ReasoningBuilder,
    d.SummaryDelta: ReasoningBuilder,
    d.CallStart: open_call,
    d.HostedCallStart: open_call,
    d.ToolStart: open_tool,
    # Arguments without a call are shown as text rather than lost.
    d.ArgumentsDelta: MessageBuilder,
}
"""The builder that each delta opens; other deltas open none."""
