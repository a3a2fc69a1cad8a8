"""The engine's contract, and what a script makes of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from contextlib import aclosing, suppress
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.adapters.engines.scripted.engine import ScriptedEngine
from antiphon.application.ports import EngineRequest
from antiphon.domain.errors import EngineDead, EngineError
from antiphon.domain.tools import ToolSpec
from antiphon.testing.engine import (
    EngineContract,
    IsIdle,
    Kill,
    RequestFactory,
    steps_of,
    text_of,
    tokens_of,
)

RequestFor = Callable[..., EngineRequest]
TALE = " ".join(f"w{n}" for n in range(40))


def play(*turns: Any) -> str:
    return f"@@script {json.dumps(turns)}"


TOLD = play({"say": TALE})


async def until(condition: Callable[[], Any]) -> None:
    async with asyncio.timeout(30):
        while not condition():  # noqa: ASYNC110  (counters have no event)
            await asyncio.sleep(0)


class TestContract(EngineContract):
    # It writes what a script says, and knows the notation of a grammar only from the turn.
    lacks = frozenset({"stop_token_ids", "structural_tag", "grammar"})

    @pytest.fixture
    def engine(self, markup: Any) -> ScriptedEngine:
        return ScriptedEngine(markup, context_length=2000)

    @pytest.fixture
    def ask(self, request_for: RequestFor) -> RequestFactory:
        def ask(**sampling: Any) -> EngineRequest:
            # A script says what it says; without one, the answer satisfies a constraint.
            is_bound = sampling.get("constraint") is not None
            return request_for("Where is it sunny?" if is_bound else TOLD, **sampling)

        return ask

    @pytest.fixture
    def kill(self, engine: ScriptedEngine, request_for: RequestFor) -> Kill:
        async def kill() -> None:
            with suppress(EngineDead):
                await steps_of(engine, request_for(play([{"die": True}])))

        return kill

    @pytest.fixture
    def is_idle(self, engine: ScriptedEngine) -> IsIdle:
        async def is_idle() -> bool:
            return engine.running == 0

        return is_idle


class TestContractAtAPace(TestContract):
    @pytest.fixture
    def engine(self, markup: Any) -> ScriptedEngine:
        return ScriptedEngine(markup, context_length=2000, tokens_per_s=20_000)


async def test_a_turn_is_written_word_by_word_and_ended(
    engine: ScriptedEngine, request_for: RequestFor
) -> None:
    steps = await steps_of(engine, request_for(play({"say": "one two three"})))
    assert [step.text for step in steps] == ["one", " two", " three", ""]
    assert [len(step.token_ids) for step in steps] == [1, 1, 1, 1]
    assert steps[-1].finish == "stop"


async def test_the_end_of_the_turn_counts_as_a_token(
    engine: ScriptedEngine, request_for: RequestFor
) -> None:
    words = play({"say": "one two three"})
    assert (await steps_of(engine, request_for(words, max_tokens=3)))[-1].finish == "length"
    assert (await steps_of(engine, request_for(words, max_tokens=4)))[-1].finish == "stop"


async def test_the_context_length_bounds_the_output(
    engine: ScriptedEngine, request_for: RequestFor
) -> None:
    request = request_for(play({"say": "a ", "repeat": 1_000_000_000}))
    steps = await steps_of(engine, request)
    assert len(request.prompt.token_ids) + len(tokens_of(steps)) == engine.context_length
    assert steps[-1].finish == "length"


async def test_reasoning_is_left_out_where_none_is_wanted(
    engine: ScriptedEngine, request_for: RequestFor
) -> None:
    turn = play([{"think": "hm"}, {"say": "so"}])
    assert text_of(await steps_of(engine, request_for(turn))) == "<think>hm</think>so"
    assert text_of(await steps_of(engine, request_for(turn, effort="none"))) == "so"


async def test_a_conversation_goes_from_turn_to_turn(
    engine: ScriptedEngine, request_for: RequestFor
) -> None:
    history: list[Any] = [play({"call": "add", "args": {"a": 1}}, {"say": "three"})]
    add = ToolSpec(name="add")
    assert "add" in text_of(await steps_of(engine, request_for(*history, tools=[add])))
    history += [("call", "add"), ("tool", "3")]
    assert text_of(await steps_of(engine, request_for(*history, tools=[add]))) == "three"
    history += [("assistant", "three"), ("user", "Well done")]
    assert "add" in text_of(await steps_of(engine, request_for(*history, tools=[add])))


async def test_a_request_without_a_script_is_echoed(
    engine: ScriptedEngine, request_for: RequestFor
) -> None:
    assert text_of(await steps_of(engine, request_for("Hello"))) == "Echo: Hello"


async def test_a_chunk_says_how_many_tokens_come_at_once(
    engine: ScriptedEngine, request_for: RequestFor
) -> None:
    turn = play([{"say": "a b c d", "chunk": 3}, {"say": " e f", "chunk": "all"}])
    steps = await steps_of(engine, request_for(turn))
    assert [step.text for step in steps] == ["a b c", " d", " e f"]


@pytest.mark.parametrize("finish", ["length", "abort", "stop"])
async def test_a_part_may_say_how_the_turn_finishes(
    engine: ScriptedEngine, request_for: RequestFor, finish: str
) -> None:
    turn = play([{"say": "a b", "finish": finish}, {"say": "never"}])
    steps = await steps_of(engine, request_for(turn))
    assert text_of(steps) == "a b"
    assert (steps[-1].finish, len(steps)) == (finish, 3 if finish == "stop" else 2)


async def test_a_turn_without_tokens_still_finishes(
    engine: ScriptedEngine, request_for: RequestFor
) -> None:
    (step,) = await steps_of(engine, request_for(play([{"hang": 0, "finish": "abort"}])))
    assert (step.text, list(step.token_ids), step.finish) == ("", [], "abort")


async def test_without_an_end_the_last_token_goes_on(
    engine: ScriptedEngine, request_for: RequestFor
) -> None:
    request = request_for(play({"say": "la di da"}), ignore_eos=True, max_tokens=6)
    steps = await steps_of(engine, request)
    assert text_of(steps) == "la di da da da da"
    assert steps[-1].finish == "length"


async def test_logprobs_are_the_same_each_time_and_add_up_to_less_than_one(
    engine: ScriptedEngine, request_for: RequestFor
) -> None:
    request = request_for(play({"say": "é the end"}), logprobs=20)
    first, second = await steps_of(engine, request), await steps_of(engine, request)
    assert first == second
    tokens = [token for step in first for token in step.logprobs or ()]
    assert [token.token for token in tokens] == ["é", " the", " end", ""]
    assert [bytes(token.bytes).decode() for token in tokens] == ["é", " the", " end", ""]
    for token in tokens:
        assert len({top.token for top in token.top_logprobs}) == 20
        assert token.top_logprobs[0].logprob == token.logprob
        assert sum(2.718281828**top.logprob for top in token.top_logprobs) < 1


async def test_logprobs_may_be_asked_for_without_alternatives(
    engine: ScriptedEngine, request_for: RequestFor
) -> None:
    (step, _) = await steps_of(engine, request_for(play({"say": "a"}), logprobs=0))
    assert step.logprobs is not None
    assert step.logprobs[0].top_logprobs == ()


async def test_a_prompt_that_was_seen_is_cached_but_for_its_rest(
    engine: ScriptedEngine, request_for: RequestFor
) -> None:
    async def cached(*messages: Any, salt: str) -> int:
        request = request_for(*messages, cache_salt=salt)
        return (await steps_of(engine, request))[0].cached_tokens

    assert await cached(TALE, salt="a") == 0
    assert await cached(TALE, salt="b") == 0
    assert await cached(TALE, ("assistant", "ok"), TALE, salt="a") == 32
    assert await cached(TALE, ("assistant", "ok"), TALE, salt="a") == 80


# --- mishaps --------------------------------------------------------------------------------------


async def test_a_failure_comes_where_the_script_says_and_is_of_one_run(
    engine: ScriptedEngine, request_for: RequestFor
) -> None:
    turn = play([{"say": "a b"}, {"fail": "server_error"}, {"say": "c"}])
    steps = aiter(await engine.generate(request_for(turn)))
    assert [(await anext(steps)).text, (await anext(steps)).text] == ["a", " b"]
    with pytest.raises(EngineError, match="server_error") as failed:
        await anext(steps)
    assert not isinstance(failed.value, EngineDead)
    assert (engine.running, engine.aborted) == (0, 0)
    await engine.check()


async def test_death_is_of_every_run(engine: ScriptedEngine, request_for: RequestFor) -> None:
    hanging = asyncio.create_task(steps_of(engine, request_for(play({"hang": 3600}))))
    writing = asyncio.create_task(
        steps_of(engine, request_for(play({"say": "a ", "repeat": 1900})))
    )
    await until(lambda: engine.running == 2)
    with pytest.raises(EngineDead):
        await steps_of(engine, request_for(play([{"die": True}])))
    for run in (hanging, writing):
        with pytest.raises(EngineDead):
            await run
    with pytest.raises(EngineDead):
        await engine.check()
    with pytest.raises(EngineDead):
        await engine.generate(request_for("Hello"))
    assert engine.running == 0


async def test_death_wakes_a_run_that_waits_for_its_pace(
    markup: Any, request_for: RequestFor
) -> None:
    engine = ScriptedEngine(markup, tokens_per_s=0.001)
    async with aclosing(await engine.generate(request_for("Hello"))) as steps:
        words = aiter(steps)
        await anext(words)  # the first beat is at once
        waiting = asyncio.ensure_future(anext(words))
        await asyncio.sleep(0)
        with pytest.raises(EngineDead):
            await steps_of(engine, request_for(play([{"die": True}])))
        with pytest.raises(EngineDead):
            await waiting


async def test_a_dead_engine_lives_again_once_started(
    engine: ScriptedEngine, request_for: RequestFor
) -> None:
    await engine.aclose()
    with pytest.raises(EngineDead):
        await engine.check()
    await engine.start()
    assert text_of(await steps_of(engine, request_for("Hi"))) == "Echo: Hi"


@pytest.mark.parametrize("part", [{"hang": 3600}, {"say": "a", "tick": 3600, "chunk": "all"}])
async def test_a_waiting_run_can_be_cancelled(
    engine: ScriptedEngine, request_for: RequestFor, part: Any
) -> None:
    run = asyncio.create_task(steps_of(engine, request_for(play(part))))
    await until(lambda: engine.running)
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    assert (engine.running, engine.aborted) == (0, 1)


# --- leaving --------------------------------------------------------------------------------------


async def test_a_run_that_is_left_counts_as_aborted(
    engine: ScriptedEngine, request_for: RequestFor
) -> None:
    async with aclosing(await engine.generate(request_for("Hello there"))) as steps:
        async for _ in steps:
            assert (engine.running, engine.aborted) == (1, 0)
            break
    assert (engine.running, engine.aborted) == (0, 1)


async def test_a_run_that_was_read_to_its_end_does_not(
    engine: ScriptedEngine, request_for: RequestFor
) -> None:
    async with aclosing(await engine.generate(request_for("Hello there"))) as steps:
        async for step in steps:
            if step.finish is not None:
                break
    assert (engine.running, engine.aborted) == (0, 0)


# --- time -----------------------------------------------------------------------------------------


async def test_other_work_goes_on_between_any_two_steps(
    engine: ScriptedEngine, request_for: RequestFor
) -> None:
    texts: list[str] = []

    async def read(word: str) -> None:
        steps = await engine.generate(request_for(play({"say": f"{word} {word}"})))
        async for step in steps:
            texts.append(step.text.strip())  # noqa: PERF401  (the order is what is tested)

    await asyncio.gather(read("a"), read("b"))
    assert texts[:4] == ["a", "b", "a", "b"]


@pytest.mark.parametrize(
    ("part", "step_tokens", "at_least"),
    [
        ({"say": "a b c", "delay": 0.05}, 1, 0.05),
        ({"say": "a b c", "tick": 0.01}, 1, 0.04),
        ({"say": "a b c", "tick": 0.01}, 100, 0.04),
        ({"hang": 0.05}, 1, 0.05),
    ],
)
async def test_a_part_takes_its_time(
    engine: ScriptedEngine,
    request_for: RequestFor,
    part: Any,
    step_tokens: int,
    at_least: float,
) -> None:
    start = asyncio.get_running_loop().time()
    await steps_of(engine, request_for(play(part), step_tokens=step_tokens))
    assert asyncio.get_running_loop().time() - start >= at_least * 0.98


@pytest.mark.parametrize("step_tokens", [1, 4])
async def test_a_pace_is_kept_for_each_run(
    markup: Any, request_for: RequestFor, step_tokens: int
) -> None:
    engine = ScriptedEngine(markup, tokens_per_s=200)
    start = asyncio.get_running_loop().time()
    requests = [
        request_for(play({"say": "a b c d e f g"}), step_tokens=step_tokens) for _ in range(5)
    ]
    await asyncio.gather(*(steps_of(engine, request) for request in requests))
    taken = asyncio.get_running_loop().time() - start
    assert 7 / 200 * 0.98 <= taken < 2


async def test_runs_beyond_the_slots_wait_by_their_priority(
    markup: Any, request_for: RequestFor
) -> None:
    engine, order = ScriptedEngine(markup, slots=1), list[int]()
    first = await engine.generate(request_for(play({"say": TALE})))
    await anext(first)

    async def run(priority: int) -> None:
        request = replace(request_for(play({"say": "hi"})), priority=priority)
        async with aclosing(await engine.generate(request)) as steps:
            async for _step in steps:
                order.append(priority)
                break

    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        for priority in (100, 0, -100):
            tasks.create_task(run(priority))
        for _ in range(3):
            await asyncio.sleep(0)
        assert engine.running == 1
        await first.aclose()
    assert order == [-100, 0, 100]
