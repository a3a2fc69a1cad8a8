"""Responses with several turns: each has one end, whichever turn fails."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from antiphon.domain import deltas as d
from antiphon.domain import items as i
from antiphon.domain.errors import EngineError, RequestError

STOP = d.TurnEnd("stop", d.TurnUsage(input=3, output=2))
LENGTH = d.TurnEnd("length", d.TurnUsage(input=3, output=2))
SUMMARY = [[d.TextDelta("They talked.")], [STOP]]
ANSWER = [[d.TextDelta("Hello")], [STOP]]
LONG = [
    {"role": "user", "content": "first"},
    {"role": "assistant", "content": "second"},
    {"role": "user", "content": "third"},
]


@pytest.fixture
def compacting(house: Any) -> dict[str, Any]:
    """A request whose conversation is compacted and then answered."""
    house.model.context_length = 2
    house.model.played = SUMMARY
    return {"input": LONG, "context_management": [{"type": "compaction"}]}


async def test_all_turns_of_a_response_have_the_cache_salt_of_tenant_and_client(
    house: Any, compacting: dict[str, Any]
) -> None:
    house.model.later = [ANSWER]
    await house.whole(**compacting)
    await house.whole(input="hi", cache_salt="mine")
    salts = [turn.cache_salt for turn in house.model.turns]
    assert salts == ["salt of t None", "salt of t None", "salt of t mine"]
    assert {turn.tenant for turn in house.model.turns} == {"t"}, "whatever salt a client chooses"


async def test_a_response_has_its_compaction_before_its_answer(
    house: Any, compacting: dict[str, Any]
) -> None:
    house.model.later = [ANSWER]
    response = await house.whole(**compacting)
    assert [type(item) for item in response.output] == [i.Compaction, i.Message]
    assert response.usage.total_tokens == 10
    compaction_turn, answer_turn = house.model.turns
    assert len(compaction_turn.items) == 4
    assert [item.content[0].text[-12:] for item in answer_turn.items] == ["They talked."]
    assert answer_turn.items[0].content[-1].text == "third"


async def test_each_turn_has_its_own_request_id(house: Any, compacting: dict[str, Any]) -> None:
    request_ids: list[str] = []
    start_turn = house.model.start_turn

    async def record_request_id(turn: Any, *, request_id: str, **options: Any) -> Any:
        request_ids.append(request_id)
        return await start_turn(turn, request_id=request_id, **options)

    house.model.start_turn = record_request_id
    await house.whole(**compacting)
    assert len(set(request_ids)) == len(request_ids) == 2


@pytest.mark.parametrize(
    ("later", "status", "code"),
    [
        ([[EngineError("lost")]], "failed", "server_error"),
        ([EngineError("gone")], "failed", "server_error"),
        ([RequestError("too long", param="input")], "failed", "invalid_prompt"),
        ([[[d.TextDelta("Hel")], [LENGTH]]], "incomplete", None),
    ],
)
async def test_a_later_turn_that_fails_ends_the_response(
    house: Any, compacting: dict[str, Any], later: list[Any], status: str, code: str | None
) -> None:
    house.model.later = later
    response = await house.whole(**compacting)
    assert response.status == status
    assert (response.error.code if response.error else None) == code
    assert isinstance(response.output[0], i.Compaction)
    assert (await house.get("t", response.id)).status == status


async def test_an_empty_compaction_fails_the_response(
    house: Any, compacting: dict[str, Any]
) -> None:
    house.model.played = [[d.TextDelta(" ")], [STOP]]
    response = await house.whole(**compacting)
    assert response.status == "failed"
    assert len(house.model.begun) == 1


async def test_a_reader_that_leaves_stops_a_later_turn(
    house: Any, compacting: dict[str, Any]
) -> None:
    house.model.later = [[[d.TextDelta("Hel")], asyncio.Event()]]
    created = await house.create(**compacting, stream=True)
    async for batch in created.events:
        if any(getattr(event, "delta", "") == "Hel" for event in batch):
            break
    await created.leave()
    await asyncio.wait([created.task])
    assert all(turn.closed for turn in house.model.begun)
    assert (await house.get("t", created.id)).status == "cancelled"


async def test_a_failed_reasoning_summary_does_not_fail_the_answer(house: Any) -> None:
    house.model.played = [[d.ReasoningDelta("Hm.")], [d.TextDelta("Hello")], [STOP]]
    house.model.later = [EngineError("busy")]
    response = await house.whole(reasoning={"summary": "auto"})
    assert response.status == "completed"
    assert [type(item) for item in response.output] == [i.Reasoning, i.Message]
    assert response.output[0].summary == ()


async def test_a_model_that_writes_its_own_summary_has_no_summary_turn(house: Any) -> None:
    house.model.played = [
        [d.ReasoningDelta("Hm."), d.SummaryDelta("Own."), d.TextDelta("Hello")],
        [STOP],
    ]
    response = await house.whole(reasoning={"summary": "auto"})
    assert [part.text for part in response.output[0].summary] == ["Own."]
    assert len(house.model.begun) == 1


async def test_truncated_reasoning_is_not_summarized(house: Any) -> None:
    house.model.played = [[d.ReasoningDelta("Hm")], [LENGTH]]
    response = await house.whole(reasoning={"summary": "auto"})
    assert response.status == "incomplete"
    assert len(house.model.begun) == 1


async def test_each_reasoning_item_gets_its_own_summary(house: Any) -> None:
    house.model.played = [
        [d.ReasoningDelta("One."), d.TextDelta("a"), d.ReasoningDelta("Two."), d.TextDelta("b")],
        [STOP],
    ]
    house.model.later = [
        [[d.TextDelta("first")], [STOP]],
        [[d.TextDelta("second")], [STOP]],
    ]
    response = await house.whole(reasoning={"summary": "auto"})
    summaries = [item.summary[0].text for item in response.output if isinstance(item, i.Reasoning)]
    assert summaries == ["first", "second"]
    assert response.usage.output_tokens == 6
