"""Contract tests for the port `Model`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Sequence
from contextlib import aclosing
from itertools import count
from typing import Any

import msgspec
import pytest
from msgspec.structs import fields, replace

from antiphon.application.ports import Model, Sampling, Turn
from antiphon.domain import deltas as d
from antiphon.domain.errors import RequestError
from antiphon.domain.items import Item, Message
from antiphon.domain.responses.response import TextConfig
from antiphon.domain.tools import ToolChoice, ToolSpec

TurnFactory = Callable[..., Turn]

NUMBERS = count()

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}


async def read_turn(model: Model, turn: Turn) -> list[d.Delta]:
    """Run the turn to its end and return its deltas."""
    admitted = await model.start_turn(turn, request_id=f"contract_{next(NUMBERS)}")
    async with aclosing(aiter(admitted)) as steps:
        return [delta async for deltas in steps for delta in deltas]


def end_of(deltas: Sequence[d.Delta]) -> d.TurnEnd:
    end = deltas[-1]
    assert isinstance(end, d.TurnEnd)
    return end


def text_of(deltas: Sequence[d.Delta], kind: type[Any] = d.TextDelta) -> str:
    return "".join(delta.text for delta in deltas if isinstance(delta, kind))


def user(text: str) -> Item:
    return Message(role="user", content=text)


def answer(text: str) -> Item:
    return Message(role="assistant", content=text)


def without_room(turn: Turn, model: Model) -> Turn:
    """Return the turn with older messages that alone exceed the context."""
    long = user("word " * model.context_length)
    return replace(turn, items=[long, answer("Go on."), *turn.items])


def check_place(text: str) -> None:
    """Check that the text is JSON of SCHEMA."""
    place = json.loads(text)
    assert list(place) == ["city"]
    assert isinstance(place["city"], str)


@pytest.mark.asyncio
class ModelContract:
    """Subclass it where pytest collects tests.

    `ask(**fields)` returns a turn with these fields, always with the same items, which the model
    answers with the same text of at least 32 tokens: with no reasoning, and with no call.

    class TestMyModel(ModelContract):
        @pytest_asyncio.fixture
        async def model(self):
            model = MyModel()
            await model.start()
            yield model
            await model.aclose()

        @pytest.fixture
        def ask(self, model):
            items = [Message(role="user", content="Count to forty.")]
            return lambda **fields: Turn(model=model.names[0], items=items, **fields)
    """

    @pytest.fixture
    def model(self) -> Model:
        raise NotImplementedError("override this fixture: return your model, started")

    @pytest.fixture
    def ask(self) -> TurnFactory:
        raise NotImplementedError("override this fixture: return a function that makes turns")

    async def test_a_started_model_says_what_it_is(self, model: Model) -> None:
        await model.check()
        assert model.names
        assert len(set(model.names)) == len(model.names)
        assert model.format_name
        assert model.context_length > 0
        assert isinstance(model.reads_images, bool)
        assert isinstance(model.only_answers_end_turns, bool)
        assert all(isinstance(effort, str) for effort in model.efforts)
        assert model.sampling_defaults.keys() <= {field.name for field in fields(Sampling)}

    async def test_a_closed_model_starts_again(self, model: Model, ask: TurnFactory) -> None:
        before = await read_turn(model, ask())
        await model.aclose()
        await model.aclose()  # as the server does at its end, if the model's engine had died
        await model.start()
        await model.check()
        assert not model.is_dead
        assert text_of(await read_turn(model, ask())) == text_of(before)

    # --- a turn -----------------------------------------------------------------------------------

    async def test_the_last_delta_and_no_other_is_the_end_of_the_turn(
        self, model: Model, ask: TurnFactory
    ) -> None:
        deltas = await read_turn(model, ask())
        ends = [isinstance(delta, d.TurnEnd) for delta in deltas]
        assert ends == [False] * (len(deltas) - 1) + [True]
        assert end_of(deltas).reason == "stop"
        assert text_of(deltas)

    async def test_the_count_of_the_input_is_the_usage_of_its_turn(
        self, model: Model, ask: TurnFactory
    ) -> None:
        turn = ask()
        end = end_of(await read_turn(model, turn))
        assert end.usage.input == await model.count(turn)
        assert 0 <= end.usage.cached < end.usage.input
        assert end.usage.output >= 32

    async def test_input_beyond_the_known_tokens_counts_as_tool_output(
        self, model: Model, ask: TurnFactory
    ) -> None:
        size = await model.count(ask())
        first = await read_turn(model, ask(sampling=Sampling(max_tokens=4)))
        later = await read_turn(model, ask(sampling=Sampling(max_tokens=4), known_tokens=size - 3))
        assert end_of(first).usage.tool_output == 0
        assert end_of(later).usage.tool_output == 3

    @pytest.mark.parametrize("limit", [1, 2, 17])
    async def test_max_tokens_cuts_the_output_at_exactly_as_many(
        self, model: Model, ask: TurnFactory, limit: int
    ) -> None:
        end = end_of(await read_turn(model, ask(sampling=Sampling(max_tokens=limit))))
        assert (end.reason, end.usage.output) == ("length", limit)

    @pytest.mark.parametrize("step_tokens", [3, 1 << 30])
    async def test_the_text_is_the_same_however_many_tokens_a_step_has(
        self, model: Model, ask: TurnFactory, step_tokens: int
    ) -> None:
        one_by_one = await read_turn(model, ask(sampling=Sampling(max_tokens=24)))
        sampling = Sampling(max_tokens=24, step_tokens=step_tokens)
        gathered = await read_turn(model, ask(sampling=sampling))
        assert text_of(gathered) == text_of(one_by_one)
        assert end_of(gathered).usage.output == end_of(one_by_one).usage.output

    @pytest.mark.parametrize("is_included", [False, True])
    async def test_a_stop_string_ends_the_text(
        self, model: Model, ask: TurnFactory, is_included: bool
    ) -> None:
        text = text_of(await read_turn(model, ask()))
        stop = text[len(text) // 2 :][:4]
        sampling = Sampling(stop=(stop,), include_stop_str_in_output=is_included)
        deltas = await read_turn(model, ask(sampling=sampling))
        start = text.index(stop)
        assert text_of(deltas) == text[: start + len(stop) if is_included else start]
        assert end_of(deltas).reason == "stop"

    async def test_logprobs_are_those_of_the_text_and_come_only_on_request(
        self, model: Model, ask: TurnFactory
    ) -> None:
        deltas = await read_turn(model, ask(sampling=Sampling(max_tokens=12, logprobs=2)))
        logprobs = [
            each for delta in deltas if isinstance(delta, d.TextDelta) for each in delta.logprobs
        ]
        assert b"".join(bytes(each.bytes) for each in logprobs).decode() == text_of(deltas)
        assert {len(each.top_logprobs) for each in logprobs} == {2}
        plain = await read_turn(model, ask(sampling=Sampling(max_tokens=12)))
        assert not any(delta.logprobs for delta in plain if isinstance(delta, d.TextDelta))

    # --- what binds the output --------------------------------------------------------------------

    async def test_an_answer_is_weighed_among_its_labels(
        self, model: Model, ask: TurnFactory
    ) -> None:
        try:
            labels = await model.labels(2)
        except RequestError as refused:
            assert refused.param == "model"  # noqa: PT017 - a model may have none
            return
        assert len(set(labels)) == 2
        weights = await model.weigh(ask(begins_answer=True), labels, request_id="weighed")
        assert len(weights.logs) == 2
        assert weights.usage.output == 1
        assert weights.usage.input > weights.usage.cached >= 0

    async def test_a_required_tool_is_called_with_arguments_of_its_schema(
        self, model: Model
    ) -> None:
        turn = Turn(
            model=model.names[0],
            items=[user("What is the weather in Rome?")],
            tools=[
                ToolSpec(name="say_hello", parameters={"type": "object"}),
                ToolSpec(name="get_weather", parameters=SCHEMA, strict=True),
            ],
            choice=ToolChoice(mode="required", names=frozenset({"get_weather"})),
        )
        deltas = await read_turn(model, turn)
        [call] = [delta for delta in deltas if isinstance(delta, d.CallStart)]
        assert (call.name, call.kind) == ("get_weather", "function")
        check_place(text_of(deltas, d.ArgumentsDelta))
        assert end_of(deltas).reason == "stop"

    async def test_no_tool_is_called_if_the_choice_is_none(self, model: Model) -> None:
        turn = Turn(
            model=model.names[0],
            items=[user("What is the weather in Rome?")],
            tools=[ToolSpec(name="get_weather", parameters=SCHEMA)],
            choice=ToolChoice(mode="none"),
        )
        deltas = await read_turn(model, turn)
        assert not any(isinstance(delta, d.CallStart) for delta in deltas)

    async def test_a_json_schema_binds_the_text(self, model: Model) -> None:
        text = TextConfig(
            format={"type": "json_schema", "name": "place", "schema": SCHEMA, "strict": True}
        )
        turn = Turn(model=model.names[0], items=[user("Where is Rome?")], text=text)
        check_place(text_of(await read_turn(model, turn)))

    # --- too long an input ------------------------------------------------------------------------

    async def test_an_input_that_leaves_no_room_is_refused_before_the_turn(
        self, model: Model, ask: TurnFactory
    ) -> None:
        turn = without_room(ask(), model)
        with pytest.raises(RequestError) as refused:
            await model.start_turn(turn, request_id=f"contract_{next(NUMBERS)}")
        assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")

    async def test_an_input_that_leaves_no_room_can_still_be_counted(
        self, model: Model, ask: TurnFactory
    ) -> None:
        assert await model.count(without_room(ask(), model)) > model.context_length

    async def test_truncation_drops_the_oldest_items(self, model: Model, ask: TurnFactory) -> None:
        turn = ask(sampling=Sampling(max_tokens=8))
        whole = await read_turn(model, turn)
        long = replace(without_room(turn, model), truncate=True)
        truncated = await read_turn(model, long)
        assert text_of(truncated) == text_of(whole)
        assert end_of(truncated).usage.input == await model.count(long) < model.context_length

    async def test_a_rendered_prompt_has_the_tokens_that_are_counted(
        self, model: Model, ask: TurnFactory
    ) -> None:
        """A model whose server makes the prompts renders none."""
        turn = ask(sampling=Sampling(max_tokens=8))
        long = replace(without_room(turn, model), truncate=True)
        for each in (turn, long):
            rendered = await model.render(each)
            if rendered is not None:
                assert len(rendered.token_ids) == await model.count(each)
                dropped = [item for item in each.items if item not in rendered.turn.items]
                assert bool(dropped) == (each is long)

    # --- leaving ----------------------------------------------------------------------------------

    async def test_a_turn_may_be_left_at_any_step(self, model: Model, ask: TurnFactory) -> None:
        whole = await read_turn(model, ask())
        admitted = await model.start_turn(ask(), request_id=f"contract_{next(NUMBERS)}")
        async with aclosing(aiter(admitted)) as steps:
            assert not any(isinstance(delta, d.TurnEnd) for delta in await anext(steps))
        await admitted.aclose()
        await (await model.start_turn(ask(), request_id=f"contract_{next(NUMBERS)}")).aclose()
        assert text_of(await read_turn(model, ask())) == text_of(whole)

    async def test_a_cancelled_reader_leaves_the_model_working(
        self, model: Model, ask: TurnFactory
    ) -> None:
        leaving, staying = (asyncio.create_task(read_turn(model, ask())) for _ in range(2))
        await asyncio.sleep(0)
        leaving.cancel()
        with pytest.raises(asyncio.CancelledError):
            await leaving
        await model.check()
        assert end_of(await staying).reason == "stop"

    async def test_turns_run_side_by_side_and_do_not_mix(
        self, model: Model, ask: TurnFactory
    ) -> None:
        limits = (16, 5, 24, 9)
        turns = [ask(sampling=Sampling(max_tokens=limit)) for limit in limits]
        alone = [text_of(await read_turn(model, turn)) for turn in turns]
        together = await asyncio.gather(*(read_turn(model, turn) for turn in turns))
        assert [text_of(deltas) for deltas in together] == alone
        assert [end_of(deltas).usage.output for deltas in together] == list(limits)

    # --- what is known of a turn ------------------------------------------------------------------

    async def test_the_tokens_of_a_turn_are_known_while_it_runs(
        self, model: Model, ask: TurnFactory
    ) -> None:
        admitted = await model.start_turn(ask(), request_id=f"contract_{next(NUMBERS)}")
        read: list[d.Delta] = []
        outputs: list[int] = []
        async with aclosing(aiter(admitted)) as steps:
            async for deltas in steps:
                read += deltas
                [used] = admitted.tokens_used()
                outputs.append(used.output)
        assert used == end_of(read).usage
        assert outputs == sorted(outputs)

    async def test_a_turn_has_messages_in_the_shape_of_its_format(
        self, model: Model, ask: TurnFactory
    ) -> None:
        admitted = await model.start_turn(ask(), request_id=f"contract_{next(NUMBERS)}")
        async with aclosing(aiter(admitted)) as steps:
            async for _ in steps:
                pass
        for messages in admitted.messages():
            assert messages
            assert msgspec.json.decode(msgspec.json.encode(messages)) == messages

    async def test_a_turn_that_was_recorded_can_be_continued(
        self, model: Model, ask: TurnFactory
    ) -> None:
        turn = ask(sampling=Sampling(max_tokens=64))
        admitted = await model.start_turn(turn, request_id=f"contract_{next(NUMBERS)}")
        async with aclosing(aiter(admitted)) as steps:
            deltas = [delta async for batch in steps for delta in batch]
        items = [answer(text_of(deltas))]
        admitted.record_items(items)
        used = end_of(deltas).usage
        longer = replace(turn, items=[*turn.items, *items, user("Go on.")])
        end = end_of(await read_turn(model, longer))
        assert end.usage.input > used.input
        assert end.usage.input == await model.count(longer)
