"""Reasoning: raw text, summaries, and the sealed form that a client keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from antiphon.domain import deltas as d
from antiphon.domain.bounds import Long, Text
from antiphon.domain.content import ReasoningText, SummaryText
from antiphon.domain.vocabulary.builder import BuilderContext
from antiphon.domain.vocabulary.event import Event, ItemEvent, PartAdded, PartDone, PartEvent
from antiphon.domain.vocabulary.item import Item
from antiphon.domain.vocabulary.kind import NOT_SHOWN, ItemKind, Kind
from antiphon.domain.vocabulary.steps import EventTable


class Reasoning(Item, frozen=True, kw_only=True, tag="reasoning"):
    """Reasoning: raw (`content`), summarized (`summary`) or sealed (`encrypted_content`)."""

    status: Text | None | UnsetType = UNSET
    summary: Long[SummaryText] | None = ()
    content: Long[ReasoningText] | None | UnsetType = UNSET
    encrypted_content: Text | None | UnsetType = UNSET


class ReasoningDelta(PartEvent, frozen=True, kw_only=True, tag="response.reasoning_text.delta"):
    delta: str


class ReasoningDone(PartEvent, frozen=True, kw_only=True, tag="response.reasoning_text.done"):
    text: str


class SummaryEvent(ItemEvent, frozen=True, kw_only=True, gc=False):
    summary_index: int


class SummaryPartAdded(
    SummaryEvent, frozen=True, kw_only=True, tag="response.reasoning_summary_part.added"
):
    part: SummaryText


class SummaryPartDone(
    SummaryEvent, frozen=True, kw_only=True, tag="response.reasoning_summary_part.done"
):
    part: SummaryText
    status: str | UnsetType = UNSET


class SummaryDelta(
    SummaryEvent, frozen=True, kw_only=True, tag="response.reasoning_summary_text.delta"
):
    delta: str


class SummaryDone(
    SummaryEvent, frozen=True, kw_only=True, tag="response.reasoning_summary_text.done"
):
    text: str


class ReasoningBuilder:
    """Builds reasoning: parts of raw text and of summaries, which may alternate."""

    def __init__(self, _delta: d.Delta, context: BuilderContext) -> None:
        self._context = context
        self._index = context.output_index
        self._seal = context.seal
        self._content: list[ReasoningText] = []
        self._summary: list[SummaryText] = []
        self._text: list[str] = []
        self._kind: type[d.Delta] | None = None
        self.item = Reasoning(id=context.new_id("rs"), status="in_progress", summary=(), content=())
        self._id = str(self.item.id)

    def open(self) -> Sequence[Event]:
        return (self._context.added(self.item),)

    def accepts(self, delta: d.Delta) -> bool:
        return isinstance(delta, d.ReasoningDelta | d.SummaryDelta)

    def add(self, delta: d.Delta) -> Sequence[Event]:
        if type(delta) is d.ReasoningDelta:
            if self._kind is not d.ReasoningDelta:
                return (*self._switch_to(d.ReasoningDelta), self._add_reasoning(delta.text))
            return (self._add_reasoning(delta.text),)
        assert isinstance(delta, d.SummaryDelta)
        return (*self._switch_to(d.SummaryDelta), self._add_summary(delta.text))

    def close(self, status: str) -> Sequence[Event]:
        events = self._close_part(status)
        reasoning = "".join(part.text for part in self._content)
        self.item = replace(
            self.item,
            status=status,
            summary=tuple(self._summary),
            content=tuple(self._content),
            encrypted_content=self._seal(reasoning) if self._seal else UNSET,
        )
        return (*events, self._context.done(self.item))

    def _add_reasoning(self, text: str) -> Event:
        self._text.append(text)
        return ReasoningDelta(
            item_id=self._id,
            output_index=self._index,
            content_index=len(self._content),
            delta=text,
        )

    def _add_summary(self, text: str) -> Event:
        self._text.append(text)
        return SummaryDelta(delta=text, **self._place())

    def _switch_to(self, kind: type[d.Delta]) -> Sequence[Event]:
        if self._kind is kind:
            return ()
        closing = self._close_part("completed")
        self._kind = kind
        added: Event
        if kind is d.ReasoningDelta:
            added = PartAdded(part=ReasoningText(text=""), **self._place())
        else:
            added = SummaryPartAdded(part=SummaryText(text=""), **self._place())
        return (*closing, added)

    def _close_part(self, status: str) -> Sequence[Event]:
        if self._kind is None:
            return ()
        text, place = "".join(self._text), self._place()
        kind, self._kind, self._text = self._kind, None, []
        if kind is d.ReasoningDelta:
            part = ReasoningText(text=text)
            self._content.append(part)
            return (ReasoningDone(text=text, **place), PartDone(part=part, **place))
        summary = SummaryText(text=text)
        self._summary.append(summary)
        return (
            SummaryDone(text=text, **place),
            SummaryPartDone(
                part=summary, status="incomplete" if status == "incomplete" else UNSET, **place
            ),
        )

    def _place(self) -> dict[str, Any]:
        place: dict[str, Any] = {"item_id": self._id, "output_index": self._index}
        if self._kind is d.SummaryDelta:
            return place | {"summary_index": len(self._summary)}
        return place | {"content_index": len(self._content)}


EVENTS = EventTable(
    first="REASONING",
    transitions={
        "REASONING": {PartAdded: "THOUGHT", SummaryPartAdded: "SUMMARY"},
        "THOUGHT": {ReasoningDelta: "THOUGHT", ReasoningDone: "THOUGHT_FULL"},
        "THOUGHT_FULL": {PartDone: "REASONING"},
        "SUMMARY": {SummaryDelta: "SUMMARY", SummaryDone: "SUMMARY_FULL"},
        "SUMMARY_FULL": {SummaryPartDone: "REASONING"},
    },
    closable=("REASONING",),
    opened_by=(d.ReasoningDelta, d.SummaryDelta),
    open=ReasoningBuilder,
    reopen=lambda _, context: ReasoningBuilder(d.ReasoningDelta(""), context),
    deltas={
        ReasoningDelta: lambda event: d.ReasoningDelta(event.delta),
        SummaryDelta: lambda event: d.SummaryDelta(event.delta),
    },
)

REASONING = ItemKind(
    item=Reasoning, prefix="rs", events=EVENTS, next="nobody", shown=NOT_SHOWN, include={}
)

KIND = Kind(name="reasoning", items=(REASONING,), tools=(), calls=())
