"""The bodies of `POST /v1/messages` and `/v1/messages/count_tokens`: their fields with types and
limits.

Messages and tools stay raw here and are decoded one by one, so that an error names the one at
fault. A field of the type Any is accepted and has no meaning here.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, Struct

from antiphon.domain.bounds import MAX_MEMBERS, Line, Long, Many, Name, StopString, Text
from antiphon.domain.history.tool_uses import ClearToolUses
from antiphon.domain.json import Json
from antiphon.domain.requests.request import MAX_TOOLS, Effort, Positive, SharedFields
from antiphon.domain.requests.unknown_keys import ENTRIES
from antiphon.domain.tools import AnyTool
from antiphon.domain.vocabulary.item import CallId
from antiphon.domain.vocabulary.tool import ToolName

# --- blocks ---------------------------------------------------------------------------------------


class MessageBlock(Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base class of all blocks. The engines keep prefixes of prompts without being asked to."""

    cache_control: Any = None


class TextBlock(MessageBlock, frozen=True, kw_only=True, tag="text"):
    text: Text
    citations: Any = None


class Source(Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base class of where the content of a block is."""


class Base64Source(Source, frozen=True, kw_only=True, tag="base64"):
    media_type: Name
    data: Text


class UrlSource(Source, frozen=True, kw_only=True, tag="url"):
    url: Text


class FileSource(Source, frozen=True, kw_only=True, tag="file"):
    file_id: Text


class TextSource(Source, frozen=True, kw_only=True, tag="text"):
    media_type: Name = "text/plain"
    data: Text


class ImageBlock(MessageBlock, frozen=True, kw_only=True, tag="image"):
    source: Base64Source | UrlSource | FileSource


class ContentSource(Source, frozen=True, kw_only=True, tag="content"):
    content: Text | Long[TextBlock | ImageBlock]


class DocumentBlock(MessageBlock, frozen=True, kw_only=True, tag="document"):
    source: Base64Source | UrlSource | FileSource | TextSource | ContentSource
    title: Text | None = None
    context: Text | None = None
    citations: Any = None


class SearchResultBlock(MessageBlock, frozen=True, kw_only=True, tag="search_result"):
    source: Text
    title: Text
    content: Long[TextBlock]
    citations: Any = None


class ToolReferenceBlock(MessageBlock, frozen=True, kw_only=True, tag="tool_reference"):
    tool_name: Text


class ThinkingBlock(MessageBlock, frozen=True, kw_only=True, tag="thinking"):
    """Thoughts; without their text, the signature holds them."""

    thinking: Text
    signature: Text | None = None


class RedactedThinkingBlock(MessageBlock, frozen=True, kw_only=True, tag="redacted_thinking"):
    data: Text


class ToolUseBlock(MessageBlock, frozen=True, kw_only=True, tag="tool_use"):
    id: CallId
    name: Text
    input: Json
    caller: Any = None


ResultPart = TextBlock | ImageBlock | DocumentBlock | SearchResultBlock | ToolReferenceBlock


class ToolResultBlock(MessageBlock, frozen=True, kw_only=True, tag="tool_result"):
    tool_use_id: CallId
    content: Text | Long[ResultPart] | None = None
    is_error: bool | None = None


class NamedTool(Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_reference"):
    """A tool among the `tools` of the request."""

    name: Name


class DefinedTool(Struct, frozen=True, kw_only=True, tag_field="type", tag="tool_definition"):
    definition: Raw


class ToolAdditionBlock(MessageBlock, frozen=True, kw_only=True, tag="tool_addition"):
    """A tool that the model has from here on."""

    tool: NamedTool | DefinedTool


AnyBlock = (
    TextBlock
    | ImageBlock
    | DocumentBlock
    | SearchResultBlock
    | ThinkingBlock
    | RedactedThinkingBlock
    | ToolUseBlock
    | ToolResultBlock
    | ToolAdditionBlock
)


class MessageConfig(Struct, frozen=True, kw_only=True):
    effort: Effort | None = None


class SentMessage(Struct, frozen=True, kw_only=True):
    """A message; `input.py` says which blocks belong to which role.

    One of the system may have settings from here on, in place of a content or beside it.
    """

    role: Literal["user", "assistant", "system"]
    content: Text | Long[AnyBlock] | None = None
    output_config: MessageConfig | None = None


# --- tools ----------------------------------------------------------------------------------------


class MessagesTool(Struct, frozen=True, kw_only=True):
    """A tool that the client runs."""

    name: ToolName
    description: Text | None = None
    input_schema: Json
    strict: bool | None = None
    defer_loading: bool | None = None
    cache_control: Any = None
    eager_input_streaming: Any = None
    input_examples: Any = None


class TypedMessagesTool(MessagesTool, frozen=True, kw_only=True, tag_field="type", tag="custom"):
    """The same, with its type."""


class SearchTool(Struct, frozen=True, kw_only=True):
    """A search of the web by this server."""

    name: Literal["web_search"]
    allowed_domains: Many[Name] | None = None
    blocked_domains: Many[Name] | None = None
    max_uses: Positive | None = None
    user_location: Json | None = None
    cache_control: Any = None


class CodeTool(Struct, frozen=True, kw_only=True):
    """Code that this server runs."""

    name: Literal["code_execution"]
    cache_control: Any = None


class ToolSwitch(Struct, frozen=True, kw_only=True):
    enabled: bool | None = None


class McpToolset(Struct, frozen=True, kw_only=True, tag_field="type", tag="mcp_toolset"):
    """The tools of one of the `mcp_servers`."""

    mcp_server_name: Name
    default_config: ToolSwitch | None = None
    configs: Annotated[dict[Name, ToolSwitch], Meta(max_length=MAX_MEMBERS)] | None = None
    cache_control: Any = None


class McpToolChoice(Struct, frozen=True, kw_only=True):
    enabled: bool | None = None
    allowed_tools: Many[Name] | None = None


class SentMcpServer(Struct, frozen=True, kw_only=True):
    """An MCP server of the client's, to which this server connects."""

    type: Literal["url"]
    url: Line
    name: Name
    authorization_token: Line | None = None
    tool_configuration: McpToolChoice | None = None


class ToolSelection(Struct, frozen=True, kw_only=True):
    type: Literal["auto", "any", "tool", "none"]
    name: Name | None = None
    disable_parallel_tool_use: bool | None = None


# --- the bodies -----------------------------------------------------------------------------------


class SenderData(Struct, frozen=True, kw_only=True):
    """Who sends the request; and the session that it is of, for those who cannot send a header."""

    user_id: Name | None = None
    antiphon_session: Name | None = None


class Thinking(Struct, frozen=True, kw_only=True):
    """Whether the model thinks, and whether the client sees the text of it."""

    type: Literal["enabled", "adaptive", "between_tools", "disabled"]
    budget_tokens: Positive | None = None
    display: Literal["summarized", "omitted", "updates"] | None = None


class SchemaFormat(Struct, frozen=True, kw_only=True):
    type: Literal["json_schema"]
    schema: Json


class OutputConfig(Struct, frozen=True, kw_only=True):
    effort: Effort | None = None
    format: SchemaFormat | None = None


class KeptTurns(Struct, frozen=True, kw_only=True):
    type: Literal["thinking_turns", "all"]
    value: Positive | None = None


class ClearThinking(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="clear_thinking_20251015"
):
    """Which thoughts of earlier turns the model is shown; those of the last turn by default."""

    keep: KeptTurns | Literal["all"] | None = None


class ContextEdits(Struct, frozen=True, kw_only=True):
    edits: Annotated[tuple[ClearThinking | ClearToolUses, ...], Meta(max_length=16)] | None = None


Tier = Literal["auto", "standard_only", "default", "flex", "scale", "priority", "fast", "ultrafast"]


class CountedMessages(SharedFields, frozen=True, kw_only=True):
    """The body of `POST /v1/messages/count_tokens`, and what the other one has of it."""

    messages: Annotated[
        tuple[Raw, ...],
        Meta(min_length=1, max_length=MAX_MEMBERS, extra={ENTRIES: SentMessage}),
    ]
    system: Text | Many[TextBlock] | None = None
    tools: (
        Annotated[
            tuple[Raw, ...],
            Meta(max_length=MAX_TOOLS, extra={ENTRIES: AnyTool | MessagesTool | TypedMessagesTool}),
        ]
        | None
    ) = None
    tool_choice: ToolSelection | None = None
    mcp_servers: Many[SentMcpServer] | None = None
    thinking: Thinking | None = None
    output_config: OutputConfig | None = None
    output_format: SchemaFormat | None = None
    context_management: ContextEdits | None = None
    stop_sequences: Annotated[tuple[StopString, ...], Meta(max_length=64)] | None = None
    metadata: SenderData | None = None  # type: ignore[assignment]
    service_tier: Tier | None = None  # type: ignore[assignment]
    thread: Json | None = None
    cache_control: Any = None


class MessagesRequest(CountedMessages, frozen=True, kw_only=True):
    """The body of `POST /v1/messages`."""

    max_tokens: Positive
