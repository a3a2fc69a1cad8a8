"""Build messages: text parts with annotations and logprobs, and refusals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Raw
from msgspec.structs import replace

from antiphon.domain import deltas as d
from antiphon.domain import events as e
from antiphon.domain.builders.builder_context import BuilderContext
from antiphon.domain.content import Annotation, Logprob, OutputText, Refusal
from antiphon.domain.items import Message

_encode = msgspec.json.Encoder().encode


def _encode_logprob(logprob: Logprob) -> Raw:
    """Encode once what four events and the stored item repeat: up to 100,000 of them at a time."""
    return Raw(_encode(logprob))


class MessageBuilder:
    """Builds a message: adjacent text becomes one part, a refusal becomes another."""

    def __init__(self, delta: d.Delta, context: BuilderContext) -> None:
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

    def open(self) -> Sequence[e.Event]:
        return (e.ItemAdded(output_index=self._index, item=self.item),)

    def accepts(self, delta: d.Delta) -> bool:
        if type(delta) is d.TextDelta:
            return delta.phase == self._phase
        return isinstance(delta, d.RefusalDelta | d.AnnotationDelta)

    def add(self, delta: d.Delta) -> Sequence[e.Event]:
        if type(delta) is d.TextDelta:
            if self._kind is not OutputText:
                return (*self._switch_to(OutputText), self._add_text(delta))
            return (self._add_text(delta),)
        if isinstance(delta, d.ArgumentsDelta):  # arguments without a call: see BUILDERS
            return (*self._switch_to(OutputText), self._add_text(d.TextDelta(delta.text)))
        if isinstance(delta, d.AnnotationDelta):
            return (*self._switch_to(OutputText), *self._add_annotation(delta.annotation))
        assert isinstance(delta, d.RefusalDelta)
        return (*self._switch_to(Refusal), self._add_refusal(delta))

    def close(self, status: str) -> Sequence[e.Event]:
        events = self._close_part()
        self.item = replace(self.item, status=status, content=tuple(self._parts))
        return (*events, e.ItemDone(output_index=self._index, item=self.item))

    def _add_text(self, delta: d.TextDelta) -> e.Event:
        self._text.append(delta.text)
        if delta.logprobs:
            self._logprobs.extend(map(_encode_logprob, delta.logprobs))
        return e.TextDelta(
            item_id=self._id,
            output_index=self._index,
            content_index=len(self._parts),
            delta=delta.text,
            logprobs=delta.logprobs,
        )

    def _add_refusal(self, delta: d.RefusalDelta) -> e.Event:
        self._text.append(delta.text)
        return e.RefusalDelta(delta=delta.text, **self._place())

    def _add_annotation(self, annotation: Annotation) -> Sequence[e.Event]:
        # The lifecycle allows an annotation only after a text delta, so an empty one may precede.
        empty_delta = () if self._text else (self._add_text(d.TextDelta("")),)
        self._annotations.append(annotation)
        event = e.AnnotationAdded(
            annotation_index=len(self._annotations) - 1,
            annotation=annotation,  # type: ignore[arg-type]
            **self._place(),
        )
        return (*empty_delta, event)

    def _switch_to(self, kind: type[OutputText | Refusal]) -> Sequence[e.Event]:
        if self._kind is kind:
            return ()
        closing = self._close_part()
        self._kind = kind
        empty = OutputText(text="") if kind is OutputText else Refusal(refusal="")
        return (*closing, e.PartAdded(part=empty, **self._place()))

    def _close_part(self) -> Sequence[e.Event]:
        if self._kind is None:
            return ()
        text, place = "".join(self._text), self._place()
        done: e.Event
        part: OutputText | Refusal
        if self._kind is Refusal:
            part = Refusal(refusal=text)
            done = e.RefusalDone(refusal=text, **place)
        else:
            logprobs = tuple(self._logprobs)
            part = OutputText(
                text=text,
                annotations=tuple(self._annotations),
                logprobs=logprobs,
            )
            done = e.TextDone(text=text, logprobs=logprobs, **place)
        self._parts.append(part)
        self._kind, self._text, self._logprobs, self._annotations = None, [], [], []
        return (done, e.PartDone(part=part, **place))

    def _place(self) -> dict[str, Any]:
        return {
            "item_id": self._id,
            "output_index": self._index,
            "content_index": len(self._parts),
        }
