"""Guards that fail: how long they are waited for, and how often they are asked again."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from antiphon.application.model.guards.ask_guards import (
    MAX_FAILURES,
    Guards,
    GuardTerms,
    NamedGuard,
    ResponseGuards,
)
from antiphon.application.ports import Guard
from antiphon.application.progress.records import decode_records
from antiphon.application.progress.run_progress import RunProgress
from antiphon.application.telemetry.recorder import RunRecorder
from antiphon.domain.access.callers import ANYBODY
from antiphon.domain.errors import GuardFailed
from antiphon.domain.responses.guards import (
    MAX_MESSAGE_CHARS,
    GuardQuestion,
    Pass,
    Refuse,
    Replace,
    Stop,
    Verdict,
)


class Answering(Guard):
    """Answers as a function does."""

    def __init__(self, answer: Callable[[GuardQuestion], Awaitable[Any]]) -> None:
        self._answer = answer
        self.asked: list[GuardQuestion] = []

    async def check(self, asked: GuardQuestion) -> Verdict:
        self.asked.append(asked)
        verdict: Verdict = await self._answer(asked)
        return verdict


def opened(*guards: Guard, recorder: RunRecorder | None = None, **terms: Any) -> ResponseGuards:
    named = [NamedGuard(name=f"g{number}", guard=guard) for number, guard in enumerate(guards)]
    found = Guards(named, GuardTerms(**{"check_s": 0.05, **terms})).open(
        ANYBODY, response_id="resp_1", model="m", recorder=recorder or RunRecorder()
    )
    assert found is not None
    return found


def always(verdict: Any) -> Answering:
    async def answer(_: GuardQuestion) -> Any:
        return verdict

    return Answering(answer)


async def test_a_guard_that_ignores_its_cancellation_is_left_behind() -> None:
    release = asyncio.Event()
    ignored = asyncio.Event()

    async def answer(_: GuardQuestion) -> Verdict:
        while not release.is_set():
            try:
                await release.wait()
            except asyncio.CancelledError:
                ignored.set()
        return Pass()

    guards = opened(Answering(answer))
    with pytest.raises(GuardFailed, match="no verdict in 0.05 s"):
        await guards.ask("text", "output")
    await asyncio.wait_for(ignored.wait(), 30)
    release.set()


@pytest.mark.parametrize(
    "error", [asyncio.CancelledError, SystemExit, RuntimeError, TimeoutError, GuardFailed("g", "x")]
)
async def test_whatever_a_guard_raises_is_a_failure(error: Any) -> None:
    async def answer(_: GuardQuestion) -> Verdict:
        raise error

    with pytest.raises(GuardFailed, match="The guard 'g0' of this server failed"):
        await opened(Answering(answer)).ask("text", "output")


async def test_a_guard_whose_check_is_no_coroutine_has_failed() -> None:
    class Plain(Answering):
        def check(self, asked: GuardQuestion) -> Any:
            return Pass()

    with pytest.raises(GuardFailed, match="it had an error"):
        await opened(Plain(lambda _: asyncio.sleep(0))).ask("text", "output")


@pytest.mark.parametrize(
    "nonsense",
    [None, True, "pass", Pass, Replace(b"x"), Refuse(None), Stop(7), {"verdict": "pass"}],  # type: ignore[arg-type]
)
async def test_what_is_no_verdict_is_a_failure(nonsense: Any) -> None:
    with pytest.raises(GuardFailed, match="no verdict"):
        await opened(always(nonsense)).ask("text", "output")


async def test_a_failing_guard_is_not_asked_forever_if_texts_pass_without_it() -> None:
    guard = always(None)
    guards = opened(guard, fails_open=True)
    for _ in range(MAX_FAILURES + 3):
        assert await guards.ask("text", "output") == "text"
    assert len(guard.asked) == MAX_FAILURES


async def test_each_guard_sees_what_those_before_it_have_replaced() -> None:
    second = always(Pass())
    guards = opened(always(Replace("I like tea")), second)
    assert await guards.ask("I like ale", "output", start=7) == "tea"
    assert [asked.text for asked in second.asked] == ["I like tea"]
    assert second.asked[0].new == "tea"


async def test_the_first_that_refuses_decides() -> None:
    last = always(Stop("never asked"))
    guards = opened(always(Pass()), always(Refuse("No." * MAX_MESSAGE_CHARS)), last)
    answer = await guards.ask("text", "output")
    assert isinstance(answer, Refuse)
    assert len(answer.message) == MAX_MESSAGE_CHARS
    assert not last.asked


async def test_another_server_gets_the_same_answers_without_asking() -> None:
    first, second = always(Replace("masked")), always(Stop("another answer"))
    recorder = RunRecorder()
    recorder.progress = RunProgress()
    assert await opened(first, recorder=recorder).ask("text", "output") == "masked"
    records = decode_records(recorder.progress.take())
    resumed = RunRecorder()
    resumed.progress = RunProgress(records)
    assert await opened(second, recorder=resumed).ask("text", "output") == "masked"
    assert not second.asked
    assert isinstance(await opened(second, recorder=resumed).ask("text, longer", "output"), Stop)
