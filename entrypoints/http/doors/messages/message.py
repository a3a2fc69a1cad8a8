"""A finished Response as the message of the Messages API, and the parts that streams have too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType
from msgspec.structs import asdict

from antiphon.application.responses.count_tokens import TokenCount
from antiphon.domain.content import OutputText, Refusal, text_of
from antiphon.domain.items import FunctionCall, Message, WebSearchCall
from antiphon.domain.json import Json
from antiphon.domain.kinds.mcp import McpApprovalRequest
from antiphon.domain.kinds.reasoning import Reasoning
from antiphon.domain.responses.response import Response
from antiphon.domain.vocabulary.tool import parse_arguments
from antiphon.entrypoints.http.doors.citations import cited_page
from antiphon.entrypoints.http.doors.messages.tools import API
from antiphon.entrypoints.http.doors.server_tools import unapproved

StopReason = Literal[
    "end_turn",
    "max_tokens",
    "stop_sequence",
    "tool_use",
    "refusal",
    "model_context_window_exceeded",
]

CUT_REASONS: Mapping[str, StopReason] = {
    "content_filter": "refusal",
    "max_context": "model_context_window_exceeded",
}
"""Reasons why a response is incomplete; any other one is `max_tokens`."""


TIERS: Mapping[str, Literal["standard", "priority"]] = {
    "default": "standard",
    "priority": "priority",
}


class MessageView(Struct, frozen=True, kw_only=True):
    """The sight that a client has of its answer: of thoughts, all, only their seals, or nothing."""

    thoughts: Literal["shown", "sealed", "hidden"] = "shown"


# --- the object -----------------------------------------------------------------------------------


class WebCitation(
    Struct, frozen=True, kw_only=True, tag_field="type", tag="web_search_result_location"
):
    """A page that a text cites. Its words are not known here."""

    url: str
    title: str | None
    cited_text: str = ""
    encrypted_index: str = ""


class AnswerBlock(Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base class of the blocks of an answer."""


class AnswerText(AnswerBlock, frozen=True, kw_only=True, tag="text"):
    text: str
    citations: tuple[WebCitation, ...] | None = None


class AnswerThinking(AnswerBlock, frozen=True, kw_only=True, tag="thinking"):
    """Thoughts; the signature seals them, so that a client can send them back without the text."""

    thinking: str
    signature: str


class DirectCaller(Struct, frozen=True, kw_only=True):
    """Who makes a call: the model itself. Those of programs are not shown here."""

    type: Literal["direct"] = "direct"


class AnswerToolUse(AnswerBlock, frozen=True, kw_only=True, tag="tool_use"):
    id: str
    caller: DirectCaller = DirectCaller()
    name: str
    input: Json


AnyAnswerBlock = AnswerText | AnswerThinking | AnswerToolUse


class ThinkingTokens(Struct, frozen=True, kw_only=True):
    thinking_tokens: int


class SearchRequests(Struct, frozen=True, kw_only=True):
    web_search_requests: int
    web_fetch_requests: int = 0


class MessageUsage(Struct, frozen=True, kw_only=True):
    """The tokens of all turns of the response. Those of the prompt that came from the cache are not
    among the `input_tokens`."""

    input_tokens: int = 0
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0
    output_tokens: int = 0
    output_tokens_details: ThinkingTokens | None = None
    server_tool_use: SearchRequests | None = None


class AnswerUsage(MessageUsage, frozen=True, kw_only=True):
    """The usage of a message, with what only it has. This server knows no more of it than null."""

    cache_creation: None = None
    inference_geo: None = None
    service_tier: Literal["standard", "priority"] | None = None
    speed: None = None


class RefusalDetails(Struct, frozen=True, kw_only=True):
    """Why a model refused, of which nothing is known."""

    type: Literal["refusal"] = "refusal"
    category: None = None
    explanation: None = None


class MessageEnd(Struct, frozen=True, kw_only=True):
    """Why a message ended; `stop_sequence` is the one of the request that ended it."""

    stop_reason: StopReason
    stop_sequence: str | None = None
    stop_details: RefusalDetails | None = None
    container: None = None


class ToolUsesEdit(Struct, frozen=True, kw_only=True):
    type: Literal["clear_tool_uses_20250919"] = "clear_tool_uses_20250919"
    cleared_tool_uses: int
    cleared_input_tokens: int


class AppliedEdits(Struct, frozen=True, kw_only=True):
    """The edits that made room: what they name was not shown to the model."""

    applied_edits: tuple[ToolUsesEdit, ...]


class AnswerMessage(Struct, frozen=True, kw_only=True):
    """The answer of `POST /v1/messages`."""

    id: str
    type: Literal["message"] = "message"
    role: Literal["assistant"] = "assistant"
    model: str
    content: tuple[AnyAnswerBlock, ...]
    stop_reason: StopReason | None = None
    stop_sequence: str | None = None
    stop_details: RefusalDetails | None = None
    usage: AnswerUsage
    container: None = None
    diagnostics: None = None
    context_management: AppliedEdits | UnsetType = UNSET


