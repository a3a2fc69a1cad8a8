"""One builder for each kind of output item: it opens the item, adds deltas to it, and closes it.

A builder's events have no number yet. Closing is the same code whether the item is complete, was
cut by a limit or by a failure: only the status differs.
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
    """What the sequencer asks of the open item."""

    def open(self) -> Sequence[e.Event]:
        """Return ItemAdded and what follows it; nothing if it is too early to show it."""

    def accepts(self, delta: d.Delta) -> bool: ...

    def add(self, delta: d.Delta) -> Sequence[e.Event]: ...

    def close(self, status: str) -> Sequence[e.Event]:
        """Return the closing events, ItemDone last; `item` is final afterwards."""

    @property
    def item(self) -> Any:
        """The item as it stands: one of AnyItem."""


class Opens(Protocol):
    def __call__(self, first: d.Delta, seed: BuilderContext, /) -> Builder: ...


BUILDERS: Mapping[type[d.Delta], Opens] = {
    d.TextDelta: MessageBuilder,
    d.RefusalDelta: MessageBuilder,
    d.AnnotationDelta: MessageBuilder,
    d.ReasoningDelta: ReasoningBuilder,
    d.SummaryDelta: ReasoningBuilder,
    d.CallStart: open_call,
    d.HostedCallStart: open_call,
    d.ToolStart: open_tool,
    # Arguments without a call are shown rather than lost.
    d.ArgumentsDelta: MessageBuilder,
}
"""Which delta opens which item. A delta that is not here never opens one."""
