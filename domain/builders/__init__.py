"""The builder that each delta opens, as the kinds declare it."""

from __future__ import annotations

from collections.abc import Mapping

from antiphon.domain import deltas as d
from antiphon.domain.builders.copied import CopiedItem
from antiphon.domain.builders.restored import RestoredItem
from antiphon.domain.items import ITEM_TYPES
from antiphon.domain.kinds import CALL_KINDS
from antiphon.domain.lifecycle import EVENT_TABLES
from antiphon.domain.vocabulary.builder import Builder, BuilderContext, BuilderFactory

__all__ = ["BUILDERS", "Builder", "BuilderContext", "RestoredItem"]


def open_call(delta: d.CallStart, context: BuilderContext) -> Builder:
    """Return the builder for a call of a tool."""
    return CALL_KINDS[delta.kind].open(delta, context)


def open_tool(delta: d.ToolStart, context: BuilderContext) -> Builder:
    """Return the builder for a tool's item."""
    return EVENT_TABLES[ITEM_TYPES[delta.kind]].open(delta, context)


BUILDERS: Mapping[type[d.Delta], BuilderFactory] = {
    d.CallStart: open_call,
    d.HostedCallStart: open_call,
    d.ToolStart: open_tool,
    d.AgentUpdate: CopiedItem,
    **{delta: table.open for table in EVENT_TABLES.values() for delta in table.opened_by},
}
"""The builder that each delta opens; other deltas open none."""
