"""A finished Response as the object of Chat Completions, and the parts that chunks have too."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

from msgspec import UNSET, Struct, UnsetType

from antiphon.domain.content import OutputText, Refusal, text_of
from antiphon.domain.items import FunctionCall, Message
from antiphon.domain.kinds.custom import CustomToolCall
from antiphon.domain.kinds.mcp import McpApprovalRequest
from antiphon.domain.kinds.reasoning import Reasoning
from antiphon.domain.responses.response import Response
from antiphon.entrypoints.http.doors.choices import CompletionUsage, UsageView, usage_of
from antiphon.entrypoints.http.doors.citations import cited_page
from antiphon.entrypoints.http.doors.joined_text import WholeText
from antiphon.entrypoints.http.doors.server_tools import unapproved

FinishReason = Literal["stop", "length", "tool_calls", "content_filter", "function_call"]

API = "Chat Completions"
ID_PREFIX = "chatcmpl-"


class ChatView(Struct, frozen=True, kw_only=True):
    """The sight that a client has of its answer.

    `legacy_calls`: it offered `functions`, so a call is a `function_call`.
    """

    legacy_calls: bool = False
    usage: UsageView = UsageView()


# --- the object -----------------------------------------------------------------------------------


class CompletionFunction(Struct, frozen=True, kw_only=True):
    """A called function; in a stream, its name comes first and its arguments in pieces."""

    name: str | UnsetType = UNSET
    arguments: str


class CompletionCustom(Struct, frozen=True, kw_only=True):
    """A called custom tool; see CompletionFunction."""

    name: str | UnsetType = UNSET
    input: str


class CompletionCall(Struct, frozen=True, kw_only=True):
    """A call; `index` is there in streams, and the rest is there once."""

    index: int | UnsetType = UNSET
    id: str | UnsetType = UNSET
    type: Literal["function", "custom"] | UnsetType = UNSET
    function: CompletionFunction | UnsetType = UNSET
    custom: CompletionCustom | UnsetType = UNSET


class CitedUrl(Struct, frozen=True, kw_only=True):
    start_index: int
    end_index: int
    url: str
    title: str


class CompletionCitation(Struct, frozen=True, kw_only=True):
    type: Literal["url_citation"] = "url_citation"
    url_citation: CitedUrl


class CompletionMessage(Struct, frozen=True, kw_only=True):
    """The answer. Reasoning has two names, because clients read one or the other."""

    role: Literal["assistant"] = "assistant"
    content: str | None
    refusal: str | None = None
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    annotations: tuple[CompletionCitation, ...] | UnsetType = UNSET
    tool_calls: tuple[CompletionCall, ...] | UnsetType = UNSET
    function_call: CompletionFunction | UnsetType = UNSET


class CompletionDelta(Struct, frozen=True, kw_only=True):
    """The part of the answer that a chunk adds."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET
    refusal: str | UnsetType = UNSET
    reasoning_content: str | UnsetType = UNSET
    reasoning: str | UnsetType = UNSET
    annotations: tuple[CompletionCitation, ...] | UnsetType = UNSET
    tool_calls: tuple[CompletionCall, ...] | UnsetType = UNSET
    function_call: CompletionFunction | UnsetType = UNSET


class ChoiceLogprobs(Struct, frozen=True, kw_only=True):
    """The log probabilities of the tokens of the content."""

    content: tuple[Any, ...]
    refusal: None = None


class CompletionChoice(Struct, frozen=True, kw_only=True):
    index: int = 0
    message: CompletionMessage
    logprobs: ChoiceLogprobs | None = None
    finish_reason: FinishReason


