"""Every event that a client can see (docs/reference/events.md), under the spec's names.

Events are the wire format: encoding one with msgspec gives the JSON of an SSE `data:` line. Their
number is set by the sequencer alone (sequencer.py); -1 means that it has none yet.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import UNSET, Struct, UnsetType

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
    """Base of all events."""

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
    """Cut short, or cancelled: then the response's status is `cancelled`."""

    response: Response


class Failed(Event, frozen=True, kw_only=True, gc=False, tag="response.failed"):
    response: Response


class Error(Event, frozen=True, kw_only=True, gc=False, tag="error"):
    """Why `response.failed` follows, in the flat form
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


class _OfItem(Event, frozen=True, kw_only=True, gc=False):
    item_id: str
    output_index: int


class _OfPart(_OfItem, frozen=True, kw_only=True, gc=False):
    content_index: int


AnyPart = OutputText | Refusal | ReasoningText


class PartAdded(_OfPart, frozen=True, kw_only=True, gc=False, tag="response.content_part.added"):
    part: AnyPart


class PartDone(_OfPart, frozen=True, kw_only=True, gc=False, tag="response.content_part.done"):
    part: AnyPart


class TextDelta(_OfPart, frozen=True, kw_only=True, gc=False, tag="response.output_text.delta"):
    delta: str
    logprobs: tuple[Logprob, ...] = ()


class TextDone(_OfPart, frozen=True, kw_only=True, gc=False, tag="response.output_text.done"):
    text: str
    logprobs: tuple[Logprob, ...] = ()


class AnnotationAdded(
    _OfPart, frozen=True, kw_only=True, gc=False, tag="response.output_text.annotation.added"
):
    annotation_index: int
    annotation: AnyAnnotation


class RefusalDelta(_OfPart, frozen=True, kw_only=True, gc=False, tag="response.refusal.delta"):
    delta: str


class RefusalDone(_OfPart, frozen=True, kw_only=True, gc=False, tag="response.refusal.done"):
    refusal: str


class ReasoningDelta(
    _OfPart, frozen=True, kw_only=True, gc=False, tag="response.reasoning_text.delta"
):
    delta: str


class ReasoningDone(
    _OfPart, frozen=True, kw_only=True, gc=False, tag="response.reasoning_text.done"
):
    text: str


class _OfSummary(_OfItem, frozen=True, kw_only=True, gc=False):
    summary_index: int


class SummaryPartAdded(
    _OfSummary, frozen=True, kw_only=True, gc=False, tag="response.reasoning_summary_part.added"
):
    part: SummaryText


class SummaryPartDone(
    _OfSummary, frozen=True, kw_only=True, gc=False, tag="response.reasoning_summary_part.done"
):
    part: SummaryText
    status: str | UnsetType = UNSET


class SummaryDelta(
    _OfSummary, frozen=True, kw_only=True, gc=False, tag="response.reasoning_summary_text.delta"
):
    delta: str


class SummaryDone(
    _OfSummary, frozen=True, kw_only=True, gc=False, tag="response.reasoning_summary_text.done"
):
    text: str


# --- calls ----------------------------------------------------------------------------------------


class ArgumentsDelta(
    _OfItem, frozen=True, kw_only=True, gc=False, tag="response.function_call_arguments.delta"
):
    delta: str


class ArgumentsDone(
    _OfItem, frozen=True, kw_only=True, gc=False, tag="response.function_call_arguments.done"
):
    name: str
    arguments: str


class CustomInputDelta(
    _OfItem, frozen=True, kw_only=True, gc=False, tag="response.custom_tool_call_input.delta"
):
    delta: str


class CustomInputDone(
    _OfItem, frozen=True, kw_only=True, gc=False, tag="response.custom_tool_call_input.done"
):
    input: str


class McpArgumentsDelta(
    _OfItem, frozen=True, kw_only=True, gc=False, tag="response.mcp_call_arguments.delta"
):
    delta: str


class McpArgumentsDone(
    _OfItem, frozen=True, kw_only=True, gc=False, tag="response.mcp_call_arguments.done"
):
    arguments: str


class CodeDelta(
    _OfItem, frozen=True, kw_only=True, gc=False, tag="response.code_interpreter_call_code.delta"
):
    delta: str


class CodeDone(
    _OfItem, frozen=True, kw_only=True, gc=False, tag="response.code_interpreter_call_code.done"
):
    code: str


class PartialImage(
    _OfItem, frozen=True, kw_only=True, gc=False, tag="response.image_generation_call.partial_image"
):
    partial_image_index: int
    partial_image_b64: str
    size: str | UnsetType = UNSET
    quality: str | UnsetType = UNSET
    background: str | UnsetType = UNSET
    output_format: str | UnsetType = UNSET


class _OfCommand(Event, frozen=True, kw_only=True, gc=False):
    output_index: int
    command_index: int


class CommandAdded(
    _OfCommand, frozen=True, kw_only=True, gc=False, tag="response.shell_call_command.added"
):
    command: str


class CommandDelta(
    _OfCommand, frozen=True, kw_only=True, gc=False, tag="response.shell_call_command.delta"
):
    delta: str


class CommandDone(
    _OfCommand, frozen=True, kw_only=True, gc=False, tag="response.shell_call_command.done"
):
    command: str


class ShellOutputDelta(
    _OfItem, frozen=True, kw_only=True, gc=False, tag="response.shell_call_output_content.delta"
):
    command_index: int
    delta: Json


class ShellOutputDone(
    _OfItem, frozen=True, kw_only=True, gc=False, tag="response.shell_call_output_content.done"
):
    command_index: int
    output: tuple[Json, ...]


# --- progress of tools that the server runs -------------------------------------------------------


class McpListToolsInProgress(
    _OfItem, frozen=True, kw_only=True, gc=False, tag="response.mcp_list_tools.in_progress"
):
    pass


class McpListToolsCompleted(
    _OfItem, frozen=True, kw_only=True, gc=False, tag="response.mcp_list_tools.completed"
):
    pass


class McpListToolsFailed(
    _OfItem, frozen=True, kw_only=True, gc=False, tag="response.mcp_list_tools.failed"
):
    pass


class McpCallInProgress(
    _OfItem, frozen=True, kw_only=True, gc=False, tag="response.mcp_call.in_progress"
):
    pass


class McpCallCompleted(
    _OfItem, frozen=True, kw_only=True, gc=False, tag="response.mcp_call.completed"
):
    pass


class McpCallFailed(_OfItem, frozen=True, kw_only=True, gc=False, tag="response.mcp_call.failed"):
    pass


class WebSearchInProgress(
    _OfItem, frozen=True, kw_only=True, gc=False, tag="response.web_search_call.in_progress"
):
    pass


class WebSearchSearching(
    _OfItem, frozen=True, kw_only=True, gc=False, tag="response.web_search_call.searching"
):
    pass


class WebSearchCompleted(
    _OfItem, frozen=True, kw_only=True, gc=False, tag="response.web_search_call.completed"
):
    pass


class FileSearchInProgress(
    _OfItem, frozen=True, kw_only=True, gc=False, tag="response.file_search_call.in_progress"
):
    pass


class FileSearchSearching(
    _OfItem, frozen=True, kw_only=True, gc=False, tag="response.file_search_call.searching"
):
    pass


class FileSearchCompleted(
    _OfItem, frozen=True, kw_only=True, gc=False, tag="response.file_search_call.completed"
):
    pass


class CodeInProgress(
    _OfItem, frozen=True, kw_only=True, gc=False, tag="response.code_interpreter_call.in_progress"
):
    pass


class CodeInterpreting(
    _OfItem, frozen=True, kw_only=True, gc=False, tag="response.code_interpreter_call.interpreting"
):
    pass


class CodeCompleted(
    _OfItem, frozen=True, kw_only=True, gc=False, tag="response.code_interpreter_call.completed"
):
    pass


class ImageInProgress(
    _OfItem, frozen=True, kw_only=True, gc=False, tag="response.image_generation_call.in_progress"
):
    pass


class ImageGenerating(
    _OfItem, frozen=True, kw_only=True, gc=False, tag="response.image_generation_call.generating"
):
    pass


class ImageCompleted(
    _OfItem, frozen=True, kw_only=True, gc=False, tag="response.image_generation_call.completed"
):
    pass


class Compacting(
    _OfItem, frozen=True, kw_only=True, gc=False, tag="response.compaction.compacting"
):
    pass


TERMINAL: tuple[type[Event], ...] = (Completed, Incomplete, Failed)
"""The last event of a stream is one of these, and nothing follows it."""

RESPONSE_EVENTS = (Created, Queued, InProgress, Completed, Incomplete, Failed)
"""Events that show the response as it stands."""


def _leaves(kind: type[Event]) -> list[type[Event]]:
    below = kind.__subclasses__()
    own = [] if kind is Event or kind.__name__.startswith("_") else [kind]
    return own + [leaf for sub in below for leaf in _leaves(sub)]


EVENT_TYPES: Mapping[str, type[Event]] = {
    str(kind.__struct_config__.tag): kind for kind in _leaves(Event)
}
"""Every event by its name on the wire."""
