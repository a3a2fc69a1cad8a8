"""Steering: input for a response that is still running (docs/reference/api.md#steering).

This server does not support it: the client gets its input back, with the reason.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType

from antiphon.application.websocket.lanes import Lane
from antiphon.domain.requests.decoding import read

MAX_ENDED_RESPONSES = 64
"""Ended responses whose ids a connection still knows; older ones are `response_not_found`."""


class Steer(Struct, frozen=True, kw_only=True):
    previous_response_id: str
    input: Raw


class SteerError(Struct, frozen=True, kw_only=True):
    type: str = "invalid_request_error"
    code: str
    message: str


class SteerFailed(Struct, frozen=True, kw_only=True, tag="response.steer.failed", tag_field="type"):
    """The answer to a steer. It belongs to no response's stream, so it takes no number there."""

    sequence_number: int = 0
    stream_id: str | UnsetType = UNSET
    steer: Steer
    error: SteerError


class _Part(Struct, frozen=True):
    type: Literal["input_text", "input_image", "input_file"]


class _Message(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: Literal["message"] = "message"
    role: Literal["user"]
    content: str | tuple[_Part, ...]


_Input = Annotated[str, Meta(min_length=1)] | Annotated[tuple[_Message, ...], Meta(min_length=1)]
_decode_steer = msgspec.json.Decoder(Steer).decode
_decode_input: Any = msgspec.json.Decoder(_Input).decode


class Steering:
    """The responses of one connection that a steer can name: the running ones and the last ones."""

    def __init__(self) -> None:
        self._running: dict[str, Lane] = {}
        self._ended: dict[str, Lane] = {}

    def track(self, response_id: str, lane: Lane) -> None:
        self._running[response_id] = lane

    def untrack(self, response_id: str) -> None:
        """Note that the response has ended; a second call changes nothing."""
        if response_id not in self._running:
            return
        self._ended[response_id] = self._running.pop(response_id)
        while len(self._ended) > MAX_ENDED_RESPONSES:
            del self._ended[next(iter(self._ended))]

    def answer(self, message: bytes) -> SteerFailed:
        """Return the answer to a `response.steer`. Raises: RequestError if it names no target."""
        steer: Steer = read(_decode_steer, message, "")
        lane = {**self._ended, **self._running}.get(steer.previous_response_id)
        return SteerFailed(
            stream_id=UNSET if lane is None else lane, steer=steer, error=self._refusal(steer)
        )

    def _refusal(self, steer: Steer) -> SteerError:
        target = steer.previous_response_id
        if target in self._ended:
            message = f"Response {target!r} has ended. Continue it with 'response.create'."
            return SteerError(code="response_already_completed", message=message)
        if target not in self._running:
            message = f"This connection has no response {target[:100]!r}."
            return SteerError(code="response_not_found", message=message)
        try:
            _decode_input(steer.input)
        except (msgspec.DecodeError, UnicodeDecodeError) as exc:
            return SteerError(code="invalid_input", message=f"Invalid 'input': {exc}.")
        message = (
            "This server does not support steering. Send the input when the response is complete."
        )
        return SteerError(code="steering_not_supported", message=message)
