"""Items: the input and output of a response (docs/reference/api.md#items).

Each type has one Struct for both directions, since clients send output back as input. On input
nearly every field may be missing or null; the builders fill in what the API requires on output. A
key that a client must not see while it is unused defaults to UNSET and is left out of the JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, field

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
OptionalId = str | None | UnsetType
Output = str | tuple[OutputPart, ...]


class Item(Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base class of all items; `id` is an opaque string that the client sees."""

    id: OptionalId = UNSET


class Message(Item, frozen=True, kw_only=True, tag="message"):
    """A message; an easy message has a string as its content and no type."""

    status: str | None | UnsetType = UNSET
    role: Literal["user", "assistant", "system", "developer"]
    content: str | tuple[MessagePart, ...] | None
    phase: Literal["commentary", "final_answer"] | None | UnsetType = UNSET


class Reasoning(Item, frozen=True, kw_only=True, tag="reasoning"):
    """Reasoning: raw (`content`), summarized (`summary`) or sealed (`encrypted_content`)."""

    status: str | None | UnsetType = UNSET
    summary: tuple[SummaryText, ...] | None = ()
    content: tuple[ReasoningText, ...] | None | UnsetType = UNSET
    encrypted_content: str | None | UnsetType = UNSET


class FunctionCall(Item, frozen=True, kw_only=True, tag="function_call"):
    """A call of a function; `arguments` is JSON text as the model wrote it."""

    status: str | None | UnsetType = UNSET
    call_id: CallId
    name: str
    arguments: str
    namespace: str | None | UnsetType = UNSET
    caller: Json | None | UnsetType = UNSET
    async_: bool | None | UnsetType = field(name="async", default=UNSET)


class FunctionCallOutput(Item, frozen=True, kw_only=True, tag="function_call_output"):
    """The output of the call `call_id` or, with only a `name`, an output that answers no call."""

    status: str | None | UnsetType = UNSET
    call_id: CallId | None | UnsetType = UNSET
    output: Output
    name: str | None | UnsetType = UNSET
    namespace: str | None | UnsetType = UNSET
    caller: Json | None | UnsetType = UNSET


class CustomToolCall(Item, frozen=True, kw_only=True, tag="custom_tool_call"):
    """A call of a custom tool; `input` is free text."""

    status: str | None | UnsetType = UNSET
    call_id: CallId
    name: str
    input: str
    namespace: str | None | UnsetType = UNSET
    caller: Json | None | UnsetType = UNSET
    async_: bool | None | UnsetType = field(name="async", default=UNSET)


class CustomToolCallOutput(Item, frozen=True, kw_only=True, tag="custom_tool_call_output"):
    status: str | None | UnsetType = UNSET
    call_id: CallId
    output: Output
    caller: Json | None | UnsetType = UNSET


class WebSearchCall(Item, frozen=True, kw_only=True, tag="web_search_call"):
    status: str | None = None
    action: Json | None = None
    results: tuple[Json, ...] | None | UnsetType = UNSET


class FileSearchCall(Item, frozen=True, kw_only=True, tag="file_search_call"):
    status: str | None = None
    queries: tuple[str, ...] | None = ()
    results: tuple[Json, ...] | None = None


class CodeInterpreterCall(Item, frozen=True, kw_only=True, tag="code_interpreter_call"):
    status: str | None = None
    code: str | None = None
    container_id: str
    outputs: tuple[Json, ...] | None = None


class ImageGenerationCall(Item, frozen=True, kw_only=True, tag="image_generation_call"):
    status: str | None = None
    result: str | None = None
    revised_prompt: str | None | UnsetType = UNSET
    action: str | None | UnsetType = UNSET
    background: str | None | UnsetType = UNSET
    output_format: str | None | UnsetType = UNSET
    quality: str | None | UnsetType = UNSET
    size: str | None | UnsetType = UNSET
    svg_usage: Json | None | UnsetType = UNSET
    error: Any = UNSET


class ComputerCall(Item, frozen=True, kw_only=True, tag="computer_call"):
    status: str | None = None
    call_id: CallId
    action: Json | None | UnsetType = UNSET
    actions: tuple[Json, ...] | None | UnsetType = UNSET
    pending_safety_checks: tuple[Json, ...] | None = ()


