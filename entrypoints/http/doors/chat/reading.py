"""Read a chat request as the CreateResponse that stands for it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec.structs import replace

from antiphon.application.input.from_request import LOGPROBS
from antiphon.domain.errors import RequestError
from antiphon.domain.requests.decoding import DecodedRequest, decode_request_body
from antiphon.domain.requests.request import (
    AnyFormat,
    CreateResponse,
    JsonSchemaFormat,
    ReasoningParams,
    TextParams,
)
from antiphon.entrypoints.http.api.creation import IncomingRequest
from antiphon.entrypoints.http.doors.chat.chunks import ChatEncoder
from antiphon.entrypoints.http.doors.chat.completion import ChatView
from antiphon.entrypoints.http.doors.chat.input import ReadMessages
from antiphon.entrypoints.http.doors.chat.request import ChatRequest, ChatSchemaFormat
from antiphon.entrypoints.http.doors.chat.tools import read_choice, read_tools
from antiphon.entrypoints.http.doors.choices import Choices, ChoicesEncoder, UsageView, with_seed
from antiphon.entrypoints.http.doors.places import Places
from antiphon.entrypoints.http.wire.bodies import reject_unknown_fields

FIELDS: Mapping[str, str] = {
    "include": "logprobs",
    "input": "messages",
    "reasoning.effort": "reasoning_effort",
    "text.format": "response_format",
    "text.format.name": "response_format.json_schema.name",
    "text.format.schema": "response_format.json_schema.schema",
    "text.verbosity": "verbosity",
}
"""Fields of Responses that have another name here."""

_OF_FILE = re.compile(r"\.(file_data|file_id|file_url|filename)$")

HARMLESS: Mapping[str, tuple[Any, ...]] = {
    "modalities": (("text",),),
    "prediction": (),
}
"""Fields without effect, with the values that ask for what happens anyway."""

DOOR = "chat_completions"

_encode = msgspec.json.Encoder().encode


def read_chat(body: bytes, *, strict: bool) -> IncomingRequest:
    """Read the body of `POST /v1/chat/completions`.

    Raises: RequestError, also for an unknown key if `strict`.
    """
    decoded = decode_request_body(body, ChatRequest)
    if strict:
        reject_unknown_fields(decoded)
    chat = decoded.request
    _check(chat)
    messages = ReadMessages(chat.messages)
    tools, tool_places = read_tools(chat)
    limit = "max_tokens" if chat.max_completion_tokens is None else "max_completion_tokens"
    places = Places(
        items=messages.items.places,
        tools=tool_places,
        fields=FIELDS,
        sent={
            "max_output_tokens": limit,
            "tool_choice": "function_call" if chat.tool_choice is None else "tool_choice",
        },
        name_in_part=_name_in_part,
    )
    options = chat.stream_options
    request = _request_of(chat, messages, tuple(tools))
    view = ChatView(
        legacy_calls=_calls_once(chat),
        usage=UsageView() if options is None else options.usage,
    )
    read = IncomingRequest(
        decoded=DecodedRequest(
            request=request,
            unknown=decoded.unknown,
            without_effect=(*decoded.without_effect, *messages.ignored, *_ignored(chat)),
        ),
        door=DOOR,
        is_stateless=True,
        may_store=chat.store is None,
        encoder=ChatEncoder(view),
        job_body=lambda: _encode(request),
        name_of=places.name_of,
    )
    if chat.n is None or chat.n == 1:
        return read
    choices = Choices(chat.n)
    several = ChoicesEncoder([ChatEncoder(view, number, choices) for number in range(chat.n)])
    others = [with_seed(request, number) for number in range(1, chat.n)]
    return replace(read, encoder=several, others=others, select=several.select)


def _request_of(
    chat: ChatRequest, messages: ReadMessages, tools: tuple[Any, ...]
) -> CreateResponse:
    effort = chat.reasoning_effort
    text_format = _format_of(chat)
    has_text = text_format is not None or chat.verbosity is not None
    limits = (chat.max_completion_tokens, chat.max_tokens)
    return CreateResponse(
        **{
            **chat.shared(),
            "stream_options": chat.stream_options and chat.stream_options.shared,
            "store": chat.store is True,
            "input": tuple(messages.items.raw),
            "tools": tools or None,
            "tool_choice": read_choice(chat),
            "parallel_tool_calls": False if _calls_once(chat) else chat.parallel_tool_calls,
            "max_output_tokens": next((each for each in limits if each is not None), None),
            "reasoning": None if effort is None else ReasoningParams(effort=effort),
            "text": TextParams(format=text_format, verbosity=chat.verbosity) if has_text else None,
            "include": (LOGPROBS,) if chat.logprobs else None,
            "top_logprobs": chat.top_logprobs if chat.logprobs else None,
        }
    )


def _name_in_part(rest: str) -> str:
    return _OF_FILE.sub(r".file.\1", rest)


def _calls_once(chat: ChatRequest) -> bool:
    return chat.functions is not None and chat.tools is None


def _format_of(chat: ChatRequest) -> AnyFormat | None:
    given = chat.response_format
    if not isinstance(given, ChatSchemaFormat):
        return given
    schema = given.json_schema
    return JsonSchemaFormat(
        name=schema.name,
        description=schema.description,
        schema=schema.schema,
        strict=schema.strict,
    )


def _check(chat: ChatRequest) -> None:
    """Raises: RequestError for what this door cannot do."""
    if chat.top_logprobs is not None and not chat.logprobs:
        raise RequestError(
            "'top_logprobs' can only be used when 'logprobs' is true.",
            param="top_logprobs",
            code="invalid_value",
        )
    if chat.audio is not None or "audio" in (chat.modalities or ()):
        name = "modalities" if chat.audio is None else "audio"
        raise RequestError(
            f"{name!r} asks for audio, and no model here answers with any.",
            param=name,
            code="unsupported_value",
        )


def _ignored(chat: ChatRequest) -> Iterator[str]:
    yield from chat.unshared()
    for name, harmless in HARMLESS.items():
        if (value := getattr(chat, name)) is not None and value not in harmless:
            yield name
    if chat.max_completion_tokens is not None and chat.max_tokens not in (
        None,
        chat.max_completion_tokens,
    ):
        yield "max_tokens"
    options = chat.stream_options
    if options is not None and options.include_obfuscation:
        yield "stream_options.include_obfuscation"
