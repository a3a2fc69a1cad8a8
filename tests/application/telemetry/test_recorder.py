"""What the recorder notes of a run, with a clock that the test turns."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence

import pytest
from msgspec import UNSET

from antiphon.application.ports import ModelTurn, TurnFacts
from antiphon.application.telemetry.recorder import RunRecorder
from antiphon.application.telemetry.request_context import RequestContext
from antiphon.domain.access.callers import Caller
from antiphon.domain.deltas import Delta, ReasoningDelta, TextDelta
from antiphon.domain.responses.metrics import ResponseMetrics
from antiphon.domain.responses.response import Response
from antiphon.domain.responses.usage import TurnUsage

TEXT, THOUGHT = TextDelta("hi"), ReasoningDelta("hm")


class Clock:
    def __init__(self) -> None:
        self.time = 1000.0

    def __call__(self) -> float:
        return self.time


class FakeTurn(ModelTurn):
    def __init__(self, facts: TurnFacts | None = None) -> None:
        self.usage = TurnUsage(input=7)
        self._facts = facts or TurnFacts()

    async def __aiter__(self) -> AsyncGenerator[list[Delta]]:
        yield []

    async def aclose(self) -> None:
        pass

    def tokens_used(self) -> Sequence[TurnUsage]:
        return [self.usage]

    def facts(self) -> TurnFacts:
        return self._facts


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def recorder(clock: Clock) -> RunRecorder:
    return RunRecorder(now=clock, monotonic=clock)


def response(status: str = "completed") -> Response:
    return Response(id="resp_1", created_at=1, model="m", status=status)


def metrics_of(ended: Response) -> ResponseMetrics:
    assert isinstance(ended.metrics, ResponseMetrics)
    return ended.metrics


def test_a_turn_is_timed_from_its_prompt_to_its_last_call(
    recorder: RunRecorder, clock: Clock
) -> None:
    recorder.start()
    recorder.open_turn()
    clock.time = 1001
    facts = TurnFacts(model="m", attempts=2, is_repaired=True, repairs=["quotes"], unmarked_calls=3)
    recorder.admit_turn(FakeTurn(facts))
    clock.time = 1002
    assert recorder.watch_batch([THOUGHT])
    clock.time = 1003
    assert not recorder.watch_batch([THOUGHT, TEXT])
    clock.time = 1004
    recorder.end_output()
    call = recorder.start_call(type="mcp", name="add", server="calc")
    clock.time = 1006
    call.end("ok", seconds=1.5, output_bytes=12)
    recorder.close_turn("stop", [TurnUsage(input=7, cached=3, output=5, reasoning=2)])
    clock.time = 1007
    [turn] = metrics_of(recorder.end(response())).turns
    times = (turn.started_at, turn.admitted_at, turn.first_token_at, turn.first_text_at)
    assert times == (1000, 1001, 1002, 1003)
    assert (turn.last_token_at, turn.ended_at) == (1004, 1006)
    assert (turn.input_tokens, turn.cached_tokens, turn.output_tokens) == (7, 3, 5)
    assert (turn.reasoning_tokens, turn.tokens_per_second) == (2, 2.0)
    assert (turn.model, turn.attempts, turn.is_repaired) == ("m", 2, True)
    assert (turn.repairs, turn.unmarked_calls) == (("quotes",), 3)
    [made] = turn.tool_calls
    assert (made.type, made.server, made.name) == ("mcp", "calc", "add")
    assert (made.started_at, made.seconds, made.result) == (1004.5, 1.5, "ok")


def test_a_turn_without_output_has_no_first_token(recorder: RunRecorder) -> None:
    recorder.open_turn()
    recorder.admit_turn(FakeTurn(TurnFacts(kind="tools")))
    recorder.watch_batch([])
    recorder.close_turn("stop", [TurnUsage()])
    [turn] = recorder.snapshot().turns
    assert (turn.kind, turn.first_token_at, turn.last_token_at) == ("tools", None, None)


def test_of_a_turn_that_came_at_once_only_the_end_is_known(
    recorder: RunRecorder, clock: Clock
) -> None:
    recorder.open_turn()
    recorder.admit_turn(FakeTurn(TurnFacts(came_at_once=True)))
    clock.time = 1002
    recorder.watch_batch([TEXT])
    clock.time = 1002.001
    recorder.close_turn("stop", [TurnUsage(input=7, output=500)])
    [turn] = recorder.snapshot().turns
    assert (turn.first_token_at, turn.first_text_at, turn.tokens_per_second) == (None, None, None)
    assert turn.last_token_at == 1002.001


def test_an_engine_may_say_how_long_it_took_for_what_came_at_once(
    recorder: RunRecorder, clock: Clock
) -> None:
    recorder.open_turn()
    recorder.admit_turn(FakeTurn(TurnFacts(came_at_once=True, generation_s=4)))
    clock.time = 1010
    recorder.watch_batch([TEXT])
    recorder.close_turn("stop", [TurnUsage(input=7, output=9)])
    [turn] = recorder.snapshot().turns
    assert (turn.first_token_at, turn.last_token_at) == (1006, 1010)
    assert (turn.first_text_at, turn.tokens_per_second) == (None, 2.0)


def test_the_phase_says_what_a_run_is_doing(recorder: RunRecorder) -> None:
    phases = []

    def note() -> None:
        phases.append(recorder.snapshot().phase)

    recorder.queue()
    note()
    recorder = RunRecorder.resumed(recorder.snapshot(), server="srv_2", epoch=2)
    note()
    recorder.open_turn()
    recorder.admit_turn(FakeTurn())
    note()
    recorder.watch_batch([THOUGHT])
    note()
    recorder.watch_batch([TEXT])
    note()
    call = recorder.start_call(type="shell", name="shell")
    note()
    call.end("error", seconds=0.1, output_bytes=0)
    note()
    expected = ["queued", "starting", "starting", "thinking", "writing", "tool", "writing"]
    assert phases == expected
    assert metrics_of(recorder.end(response())).phase is None


def test_a_snapshot_counts_the_tokens_so_far(recorder: RunRecorder, clock: Clock) -> None:
    turn = FakeTurn()
    recorder.open_turn()
    recorder.admit_turn(turn)
    recorder.watch_batch([TEXT])
    clock.time += 2
    turn.usage = TurnUsage(input=7, output=21)
    [shown] = recorder.snapshot().turns
    assert (shown.output_tokens, shown.tokens_per_second, shown.ended_at) == (21, 10.0, None)


@pytest.mark.parametrize(("status", "count"), [("failed", 1), ("completed", 0)])
def test_a_turn_that_could_not_start_is_kept_if_the_response_failed(
    recorder: RunRecorder, status: str, count: int
) -> None:
    recorder.open_turn()
    assert len(metrics_of(recorder.end(response(status))).turns) == count


def test_a_turn_that_was_cut_off_keeps_its_tokens(recorder: RunRecorder) -> None:
    recorder.open_turn()
    recorder.admit_turn(FakeTurn())
    recorder.watch_batch([TEXT])
    [turn] = metrics_of(recorder.end(response("cancelled"))).turns
    assert (turn.input_tokens, turn.reason) == (7, "")


def test_a_new_run_knows_who_asked() -> None:
    context = RequestContext(
        request_id="req_1", trace_headers={"traceparent": "00-a-b-01"}, received_at=5.0
    )
    caller = Caller(tenant="t", key_id="key_1", key_name="mine")
    metrics = RunRecorder.of_request(context, caller, server="srv_1").snapshot()
    assert (metrics.key_id, metrics.key_name, metrics.request_id) == ("key_1", "mine", "req_1")
    assert (metrics.server, metrics.received_at) == ("srv_1", 5.0)
    assert metrics.traceparent == "00-a-b-01"


def test_a_run_that_another_server_goes_on_with_keeps_who_asked() -> None:
    before = ResponseMetrics(key_id="key_1", received_at=5.0, server="srv_1", traceparent="00-a")
    recorder = RunRecorder.resumed(before, server="srv_2", epoch=3)
    after = recorder.snapshot()
    assert (after.key_id, after.received_at, after.server, after.epoch) == (
        "key_1",
        5.0,
        "srv_2",
        3,
    )
    assert recorder.trace_headers == {"traceparent": "00-a"}
    assert RunRecorder.resumed(UNSET, server="srv_2", epoch=2).snapshot().server == "srv_2"


def test_times_never_go_back(clock: Clock) -> None:
    wall = Clock()
    recorder = RunRecorder(now=wall, monotonic=clock)
    recorder.start()
    wall.time -= 100
    clock.time += 1
    metrics = metrics_of(recorder.end(response()))
    assert metrics.started_at is not None
    assert metrics.ended_at == metrics.started_at + 1


def test_writes_to_the_store_are_timed_and_failures_counted(
    recorder: RunRecorder, clock: Clock
) -> None:
    with recorder.time_store_write():
        clock.time += 0.5
    with pytest.raises(ZeroDivisionError), recorder.time_store_write():
        clock.time += 0.25
        raise ZeroDivisionError
    recorder.note_store_failure()
    metrics = recorder.snapshot()
    assert (metrics.store_seconds, metrics.store_failures) == (0.75, 1)


def test_a_call_outside_of_a_turn_is_not_lost_for_its_caller(recorder: RunRecorder) -> None:
    call = recorder.start_call(type="mcp", name="tools/list", server="calc")
    call.end("ok", seconds=0.0, output_bytes=0)
    assert recorder.snapshot().turns == ()
