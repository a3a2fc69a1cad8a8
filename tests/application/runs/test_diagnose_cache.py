"""The reason for a miss of the prompt cache, for edits of any kind at any place; and what runs on
another server or another day."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from msgspec import Struct
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


def edit(draw: st.DrawFn, body: Json, part: str) -> None:
    """Edit one part of a request."""
    items = body["input"]
    if part == "tools" and draw(st.booleans()):
        body["tools"] = draw(st.permutations(body["tools"]))
    elif part != "input":
        body[part] = draw(REQUESTS)[part]
    else:
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


class Edited(Struct):
    """A request, the same with some parts edited, and with each of these edits alone.

    Each goes on with one more item.
    """

    before: Json
    after: Json
    alone: dict[str, Json]


@st.composite
def edits(draw: st.DrawFn, most: int) -> Edited:
    before = draw(REQUESTS)
    parts = draw(st.lists(st.sampled_from(sorted(REASONS)), min_size=1, max_size=most, unique=True))
    more = {"role": "user", "content": "What else?"}
    after: Json = deepcopy(before)
    alone: dict[str, Json] = {}
    for part in parts:
        edit(draw, after, part)
        alone[part] = {**deepcopy(before), part: deepcopy(after[part])}
    for each in (after, *alone.values()):
        each["input"].append(more)
    return Edited(before, after, alone)


@pytest.mark.parametrize("name", ["chat", "harmony"])
@hypothesis_settings(max_examples=40)
@given(edited=edits(most=1))
def test_the_reason_is_right_for_any_edit(name: str, edited: Edited) -> None:
    asyncio.run(check_edits(name, edited))


@pytest.mark.parametrize("name", ["chat", "harmony"])
@hypothesis_settings(max_examples=40)
@given(edited=edits(most=3))
def test_of_several_edits_the_first_in_the_prompt_is_the_reason(name: str, edited: Edited) -> None:
    asyncio.run(check_edits(name, edited))


async def check_edits(name: str, edited: Edited) -> None:
    house = await open_house(name)
    before, after = edited.before, edited.after
    first = await house.whole(**before)
    options = {"comparison_response_id": first.id}
    second = await house.whole(**after, prompt_cache_options=options)
    one, other = await tokens_of(house, before), await tokens_of(house, after)
    index = first_difference(one, other)
    told = second.prompt_cache_diagnostics
    if isinstance(told, CacheHit):
        goes_on = after["input"][: len(before["input"])] == before["input"]
        assert index is None or (goes_on and index >= len(one) - OPENING_TOKENS)
        return
    assert isinstance(told, CacheMiss)
    assert index is not None
    assert told.cache_missed_tokens == len(other) - index
    assert told.comparison_reusable_tokens == index
    assert (await comparison(house, second)).differs_at == index
    places = {
        part: first_difference(one, await tokens_of(house, body))
        for part, body in edited.alone.items()
    }
    assert told.reason in {REASONS[part] for part, place in places.items() if place == index}


def first_difference(one: list[int], other: list[int]) -> int | None:
    pairs = enumerate(zip(one, other, strict=False))
    return next((index for index, (a, b) in pairs if a != b), None)


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
