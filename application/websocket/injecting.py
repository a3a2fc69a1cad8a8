"""Injecting: which response of a connection an output is for (docs/reference/api.md#injecting)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from antiphon.application.input.injections import Injections
from antiphon.application.websocket.lanes import Lane
from antiphon.domain import items as i
from antiphon.domain.bounds import MAX_MEMBERS, Id
from antiphon.domain.errors import RequestError
from antiphon.domain.events import Event, ItemDone
from antiphon.domain.history.conversation import entries
from antiphon.domain.requests.decoding import read

MAX_ENDED_RESPONSES = 64
"""Ended responses whose ids a connection still knows; older ones are `response_not_found`."""

OUTPUTS = (i.FunctionCallOutput, i.CustomToolCallOutput)
"""The items that may be injected."""

InjectCode = Literal["response_already_completed", "response_not_found"]


class InjectError(Struct, frozen=True, kw_only=True):
    code: InjectCode
    message: str


class InjectEvent(Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base class. These belong to no response's stream, so they take no number there."""

    sequence_number: int = 0
    stream_id: str | UnsetType = UNSET
    response_id: str


class InjectCreated(InjectEvent, frozen=True, kw_only=True, tag="response.inject.created"):
    pass


class InjectFailed(InjectEvent, frozen=True, kw_only=True, tag="response.inject.failed"):
    """The client gets its `input` back, to send it with another request."""

    error: InjectError
    input: Sequence[Raw]


class _Inject(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: str
    response_id: Id
    input: Annotated[tuple[Raw, ...], Meta(min_length=1, max_length=MAX_MEMBERS)]


_decode: Any = msgspec.json.Decoder(_Inject).decode


class Injecting:
    """The responses of one connection into which its client may inject outputs."""

    def __init__(self, *, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._current: dict[str, tuple[Lane, Injections]] = {}
        self._ended: dict[str, Lane] = {}

    def open(self, lane: Lane, response_id: str) -> Injections:
        """Return the injections of the lane's next response."""
        injections = Injections(max_bytes=self._max_bytes)
        self._current[response_id] = lane, injections
        return injections

    def note(self, response_id: str, events: Sequence[Event]) -> None:
        """Note the calls that the client gets to see with these events."""
        if response_id not in self._current:
            return
        for event in events:
            if isinstance(event, ItemDone) and i.waits_for_client(event.item):
                call_id = i.call_id_of(event.item)
                if call_id is not None:
                    self._current[response_id][1].expect(call_id)

    def end(self, response_id: str) -> None:
        """Note that the response has ended, or could not begin."""
        if response_id not in self._current:
            return
        lane, injections = self._current.pop(response_id)
        injections.close()
        self._ended[response_id] = lane
        while len(self._ended) > MAX_ENDED_RESPONSES:
            del self._ended[next(iter(self._ended))]

    def receive(self, body: bytes) -> InjectCreated | InjectFailed:
        """Put the outputs of a message into their response, or give them back.

        Raises: RequestError for a message that is none, or outputs that answer no open call.
        """
        inject: _Inject = read(_decode, body, "", what="The message")
        response_id = inject.response_id
        lane, injections = self._current.get(response_id, (self._ended.get(response_id), None))
        stream_id = UNSET if lane is None else lane
        if injections is None or injections.is_closed:
            code: InjectCode = "response_already_completed"
            message = f"The response {response_id[:100]!r} waits for no more outputs."
            if injections is None and response_id not in self._ended:
                code = "response_not_found"
                message = f"This connection has no response {response_id[:100]!r} with agents."
            error = InjectError(code=code, message=message)
            return InjectFailed(
                stream_id=stream_id, response_id=response_id, error=error, input=inject.input
            )
        outputs = entries(inject.input)
        for place, output in enumerate(outputs):
            if not isinstance(output.item, OUTPUTS):
                raise RequestError(
                    "Only outputs of functions and of custom tools can be injected.",
                    param=f"input[{place}].type",
                    code="invalid_value",
                )
        injections.add(outputs)
        return InjectCreated(stream_id=stream_id, response_id=response_id)
