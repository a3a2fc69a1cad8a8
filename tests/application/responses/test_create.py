"""Creating responses: all readers see the same run, and every failure has a defined end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec import UNSET
from msgspec.structs import replace

from antiphon.application.ports import StorePageQuery
from antiphon.application.tools.calls import ToolCaller
from antiphon.application.tools.hosted import ToolProvider
from antiphon.domain import deltas as d
from antiphon.domain import events as e
from antiphon.domain import items as i
from antiphon.domain.errors import (
    EngineError,
    NotFound,
    RequestError,
    ServerShuttingDown,
    StoreError,
)
from antiphon.domain.tools import RequestTool, Shell

STOP = d.TurnEnd("stop", d.TurnUsage(input=3, output=2))
LENGTH = d.TurnEnd("length", d.TurnUsage(input=3, output=16))
TENANT = "t"


async def events_of(created: Any) -> list[e.Event]:
    return [event async for batch in created.events for event in batch]


async def test_the_final_response_is_in_the_last_event_of_the_stream(house: Any) -> None:
    streamed = await events_of(await house.create(stream=True))
    whole = await house.whole()
    assert isinstance(streamed[-1], e.Completed)
    assert streamed[-1].response.output == tuple(
        i.Message(id=item.id, status=whole.output[0].status, role="assistant", content=item.content)
        for item in streamed[-1].response.output
    )
    assert whole.status == "completed"


async def test_a_stored_response_can_be_read_when_its_terminal_event_is_seen(house: Any) -> None:
    created = await house.create()
    async for batch in created.events:
        if isinstance(batch[-1], e.Completed):
            stored = await house.get(TENANT, created.id)
            assert replace(stored, metrics=UNSET, preview=UNSET) == batch[-1].response


async def test_an_unstored_response_is_never_found(house: Any) -> None:
    response = await house.whole(store=False)
    assert response.store is False
    with pytest.raises(NotFound):
        await house.get(TENANT, response.id)
    with pytest.raises(NotFound):
        await house.follow(TENANT, response.id)


async def test_a_response_cut_by_the_token_limit_is_incomplete(house: Any) -> None:
    house.model.played = [[d.TextDelta("Once")], [LENGTH]]
    response = await house.whole()
    assert response.status == "incomplete"
    assert response.incomplete_details.reason == "max_output_tokens"


async def test_a_response_whose_engine_fails_is_stored_as_failed(house: Any) -> None:
    house.model.played = [[d.TextDelta("Once")], EngineError("the engine broke")]
    events = await events_of(await house.create(stream=True))
    assert [type(event) for event in events[-2:]] == [e.Error, e.Failed]
    stored = await house.get(TENANT, events[-1].response.id)  # type: ignore[attr-defined]
    assert (stored.status, stored.error.message) == ("failed", "the engine broke")
    assert [item.status for item in stored.output] == ["incomplete"]


async def test_an_internal_error_fails_the_response_without_its_details(house: Any) -> None:
    house.model.played = [ZeroDivisionError("secret")]
    response = await house.whole()
    assert response.status == "failed"
    assert "secret" not in response.error.message


@pytest.mark.parametrize("error", [StoreError("the disk is full"), ZeroDivisionError("a bug")])
@pytest.mark.parametrize("end", [STOP, LENGTH, EngineError("the engine broke")])
async def test_a_response_whose_end_cannot_be_stored_fails(
    house: Any, error: Exception, end: Any
) -> None:
    house.model.played = [[d.TextDelta("Once")], end if isinstance(end, Exception) else [end]]
    house.store.failing, house.store.error = {"finish"}, error
    events = await events_of(await house.create(stream=True))
    assert [type(event) for event in events[-2:]] == [e.Error, e.Failed]
    assert [type(event) for event in events].count(e.Error) == 1
    assert [event.sequence_number for event in events] == list(range(len(events)))


async def test_no_run_starts_if_the_store_cannot_create_the_response(house: Any) -> None:
    house.store.failing = {"create"}
    with pytest.raises(StoreError):
        await house.create()
    assert house.model.begun[0].closed
    assert len(house.runs) == 0


async def test_a_refusal_of_the_model_is_raised_before_any_event(house: Any) -> None:
    house.model.refusal = RequestError("too long", param="input")
    with pytest.raises(RequestError, match="too long"):
        await house.create(stream=True)


@pytest.mark.parametrize("fields", [{}, {"background": True}], ids=["foreground", "background"])
async def test_no_run_starts_on_a_server_that_stopped_while_it_was_prepared(
    new_house: Any, fields: dict[str, Any]
) -> None:
    class Stopping(ToolProvider):
        tool_types = ("shell",)

        def handles(self, tool: RequestTool) -> bool:
            return isinstance(tool, Shell)

        async def callers(self, *_: Any, **__: Any) -> Mapping[str, ToolCaller]:
            await house.runs.drain(0)
            return {}

    house = new_house(hosted=[Stopping()])
    shell = {"type": "shell", "environment": {"type": "container_auto"}}
    with pytest.raises(ServerShuttingDown):
        await house.create(tools=[shell], **fields)
    assert house.model.begun == []
    assert (await house.store.get_storage_usage(TENANT)).responses == 0


async def test_leaving_a_foreground_response_cancels_it(house: Any) -> None:
    house.model.played = [[d.TextDelta("Once")], asyncio.Event()]
    created = await house.create(stream=True)
    await created.leave()
    await asyncio.wait([created.task])
    assert house.model.begun[0].closed
    assert (await house.get(TENANT, created.id)).status == "cancelled"


async def test_leaving_a_background_response_lets_it_run(house: Any) -> None:
    gate = asyncio.Event()
    house.model.played = [[d.TextDelta("Once")], gate, [STOP]]
    created = await house.create(background=True)
    await created.leave()
    gate.set()
    await created.task
    assert (await house.get(TENANT, created.id)).status == "completed"


async def test_a_background_response_is_cancelled_once_and_for_all(house: Any) -> None:
    house.model.played = [[d.TextDelta("Once")], asyncio.Event()]
    created = await house.create(background=True)
    first = await house.cancel(TENANT, created.id)
    assert first.status == "cancelled"
    assert await house.cancel(TENANT, created.id) == first


async def test_a_foreground_or_finished_response_cannot_be_cancelled(house: Any) -> None:
    plain = await house.whole()
    with pytest.raises(RequestError, match="synchronous"):
        await house.cancel(TENANT, plain.id)
    created = await house.create(background=True)
    await created.task
    with pytest.raises(RequestError, match="Cannot cancel a completed response"):
        await house.cancel(TENANT, created.id)


async def test_two_readers_see_the_same_events(house: Any) -> None:
    gate = asyncio.Event()
    house.model.played = [[d.TextDelta("a")], gate, [d.TextDelta("b")], [STOP]]
    created = await house.create(background=True, stream=True)
    late = await house.follow(TENANT, created.id)
    gate.set()
    first = [event async for batch in created.events for event in batch]
    second = [event async for batch in late for event in batch]
    assert first == second


@pytest.mark.parametrize("after", [-1, 0, 3, 6])
async def test_a_reader_that_reconnects_gets_the_events_it_missed(house: Any, after: int) -> None:
    created = await house.create(stream=True)
    events = await events_of(created)
    again = await house.follow(TENANT, created.id, after=after)
    assert [event async for batch in again for event in batch] == events[after + 1 :]


async def test_a_continued_conversation_has_inputs_and_outputs_in_order(house: Any) -> None:
    first = await house.whole(input="one")
    await house.whole(input="two", previous_response_id=first.id, instructions="Be brief.")
    turn = house.model.turns[-1]
    assert [item.role for item in turn.items] == ["user", "assistant", "user"]
    assert turn.instructions == "Be brief."
    third = await house.whole(input="three", previous_response_id=first.id)
    assert third.instructions is None
    assert house.model.turns[-1].instructions is None


@pytest.mark.parametrize("status", ["failed", "in_progress"])
async def test_a_failed_or_unfinished_response_cannot_be_continued(house: Any, status: str) -> None:
    wait = asyncio.Event()
    house.model.played = [EngineError("gone")] if status == "failed" else [wait]
    created = await house.create(background=True)
    if status == "failed":
        await created.task
    with pytest.raises(RequestError) as caught:
        await house.create(previous_response_id=created.id)
    assert caught.value.param == "previous_response_id"
    created.task.cancel()


async def test_an_unknown_previous_response_has_its_own_error_code(house: Any) -> None:
    with pytest.raises(RequestError) as caught:
        await house.create(previous_response_id="resp_none")
    assert caught.value.code == "previous_response_not_found"


async def test_an_item_reference_is_replaced_by_the_item(house: Any) -> None:
    first = await house.whole()
    reference = {"type": "item_reference", "id": first.output[0].id}
    await house.whole(input=[reference, {"role": "user", "content": "again"}])
    assert [item.role for item in house.model.turns[-1].items] == ["assistant", "user"]
    with pytest.raises(RequestError, match="not found"):
        await house.create(input=[{"type": "item_reference", "id": "msg_none"}])


async def test_reasoning_is_encrypted_on_request_and_decrypted_when_sent_back(house: Any) -> None:
    house.model.played = [[d.ReasoningDelta("hm"), d.CallStart("f")], [STOP]]
    tools = [{"type": "function", "name": "f"}]
    include = ["reasoning.encrypted_content"]
    response = await house.whole(tools=tools, store=False, include=include)
    reasoning, call = response.output
    assert reasoning.encrypted_content == "sealed:t:hm"
    sent_back = {"type": "reasoning", "summary": [], "encrypted_content": "sealed:t:hm"}
    call_output = {"type": "function_call_output", "call_id": call.call_id, "output": "1"}
    call_item = {"type": "function_call", "call_id": call.call_id, "name": "f", "arguments": "{}"}
    question = {"role": "user", "content": "hi"}
    await house.whole(input=[question, sent_back, call_item, call_output], tools=tools)
    assert house.model.turns[-1].items[1].content[0].text == "hm"


async def test_reasoning_that_cannot_be_decrypted_is_left_out_without_an_error(house: Any) -> None:
    foreign = {"type": "reasoning", "summary": [], "encrypted_content": "nonsense"}
    response = await house.whole(input=[{"role": "user", "content": "x"}, foreign])
    assert len(house.model.turns[-1].items) == 1
    assert [each.reason for each in response.input_transformations] == ["organization_mismatch"]


async def test_hidden_reasoning_is_not_in_the_output(house: Any) -> None:
    house.model.played = [[d.ReasoningDelta("hm"), d.TextDelta("Hi")], [STOP]]
    response = await house.whole(include_reasoning=False)
    assert [type(item) for item in response.output] == [i.Message]


async def test_the_formats_own_messages_are_shown_on_request(house: Any) -> None:
    response = await house.whole(enable_response_messages=True)
    assert response.input_messages == ({"message": "in"},)
    assert response.output_messages == ({"message": "out"},)


async def test_effective_values_are_echoed(house: Any) -> None:
    response = await house.whole()
    assert (response.temperature, response.top_p) == (0.6, 1.0)
    with pytest.raises(RequestError) as caught:
        await house.create(reasoning={"effort": "medium"})
    assert caught.value.param == "reasoning.effort"


async def test_a_response_without_streaming_is_generated_in_one_step(house: Any) -> None:
    await house.whole()
    await events_of(await house.create(stream=True))
    plain, watched = (turn.sampling.step_tokens for turn in house.model.turns)
    assert plain > 1_000_000
    assert watched == 1


async def test_fields_without_effect_are_reported(house: Any, caplog: Any) -> None:
    caplog.set_level("INFO", "antiphon.requests")
    created = await house.create(
        moderation={"model": "x"}, tools=[{"type": "image_generation"}], reasoning={"mode": "pro"}
    )
    assert list(created.ignored) == ["tools[0]", "moderation", "reasoning.mode"]
    assert "without effect: tools[0], moderation, reasoning.mode" in caplog.text


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"model": None}, "model"),
        ({"model": "nope"}, "model"),
        ({"input": None}, "input"),
        ({"prompt": {"id": "p"}}, "prompt"),
        ({"background": True, "store": False}, "background"),
        (
            {"previous_response_id": "resp_1", "previous_input_messages": []},
            "previous_input_messages",
        ),
        ({"structured_outputs": {}}, "structured_outputs"),
        ({"structured_outputs": {"regex": "a", "grammar": "b"}}, "structured_outputs"),
    ],
)
async def test_the_error_of_an_unsupported_request_names_the_field(
    house: Any, fields: dict[str, Any], param: str
) -> None:
    with pytest.raises(RequestError) as caught:
        await house.create(**fields)
    assert caught.value.param == param


async def test_deleting_a_running_response_stops_it_first(house: Any) -> None:
    house.model.played = [[d.TextDelta("Once")], asyncio.Event()]
    created = await house.create(background=True)
    await house.delete(TENANT, created.id)
    assert created.task.done()
    with pytest.raises(NotFound):
        await house.get(TENANT, created.id)


async def test_another_tenant_does_not_find_the_response(house: Any) -> None:
    response = await house.whole()
    for verb in (house.get, house.delete, house.cancel, house.follow):
        with pytest.raises(NotFound):
            await verb("other", response.id)


async def test_input_items_are_paged_in_both_orders(house: Any) -> None:
    texts = ["a", "b", "c"]
    response = await house.whole(input=[{"role": "user", "content": text} for text in texts])

    async def list_page(**query: Any) -> tuple[list[str], bool, list[str]]:
        page = await house.input_items(
            TENANT, response.id, StorePageQuery(**{"limit": 20, **query})
        )
        texts = [json.loads(bytes(item.raw))["content"][0]["text"] for item in page.items]
        return texts, page.has_more, [item.id for item in page.items]

    page_texts, has_more, ids = await list_page()
    assert (page_texts, has_more) == (texts, False)
    assert (await list_page(is_descending=True))[0] == texts[::-1]
    assert (await list_page(limit=2))[:2] == (["a", "b"], True)
    assert (await list_page(after=ids[1]))[0] == ["c"]
    with pytest.raises(RequestError) as caught:
        await list_page(after="msg_none")
    assert caught.value.param == "after"


async def test_a_client_that_leaves_during_creation_leaves_no_unfinished_response(
    house: Any,
) -> None:
    house.store.created = asyncio.Event()
    creating = asyncio.create_task(house.create())
    await house.store.created.wait()
    creating.cancel()
    with pytest.raises(asyncio.CancelledError):
        await creating
    assert house.model.begun[0].closed
    assert await house.store.list_leases(house.owner) == []
