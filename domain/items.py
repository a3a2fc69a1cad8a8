"""Items: the input and output of a response (docs/reference/api.md#items).

Each type has one Struct for both directions, since clients send output back as input. On input
nearly every field may be missing or null; the builders fill in what the API requires on output. A
key that a client must not see while it is unused defaults to UNSET and is left out of the JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

from antiphon.domain.bounds import Int, Long, Text
from antiphon.domain.content import (
    ComputerScreenshot,
    MessagePart,
    OutputPart,
    ReasoningText,
    SummaryText,
)
from antiphon.domain.json import Json
from antiphon.domain.request import AnyFormat, Effort

CallId = Annotated[str, Meta(min_length=1, max_length=64)]
OptionalId = Text | None | UnsetType
Output = Text | Long[OutputPart]


# gc=False, here and below: a history has many items, none of which refers to itself. The garbage
# collector held up every client for 50 to 120 ms when a few long histories were read.
class Item(Struct, frozen=True, kw_only=True, gc=False, tag_field="type"):
    """Base class of all items; `id` is an opaque string that the client sees."""

    id: OptionalId = UNSET


class Message(Item, frozen=True, kw_only=True, tag="message"):
    """A message; an easy message has a string as its content and no type."""

    status: Text | None | UnsetType = UNSET
    role: Literal["user", "assistant", "system", "developer"]
    content: Text | Long[MessagePart] | None
    phase: Literal["commentary", "final_answer"] | None | UnsetType = UNSET


class Reasoning(Item, frozen=True, kw_only=True, tag="reasoning"):
    """Reasoning: raw (`content`), summarized (`summary`) or sealed (`encrypted_content`)."""

    status: Text | None | UnsetType = UNSET
    summary: Long[SummaryText] | None = ()
    content: Long[ReasoningText] | None | UnsetType = UNSET
    encrypted_content: Text | None | UnsetType = UNSET


class FunctionCall(Item, frozen=True, kw_only=True, tag="function_call"):
    """A call of a function; `arguments` is JSON text as the model wrote it."""

    status: Text | None | UnsetType = UNSET
    call_id: CallId
    name: Text
    arguments: Text
    namespace: Text | None | UnsetType = UNSET
    caller: Json | None | UnsetType = UNSET
    async_: bool | None | UnsetType = field(name="async", default=UNSET)


class FunctionCallOutput(Item, frozen=True, kw_only=True, tag="function_call_output"):
    """The output of the call `call_id` or, with only a `name`, an output that answers no call."""

    status: Text | None | UnsetType = UNSET
    call_id: CallId | None | UnsetType = UNSET
    output: Output
    name: Text | None | UnsetType = UNSET
    namespace: Text | None | UnsetType = UNSET
    caller: Json | None | UnsetType = UNSET


class CustomToolCall(Item, frozen=True, kw_only=True, tag="custom_tool_call"):
    """A call of a custom tool; `input` is free text."""

    status: Text | None | UnsetType = UNSET
    call_id: CallId
    name: Text
    input: Text
    namespace: Text | None | UnsetType = UNSET
    caller: Json | None | UnsetType = UNSET
    async_: bool | None | UnsetType = field(name="async", default=UNSET)


class CustomToolCallOutput(Item, frozen=True, kw_only=True, tag="custom_tool_call_output"):
    status: Text | None | UnsetType = UNSET
    call_id: CallId
    output: Output
    caller: Json | None | UnsetType = UNSET


class WebSearchCall(Item, frozen=True, kw_only=True, tag="web_search_call"):
    status: Text | None = None
    action: Json | None = None
    results: Long[Json] | None | UnsetType = UNSET


class FileSearchCall(Item, frozen=True, kw_only=True, tag="file_search_call"):
    status: Text | None = None
    queries: Long[Text] | None = ()
    results: Long[Json] | None = None


class CodeInterpreterCall(Item, frozen=True, kw_only=True, tag="code_interpreter_call"):
    status: Text | None = None
    code: Text | None = None
    container_id: Text
    outputs: Long[Json] | None = None


class ImageGenerationCall(Item, frozen=True, kw_only=True, tag="image_generation_call"):
    status: Text | None = None
    result: Text | None = None
    revised_prompt: Text | None | UnsetType = UNSET
    action: Text | None | UnsetType = UNSET
    background: Text | None | UnsetType = UNSET
    output_format: Text | None | UnsetType = UNSET
    quality: Text | None | UnsetType = UNSET
    size: Text | None | UnsetType = UNSET
    svg_usage: Json | None | UnsetType = UNSET
    error: Any = UNSET


class ComputerCall(Item, frozen=True, kw_only=True, tag="computer_call"):
    status: Text | None = None
    call_id: CallId
    action: Json | None | UnsetType = UNSET
    actions: Long[Json] | None | UnsetType = UNSET
    pending_safety_checks: Long[Json] | None = ()


class ComputerCallOutput(Item, frozen=True, kw_only=True, tag="computer_call_output"):
    status: Text | None | UnsetType = UNSET
    call_id: CallId
    output: ComputerScreenshot
    acknowledged_safety_checks: Long[Json] | None | UnsetType = UNSET


class LocalShellCall(Item, frozen=True, kw_only=True, tag="local_shell_call"):
    status: Text | None = None
    call_id: CallId
    action: Json


class LocalShellCallOutput(Item, frozen=True, kw_only=True, tag="local_shell_call_output"):
    """The output of a local shell call; its `id` is that of the call, as it has no call_id."""

    status: Text | None | UnsetType = UNSET
    output: Text


class ShellCall(Item, frozen=True, kw_only=True, tag="shell_call"):
    status: Text | None = None
    call_id: CallId
    action: Json
    environment: Json | None = None
    caller: Json | None | UnsetType = UNSET


class ShellCallOutput(Item, frozen=True, kw_only=True, tag="shell_call_output"):
    status: Text | None | UnsetType = UNSET
    call_id: CallId
    output: Long[Json]
    max_output_length: Int | None = None
    caller: Json | None | UnsetType = UNSET


class ApplyPatchCall(Item, frozen=True, kw_only=True, tag="apply_patch_call"):
    status: Text | None = None
    call_id: CallId
    operation: Json
    caller: Json | None | UnsetType = UNSET


class ApplyPatchCallOutput(Item, frozen=True, kw_only=True, tag="apply_patch_call_output"):
    status: Text | None = None
    call_id: CallId
    output: Text | None | UnsetType = UNSET
    caller: Json | None | UnsetType = UNSET


class McpListTools(Item, frozen=True, kw_only=True, tag="mcp_list_tools"):
    server_label: Text
    tools: Long[Json]
    error: Text | None | UnsetType = UNSET


class McpCall(Item, frozen=True, kw_only=True, tag="mcp_call"):
    status: Text | None | UnsetType = UNSET
    server_label: Text
    name: Text
    arguments: Text
    output: Text | None = None
    error: Any = None
    approval_request_id: Text | None = None


class McpApprovalRequest(Item, frozen=True, kw_only=True, tag="mcp_approval_request"):
    server_label: Text
    name: Text
    arguments: Text


class McpApprovalResponse(Item, frozen=True, kw_only=True, tag="mcp_approval_response"):
    approval_request_id: Text
    approve: bool
    reason: Text | None | UnsetType = UNSET


class ToolSearchCall(Item, frozen=True, kw_only=True, tag="tool_search_call"):
    status: Text | None | UnsetType = UNSET
    arguments: Any
    call_id: CallId | None = None
    execution: Text | None | UnsetType = UNSET


class ToolSearchOutput(Item, frozen=True, kw_only=True, tag="tool_search_output"):
    status: Text | None | UnsetType = UNSET
    tools: Long[Json]
    call_id: CallId | None = None
    execution: Text | None | UnsetType = UNSET


class AdditionalTools(Item, frozen=True, kw_only=True, tag="additional_tools"):
    """Tools that are available from this point of the conversation onward."""

    role: Literal["developer"]
    tools: Long[Json]


class ReasoningUpdate(Struct, frozen=True, kw_only=True):
    effort: Effort | None = None


class TextUpdate(Struct, frozen=True, kw_only=True):
    format: AnyFormat | None = None


class ConfigurationUpdate(Item, frozen=True, kw_only=True, tag="configuration_update"):
    """Settings for the rest of the conversation, until another update changes them."""

    reasoning: ReasoningUpdate | None | UnsetType = UNSET
    text: TextUpdate | None | UnsetType = UNSET


class Compaction(Item, frozen=True, kw_only=True, tag="compaction"):
    """A sealed summary; the items before it need not be rendered."""

    encrypted_content: Text


class CompactionTrigger(Item, frozen=True, kw_only=True, tag="compaction_trigger"):
    """Requests a compaction now; must be the last item."""


class ItemReference(Item, frozen=True, kw_only=True, tag="item_reference"):
    """A reference to a stored item of the same tenant."""

    id: Text


class Program(Item, frozen=True, kw_only=True, tag="program"):
    call_id: CallId
    code: Text
    fingerprint: Text


class ProgramOutput(Item, frozen=True, kw_only=True, tag="program_output"):
    status: Text | None = None
    call_id: CallId
    result: Text


AnyItem = (
    Message
    | Reasoning
    | FunctionCall
    | FunctionCallOutput
    | CustomToolCall
    | CustomToolCallOutput
    | WebSearchCall
    | FileSearchCall
    | CodeInterpreterCall
    | ImageGenerationCall
    | ComputerCall
    | ComputerCallOutput
    | LocalShellCall
    | LocalShellCallOutput
    | ShellCall
    | ShellCallOutput
    | ApplyPatchCall
    | ApplyPatchCallOutput
    | McpListTools
    | McpCall
    | McpApprovalRequest
    | McpApprovalResponse
    | ToolSearchCall
    | ToolSearchOutput
    | AdditionalTools
    | ConfigurationUpdate
    | Compaction
    | CompactionTrigger
    | ItemReference
    | Program
    | ProgramOutput
)

ITEM_TYPES: Mapping[str, type[Item]] = {
    kind.__struct_config__.tag: kind for kind in AnyItem.__args__
}
"""The item types by their `type` in JSON."""

ANSWERED_BY: Mapping[type[Item], type[Item]] = {
    FunctionCall: FunctionCallOutput,
    CustomToolCall: CustomToolCallOutput,
    ComputerCall: ComputerCallOutput,
    LocalShellCall: LocalShellCallOutput,
    ShellCall: ShellCallOutput,
    ApplyPatchCall: ApplyPatchCallOutput,
    ToolSearchCall: ToolSearchOutput,
}
"""The item that answers each call of a tool that the client runs. A tool search that the server
runs has no call_id."""

_OUTPUT_TYPES = frozenset(ANSWERED_BY.values())

CONTAINER_REFERENCE = "container_reference"
"""The environment type of a shell call that ran in one of the server's containers."""

