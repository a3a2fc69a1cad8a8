"""The reason for a miss of the prompt cache, for edits of any kind at any place; and what runs on
another server or another day."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from tests.application.conftest import House
from tests.application.runs.test_resumed_runs import Street, say

from antiphon.adapters.engines.scripted.engine import ScriptedEngine
from antiphon.adapters.formats.chat_template import ScriptedMarkup, scripted_chat
from antiphon.adapters.formats.harmony import HarmonyFormat, HarmonyMarkup
from antiphon.adapters.formats.harmony.renderer import date_at
from antiphon.application.model.token_model import TokenModel
from antiphon.domain.json import Json
from antiphon.domain.responses.cache_diagnostics import (
    OPENING_TOKENS,
    CacheHit,
    CacheMiss,
    PromptComparison,
)
from antiphon.domain.responses.response import Response

TENANT = "t"
ROLES = ("user", "assistant", "developer")
WORDS = st.sampled_from(["heron", "grebe", "a lake", "no fish", "at dawn", "by the reeds"])
TEXTS = st.lists(WORDS, min_size=1, max_size=4).map(" ".join)
MESSAGES = st.builds(
    lambda role, text: {"role": role, "content": text}, st.sampled_from(ROLES[:2]), TEXTS
)
NAMES = ("weather", "tides", "time", "fish")


def tool(name: str, about: str) -> Json:
    return {"type": "function", "name": name, "description": about, "parameters": {}}


REQUESTS = st.fixed_dictionaries(
    {
        "input": st.lists(MESSAGES, min_size=1, max_size=5),
        "instructions": TEXTS,
        "tools": st.lists(
            st.builds(tool, st.sampled_from(NAMES), TEXTS),
            min_size=1,
            max_size=3,
            unique_by=lambda each: str(each["name"]),
        ),
        "text": st.fixed_dictionaries({"verbosity": st.sampled_from(["low", "medium", "high"])}),
        "reasoning": st.fixed_dictionaries({"effort": st.sampled_from(["low", "medium", "high"])}),
    }
)

REASONS = {
    "input": "input_changed",
    "instructions": "input_changed",
    "tools": "tools_changed",
    "text": "verbosity_changed",
    "reasoning": "reasoning_effort_changed",
}


def models(today: Any = None) -> dict[str, TokenModel]:
    harmony = HarmonyFormat() if today is None else HarmonyFormat(today=today)
    return {
        "chat": TokenModel(scripted_chat, ScriptedEngine(ScriptedMarkup(), ["m"])),
        "harmony": TokenModel(lambda: harmony, ScriptedEngine(HarmonyMarkup(), ["m"])),
    }


async def open_house(name: str, today: Any = None) -> House:
    model = models(today)[name]
    await model.start()
    return House(model=model)


async def comparison(house: House, response: Response) -> PromptComparison:
    stored = await house.store.get_response(TENANT, response.id)
    found = stored.metrics.prompt_comparison  # type: ignore[union-attr]
    assert found is not None
    return found


async def tokens_of(house: House, body: Json) -> list[int]:
    """Return the prompt of a request, as another server would render it for the first time."""
    response = await house.whole(**body, enable_response_messages=True)
    messages: Any = response.input_messages
    return [token for message in messages for token in message["tokens"]]


@st.composite
def edits(draw: st.DrawFn) -> tuple[Json, Json, str]:
    """A request, the same with one part of it edited, and the name of that part."""
    before = draw(REQUESTS)
    part = draw(st.sampled_from(sorted(REASONS)))
    after = json.loads(json.dumps(before))
    if part == "input":
        items = after["input"]
        index = draw(st.integers(0, len(items) - 1))
        match draw(st.sampled_from(["change", "drop", "insert", "role"])):
            case "change":
                items[index]["content"] = draw(TEXTS)
            case "drop":
                del items[index]
            case "insert":
                items.insert(index, draw(MESSAGES))
            case _:
                items[index]["role"] = draw(st.sampled_from(ROLES))
    elif part == "tools" and draw(st.booleans()):
        after["tools"] = draw(st.permutations(before["tools"]))
    else:
        after[part] = draw(REQUESTS)[part]
    after["input"].append({"role": "user", "content": "What else?"})
    return before, after, part


@pytest.mark.parametrize("name", ["chat", "harmony"])
@hypothesis_settings(max_examples=150)
@given(edited=edits())
def test_the_reason_is_right_for_any_edit(name: str, edited: tuple[Json, Json, str]) -> None:
    asyncio.run(check_edit(name, *edited))


async def check_edit(name: str, before: Json, after: Json, part: str) -> None:
    house = await open_house(name)
    first = await house.whole(**before)
    options = {"comparison_response_id": first.id}
    second = await house.whole(**after, prompt_cache_options=options)
    one, other = await tokens_of(house, before), await tokens_of(house, after)
    pairs = enumerate(zip(one, other, strict=False))
    index = next((index for index, (a, b) in pairs if a != b), None)
    told = second.prompt_cache_diagnostics
    if isinstance(told, CacheHit):
        goes_on = after["input"][: len(before["input"])] == before["input"]
        assert index is None or (goes_on and index >= len(one) - OPENING_TOKENS)
        return
    assert told == CacheMiss(
        reason=REASONS[part],  # type: ignore[arg-type]
        cache_missed_tokens=len(other) - (index or 0),
        comparison_reusable_tokens=index or 0,
    )
    assert (await comparison(house, second)).differs_at == index


async def test_a_prompt_of_yesterday_had_another_date() -> None:
    today = [date_at(time.time())]
    house = await open_house("harmony", lambda: today[0])
    first = await house.whole(input="Herons?")
    options = {"comparison_response_id": first.id}
    again = await house.whole(input="Herons?", prompt_cache_options=options)
    assert isinstance(again.prompt_cache_diagnostics, CacheHit)
    today[0] = date_at(time.time() + 86_400)
    second = await house.whole(input="Herons?", prompt_cache_options=options)
    told = second.prompt_cache_diagnostics
    assert isinstance(told, CacheMiss)
    assert told.reason == "input_changed"
    assert told.comparison_reusable_tokens < 60
    assert (await comparison(house, second)).part == "rendering"


async def test_a_prompt_that_is_not_what_it_was_is_unavailable() -> None:
    said = ["2026-11-20"]
    house = await open_house("harmony", lambda: said[0])
    first = await house.whole(input="Herons?")
    # Rendered for the day on which it ran, the prompt has fewer tokens than were counted.
    said[0] = "the twentieth of November in the year 2026"
    second = await house.whole(input="Herons?")
    options = {"comparison_response_id": second.id}
    third = await house.whole(input="Herons?", prompt_cache_options=options)
    found = await comparison(house, third)
    assert found.result == "unavailable"
    assert "tokens" in found.unavailable
    assert first.status == "completed"


async def test_a_comparison_that_fails_costs_only_itself() -> None:
    house = await open_house("chat")
    first = await house.whole(input="Herons?")
    house.store.failing.add("list")
    options = {"comparison_response_id": first.id}
    second = await house.whole(input="Herons?", prompt_cache_options=options)
    assert second.status == "completed"


@pytest.fixture(params=["chat", "harmony"])
async def street(request: pytest.FixtureRequest) -> AsyncIterator[Street]:
    street = Street(request.param)
    yield street
    await street.close()


@pytest.mark.slow
async def test_a_run_that_goes_on_elsewhere_has_its_diagnostics(street: Street) -> None:
    first = await street.run(1, **say([{"say": "Roses are red."}]))
    options = {"comparison_response_id": first.id}
    text = say([{"think": "A rhyme."}, {"say": "Violets are blue, and so are you."}])
    whole = await street.run(**text, prompt_cache_options=options)
    assert isinstance(whole.prompt_cache_diagnostics, CacheMiss)
    for writes in range(await street.count_writes(**text)):
        response = await street.run(writes, **text, prompt_cache_options=options)
        assert response.status == "completed"
        assert response.prompt_cache_diagnostics == whole.prompt_cache_diagnostics
