"""The events that a client can see, under their names in the API (docs/reference/events.md).

Events are the wire format: msgspec encodes one as the JSON of an SSE `data:` line. Those of an item
stand in the module of its kind.
"""

from __future__ import annotations

from collections.abc import Mapping

from antiphon.domain.items import AnyItem
from antiphon.domain.kinds.code_interpreter import CodeCompleted as CodeCompleted
from antiphon.domain.kinds.code_interpreter import CodeDelta as CodeDelta
from antiphon.domain.kinds.code_interpreter import CodeDone as CodeDone
from antiphon.domain.kinds.code_interpreter import CodeInProgress as CodeInProgress
from antiphon.domain.kinds.code_interpreter import CodeInterpreting as CodeInterpreting
from antiphon.domain.kinds.compaction import Compacting as Compacting
from antiphon.domain.kinds.custom import CustomInputDelta as CustomInputDelta
from antiphon.domain.kinds.custom import CustomInputDone as CustomInputDone
from antiphon.domain.kinds.file_search import FileSearchCompleted as FileSearchCompleted
from antiphon.domain.kinds.file_search import FileSearchInProgress as FileSearchInProgress
from antiphon.domain.kinds.file_search import FileSearchSearching as FileSearchSearching
from antiphon.domain.kinds.function import ArgumentsDelta as ArgumentsDelta
from antiphon.domain.kinds.function import ArgumentsDone as ArgumentsDone
from antiphon.domain.kinds.image_generation import ImageCompleted as ImageCompleted
from antiphon.domain.kinds.image_generation import ImageGenerating as ImageGenerating
from antiphon.domain.kinds.image_generation import ImageInProgress as ImageInProgress
from antiphon.domain.kinds.image_generation import PartialImage as PartialImage
from antiphon.domain.kinds.mcp import McpArgumentsDelta as McpArgumentsDelta
from antiphon.domain.kinds.mcp import McpArgumentsDone as McpArgumentsDone
from antiphon.domain.kinds.mcp import McpCallCompleted as McpCallCompleted
from antiphon.domain.kinds.mcp import McpCallFailed as McpCallFailed
from antiphon.domain.kinds.mcp import McpCallInProgress as McpCallInProgress
from antiphon.domain.kinds.mcp import McpListToolsCompleted as McpListToolsCompleted
from antiphon.domain.kinds.mcp import McpListToolsFailed as McpListToolsFailed
from antiphon.domain.kinds.mcp import McpListToolsInProgress as McpListToolsInProgress
from antiphon.domain.kinds.message import AnnotationAdded as AnnotationAdded
from antiphon.domain.kinds.message import RefusalDelta as RefusalDelta
from antiphon.domain.kinds.message import RefusalDone as RefusalDone
from antiphon.domain.kinds.message import TextDelta as TextDelta
from antiphon.domain.kinds.message import TextDone as TextDone
from antiphon.domain.kinds.reasoning import ReasoningDelta as ReasoningDelta
from antiphon.domain.kinds.reasoning import ReasoningDone as ReasoningDone
from antiphon.domain.kinds.reasoning import SummaryDelta as SummaryDelta
from antiphon.domain.kinds.reasoning import SummaryDone as SummaryDone
from antiphon.domain.kinds.reasoning import SummaryPartAdded as SummaryPartAdded
from antiphon.domain.kinds.reasoning import SummaryPartDone as SummaryPartDone
from antiphon.domain.kinds.shell import CommandAdded as CommandAdded
from antiphon.domain.kinds.shell import CommandDelta as CommandDelta
from antiphon.domain.kinds.shell import CommandDone as CommandDone
from antiphon.domain.kinds.shell import ShellOutputDelta as ShellOutputDelta
from antiphon.domain.kinds.shell import ShellOutputDone as ShellOutputDone
from antiphon.domain.kinds.web_search import WebSearchCompleted as WebSearchCompleted
from antiphon.domain.kinds.web_search import WebSearchInProgress as WebSearchInProgress
from antiphon.domain.kinds.web_search import WebSearchSearching as WebSearchSearching
from antiphon.domain.responses.response import Response
from antiphon.domain.vocabulary.event import Event as Event
from antiphon.domain.vocabulary.event import ItemEvent as ItemEvent
from antiphon.domain.vocabulary.event import PartAdded as PartAdded
from antiphon.domain.vocabulary.event import PartDone as PartDone
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
