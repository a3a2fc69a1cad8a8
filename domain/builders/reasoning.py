"""Build reasoning: raw text, summaries, and the sealed form that a client keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import UNSET
from msgspec.structs import replace

from antiphon.domain import deltas as d
from antiphon.domain import events as e
from antiphon.domain.builders.builder_context import BuilderContext
from antiphon.domain.content import ReasoningText, SummaryText
from antiphon.domain.items import Reasoning


class ReasoningBuilder:
    """Builds reasoning: parts of raw text and of summaries, which may alternate."""

    def __init__(self, _delta: d.Delta, context: BuilderContext) -> None:
        self._index = context.output_index
        self._seal = context.seal
        self._content: list[ReasoningText] = []
        self._summary: list[SummaryText] = []
        self._text: list[str] = []
        self._kind: type[d.Delta] | None = None
        self.item = Reasoning(id=context.new_id("rs"), status="in_progress", summary=(), content=())
        self._id = str(self.item.id)

    def open(self) -> Sequence[e.Event]:
        return (e.ItemAdded(output_index=self._index, item=self.item),)

    def accepts(self, delta: d.Delta) -> bool:
        return isinstance(delta, d.ReasoningDelta | d.SummaryDelta)

    def add(self, delta: d.Delta) -> Sequence[e.Event]:
        if type(delta) is d.ReasoningDelta:
            if self._kind is not d.ReasoningDelta:
                return (*self._switch_to(d.ReasoningDelta), self._add_reasoning(delta.text))
            return (self._add_reasoning(delta.text),)
        assert isinstance(delta, d.SummaryDelta)
        return (*self._switch_to(d.SummaryDelta), self._add_summary(delta.text))

    def close(self, status: str) -> Sequence[e.Event]:
        events = self._close_part(status)
        reasoning = "".join(part.text for part in self._content)
        self.item = replace(
            self.item,
            status=status,
            summary=tuple(self._summary),
            content=tuple(self._content),
            encrypted_content=self._seal(reasoning) if self._seal else UNSET,
        )
        return (*events, e.ItemDone(output_index=self._index, item=self.item))

    def _add_reasoning(self, text: str) -> e.Event:
        self._text.append(text)
        return e.ReasoningDelta(
            item_id=self._id,
            output_index=self._index,
            content_index=len(self._content),
            delta=text,
        )

    def _add_summary(self, text: str) -> e.Event:
        self._text.append(text)
        return e.SummaryDelta(delta=text, **self._place())

    def _switch_to(self, kind: type[d.Delta]) -> Sequence[e.Event]:
        if self._kind is kind:
            return ()
        closing = self._close_part("completed")
        self._kind = kind
        added: e.Event
        if kind is d.ReasoningDelta:
            added = e.PartAdded(part=ReasoningText(text=""), **self._place())
        else:
            added = e.SummaryPartAdded(part=SummaryText(text=""), **self._place())
        return (*closing, added)

    def _close_part(self, status: str) -> Sequence[e.Event]:
        if self._kind is None:
            return ()
        text, place = "".join(self._text), self._place()
        kind, self._kind, self._text = self._kind, None, []
        if kind is d.ReasoningDelta:
            part = ReasoningText(text=text)
            self._content.append(part)
            return (e.ReasoningDone(text=text, **place), e.PartDone(part=part, **place))
        summary = SummaryText(text=text)
        self._summary.append(summary)
        return (
            e.SummaryDone(text=text, **place),
            e.SummaryPartDone(
                part=summary, status="incomplete" if status == "incomplete" else UNSET, **place
            ),
        )

    def _place(self) -> dict[str, Any]:
        place: dict[str, Any] = {"item_id": self._id, "output_index": self._index}
        if self._kind is d.SummaryDelta:
            return place | {"summary_index": len(self._summary)}
        return place | {"content_index": len(self._content)}
