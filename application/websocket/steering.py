"""Steering: which response of a connection a steer is for, and what it becomes
(docs/reference/api.md#steering).

domain/responses/steering.py has the rules. This keeps the steers of all lanes, from when they are
accepted until a response begins with them, or until the client gets them back.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec import UNSET, Raw, Struct, UnsetType

from antiphon.application.ports import NewId
from antiphon.application.support.bytes_in_work import HeldBytes
from antiphon.application.websocket.lanes import Lane
from antiphon.domain.errors import RequestError
from antiphon.domain.requests.request import CreateResponse
from antiphon.domain.responses.response import Response
from antiphon.domain.responses.steering import (
    RequiredInput,
    Steer,
    SteerCode,
    SteerError,
    SteerRequest,
    Steers,
    ending_of,
    refusal_after,
    successor_of,
    with_steers,
)

MAX_ENDED_RESPONSES = 64
"""Ended responses whose ids a connection still knows; older ones are `response_not_found`."""


class SteerRef(Struct, frozen=True, kw_only=True):
    """An accepted steer, by its id."""

    id: str
    previous_response_id: str


class ReturnedSteer(Struct, frozen=True, kw_only=True):
    """A steer that its client gets back; `id` is set if it had been accepted."""

    id: str | UnsetType = UNSET
    previous_response_id: str
    input: Raw


class SteerEvent(Struct, frozen=True, kw_only=True, tag_field="type"):
    """Base class. These belong to no response's stream, so they take no number there."""

    sequence_number: int = 0
    stream_id: str | UnsetType = UNSET


class SteerAccepted(SteerEvent, frozen=True, kw_only=True, tag="response.steer.accepted"):
    steer: SteerRef


class SteerPending(SteerEvent, frozen=True, kw_only=True, tag="response.steer.pending"):
    """The steer waits for the `required_input`, which the client sends with `response.create`."""

    steer: SteerRef
    reason: str = "waiting_for_required_input"
    required_input: Sequence[RequiredInput]


class SteerFailed(SteerEvent, frozen=True, kw_only=True, tag="response.steer.failed"):
    steer: ReturnedSteer
    error: SteerError


class Asked(Struct, frozen=True, kw_only=True):
    """A request of a lane; its input begins with the `steers`.

    `follows`: no client has asked for it, it goes on with a response that was steered.
    """

    request: CreateResponse
    ignored: Sequence[str] = ()
    steers: Sequence[Steer] = ()
    follows: bool = False


class AfterEnd(Struct, frozen=True, kw_only=True):
    """The events that follow the end of a response, about its steers, and its successor."""

    events: Sequence[SteerEvent] = ()
    successor: Asked | None = None


