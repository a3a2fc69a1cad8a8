"""Steering: a client gives a running response more input, and a successor goes on with it
(docs/reference/api.md#steering).

The rules are here, and they are pure: what a steer may hold, which response takes it, and what
follows its end. Where it may stop is the sequencer's (`feed_to_boundary`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from msgspec.structs import replace

from antiphon.domain.bounds import MAX_MEMBERS, Id, Many, Text
from antiphon.domain.content import InputFile, InputImage, InputText
from antiphon.domain.errors import RequestError, missing_parameter
from antiphon.domain.history.conversation import raw_items
from antiphon.domain.items import (
    ANSWERED_BY,
    AnyItem,
    FunctionCall,
    LocalShellCall,
    McpApprovalRequest,
    McpApprovalResponse,
    ToolSearchCall,
    answered_call_id,
    call_id_of,
    waits_for_client,
)
from antiphon.domain.requests.decoding import check_values, read
from antiphon.domain.requests.request import CreateResponse
from antiphon.domain.responses.response import Response
from antiphon.domain.vocabulary.item import type_of

STEERED = "steered"
"""`incomplete_details.reason` of a response that stopped for a steer."""

MAX_WAITING = 16
"""The steers of one response that may wait for its end."""

SteerCode = Literal[
    "response_not_found",
    "invalid_input",
    "steering_not_supported",
    "too_many_pending_steers",
    "response_already_completed",
    "response_not_active",
    "successor_creation_failed",
]


class SteerError(Struct, frozen=True, kw_only=True):
    """Why a client gets its steer back."""

    type: str = "invalid_request_error"
    code: SteerCode
    message: str


# --- what a steer may hold ------------------------------------------------------------------------


class SteerRequest(Struct, frozen=True, kw_only=True):
    """A `response.steer`. `items` are its input, and `error` is why that is none."""

    response_id: str
    input: Raw
    items: Sequence[Raw] = ()
    error: SteerError | None = None

    @property
    def size(self) -> int:
        return len(memoryview(self.input))


class _Text(InputText, frozen=True, forbid_unknown_fields=True, tag="input_text"):
    pass


class _Image(InputImage, frozen=True, forbid_unknown_fields=True, tag="input_image"):
    pass


class _File(InputFile, frozen=True, forbid_unknown_fields=True, tag="input_file"):
    pass


class _Message(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    type: Literal["message"] = "message"
    role: Literal["user"]
    content: Text | Many[_Text | _Image | _File]


class _Target(Struct, frozen=True):
    previous_response_id: Id
    input: Raw


_FIELDS = frozenset({"type", "previous_response_id", "input"})

_Input = (
    Annotated[str, Meta(min_length=1, max_length=10_485_760)]
    | Annotated[tuple[Raw, ...], Meta(min_length=1, max_length=MAX_MEMBERS)]
)

_decode_fields = msgspec.json.Decoder(dict[str, Raw]).decode
_decode_target = msgspec.json.Decoder(_Target).decode
_decode_input: Any = msgspec.json.Decoder(_Input).decode
_decode_message = msgspec.json.Decoder(_Message).decode


def decode_steer(body: bytes) -> SteerRequest:
    """Return the steer. What is wrong with its input is its `error`, for the client gets it back.

    Raises: RequestError if it names no response, or has no input to give back.
    """
    fields = read(_decode_fields, body, "", what="The message")
    for name in ("previous_response_id", "input"):
        if name not in fields:
            raise missing_parameter(name)
    target: _Target = read(_decode_target, body, "")
    steer = SteerRequest(response_id=target.previous_response_id, input=target.input.copy())
    unknown = sorted(fields.keys() - _FIELDS)
    if unknown:
        names = ", ".join(repr(name[:100]) for name in unknown[:5])
        message = (
            f"A 'response.steer' has only 'type', 'previous_response_id' and 'input', not {names}."
        )
        if "stream_id" in unknown:
            message += " The response that it steers has its lane."
        return replace(steer, error=SteerError(code="invalid_input", message=message))
    try:
        return replace(steer, items=_items_of(steer.input))
    except RequestError as exc:
        return replace(steer, error=SteerError(code="invalid_input", message=exc.message))


def _items_of(raw: Raw) -> Sequence[Raw]:
    """Return the messages of a steer's input. Raises: RequestError."""
    check_values(raw, "input")
    value = read(_decode_input, raw, "input")
    if not isinstance(value, str):
        for position, each in enumerate(value):
            read(_decode_message, each, f"input[{position}]")
    return raw_items(value)


# --- which response takes it ----------------------------------------------------------------------


def why_not_steerable(request: CreateResponse) -> str | None:
    """Return why a request's response takes no steers, None if it does."""
    if request.conversation is not None:
        return "it belongs to a conversation"
    if request.has_agents:
        return "it may have sub-agents"
    if request.compaction is not None:
        return "it compacts its context by itself ('context_management')"
    if request.is_prewarm:
        return "it only warms up the prompt cache"
    if request.previous_input_messages is not None:
        return "a successor would not have its 'previous_input_messages'"
    return None


class Steer(Struct, frozen=True, kw_only=True):
    """An accepted steer."""

    id: str
    response_id: str
    input: Raw
    items: Sequence[Raw]