class ChatCompletion(Struct, frozen=True, kw_only=True):
    """The answer of `POST /v1/chat/completions`."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: tuple[CompletionChoice, ...]
    usage: CompletionUsage | None
    service_tier: str


class ChatCompletionList(Struct, frozen=True, kw_only=True):
    """A page of `GET /v1/chat/completions`; send `last_id` as `after` to get the next one."""

    object: Literal["list"] = "list"
    data: tuple[ChatCompletion, ...]
    first_id: str | None
    last_id: str | None
    has_more: bool


# --- from a response ------------------------------------------------------------------------------


def completion_of(responses: Sequence[Response], view: ChatView) -> ChatCompletion:
    """Return the completion whose choices are these finished responses; the first gives its id."""
    first = responses[0]
    return ChatCompletion(
        id=completion_id(first.id),
        created=first.created_at,
        model=first.model,
        choices=tuple(_choice_of(each, number, view) for number, each in enumerate(responses)),
        usage=usage_of([each.usage for each in responses], to_prompt=len(responses)),
        service_tier=first.service_tier,
    )


def _choice_of(response: Response, choice: int, view: ChatView) -> CompletionChoice:
    content, refusal, thoughts = WholeText(), WholeText(), WholeText()
    citations: list[CompletionCitation] = []
    logprobs: list[Any] = []
    calls: list[CompletionCall] = []
    for index, item in enumerate(response.output):
        if isinstance(item, Message):
            for number, part in enumerate(_parts_of(item)):
                if isinstance(part, Refusal):
                    refusal.add(index, number, part.refusal)
                elif isinstance(part, OutputText):
                    content.add(index, number, part.text)
                    start = content.start_of(index, number)
                    citations += _citations(part.annotations or (), start)
                    logprobs += part.logprobs or ()
        elif isinstance(item, Reasoning):
            thoughts.add(index, 0, text_of(item.content or ()))
        elif isinstance(item, FunctionCall | CustomToolCall):
            calls.append(_call_of(item))
        elif isinstance(item, McpApprovalRequest):
            refusal.add(index, 0, unapproved(item, api=API))
    legacy = calls[0].function if calls and view.legacy_calls else UNSET
    message = CompletionMessage(
        content=content.text or None if calls or refusal.text else content.text,
        refusal=refusal.text or None,
        reasoning_content=thoughts.text or UNSET,
        reasoning=thoughts.text or UNSET,
        annotations=tuple(citations) or UNSET,
        tool_calls=UNSET if view.legacy_calls else tuple(calls) or UNSET,
        function_call=legacy,
    )
    return CompletionChoice(
        index=choice,
        message=message,
        logprobs=ChoiceLogprobs(content=tuple(logprobs)) if logprobs else None,
        finish_reason=finish_reason_of(response, view),
    )


def completion_id(response_id: str) -> str:
    """Return the id that a chat client sees: the response can be found by it.

    >>> completion_id("resp_1a")
    'chatcmpl-1a'
    """
    return f"{ID_PREFIX}{response_id.removeprefix('resp_')}"


def response_id_of(completion_id: str) -> str:
    """Return the id of a completion's response.

    >>> response_id_of("chatcmpl-1a"), response_id_of("resp_1a")
    ('resp_1a', 'resp_1a')
    """
    if not completion_id.startswith(ID_PREFIX):
        return completion_id
    return f"resp_{completion_id.removeprefix(ID_PREFIX)}"


def finish_reason_of(response: Response, view: ChatView) -> FinishReason:
    """Return why a response ended."""
    if response.incomplete_details is not None:
        cut = response.incomplete_details.reason
        return "content_filter" if cut == "content_filter" else "length"
    if any(isinstance(item, FunctionCall | CustomToolCall) for item in response.output):
        return "function_call" if view.legacy_calls else "tool_calls"
    return "stop"


def citation_of(annotation: Any, start: int) -> CompletionCitation | None:
    """Return a citation of a text that begins at `start`; only URLs can be shown here."""
    cited = cited_page(annotation)
    if cited is None:
        return None
    return CompletionCitation(
        url_citation=CitedUrl(
            start_index=start + cited.start_index,
            end_index=start + cited.end_index,
            url=cited.url,
            title=cited.title,
        )
    )


def _citations(annotations: Any, start: int) -> Iterator[CompletionCitation]:
    for annotation in annotations:
        if (citation := citation_of(annotation, start)) is not None:
            yield citation


def _parts_of(message: Message) -> tuple[Any, ...]:
    return message.content if isinstance(message.content, tuple) else ()


def _call_of(item: FunctionCall | CustomToolCall) -> CompletionCall:
    if isinstance(item, FunctionCall):
        function = CompletionFunction(name=item.name, arguments=item.arguments)
        return CompletionCall(id=item.call_id, type="function", function=function)
    custom = CompletionCustom(name=item.name, input=item.input)
    return CompletionCall(id=item.call_id, type="custom", custom=custom)