ID_PREFIXES: Mapping[type[Item], str] = {
    Message: "msg",
    Reasoning: "rs",
    FunctionCall: "fc",
    FunctionCallOutput: "fco",
    CustomToolCall: "ctc",
    CustomToolCallOutput: "ctco",
    WebSearchCall: "ws",
    FileSearchCall: "fs",
    CodeInterpreterCall: "ci",
    ImageGenerationCall: "ig",
    ComputerCall: "cu",
    ComputerCallOutput: "cuo",
    LocalShellCall: "lsh",
    LocalShellCallOutput: "lsho",
    ShellCall: "sh",
    ShellCallOutput: "sho",
    ApplyPatchCall: "apc",
    ApplyPatchCallOutput: "apco",
    McpListTools: "mcpl",
    McpCall: "mcp",
    McpApprovalRequest: "mcpr",
    McpApprovalResponse: "mcpa",
    ToolSearchCall: "tsc",
    ToolSearchOutput: "tso",
    AdditionalTools: "at",
    ConfigurationUpdate: "cfg",
    Compaction: "cmp",
    CompactionTrigger: "cmpt",
    Program: "prg",
    ProgramOutput: "prgo",
}
"""The prefix of the ids of each item type."""


def answered_call_id(item: Item) -> str | None:
    """Return the call_id that `item` answers, None if it is not the output of a call."""
    if type(item) not in _OUTPUT_TYPES:
        return None
    if isinstance(item, LocalShellCallOutput):
        return item.id or None
    return getattr(item, "call_id", None) or None


def call_id_of(item: Item) -> str | None:
    """Return the call_id of `item`, None if it is not a call that another item answers."""
    return getattr(item, "call_id") if type(item) in ANSWERED_BY else None  # noqa: B009


def is_server_run_call(item: Item) -> bool:
    """Return whether the server runs this call, so that the client need not send its output.

    The output is missing if the response ended before the call did.
    """
    return (
        isinstance(item, ShellCall) and (item.environment or {}).get("type") == CONTAINER_REFERENCE
    )
