"""The events that a client can see, under their names in the API (docs/reference/events.md).

Events are the wire format: msgspec encodes one as the JSON of an SSE `data:` line. Only the
sequencer sets their number (sequencer.py); -1 means that an event has none yet.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import UNSET, Raw, Struct, UnsetType

from antiphon.domain.content import (
    AnyAnnotation,
    Logprob,
    OutputText,
    ReasoningText,
    Refusal,
    SummaryText,
)
from antiphon.domain.items import AnyItem
from antiphon.domain.json import Json
from antiphon.domain.response import Response


class Event(Struct, frozen=True, kw_only=True, gc=False, tag_field="type"):
    """Base class of all events."""

    sequence_number: int = -1


# --- the response ---------------------------------------------------------------------------------


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


# --- items and parts ------------------------------------------------------------------------------


class ItemAdded(Event, frozen=True, kw_only=True, gc=False, tag="response.output_item.added"):
    output_index: int
    item: AnyItem


class ItemDone(Event, frozen=True, kw_only=True, gc=False, tag="response.output_item.done"):
    output_index: int
    item: AnyItem


class _ItemEvent(Event, frozen=True, kw_only=True, gc=False):
    item_id: str
    output_index: int


class _PartEvent(_ItemEvent, frozen=True, kw_only=True, gc=False):
    content_index: int


AnyPart = OutputText | Refusal | ReasoningText


class PartAdded(_PartEvent, frozen=True, kw_only=True, gc=False, tag="response.content_part.added"):
    part: AnyPart


class PartDone(_PartEvent, frozen=True, kw_only=True, gc=False, tag="response.content_part.done"):
    part: AnyPart


class TextDelta(_PartEvent, frozen=True, kw_only=True, gc=False, tag="response.output_text.delta"):
    delta: str
    logprobs: tuple[Logprob, ...] = ()


class TextDone(_PartEvent, frozen=True, kw_only=True, gc=False, tag="response.output_text.done"):
    text: str
    logprobs: tuple[Raw, ...] = ()
    """JSON of Logprob: see OutputText."""


class AnnotationAdded(
    _PartEvent, frozen=True, kw_only=True, gc=False, tag="response.output_text.annotation.added"
):
    annotation_index: int
    annotation: AnyAnnotation


class RefusalDelta(_PartEvent, frozen=True, kw_only=True, gc=False, tag="response.refusal.delta"):
    delta: str


class RefusalDone(_PartEvent, frozen=True, kw_only=True, gc=False, tag="response.refusal.done"):
    refusal: str


class ReasoningDelta(
    _PartEvent, frozen=True, kw_only=True, gc=False, tag="response.reasoning_text.delta"
):
    delta: str


class ReasoningDone(
    _PartEvent, frozen=True, kw_only=True, gc=False, tag="response.reasoning_text.done"
):
    text: str


class _SummaryEvent(_ItemEvent, frozen=True, kw_only=True, gc=False):
    summary_index: int


class SummaryPartAdded(
    _SummaryEvent, frozen=True, kw_only=True, gc=False, tag="response.reasoning_summary_part.added"
):
    part: SummaryText


class SummaryPartDone(
    _SummaryEvent, frozen=True, kw_only=True, gc=False, tag="response.reasoning_summary_part.done"
):
    part: SummaryText
    status: str | UnsetType = UNSET


class SummaryDelta(
    _SummaryEvent, frozen=True, kw_only=True, gc=False, tag="response.reasoning_summary_text.delta"
):
    delta: str


class SummaryDone(
    _SummaryEvent, frozen=True, kw_only=True, gc=False, tag="response.reasoning_summary_text.done"
):
    text: str


# --- calls ----------------------------------------------------------------------------------------


class ArgumentsDelta(
    _ItemEvent, frozen=True, kw_only=True, gc=False, tag="response.function_call_arguments.delta"
):
    delta: str


class ArgumentsDone(
    _ItemEvent, frozen=True, kw_only=True, gc=False, tag="response.function_call_arguments.done"
):
    name: str
    arguments: str


class CustomInputDelta(
    _ItemEvent, frozen=True, kw_only=True, gc=False, tag="response.custom_tool_call_input.delta"
):
    delta: str


class CustomInputDone(
    _ItemEvent, frozen=True, kw_only=True, gc=False, tag="response.custom_tool_call_input.done"
):
    input: str


class McpArgumentsDelta(
    _ItemEvent, frozen=True, kw_only=True, gc=False, tag="response.mcp_call_arguments.delta"
):
    delta: str


class McpArgumentsDone(
    _ItemEvent, frozen=True, kw_only=True, gc=False, tag="response.mcp_call_arguments.done"
):
    arguments: str


class CodeDelta(
    _ItemEvent, frozen=True, kw_only=True, gc=False, tag="response.code_interpreter_call_code.delta"
):
    delta: str


class CodeDone(
    _ItemEvent, frozen=True, kw_only=True, gc=False, tag="response.code_interpreter_call_code.done"
):
    code: str


class PartialImage(
    _ItemEvent,
    frozen=True,
    kw_only=True,
    gc=False,
    tag="response.image_generation_call.partial_image",
):
    partial_image_index: int
    partial_image_b64: str
    size: str | UnsetType = UNSET
    quality: str | UnsetType = UNSET
    background: str | UnsetType = UNSET
    output_format: str | UnsetType = UNSET


class _CommandEvent(Event, frozen=True, kw_only=True, gc=False):
    output_index: int
    command_index: int


class CommandAdded(
    _CommandEvent, frozen=True, kw_only=True, gc=False, tag="response.shell_call_command.added"
):
    command: str


class CommandDelta(
    _CommandEvent, frozen=True, kw_only=True, gc=False, tag="response.shell_call_command.delta"
):
    delta: str


class CommandDone(
    _CommandEvent, frozen=True, kw_only=True, gc=False, tag="response.shell_call_command.done"
):
    command: str


class ShellOutputDelta(
    _ItemEvent, frozen=True, kw_only=True, gc=False, tag="response.shell_call_output_content.delta"
):
    command_index: int
    delta: Json


class ShellOutputDone(
    _ItemEvent, frozen=True, kw_only=True, gc=False, tag="response.shell_call_output_content.done"
):
    command_index: int
    output: tuple[Json, ...]


# --- progress of tools that the server runs -------------------------------------------------------


class McpListToolsInProgress(
    _ItemEvent, frozen=True, kw_only=True, gc=False, tag="response.mcp_list_tools.in_progress"
):
    pass


class McpListToolsCompleted(
    _ItemEvent, frozen=True, kw_only=True, gc=False, tag="response.mcp_list_tools.completed"
):
    pass


class McpListToolsFailed(
    _ItemEvent, frozen=True, kw_only=True, gc=False, tag="response.mcp_list_tools.failed"
):
    pass


class McpCallInProgress(
    _ItemEvent, frozen=True, kw_only=True, gc=False, tag="response.mcp_call.in_progress"
):
    pass


class McpCallCompleted(
    _ItemEvent, frozen=True, kw_only=True, gc=False, tag="response.mcp_call.completed"
):
    pass


class McpCallFailed(
    _ItemEvent, frozen=True, kw_only=True, gc=False, tag="response.mcp_call.failed"
):
    pass


class WebSearchInProgress(
    _ItemEvent, frozen=True, kw_only=True, gc=False, tag="response.web_search_call.in_progress"
):
    pass


class WebSearchSearching(
    _ItemEvent, frozen=True, kw_only=True, gc=False, tag="response.web_search_call.searching"
):
    pass


class WebSearchCompleted(
    _ItemEvent, frozen=True, kw_only=True, gc=False, tag="response.web_search_call.completed"
):
    pass


class FileSearchInProgress(
    _ItemEvent, frozen=True, kw_only=True, gc=False, tag="response.file_search_call.in_progress"
):
    pass


class FileSearchSearching(
    _ItemEvent, frozen=True, kw_only=True, gc=False, tag="response.file_search_call.searching"
):
    pass


class FileSearchCompleted(
    _ItemEvent, frozen=True, kw_only=True, gc=False, tag="response.file_search_call.completed"
):
    pass


class CodeInProgress(
    _ItemEvent,
    frozen=True,
    kw_only=True,
    gc=False,
    tag="response.code_interpreter_call.in_progress",
):
    pass


class CodeInterpreting(
    _ItemEvent,
    frozen=True,
    kw_only=True,
    gc=False,
    tag="response.code_interpreter_call.interpreting",
):
    pass


class CodeCompleted(
    _ItemEvent, frozen=True, kw_only=True, gc=False, tag="response.code_interpreter_call.completed"
):
    pass


class ImageInProgress(
    _ItemEvent,
    frozen=True,
    kw_only=True,
    gc=False,
    tag="response.image_generation_call.in_progress",
):
    pass


class ImageGenerating(
    _ItemEvent, frozen=True, kw_only=True, gc=False, tag="response.image_generation_call.generating"
):
    pass


class ImageCompleted(
    _ItemEvent, frozen=True, kw_only=True, gc=False, tag="response.image_generation_call.completed"
):
    pass


class Compacting(
    _ItemEvent, frozen=True, kw_only=True, gc=False, tag="response.compaction.compacting"
):
    pass


TERMINAL: tuple[type[Event], ...] = (Completed, Incomplete, Failed)
"""The events that end a stream."""

RESPONSE_EVENTS = (Created, Queued, InProgress, Completed, Incomplete, Failed)
"""The events that show the whole response."""


def _concrete_types(kind: type[Event]) -> list[type[Event]]:
    own = [] if kind is Event or kind.__name__.startswith("_") else [kind]
    return own + [leaf for sub in kind.__subclasses__() for leaf in _concrete_types(sub)]


EVENT_TYPES: Mapping[str, type[Event]] = {
    str(kind.__struct_config__.tag): kind for kind in _concrete_types(Event)
}
"""The event types by their `type` in JSON."""