class _Current:
    """The request that a lane answers; `response_id` and `steers` are set once it may start."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.begins_with = asked.steers
        """Those whose response has not begun yet."""
        self.response_id: str | None = None
        self.steers: Steers | None = None

    @property
    def size(self) -> int:
        return _size_of(self.asked.steers) + (self.steers.size if self.steers else 0)


class _Waiting(Struct, frozen=True):
    """Steers of a response that has ended, until the client continues it."""

    response_id: str
    steers: Sequence[Steer]


class Steering:
    """The responses of one connection that a steer can name, and their steers.

    A lane calls `begin` with each of its requests, then `open`, `commit` when the response has
    begun, and `end`; or `fail`. The steers of one response have at most `max_bytes`.
    """

    def __init__(self, held: HeldBytes, *, max_bytes: int, new_id: NewId) -> None:
        self._held = held
        self._max_bytes = max_bytes
        self._new_id = new_id
        self._current: dict[Lane, _Current] = {}
        self._waiting: dict[Lane, _Waiting] = {}
        self._ended: dict[str, tuple[Lane, SteerError]] = {}

    # --- the lanes --------------------------------------------------------------------------------

    def begin(
        self, lane: Lane, request: CreateResponse, ignored: Sequence[str] = ()
    ) -> tuple[Asked, Sequence[SteerFailed]]:
        """Return a client's request with the steers that have waited for it, before its input.

        If the lane goes on with something else, the client gets them back.
        """
        asked, failed = Asked(request=request, ignored=ignored), []
        waiting = self._waiting.pop(lane, None)
        if waiting is not None and waiting.response_id == request.previous_response_id:
            steered = with_steers(request, waiting.steers)
            asked = Asked(request=steered, ignored=ignored, steers=waiting.steers)
        elif waiting is not None:
            message = f"The lane has gone on without response {waiting.response_id!r}."
            failed = _failed(lane, waiting.steers, "response_not_active", message)
        self._current[lane] = _Current(asked)
        self._count()
        return asked, failed

    def open(self, lane: Lane, response_id: str) -> Steers:
        """Return what the lane's next response is steered by."""
        current = self._current[lane]
        current.response_id = response_id
        current.steers = Steers(current.asked.request, max_bytes=self._max_bytes)
        return current.steers

    def commit(self, lane: Lane) -> None:
        """Note that the response has begun: the steers in its input are the client's no more."""
        self._current[lane].begins_with = ()

    def end(self, lane: Lane, request: CreateResponse, response: Response) -> AfterEnd:
        """Return what follows a response that has ended; `request` is what it was made of.

        A second call changes nothing.
        """
        current = self._current.get(lane)
        if current is None or current.response_id != response.id or current.steers is None:
            return AfterEnd()
        del self._current[lane]
        self._remember(response.id, lane, refusal_after(response))
        after = self._after(lane, current, request, response)
        if after.successor is not None:
            self._current[lane] = _Current(after.successor)
        self._count()
        return after

    def fail(self, lane: Lane, message: str) -> Sequence[SteerFailed]:
        """Give back the steers of a request that was refused, or whose response cannot be read."""
        current = self._current.pop(lane, None)
        if current is None:
            return []
        failed = _failed(lane, current.begins_with, "successor_creation_failed", message)
        if current.steers is not None and current.response_id is not None:
            error = SteerError(code="response_not_active", message=message)
            failed += _failed(lane, current.steers.take(), error.code, message)
            self._remember(current.response_id, lane, error)
        self._count()
        return failed

    def close(self, message: str) -> Sequence[SteerFailed]:
        """Give back the steers that wait for their clients."""
        failed: list[SteerFailed] = []
        for lane, waiting in self._waiting.items():
            failed += _failed(lane, waiting.steers, "response_not_active", message)
        self._waiting.clear()
        self._count()
        return failed

    def _after(
        self, lane: Lane, current: _Current, request: CreateResponse, response: Response
    ) -> AfterEnd:
        steers = current.steers.take() if current.steers is not None else ()
        if not steers:
            return AfterEnd()
        ending = ending_of(response, steers)
        if ending.error is not None:
            error = ending.error
            return AfterEnd(events=_failed(lane, steers, error.code, error.message))
        if ending.required_input:
            self._waiting[lane] = _Waiting(response.id, steers)
            return AfterEnd(events=[*_pending(lane, steers, ending.required_input)])
        successor = Asked(
            request=successor_of(request, response.id, steers),
            ignored=[path for path in current.asked.ignored if not path.startswith("input")],
            steers=steers,
            follows=True,
        )
        return AfterEnd(successor=successor)

    # --- the client's steers ----------------------------------------------------------------------

    def receive(
        self, steer: SteerRequest, *, closing: str | None = None
    ) -> SteerAccepted | SteerFailed:
        """Accept a steer or give it back; `closing` says why the connection accepts none."""
        lane, current = self._find(steer.response_id)
        error = self._refusal(steer, current, closing)
        if error is not None or current is None or current.steers is None:
            returned = ReturnedSteer(previous_response_id=steer.response_id, input=steer.input)
            assert error is not None
            return SteerFailed(stream_id=_stream_id(lane), steer=returned, error=error)
        accepted = Steer(
            id=self._new_id("steer"),
            response_id=steer.response_id,
            input=steer.input,
            items=steer.items,
        )
        current.steers.add(accepted)
        return SteerAccepted(stream_id=_stream_id(lane), steer=_ref(accepted))

    def _find(self, response_id: str) -> tuple[Lane, _Current | None]:
        for lane, current in self._current.items():
            if current.response_id == response_id:
                return lane, current
        lane, _ = self._ended.get(response_id, (None, None))
        return lane, None

    def _refusal(
        self, steer: SteerRequest, current: _Current | None, closing: str | None
    ) -> SteerError | None:
        if current is None or current.steers is None:
            target = steer.response_id
            message = f"This connection has no response {target[:100]!r}."
            not_found = SteerError(code="response_not_found", message=message)
            return self._ended.get(target, (None, not_found))[1]
        if closing is not None:
            return SteerError(code="response_not_active", message=closing)
        if (error := current.steers.refuse(steer)) is not None:
            return error
        try:
            self._count(steer.size)
        except RequestError as exc:
            return SteerError(code="too_many_pending_steers", message=exc.message)
        return None

    # --- what is kept -----------------------------------------------------------------------------

    def _count(self, more: int = 0) -> None:
        """Count the bytes of all steers as the tenant's. Raises: RequestError if there are more."""
        current = sum(each.size for each in self._current.values())
        waiting = sum(_size_of(each.steers) for each in self._waiting.values())
        self._held.resize(current + waiting + more)

    def _remember(self, response_id: str, lane: Lane, error: SteerError) -> None:
        self._ended[response_id] = lane, error
        while len(self._ended) > MAX_ENDED_RESPONSES:
            del self._ended[next(iter(self._ended))]


def _size_of(steers: Sequence[Steer]) -> int:
    return sum(len(memoryview(each.input)) for each in steers)


def _stream_id(lane: Lane) -> str | UnsetType:
    return UNSET if lane is None else lane


def _ref(steer: Steer) -> SteerRef:
    return SteerRef(id=steer.id, previous_response_id=steer.response_id)


def _pending(
    lane: Lane, steers: Sequence[Steer], required: Sequence[RequiredInput]
) -> Iterator[SteerPending]:
    for steer in steers:
        yield SteerPending(stream_id=_stream_id(lane), steer=_ref(steer), required_input=required)


def _failed(
    lane: Lane, steers: Sequence[Steer], code: SteerCode, message: str
) -> list[SteerFailed]:
    error = SteerError(code=code, message=message)
    return [
        SteerFailed(
            stream_id=_stream_id(lane),
            steer=ReturnedSteer(
                id=steer.id, previous_response_id=steer.response_id, input=steer.input
            ),
            error=error,
        )
        for steer in steers
    ]