class ComputerCallOutput(Item, frozen=True, kw_only=True, tag="computer_call_output"):
    status: str | None | UnsetType = UNSET
    call_id: CallId
    output: ComputerScreenshot
    acknowledged_safety_checks: tuple[Json, ...] | None | UnsetType = UNSET


class LocalShellCall(Item, frozen=True, kw_only=True, tag="local_shell_call"):
    status: str | None = None
    call_id: CallId
    action: Json


class LocalShellCallOutput(Item, frozen=True, kw_only=True, tag="local_shell_call_output"):
    """The output of a local shell call; its `id` is that of the call, as it has no call_id."""

    status: str | None | UnsetType = UNSET
    output: str


class ShellCall(Item, frozen=True, kw_only=True, tag="shell_call"):
    status: str | None = None
    call_id: CallId
    action: Json
    environment: Json | None = None
    caller: Json | None | UnsetType = UNSET


class ShellCallOutput(Item, frozen=True, kw_only=True, tag="shell_call_output"):
    status: str | None | UnsetType = UNSET
    call_id: CallId
    output: tuple[Json, ...]
    max_output_length: int | None = None
    caller: Json | None | UnsetType = UNSET


class ApplyPatchCall(Item, frozen=True, kw_only=True, tag="apply_patch_call"):
    status: str | None = None
    call_id: CallId
    operation: Json
    caller: Json | None | UnsetType = UNSET


class ApplyPatchCallOutput(Item, frozen=True, kw_only=True, tag="apply_patch_call_output"):
    status: str | None = None
    call_id: CallId
    output: str | None | UnsetType = UNSET
    caller: Json | None | UnsetType = UNSET


class McpListTools(Item, frozen=True, kw_only=True, tag="mcp_list_tools"):
    server_label: str
    tools: tuple[Json, ...]
    error: str | None | UnsetType = UNSET


class McpCall(Item, frozen=True, kw_only=True, tag="mcp_call"):
    status: str | None | UnsetType = UNSET
    server_label: str
    name: str
    arguments: str
    output: str | None = None
    error: Any = None
    approval_request_id: str | None = None


class McpApprovalRequest(Item, frozen=True, kw_only=True, tag="mcp_approval_request"):
    server_label: str
    name: str
    arguments: str


class McpApprovalResponse(Item, frozen=True, kw_only=True, tag="mcp_approval_response"):
    approval_request_id: str
    approve: bool
    reason: str | None | UnsetType = UNSET


class ToolSearchCall(Item, frozen=True, kw_only=True, tag="tool_search_call"):
    status: str | None | UnsetType = UNSET
    arguments: Any
    call_id: CallId | None = None
    execution: str | None | UnsetType = UNSET


class ToolSearchOutput(Item, frozen=True, kw_only=True, tag="tool_search_output"):
    status: str | None | UnsetType = UNSET
    tools: tuple[Json, ...]
    call_id: CallId | None = None
    execution: str | None | UnsetType = UNSET


class AdditionalTools(Item, frozen=True, kw_only=True, tag="additional_tools"):
    """Tools that are available from this point of the conversation onward."""

    role: Literal["developer"]
    tools: tuple[Json, ...]


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

    encrypted_content: str


class CompactionTrigger(Item, frozen=True, kw_only=True, tag="compaction_trigger"):
    """Requests a compaction now; must be the last item."""


class ItemReference(Item, frozen=True, kw_only=True, tag="item_reference"):
    """A reference to a stored item of the same tenant."""

    id: str


class Program(Item, frozen=True, kw_only=True, tag="program"):
    call_id: CallId
    code: str
    fingerprint: str


class ProgramOutput(Item, frozen=True, kw_only=True, tag="program_output"):
    status: str | None = None
    call_id: CallId
    result: str


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
    if isinstance(item, LocalShellCallOutput):
        return item.id or None
    if isinstance(item, tuple(ANSWERED_BY.values())):
        return getattr(item, "call_id", None) or None
    return None


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
