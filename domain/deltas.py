"""What a model did in one turn: the small vocabulary that formats speak.

A delta has no id, no index and no number: the sequencer gives those (sequencer.py). Text never
contains markup of the format. A text delta that directly follows another of its kind continues the
same item; `ItemEnd` forces a new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from antiphon.domain.content import Annotation, Logprob
from antiphon.domain.usage import TurnUsage


class Delta(Struct, frozen=True, gc=False):
    """Base of all deltas."""


class TextDelta(Delta, frozen=True, gc=False):
    """Visible text of a message; another `phase` than before begins a new message."""

    text: str
    logprobs: tuple[Logprob, ...] = ()
    phase: str | None = None


class RefusalDelta(Delta, frozen=True, gc=False):
    """Text in which the model declines."""

    text: str


class AnnotationDelta(Delta, frozen=True, gc=False):
    """A citation of the message that is open."""

    annotation: Annotation


class ReasoningDelta(Delta, frozen=True, gc=False):
    """Raw chain of thought."""

    text: str


class SummaryDelta(Delta, frozen=True, gc=False):
    """Text of a reasoning summary."""

    text: str


class CallStart(Delta, frozen=True, gc=False):
    """A call of a tool that was offered, by the name that the client knows it by.

    `kind` is the tool's (tools.py) and says which item the call becomes; `call_id` only where the
    model wrote one itself. ArgumentsDelta follow.
    """

    name: str
    call_id: str | None = None
    namespace: str | None = None
    kind: str = "function"


class HostedCallStart(CallStart, frozen=True, gc=False):
    """A call that this server runs; `fields` are further ones of its item."""

    fields: Mapping[str, Any] = {}


class ToolStart(Delta, frozen=True, gc=False):
    """A tool's item of type `kind` (`mcp_call`, `web_search_call`…) opens with these fields."""

    kind: str
    fields: Mapping[str, Any] = {}


class ToolProgress(Delta, frozen=True, gc=False):
    """The open tool item takes its next step (`searching`, `calling`, `interpreting`…)."""

    step: str
    fields: Mapping[str, Any] = {}


class ToolEnd(Delta, frozen=True, gc=False):
    """The open tool item is over, with these last fields."""

    status: str = "completed"
    fields: Mapping[str, Any] = {}


class ArgumentsDelta(Delta, frozen=True, gc=False):
    """What the open call is given: JSON arguments, a custom tool's input, code, a command."""

    text: str


class ItemEnd(Delta, frozen=True, gc=False):
    """Whatever is open is complete."""


class TurnEnd(Delta, frozen=True, gc=False):
    """The turn is over: `reason` is `stop`, or the budget that it was cut by: `length`, `turns`.

    `other_usages` are the tokens of further runs that this turn needed.
    """

    reason: str
    usage: TurnUsage
    other_usages: tuple[TurnUsage, ...] = ()
