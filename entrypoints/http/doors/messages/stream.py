"""Events as the events of a stream of the Messages API.

A stream is one message: blocks follow each other, and only one is open at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from antiphon.domain import events as e
from antiphon.domain.errors import ServerShuttingDown
from antiphon.domain.items import FunctionCall
from antiphon.domain.kinds.mcp import McpApprovalRequest
from antiphon.domain.kinds.reasoning import Reasoning
from antiphon.domain.responses.response import Failure, Response
from antiphon.entrypoints.http.doors.messages.message import (
    AnswerMessage,
    AnswerText,
    AnswerThinking,
    AnswerToolUse,
    AnyAnswerBlock,
    MessageView,
    citation_of,
    edits_of,
    end_of,
    message_id,
    message_of,
    signature_of,
    usage_of,
    whole_usage_of,
)
from antiphon.entrypoints.http.doors.messages.tools import API
from antiphon.entrypoints.http.doors.server_tools import unapproved
from antiphon.entrypoints.http.errors import error_json
from antiphon.entrypoints.http.wire.dialects import MESSAGES, Dialect
from antiphon.entrypoints.http.wire.sse import EventEncoder

_encode = msgspec.json.Encoder().encode

STOP = b'event: message_stop\ndata: {"type":"message_stop"}\n\n'

TEXT, THOUGHTS, SEALED, CALL = "text", "thoughts", "sealed", "call"


class OpenBlock(Struct, frozen=True):
    """The block that is open: its place, and the item, and for a text the part, that it shows."""

    index: int
    kind: str
    item: int
    part: int = 0


class MessageEncoder(EventEncoder):
    """Encodes the events of one response as those of a stream, or the response as a message."""

    def __init__(self, view: MessageView) -> None:
        self._view = view
        self._count = 0
        self._open: OpenBlock | None = None
        self._before_text = b""
        self._is_over = False

    @property
    def dialect(self) -> Dialect:
        return MESSAGES

    def frames(self, events: Sequence[e.Event]) -> bytes:
        frames: list[bytes] = []
        for event in events:
            # Nearly all are texts: no object is made for these.
            if type(event) is e.TextDelta and event.delta:
                frames += self._text(event.output_index, event.content_index, event.delta)
            else:
                frames += self._frames_of(event)
        return b"".join(frames)

    def last_frame(self) -> bytes:
        if self._is_over:
            return b""
        # The server stops, and the response goes on elsewhere: this stream is not the whole answer.
        error = ServerShuttingDown()
        return self._error(503, error.message, error.code)

    def encode_response(self, value: Any) -> bytes:
        return _encode(message_of(value, self._view) if isinstance(value, Response) else value)

    def _frames_of(self, event: e.Event) -> Iterator[bytes]:
        if (read := _BLOCKS.get(type(event))) is not None:
            yield from read(self, event)
        elif isinstance(event, e.Created):
            yield self._begin(event.response)
            yield MESSAGES.keepalive_event
        elif isinstance(event, e.Error):
            yield self._error(500, event.message, event.code)
        elif isinstance(event, e.Failed) and not self._is_over:
            yield self._fail(event.response.error)
        elif isinstance(event, e.Completed | e.Incomplete):
            yield from self._close()
            self._is_over = True
            usage = usage_of(event.response)
            edits = edits_of(event.response)
            told = {} if edits is UNSET else {"context_management": edits}
            yield _frame("message_delta", delta=end_of(event.response), usage=usage, **told)
            yield STOP

    def _begin(self, response: Response) -> bytes:
        message = AnswerMessage(
            id=message_id(response.id),
            model=response.model,
            content=(),
            usage=whole_usage_of(response),
        )
        return _frame("message_start", message=message)

    def _fail(self, failure: Failure | None) -> bytes:
        if failure is None:
            return self._error(500, "The response failed.", "server_error")
        return self._error(500, failure.message, failure.code)

    def _error(self, status: int, message: str, code: str | None) -> bytes:
        self._is_over = True
        return b"event: error\ndata: " + error_json(status, message, None, code, MESSAGES) + b"\n\n"

    # --- blocks ---

    def _text(self, item: int, part: int, text: str) -> Iterator[bytes]:
        block = self._open
        if block is None or block.kind != TEXT or (block.item, block.part) != (item, part):
            yield from self._begin_block(AnswerText(text=""), TEXT, item, part)
            self._before_text = _before_delta(self._count - 1, b'"text_delta","text":')
        yield self._before_text
        yield _encode(text)
        yield b"}}\n\n"

    def _refuse(self, event: e.RefusalDelta) -> Iterator[bytes]:
        if event.delta:
            yield from self._text(event.output_index, event.content_index, event.delta)

    def _think(self, event: e.ReasoningDelta) -> Iterator[bytes]:
        if not event.delta or self._view.thoughts == "hidden":
            return
        is_shown = self._view.thoughts == "shown"
        kind = THOUGHTS if is_shown else SEALED
        if self._open is None or (self._open.kind, self._open.item) != (kind, event.output_index):
            empty = AnswerThinking(thinking="", signature="")
            yield from self._begin_block(empty, kind, event.output_index)
        if is_shown:
            yield self._delta({"type": "thinking_delta", "thinking": event.delta})

    def _cite(self, event: e.AnnotationAdded) -> Iterator[bytes]:
        citation = citation_of(event.annotation)
        block = self._open
        place = (event.output_index, event.content_index)
        if citation is not None and block is not None and (block.item, block.part) == place:
            yield self._delta({"type": "citations_delta", "citation": citation})

    def _open_item(self, event: e.ItemAdded) -> Iterator[bytes]:
        item = event.item
        if isinstance(item, FunctionCall):
            call = AnswerToolUse(id=item.call_id, name=item.name, input={})
            yield from self._begin_block(call, CALL, event.output_index)

    def _argue(self, event: e.ArgumentsDelta) -> Iterator[bytes]:
        yield self._delta({"type": "input_json_delta", "partial_json": event.delta})

    def _close_item(self, event: e.ItemDone) -> Iterator[bytes]:
        item = event.item
        if isinstance(item, McpApprovalRequest):
            yield from self._text(event.output_index, 0, unapproved(item, api=API))
        if isinstance(item, Reasoning) and self._open is not None:
            yield self._delta({"type": "signature_delta", "signature": signature_of(item)})
        yield from self._close()

    def _begin_block(
        self, block: AnyAnswerBlock, kind: str, item: int, part: int = 0
    ) -> Iterator[bytes]:
        yield from self._close()
        self._open = OpenBlock(self._count, kind, item, part)
        self._count += 1
        yield _frame("content_block_start", index=self._open.index, content_block=block)

    def _delta(self, delta: Any) -> bytes:
        assert self._open is not None, "a delta belongs to the block that is open"
        return _frame("content_block_delta", index=self._open.index, delta=delta)

    def _close(self) -> Iterator[bytes]:
        if self._open is not None:
            yield _frame("content_block_stop", index=self._open.index)
            self._open = None


def _frame(name: str, **fields: Any) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + _encode({"type": name, **fields}) + b"\n\n"


def _before_delta(index: int, kind: bytes) -> bytes:
    """Return the bytes of a delta up to its value: they are the same for all of a block."""
    start = b'event: content_block_delta\ndata: {"type":"content_block_delta","index":%d,' % index
    return start + b'"delta":{"type":' + kind


_BLOCKS: Mapping[type[e.Event], Any] = {
    e.TextDelta: lambda _encoder, _event: (),  # without a text: those with one are no objects
    e.RefusalDelta: MessageEncoder._refuse,
    e.ReasoningDelta: MessageEncoder._think,
    e.AnnotationAdded: MessageEncoder._cite,
    e.ItemAdded: MessageEncoder._open_item,
    e.ItemDone: MessageEncoder._close_item,
    e.ArgumentsDelta: MessageEncoder._argue,
}
