"""Read a request of the Messages API as the CreateResponse that stands for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import msgspec

from antiphon.application.model.models import Models
from antiphon.domain.errors import RequestError
from antiphon.domain.history.sessions import NAME_KEY
from antiphon.domain.history.tool_uses import ClearToolUses
from antiphon.domain.requests.decoding import DecodedRequest, decode_request_body
from antiphon.domain.requests.request import (
    CreateResponse,
    JsonSchemaFormat,
    TextParams,
)
from antiphon.entrypoints.http.api.creation import IncomingRequest
from antiphon.entrypoints.http.doors.messages.input import ReadBlocks, instructions_of
from antiphon.entrypoints.http.doors.messages.message import MessageView
from antiphon.entrypoints.http.doors.messages.models import answering_name, known_efforts
from antiphon.entrypoints.http.doors.messages.request import (
    CountedMessages,
    MessagesRequest,
    SenderData,
)
from antiphon.entrypoints.http.doors.messages.stream import MessageEncoder
from antiphon.entrypoints.http.doors.messages.thinking import (
    ignored_by,
    is_off,
    kept_turns,
    reasoning_of,
)
from antiphon.entrypoints.http.doors.messages.tools import ReadTools, calls_once
from antiphon.entrypoints.http.doors.places import Places
from antiphon.entrypoints.http.errors import THREADS_UNSUPPORTED
from antiphon.entrypoints.http.wire.bodies import reject_unknown_fields

R = TypeVar("R", bound=CountedMessages)

SEALED = "reasoning.encrypted_content"
FORMAT_NAME = "answer"
"""Of a schema; this API has no names for them."""

FIELDS: Mapping[str, str] = {
    "input": "messages",
    "instructions": "system",
    "max_output_tokens": "max_tokens",
    "reasoning.effort": "output_config.effort",
}
"""Fields of Responses that have another name here."""

DOOR = "messages"

_encode = msgspec.json.Encoder().encode


def read_messages(body: bytes, *, strict: bool, models: Models) -> IncomingRequest:
    """Read the body of `POST /v1/messages`; `models` are those of its sender.

    Raises: RequestError, also for an unknown key if `strict`.
    """
    decoded = decode_request_body(body, MessagesRequest)
    return _read(decoded, decoded.request.max_tokens, models, strict=strict)


def read_counted(body: bytes, *, strict: bool, models: Models) -> IncomingRequest:
    """Read the body of `POST /v1/messages/count_tokens`; see `read_messages`."""
    return _read(decode_request_body(body, CountedMessages), None, models, strict=strict)


def _read(
    decoded: DecodedRequest[R], max_tokens: int | None, models: Models, *, strict: bool
) -> IncomingRequest:
    if strict:
        reject_unknown_fields(decoded)
    sent = decoded.request
    _check(sent)
    model = answering_name(sent.model, models)
    efforts = known_efforts(model, models)
    tools = ReadTools(sent)
    messages = ReadBlocks(
        sent.messages,
        deferred=tools.deferred,
        efforts=() if is_off(sent) else efforts,
        kept_turns=kept_turns(sent),
    )
    schema = _schema_field(sent)
    places = Places(
        items=messages.items.places,
        tools=tools.places,
        fields=FIELDS,
        sent={
            "text.format": schema,
            "text.format.schema": f"{schema}.schema",
            "stop": "stop" if sent.stop_sequences is None else "stop_sequences",
            "user": "user" if sent.user is not None else "metadata.user_id",
        },
    )
    shown = _format_of(sent)
    sender = sent.metadata or SenderData()
    request = CreateResponse(
        **{
            **sent.shared(),
            "model": model,
            "metadata": None
            if sender.antiphon_session is None
            else {NAME_KEY: sender.antiphon_session},
            "user": sent.user or sender.user_id,
            "store": sent.store is True,
            "service_tier": "default"
            if sent.service_tier == "standard_only"
            else sent.service_tier,
            "stop": sent.stop if sent.stop_sequences is None else sent.stop_sequences or None,
            "instructions": instructions_of(sent.system),
            "input": tuple(messages.items.raw),
            "tools": tuple(tools.raw) or None,
            "tool_choice": tools.choice_of(sent.tool_choice),
            "parallel_tool_calls": False
            if calls_once(sent.tool_choice)
            else sent.parallel_tool_calls,
            "max_output_tokens": max_tokens,
            "reasoning": reasoning_of(sent, efforts),
            "context_management": _tool_edits(sent) or None,
            "text": None if shown is None else TextParams(format=shown),
            "include": (SEALED,),
        }
    )
    ignored = filter(None, (ignored_by(sent, efforts), *sent.unshared(), *tools.ignored))
    return IncomingRequest(
        decoded=DecodedRequest(
            request=request,
            unknown=decoded.unknown,
            without_effect=(*decoded.without_effect, *ignored),
        ),
        door=DOOR,
        is_stateless=True,
        may_store=sent.store is None,
        encoder=MessageEncoder(MessageView(thoughts=_thoughts_of(sent))),
        job_body=lambda: _encode(request),
        name_of=places.name_of,
    )


def _tool_edits(sent: CountedMessages) -> tuple[ClearToolUses, ...]:
    edits = (sent.context_management.edits or ()) if sent.context_management else ()
    return tuple(edit for edit in edits if isinstance(edit, ClearToolUses))


def _thoughts_of(sent: CountedMessages) -> Any:
    if is_off(sent):
        return "hidden"
    is_sealed = sent.thinking is not None and sent.thinking.display == "omitted"
    return "sealed" if is_sealed else "shown"


def _schema_field(sent: CountedMessages) -> str:
    return "output_format" if sent.output_format is not None else "output_config.format"


def _format_of(sent: CountedMessages) -> JsonSchemaFormat | None:
    config = sent.output_config
    given = sent.output_format or (None if config is None else config.format)
    if given is None:
        return None
    return JsonSchemaFormat(name=FORMAT_NAME, schema=given.schema, strict=None)


def _check(sent: CountedMessages) -> None:
    """Raises: RequestError for what this door cannot do, and for fields that contradict others."""
    if sent.thread is not None:
        raise RequestError(
            "'thread' is not supported: this server keeps no conversations of the Messages API. "
            "Send all messages, or use POST /v1/responses with 'previous_response_id'.",
            param="thread",
            code=THREADS_UNSUPPORTED,
        )
    for name in _contradictions(sent):
        raise RequestError(
            f"{name!r} is there twice, under two names. Send one of them.",
            param=name,
            code="invalid_value",
        )


def _contradictions(sent: CountedMessages) -> Iterator[str]:
    if sent.stop is not None and sent.stop_sequences is not None:
        yield "stop_sequences"
    config = sent.output_config
    if sent.output_format is not None and config is not None and config.format is not None:
        yield "output_format"
