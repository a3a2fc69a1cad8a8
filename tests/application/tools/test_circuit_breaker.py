"""A server that does not answer is left alone for a while, and then tried again."""

from __future__ import annotations

from antiphon.application.tools.circuit_breaker import (
    FIRST_PAUSE_S,
    MAX_FAILURES,
    MAX_PAUSE_S,
    CircuitBreakers,
)


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def breakers_of_a_lost_server(clock: Clock) -> CircuitBreakers:
    breakers = CircuitBreakers(clock)
    for _ in range(MAX_FAILURES):
        assert breakers.lets_pass("s")
        breakers.record("s", is_unreachable=True)
    return breakers


def test_a_lost_server_gets_one_call_after_a_pause_and_the_others_are_not_affected() -> None:
    clock = Clock()
    breakers = breakers_of_a_lost_server(clock)
    assert not breakers.lets_pass("s")
    assert breakers.lets_pass("other")
    clock.now_s = FIRST_PAUSE_S
    assert [breakers.lets_pass("s") for _ in range(3)] == [True, False, False]


def test_a_server_that_answers_again_is_called_as_before() -> None:
    clock = Clock()
    breakers = breakers_of_a_lost_server(clock)
    clock.now_s = FIRST_PAUSE_S
    assert breakers.lets_pass("s")
    breakers.record("s", is_unreachable=False)
    assert [breakers.lets_pass("s") for _ in range(3)] == [True] * 3


def test_pauses_grow_up_to_a_limit() -> None:
    clock = Clock()
    breakers = breakers_of_a_lost_server(clock)
    pauses = []
    for _ in range(8):
        paused_at = clock.now_s
        while not breakers.lets_pass("s"):
            clock.now_s += 1
        breakers.record("s", is_unreachable=True)
        pauses.append(clock.now_s - paused_at)
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses[-1] == MAX_PAUSE_S


def test_an_answer_between_two_failures_counts_from_the_start() -> None:
    breakers = CircuitBreakers(Clock())
    for _ in range(2 * MAX_FAILURES):
        breakers.record("s", is_unreachable=True)
        breakers.record("s", is_unreachable=False)
        assert breakers.lets_pass("s")