class Steers:
    """The steers of one response that wait for its end, in the order in which they came.

    Its run looks at `are_waiting` wherever it may stop.
    """

    def __init__(self, request: CreateResponse, *, max_bytes: int) -> None:
        self._refusal = why_not_steerable(request)
        self._max_bytes = max_bytes
        self._waiting: list[Steer] = []
        self._size = 0

    @property
    def are_waiting(self) -> bool:
        return bool(self._waiting)

    @property
    def size(self) -> int:
        """The bytes of the waiting steers."""
        return self._size

    def refuse(self, steer: SteerRequest) -> SteerError | None:
        """Return why the running response does not take the steer, None if it does."""
        if self._refusal is not None:
            message = f"Response {steer.response_id!r} cannot be steered: {self._refusal}."
            return SteerError(code="steering_not_supported", message=message)
        if steer.error is not None:
            return steer.error
        count = sum(len(each.items) for each in self._waiting) + len(steer.items)
        if len(self._waiting) >= MAX_WAITING:
            limit = f"{MAX_WAITING} steers"
        elif count > MAX_MEMBERS:
            limit = f"steers with {MAX_MEMBERS} messages"
        elif self._size + steer.size > self._max_bytes:
            limit = f"steers of {self._max_bytes} bytes"
        else:
            return None
        message = f"At most {limit} may wait for the end of a response. Send this one later."
        return SteerError(code="too_many_pending_steers", message=message)

    def add(self, steer: Steer) -> None:
        self._waiting.append(steer)
        self._size += len(memoryview(steer.input))

    def take(self) -> Sequence[Steer]:
        """Return the waiting steers; none waits any more."""
        taken, self._waiting, self._size = self._waiting, [], 0
        return taken


# --- what follows the end -------------------------------------------------------------------------


class RequiredInput(Struct, frozen=True, kw_only=True):
    """A stub of an item that the client must send next; the client adds the result."""

    type: str
    call_id: str | UnsetType = UNSET
    id: str | UnsetType = UNSET
    name: str | UnsetType = UNSET
    execution: str | UnsetType = UNSET
    approval_request_id: str | UnsetType = UNSET


class Ending(Struct, frozen=True, kw_only=True):
    """The end of a response, for its steers.

    A successor follows with them; or they wait for the `required_input`; or the `error` says why
    the client gets them back.
    """

    steers: Sequence[Steer]
    required_input: Sequence[RequiredInput] = ()
    error: SteerError | None = None


def ending_of(response: Response, steers: Sequence[Steer]) -> Ending:
    """Return what becomes of the steers of a response that has ended."""
    if not can_follow(response):
        message = f"Response {response.id!r} has ended as {_status_of(response)}."
        error = SteerError(code="response_not_active", message=message)
        return Ending(steers=steers, error=error)
    return Ending(steers=steers, required_input=required_input(response.output))


def can_follow(response: Response) -> bool:
    """Return whether a successor may follow by itself: nothing but a steer has cut the response."""
    details = response.incomplete_details
    return response.status == "completed" or (details is not None and details.reason == STEERED)


def refusal_after(response: Response) -> SteerError:
    """Return why a response that has ended takes no more steers."""
    message = (
        f"Response {response.id!r} has ended as {_status_of(response)}. Continue it with "
        "'response.create'."
    )
    is_complete = response.status == "completed"
    code: SteerCode = "response_already_completed" if is_complete else "response_not_active"
    return SteerError(code=code, message=message)


def required_input(output: Sequence[AnyItem]) -> list[RequiredInput]:
    """Return what the client must answer of a response's output, in order."""
    answered = {call_id for item in output if (call_id := answered_call_id(item))}
    return [
        _stub_of(item)
        for item in output
        if waits_for_client(item) and call_id_of(item) not in answered
    ]


def _stub_of(item: AnyItem) -> RequiredInput:
    if isinstance(item, McpApprovalRequest):
        kind = type_of(McpApprovalResponse)
        return RequiredInput(type=kind, approval_request_id=str(item.id))
    stub = RequiredInput(type=type_of(ANSWERED_BY[type(item)]), call_id=call_id_of(item) or "")
    if isinstance(item, LocalShellCall):  # its output names the call by `id`
        return replace(stub, call_id=UNSET, id=call_id_of(item) or "")
    if isinstance(item, FunctionCall):
        return replace(stub, name=item.name)
    if isinstance(item, ToolSearchCall):
        return replace(stub, execution="client")
    return stub


def _status_of(response: Response) -> str:
    details = response.incomplete_details
    return response.status if details is None else f"{response.status} ({details.reason})"


def with_steers(request: CreateResponse, steers: Sequence[Steer]) -> CreateResponse:
    """Return the request with the steers before its own input."""
    if not steers:
        return request
    steered = [item for steer in steers for item in steer.items]
    return replace(request, input=(*steered, *raw_items(request.input)))


def successor_of(
    request: CreateResponse, response_id: str, steers: Sequence[Steer]
) -> CreateResponse:
    """Return the request of the response that follows by itself: as the one before, with the steers
    as its input."""
    continued = replace(
        request, input=None, previous_response_id=response_id, previous_input_messages=None
    )
    return with_steers(continued, steers)
