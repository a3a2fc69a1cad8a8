"""The body of `POST /v1/chat/completions`: its fields with types and limits.

Messages and tools stay raw here and are decoded one by one, so that an error names the one at
fault.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Raw, Struct

from antiphon.domain.bounds import MAX_MEMBERS, Long, Many, Name, Text
from antiphon.domain.content import (
    InputAudio,
    InputFile,
    InputImage,
    InputText,
    OutputText,
    PlainText,
    Refusal,
)
from antiphon.domain.json import Json
from antiphon.domain.requests.request import (
    MAX_TOOLS,
    Effort,
    JsonObjectFormat,
    PlainFormat,
    Positive,
    SharedFields,
    StreamOptions,
    TopLogprobs,
    Verbosity,
)
from antiphon.domain.requests.unknown_keys import ENTRIES
from antiphon.domain.tools import AnyTool
from antiphon.domain.vocabulary.item import CallId
from antiphon.domain.vocabulary.text_formats import FormatName
from antiphon.domain.vocabulary.tool import ToolName
from antiphon.entrypoints.http.doors.choices import UsageView


class Linked(Struct, frozen=True, kw_only=True):
    """An image or a video at a URL, or in a data URL."""

    url: Text
    detail: Literal["low", "high", "auto", "original"] | None = None


class ChatImage(Struct, frozen=True, kw_only=True, tag_field="type", tag="image_url"):
    image_url: Linked | Text


class ChatVideo(Struct, frozen=True, kw_only=True, tag_field="type", tag="video_url"):
    video_url: Linked | Text


class FileContent(Struct, frozen=True, kw_only=True):
    """One of `file_id`, `file_data` (base64 or a data URL) and `file_url`."""

    file_id: Text | None = None
    file_data: Text | None = None
    file_url: Text | None = None
    filename: Text | None = None


class ChatFile(Struct, frozen=True, kw_only=True, tag_field="type", tag="file"):
    file: FileContent


ChatPart = (
    PlainText
    | ChatImage
    | ChatVideo
    | ChatFile
    | InputAudio
    | Refusal
    | InputText
    | InputImage
    | InputFile
    | OutputText
)
"""The parts of Chat Completions, and those of Responses, which some clients send here."""


class CalledFunction(Struct, frozen=True, kw_only=True):
    name: Text
    arguments: Text
    parsed_arguments: Any = None  # the SDK's, without meaning


class CalledCustom(Struct, frozen=True, kw_only=True):
    name: Text
    input: Text


class ChatCall(Struct, frozen=True, kw_only=True):
    """A call that the model made: of a function, or of a custom tool."""

    id: CallId
    type: Literal["function", "custom"] = "function"
    function: CalledFunction | None = None
    custom: CalledCustom | None = None
    index: Any = None  # of a stream, without meaning


class ChatMessage(Struct, frozen=True, kw_only=True):
    """A message of any role; `input.py` says which fields belong to which."""

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Text | Long[ChatPart] | None = None
    name: Text | None = None
    refusal: Text | None = None
    reasoning_content: Text | None = None
    reasoning: Text | None = None
    tool_calls: Many[ChatCall] | None = None
    function_call: CalledFunction | None = None
    tool_call_id: CallId | None = None
    audio: Any = None
    annotations: Any = None  # these two are of an answer that comes back
    parsed: Any = None


class ChatFunction(Struct, frozen=True, kw_only=True):
    """A function that the client runs."""

    name: ToolName
    description: Text | None = None
    parameters: Json | None = None
    strict: bool | None = None


class ChatFunctionTool(Struct, frozen=True, kw_only=True, tag_field="type", tag="function"):
    function: ChatFunction


class ChatCustom(Struct, frozen=True, kw_only=True):
    """A tool whose input is free text, or follows a grammar."""

    name: ToolName
    description: Text | None = None
    format: Json | None = None


class ChatCustomTool(Struct, frozen=True, kw_only=True, tag_field="type", tag="custom"):
    custom: ChatCustom


class ChatSchema(Struct, frozen=True, kw_only=True):
    name: FormatName
    description: Text | None = None
    schema: Json
    strict: bool | None = None


class ChatSchemaFormat(Struct, frozen=True, kw_only=True, tag_field="type", tag="json_schema"):
    json_schema: ChatSchema


class ChatStreamOptions(Struct, frozen=True, kw_only=True):
    """`continuous_usage_stats` is vLLM's."""

    include_usage: bool | None = None
    include_obfuscation: bool | None = None
    continuous_usage_stats: bool | None = None

    @property
    def usage(self) -> UsageView:
        return UsageView(
            at_end=self.include_usage is True, in_chunks=self.continuous_usage_stats is True
        )

    @property
    def shared(self) -> StreamOptions | None:
        """The options that the events depend on."""
        return StreamOptions(continuous_usage_stats=True) if self.continuous_usage_stats else None


class SearchLocation(Struct, frozen=True, kw_only=True):
    type: Literal["approximate"] = "approximate"
    approximate: Json


class SearchOptions(Struct, frozen=True, kw_only=True):
    """A web search that is offered without being among the tools."""

    search_context_size: Literal["low", "medium", "high"] | None = None
    user_location: SearchLocation | None = None


class ChatRequest(SharedFields, frozen=True, kw_only=True):
    """The body of `POST /v1/chat/completions`."""

    messages: Annotated[
        tuple[Raw, ...],
        Meta(min_length=1, max_length=MAX_MEMBERS, extra={ENTRIES: ChatMessage}),
    ]
    max_tokens: Positive | None = None
    max_completion_tokens: Positive | None = None
    n: Annotated[int, Meta(ge=1, le=128)] | None = None
    logprobs: bool | None = None
    top_logprobs: TopLogprobs | None = None
    stream_options: ChatStreamOptions | None = None
    reasoning_effort: Effort | None = None
    verbosity: Verbosity | None = None
    response_format: PlainFormat | JsonObjectFormat | ChatSchemaFormat | None = None
    tools: (
        Annotated[
            tuple[Raw, ...],
            Meta(
                max_length=MAX_TOOLS, extra={ENTRIES: AnyTool | ChatFunctionTool | ChatCustomTool}
            ),
        ]
        | None
    ) = None
    tool_choice: Name | Json | None = None
    functions: Many[ChatFunction] | None = None
    function_call: Name | Json | None = None
    web_search_options: SearchOptions | None = None
    modalities: Many[Name] | None = None
    audio: Json | None = None
    prediction: Json | None = None
