"""Deltas: what a model did in one turn, as a format's parser reports it.

A delta has no id, index or number; the sequencer assigns those (sequencer.py). Text never contains
markup of the format. A text delta that directly follows another of its kind continues the same
item; `ItemEnd` forces a new one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from msgspec import Struct

from antiphon.domain.content import Annotation, Logprob
from antiphon.domain.json import Json
from antiphon.domain.responses.usage import TurnUsage


class Delta(Struct, frozen=True, gc=False):
    """Base class of all deltas."""


class TextDelta(Delta, frozen=True, gc=False):
    """Visible text of a message; a different `phase` starts a new message."""

    text: str
    logprobs: tuple[Logprob, ...] = ()
    phase: str | None = None


class RefusalDelta(Delta, frozen=True, gc=False):
    """Text with which the model refuses to answer."""

    text: str


class AnnotationDelta(Delta, frozen=True, gc=False):
    """A citation in the open message."""

    annotation: Annotation


class ReasoningDelta(Delta, frozen=True, gc=False):
    """Raw chain of thought."""

    text: str


class SummaryDelta(Delta, frozen=True, gc=False):
    """Text of a reasoning summary."""

    text: str


class CallStart(Delta, frozen=True, gc=False):
    """A call of an offered tool, under the name that the client knows. ArgumentsDeltas follow.

    `kind` is the tool's kind (tools.py) and determines the item that the call becomes. `call_id` is
    set only if the model wrote one itself, `approval_key` only if the client must approve the call,
    and `caller` only if a program makes the call. `refusal` says why this server does not run the
    call, if a guard has refused it.
    """

    name: str
    call_id: str | None = None
    namespace: str | None = None
    kind: str = "function"
    approval_key: str | None = None
    caller: Mapping[str, str] | None = None
    refusal: str | None = None


class HostedCallStart(CallStart, frozen=True, gc=False):
    """A call that this server runs; `fields` are additional fields of its item."""

    fields: Mapping[str, Any] = {}


class ToolStart(Delta, frozen=True, gc=False):
    """A tool's item of type `kind` (`mcp_call`, `web_search_call`…) starts with these fields."""

    kind: str
    fields: Mapping[str, Any] = {}


class ToolProgress(Delta, frozen=True, gc=False):
    """The open tool item takes its next step (`searching`, `calling`, `interpreting`…)."""

    step: str
    fields: Mapping[str, Any] = {}


class ToolEnd(Delta, frozen=True, gc=False):
    """The open tool item ends, with these final fields."""

    status: str = "completed"
    fields: Mapping[str, Any] = {}


class AgentUpdate(Delta, frozen=True, gc=False):
    """News of a sub-agent's response: the events of one of its items, or its end.

    `number` is that of the last of the sub-agent's own events that is included. `status` is set
    once its response has ended, and so is what that has `used`.
    """

    response_id: str
    number: int = -1
    events: tuple[Json, ...] = ()
    status: str = ""
    used: TurnUsage | None = None


class ArgumentsDelta(Delta, frozen=True, gc=False):
    """Text of the open call: JSON arguments, a custom tool's input, code or a command."""

    text: str


class ItemEnd(Delta, frozen=True, gc=False):
    """The open item is complete."""


CutReason = Literal["length", "turns", "context", "logprobs", "content_filter", "steered"]
"""The limits that cut a turn off, the filter, and a client that steers the response."""

EndReason = Literal["stop", "refused"] | CutReason
"""`refused`: a guard has refused what follows; the response is complete, with the refusal."""
END_REASONS: frozenset[EndReason] = frozenset({"stop", "refused", *get_args(CutReason)})
COMPLETE: frozenset[EndReason] = frozenset({"stop", "refused"})
"""The reasons after which a response without another turn is complete."""


class TurnEnd(Delta, frozen=True, gc=False):
    """The end of the turn: `reason` is `stop`, `refused`, or what cut the turn off.

    `other_usages` holds the tokens of additional engine runs that the turn needed. `stop_string` is
    the one of the request that ended it, None if none did.
    Raises: ValueError for another reason, which a run could not show at its end.
    """

    reason: EndReason
    usage: TurnUsage
    other_usages: tuple[TurnUsage, ...] = ()
    stop_string: str | None = None

    def __post_init__(self) -> None:
        if self.reason not in END_REASONS:
            reasons = ", ".join(sorted(END_REASONS))
            raise ValueError(f"A turn cannot end with the reason {self.reason!r}, only: {reasons}.")