class OriginalTokens(Struct, frozen=True):
    original_input_tokens: int


class CountedTokens(Struct, frozen=True):
    """The answer of `POST /v1/messages/count_tokens`."""

    input_tokens: int
    context_management: OriginalTokens | UnsetType = UNSET


# --- from a response ------------------------------------------------------------------------------


def message_of(response: Response, view: MessageView) -> AnswerMessage:
    """Return the message of a finished response."""
    end = end_of(response)
    return AnswerMessage(
        id=message_id(response.id),
        model=response.model,
        content=tuple(_blocks_of(response, view)),
        stop_reason=end.stop_reason,
        stop_sequence=end.stop_sequence,
        stop_details=end.stop_details,
        usage=whole_usage_of(response),
        context_management=edits_of(response),
    )


def counted_of(count: TokenCount) -> CountedTokens:
    """Return the count of a prompt, and of what it would have been without edits."""
    if count.cleared is None:
        return CountedTokens(count.tokens)
    return CountedTokens(count.tokens, OriginalTokens(count.tokens + count.cleared.input_tokens))


def edits_of(response: Response) -> AppliedEdits | UnsetType:
    """Return the edits that were applied, UNSET for none."""
    cleared = response.cleared_tool_uses
    if cleared is UNSET:
        return UNSET
    edit = ToolUsesEdit(
        cleared_tool_uses=cleared.tool_uses, cleared_input_tokens=cleared.input_tokens
    )
    return AppliedEdits(applied_edits=(edit,))


def _blocks_of(response: Response, view: MessageView) -> Iterator[AnyAnswerBlock]:
    for item in response.output:
        if isinstance(item, Message) and isinstance(item.content, tuple):
            yield from _texts_of(item.content)
        elif isinstance(item, Reasoning):
            text = text_of(item.content or ())
            if text and view.thoughts != "hidden":
                yield AnswerThinking(
                    thinking=text if view.thoughts == "shown" else "",
                    signature=signature_of(item),
                )
        elif isinstance(item, FunctionCall):
            arguments = parse_arguments(item.arguments) or {}
            yield AnswerToolUse(id=item.call_id, name=item.name, input=arguments)
        elif isinstance(item, McpApprovalRequest):
            yield AnswerText(text=unapproved(item, api=API))


def _texts_of(parts: tuple[Any, ...]) -> Iterator[AnswerText]:
    for part in parts:
        if isinstance(part, Refusal) and part.refusal:
            yield AnswerText(text=part.refusal)
        elif isinstance(part, OutputText) and part.text:
            found = (citation_of(each) for each in part.annotations or ())
            citations = tuple(each for each in found if each is not None)
            yield AnswerText(text=part.text, citations=citations or None)


def message_id(response_id: str) -> str:
    """Return the id that a client of this API sees: the response can be found by it.

    >>> message_id("resp_1a")
    'msg_1a'
    """
    return f"msg_{response_id.removeprefix('resp_')}"


def signature_of(item: Reasoning) -> str:
    return item.encrypted_content or ""


def end_of(response: Response) -> MessageEnd:
    """Return why a response ended."""
    if response.incomplete_details is not None:
        reason = CUT_REASONS.get(response.incomplete_details.reason, "max_tokens")
        return _refused() if reason == "refusal" else MessageEnd(stop_reason=reason)
    if any(isinstance(item, FunctionCall) for item in response.output):
        return MessageEnd(stop_reason="tool_use")
    if any(map(_refuses, response.output)):
        return _refused()
    if response.stop_string is not UNSET:
        return MessageEnd(stop_reason="stop_sequence", stop_sequence=response.stop_string)
    return MessageEnd(stop_reason="end_turn")


def _refused() -> MessageEnd:
    return MessageEnd(stop_reason="refusal", stop_details=RefusalDetails())


def _refuses(item: Any) -> bool:
    if not isinstance(item, Message) or not isinstance(item.content, tuple):
        return False
    return any(isinstance(part, Refusal) for part in item.content)


def usage_of(response: Response) -> MessageUsage:
    """Return the usage of a response, all zero if it is unknown."""
    usage = response.usage
    if usage is None:
        return MessageUsage()
    cached = usage.input_tokens_details.cached_tokens
    searches = sum(isinstance(item, WebSearchCall) for item in response.output)
    return MessageUsage(
        input_tokens=usage.input_tokens - cached,
        cache_read_input_tokens=cached,
        output_tokens=usage.output_tokens,
        output_tokens_details=ThinkingTokens(
            thinking_tokens=usage.output_tokens_details.reasoning_tokens
        ),
        server_tool_use=SearchRequests(web_search_requests=searches) if searches else None,
    )


def whole_usage_of(response: Response) -> AnswerUsage:
    """Return the usage of a response as its message has it."""
    tier = TIERS.get(response.service_tier)
    return AnswerUsage(**asdict(usage_of(response)), service_tier=tier)


def citation_of(annotation: Any) -> WebCitation | None:
    """Return a citation; only URLs can be shown here."""
    cited = cited_page(annotation)
    return None if cited is None else WebCitation(url=cited.url, title=cited.title)
