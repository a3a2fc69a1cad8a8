"""Messages: text parts with annotations and logprobs, and refusals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType
from msgspec.structs import replace

from antiphon.domain import deltas as d
from antiphon.domain.bounds import Long, Text
from antiphon.domain.content import (
    Annotation,
    AnyAnnotation,
    Logprob,
    MessagePart,
    OutputText,
    Refusal,
)
from antiphon.domain.vocabulary.builder import BuilderContext
from antiphon.domain.vocabulary.event import Event, PartAdded, PartDone, PartEvent
from antiphon.domain.vocabulary.item import Item
from antiphon.domain.vocabulary.kind import NOT_SHOWN, ItemKind, Kind
from antiphon.domain.vocabulary.steps import EventTable


class Message(Item, frozen=True, kw_only=True, tag="message"):
    """A message; an easy message has a string as its content and no type."""

    status: Text | None | UnsetType = UNSET
    role: Literal["user", "assistant", "system", "developer"]
    content: Text | Long[MessagePart] | None
    phase: Literal["commentary", "final_answer"] | None | UnsetType = UNSET


class TextDelta(PartEvent, frozen=True, kw_only=True, tag="response.output_text.delta"):
    delta: str
    logprobs: tuple[Logprob, ...] = ()


class TextDone(PartEvent, frozen=True, kw_only=True, tag="response.output_text.done"):
    text: str
    logprobs: tuple[Raw, ...] = ()
    """JSON of Logprob: see OutputText."""


class AnnotationAdded(
    PartEvent, frozen=True, kw_only=True, tag="response.output_text.annotation.added"
):
    annotation_index: int
    annotation: AnyAnnotation


class RefusalDelta(PartEvent, frozen=True, kw_only=True, tag="response.refusal.delta"):
    delta: str


class RefusalDone(PartEvent, frozen=True, kw_only=True, tag="response.refusal.done"):
    refusal: str


_encode = msgspec.json.Encoder().encode


def _encode_logprob(logprob: Logprob) -> Raw:
    """Encode once what four events and the stored item repeat: up to 100,000 of them at a time."""
    return Raw(_encode(logprob))


class MessageBuilder:
    """Builds a message: adjacent text becomes one part, a refusal becomes another."""

    def __init__(self, delta: d.Delta, context: BuilderContext) -> None:
        self._context = context
        self._index = context.output_index
        self._phase = delta.phase if isinstance(delta, d.TextDelta) else None
        phase: Any = self._phase or UNSET  # formats are trusted to use the API's two values
        self._parts: list[OutputText | Refusal] = []
        self._kind: type[OutputText | Refusal] | None = None
        self._text: list[str] = []
        self._logprobs: list[Raw] = []
        self._annotations: list[Annotation] = []
        self.item = Message(
            id=context.new_id("msg"),
            status="in_progress",
            role="assistant",
            content=(),
            phase=phase,
        )
        self._id = str(self.item.id)

    def open(self) -> Sequence[Event]:
        return (self._context.added(self.item),)

    def accepts(self, delta: d.Delta) -> bool:
        if type(delta) is d.TextDelta:
            return delta.phase == self._phase
        return isinstance(delta, d.RefusalDelta | d.AnnotationDelta)

    def add(self, delta: d.Delta) -> Sequence[Event]:
        if type(delta) is d.TextDelta:
            if self._kind is not OutputText:
                return (*self._switch_to(OutputText), self._add_text(delta))
            return (self._add_text(delta),)
        if isinstance(delta, d.ArgumentsDelta):  # arguments without a call
            return (*self._switch_to(OutputText), self._add_text(d.TextDelta(delta.text)))
        if isinstance(delta, d.AnnotationDelta):
            return (*self._switch_to(OutputText), *self._add_annotation(delta.annotation))
        assert isinstance(delta, d.RefusalDelta)
        return (*self._switch_to(Refusal), self._add_refusal(delta))

    def close(self, status: str) -> Sequence[Event]:
        events = self._close_part()
        self.item = replace(self.item, status=status, content=tuple(self._parts))
        return (*events, self._context.done(self.item))

    def _add_text(self, delta: d.TextDelta) -> Event:
        self._text.append(delta.text)
        if delta.logprobs:
            self._logprobs.extend(map(_encode_logprob, delta.logprobs))
        return TextDelta(
            item_id=self._id,
            output_index=self._index,
            content_index=len(self._parts),
            delta=delta.text,
            logprobs=delta.logprobs,
        )

    def _add_refusal(self, delta: d.RefusalDelta) -> Event:
        self._text.append(delta.text)
        return RefusalDelta(delta=delta.text, **self._place())

    def _add_annotation(self, annotation: Annotation) -> Sequence[Event]:
        # The lifecycle allows an annotation only after a text delta, so an empty one may precede.
        empty_delta = () if self._text else (self._add_text(d.TextDelta("")),)
        self._annotations.append(annotation)
        event = AnnotationAdded(
            annotation_index=len(self._annotations) - 1,
            annotation=annotation,  # type: ignore[arg-type]
            **self._place(),
        )
        return (*empty_delta, event)

    def _switch_to(self, kind: type[OutputText | Refusal]) -> Sequence[Event]:
        if self._kind is kind:
            return ()
        closing = self._close_part()
        self._kind = kind
        empty = OutputText(text="") if kind is OutputText else Refusal(refusal="")
        return (*closing, PartAdded(part=empty, **self._place()))

    def _close_part(self) -> Sequence[Event]:
        if self._kind is None:
            return ()
        text, place = "".join(self._text), self._place()
        done: Event
        part: OutputText | Refusal
        if self._kind is Refusal:
            part = Refusal(refusal=text)
            done = RefusalDone(refusal=text, **place)
        else:
            logprobs = tuple(self._logprobs)
            part = OutputText(
                text=text,
                annotations=tuple(self._annotations),
                logprobs=logprobs,
            )
            done = TextDone(text=text, logprobs=logprobs, **place)
        self._parts.append(part)
        self._kind, self._text, self._logprobs, self._annotations = None, [], [], []
        return (done, PartDone(part=part, **place))

    def _place(self) -> dict[str, Any]:
        return {
            "item_id": self._id,
            "output_index": self._index,
            "content_index": len(self._parts),
        }


def _reopen(item: Message, context: BuilderContext) -> MessageBuilder:
    return MessageBuilder(d.TextDelta("", phase=item.phase or None), context)


EVENTS = EventTable(
    first="MESSAGE",
    transitions={
        "MESSAGE": {PartAdded: "PART"},
        "PART": {
            TextDelta: "TEXT",
            TextDone: "PART_FULL",
            RefusalDelta: "REFUSAL",
            RefusalDone: "PART_FULL",
        },
        "TEXT": {TextDelta: "TEXT", AnnotationAdded: "TEXT", TextDone: "PART_FULL"},
        "REFUSAL": {RefusalDelta: "REFUSAL", RefusalDone: "PART_FULL"},
        "PART_FULL": {PartDone: "MESSAGE"},
    },
    closable=("MESSAGE",),
    # Arguments without a call are shown as text rather than lost.
    opened_by=(d.TextDelta, d.RefusalDelta, d.AnnotationDelta, d.ArgumentsDelta),
    open=MessageBuilder,
    reopen=_reopen,
    deltas={
        TextDelta: lambda event: d.TextDelta(event.delta, event.logprobs),
        RefusalDelta: lambda event: d.RefusalDelta(event.delta),
        AnnotationAdded: lambda event: d.AnnotationDelta(event.annotation),
    },
)

MESSAGE = ItemKind(
    item=Message, prefix="msg", events=EVENTS, next="nobody", shown=NOT_SHOWN, include={}
)

KIND = Kind(name="message", items=(MESSAGE,), tools=(), calls=())
