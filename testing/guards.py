"""Contract tests for the port `Guard`."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from antiphon.application.ports import Guard
from antiphon.domain.responses.guards import (
    PLACES,
    GuardPlace,
    GuardQuestion,
    Pass,
    Refuse,
    Replace,
    Stop,
    Verdict,
)


def a_question(text: str, place: GuardPlace = "output", **fields: Any) -> GuardQuestion:
    named = {"tool": "look_up"} if place.startswith("tool") else {}
    defaults: dict[str, Any] = {"model": "m", "tenant": "us", "response_id": "resp_1", **named}
    return GuardQuestion(place=place, text=text, **(defaults | fields))


@pytest.mark.asyncio
class GuardContract:
    """Subclass it where pytest collects tests. `harmless` passes; `banned` does not.

    class TestMyGuard(GuardContract):
        harmless = "The weather is fine."
        banned = "Abracadabra!"

        @pytest_asyncio.fixture
        async def guard(self):
            guard = MyGuard()
            await guard.start()
            yield guard
            await guard.aclose()
    """

    harmless = "The weather is fine."
    banned = ""

    @pytest.fixture
    def guard(self) -> Guard:
        raise NotImplementedError("override this fixture: return your guard, started")

    async def test_its_places_are_known(self, guard: Guard) -> None:
        assert set(guard.places) <= set(PLACES)
        assert guard.places, "it is asked nowhere"

    async def test_a_harmless_text_passes_wherever_it_is_asked(self, guard: Guard) -> None:
        for place in guard.places:
            assert await guard.check(a_question(self.harmless, place)) == Pass()

    async def test_a_banned_text_does_not_pass_wherever_it_is_asked(self, guard: Guard) -> None:
        for place in guard.places:
            assert is_kept_out(await guard.check(a_question(self.banned, place)), self.banned)

    async def test_a_banned_text_does_not_pass_when_its_start_has_been_shown(
        self, guard: Guard
    ) -> None:
        if "output" not in guard.places:
            return
        for start in (1, len(self.banned) // 2):
            verdict = await guard.check(a_question(self.banned, start=start))
            assert is_kept_out(verdict, self.banned)

    async def test_a_banned_text_does_not_pass_after_another(self, guard: Guard) -> None:
        for place in guard.places:
            text = f"{self.harmless}\n{self.banned}"
            assert is_kept_out(await guard.check(a_question(text, place)), self.banned)

    async def test_the_same_question_gets_the_same_verdict(self, guard: Guard) -> None:
        place = next(iter(guard.places))
        for text in (self.harmless, self.banned):
            first = await guard.check(a_question(text, place))
            assert await guard.check(a_question(text, place)) == first

    async def test_many_questions_may_be_asked_at_the_same_time(self, guard: Guard) -> None:
        place = next(iter(guard.places))
        texts = [self.harmless, self.banned] * 8
        verdicts = await asyncio.gather(*(guard.check(a_question(text, place)) for text in texts))
        assert [each == Pass() for each in verdicts] == [True, False] * 8

    async def test_a_question_may_be_cancelled(self, guard: Guard) -> None:
        place = next(iter(guard.places))
        task = asyncio.ensure_future(guard.check(a_question(self.harmless, place)))
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        assert await guard.check(a_question(self.harmless, place)) == Pass()


def is_kept_out(verdict: Verdict, banned: str) -> bool:
    """Return whether a text with what is banned does not pass as it is."""
    if isinstance(verdict, Replace):
        return banned not in verdict.text
    return isinstance(verdict, Refuse | Stop)
