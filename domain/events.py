"""The events that a client can see, under their names in the API (docs/reference/events.md).

Events are the wire format: msgspec encodes one as the JSON of an SSE `data:` line. Those of an item
stand in the module of its kind.
"""

from __future__ import annotations

from collections.abc import Mapping

from antiphon.domain.items import AnyItem
from antiphon.domain.kinds.code_interpreter import (
    CodeCompleted,
    CodeDelta,
    CodeDone,
    CodeInProgress,
    CodeInterpreting,
)
from antiphon.domain.kinds.compaction import Compacting
from antiphon.domain.kinds.custom import CustomInputDelta, CustomInputDone
from antiphon.domain.kinds.file_search import (
    FileSearchCompleted,
    FileSearchInProgress,
    FileSearchSearching,
)
from antiphon.domain.kinds.function import ArgumentsDelta, ArgumentsDone
from antiphon.domain.kinds.image_generation import (
    ImageCompleted,
    ImageGenerating,
    ImageInProgress,
    PartialImage,
)
from antiphon.domain.kinds.mcp import (
    McpArgumentsDelta,
    McpArgumentsDone,
    McpCallCompleted,
    McpCallFailed,
    McpCallInProgress,
    McpListToolsCompleted,
    McpListToolsFailed,
    McpListToolsInProgress,
)
from antiphon.domain.kinds.message import (
    AnnotationAdded,
    RefusalDelta,
    RefusalDone,
    TextDelta,
    TextDone,
)
from antiphon.domain.kinds.reasoning import (
    ReasoningDelta,
    ReasoningDone,
    SummaryDelta,
    SummaryDone,
    SummaryPartAdded,
    SummaryPartDone,
)
from antiphon.domain.kinds.shell import (
    CommandAdded,
    CommandDelta,
    CommandDone,
    ShellOutputDelta,
    ShellOutputDone,
)
from antiphon.domain.kinds.web_search import (
    WebSearchCompleted,
    WebSearchInProgress,
    WebSearchSearching,
)
from antiphon.domain.responses.response import Response
from antiphon.domain.vocabulary.event import Event, ItemEvent, PartAdded, PartDone
from antiphon.domain.vocabulary.item import type_of


class Created(Event, frozen=True, kw_only=True, gc=False, tag="response.created"):
    response: Response


class Queued(Event, frozen=True, kw_only=True, gc=False, tag="response.queued"):
    response: Response


class InProgress(Event, frozen=True, kw_only=True, gc=False, tag="response.in_progress"):
    response: Response


class Completed(Event, frozen=True, kw_only=True, gc=False, tag="response.completed"):
    response: Response


class Incomplete(Event, frozen=True, kw_only=True, gc=False, tag="response.incomplete"):
    """The response was cut off or, with status `cancelled`, cancelled."""

    response: Response


class Failed(Event, frozen=True, kw_only=True, gc=False, tag="response.failed"):
    response: Response


class Error(Event, frozen=True, kw_only=True, gc=False, tag="error"):
    """The reason for the `response.failed` that follows, as a flat object
    (docs/reference/events.md#the-error-event)."""

    code: str | None
    message: str
    param: str | None = None


class ItemAdded(Event, frozen=True, kw_only=True, gc=False, tag="response.output_item.added"):
    output_index: int
    item: AnyItem


class ItemDone(Event, frozen=True, kw_only=True, gc=False, tag="response.output_item.done"):
    output_index: int
    item: AnyItem


TERMINAL: tuple[type[Event], ...] = (Completed, Incomplete, Failed)
"""The events that end a stream."""

RESPONSE_EVENTS = (Created, Queued, InProgress, Completed, Incomplete, Failed)
"""The events that show the whole response."""


def _leaves(kind: type[Event]) -> list[type[Event]]:
    return [leaf for sub in kind.__subclasses__() for leaf in _leaves(sub)] or [kind]


EVENT_TYPES: Mapping[str, type[Event]] = {type_of(kind): kind for kind in _leaves(Event)}
"""The event types by their `type` in JSON."""
