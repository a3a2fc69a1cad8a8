"""Contract tests for the port `Engine`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

import pytest
from msgspec.structs import replace

from antiphon.application.ports import Engine, EngineRequest, Step
from antiphon.domain.errors import RequestError

RequestFactory = Callable[..., EngineRequest]


async def steps_of(engine: Engine, request: EngineRequest) -> list[Step]:
    async with aclosing(await engine.generate(request)) as steps:
        return [step async for step in steps]


def text_of(steps: list[Step]) -> str:
    return "".join(step.text for step in steps)


def tokens_of(steps: list[Step]) -> list[int]:
    return [token_id for step in steps for token_id in step.token_ids]


@pytest.mark.asyncio
class EngineContract:
    """Subclass it where pytest collects tests.

    `ask(**sampling)` returns a new request, always with the same prompt, which the engine answers
    with the same text of at least 32 tokens.

    class TestMyEngine(EngineContract):
        @pytest_asyncio.fixture
        async def engine(self):
            engine = MyEngine()
            await engine.start()
            yield engine
            await engine.aclose()

        @pytest.fixture
        def ask(self, engine):
            numbers = itertools.count()
            prompt = Prompt(token_ids=[1, 2, 3])
            return lambda **sampling: EngineRequest(
                request_id=f"run_{next(numbers)}",
                model=engine.models[0],
                prompt=prompt,
                sampling=Sampling(temperature=0, **sampling),
                turn=Turn(model=engine.models[0], items=()),
            )
    """

    @pytest.fixture
    def engine(self) -> Engine:
        raise NotImplementedError("override this fixture: return your engine, started")

    @pytest.fixture
    def ask(self) -> RequestFactory:
        raise NotImplementedError("override this fixture: return a function that makes requests")

    async def test_it_serves_names_and_has_a_context_length(self, engine: Engine) -> None:
        await engine.check()
        assert engine.models
        assert engine.context_length > 0

    async def test_a_closed_engine_starts_again(self, engine: Engine, ask: RequestFactory) -> None:
        before = await steps_of(engine, ask(max_tokens=8))
        await engine.aclose()
        await engine.aclose()  # as the server does at its end, if the engine had died
        await engine.start()
        await engine.check()
        assert not engine.is_dead
        assert text_of(await steps_of(engine, ask(max_tokens=8))) == text_of(before)

    async def test_a_prompt_without_images_is_prepared_unchanged(
        self, engine: Engine, ask: RequestFactory
    ) -> None:
        prompt = ask().prompt
        assert await engine.prepare(prompt) == prompt

    async def test_only_the_last_step_says_how_the_run_finished(
        self, engine: Engine, ask: RequestFactory
    ) -> None:
        steps = await steps_of(engine, ask(max_tokens=8))
        assert [step.finish for step in steps] == [None] * (len(steps) - 1) + ["length"]

    @pytest.mark.parametrize("limit", [1, 2, 17])
    async def test_max_tokens_is_met_exactly(
        self, engine: Engine, ask: RequestFactory, limit: int
    ) -> None:
        steps = await steps_of(engine, ask(max_tokens=limit))
        assert len(tokens_of(steps)) == limit

    @pytest.mark.parametrize("step_tokens", [1, 3, 1 << 30])
    async def test_the_text_is_the_same_however_many_tokens_a_step_has(
        self, engine: Engine, ask: RequestFactory, step_tokens: int
    ) -> None:
        one_by_one = await steps_of(engine, ask(max_tokens=24))
        steps = await steps_of(engine, ask(max_tokens=24, step_tokens=step_tokens))
        assert text_of(steps) == text_of(one_by_one)
        assert tokens_of(steps) == tokens_of(one_by_one)

    @pytest.mark.parametrize("count", [1, 7, 23])
    async def test_an_engine_that_resumes_goes_on_after_what_was_written(
        self, engine: Engine, ask: RequestFactory, count: int
    ) -> None:
        whole = tokens_of(await steps_of(engine, ask(max_tokens=24)))
        if engine.resumes:
            request = replace(ask(max_tokens=24), written=whole[:count])
            steps = await steps_of(engine, request)
            assert tokens_of(steps) == whole[count:]
            assert steps[-1].finish == "length"

    async def test_a_step_has_at_most_the_requested_number_of_tokens(
        self, engine: Engine, ask: RequestFactory
    ) -> None:
        steps = await steps_of(engine, ask(max_tokens=24, step_tokens=5))
        assert max(len(step.token_ids) for step in steps) <= 5

    @pytest.mark.parametrize("include", [False, True])
    async def test_a_stop_string_ends_the_text(
        self, engine: Engine, ask: RequestFactory, include: bool
    ) -> None:
        text = text_of(await steps_of(engine, ask(max_tokens=24)))
        stop = text[len(text) // 2 :][:4]
        steps = await steps_of(
            engine, ask(max_tokens=24, stop=(stop,), include_stop_str_in_output=include)
        )
        start = text.index(stop)
        assert text_of(steps) == text[: start + len(stop) if include else start]
        assert steps[-1].finish == "stop"

    async def test_each_token_has_logprobs_with_the_likeliest_first(
        self, engine: Engine, ask: RequestFactory
    ) -> None:
        for step in await steps_of(engine, ask(max_tokens=12, logprobs=3, step_tokens=5)):
            assert step.logprobs is not None
            assert len(step.logprobs) == len(step.token_ids)
            for token in step.logprobs:
                chances = [top.logprob for top in token.top_logprobs]
                assert len(chances) == 3
                assert chances == sorted(chances, reverse=True)
                assert token.logprob <= 0

    async def test_logprobs_come_only_on_request(self, engine: Engine, ask: RequestFactory) -> None:
        assert {step.logprobs for step in await steps_of(engine, ask(max_tokens=4))} == {None}

    async def test_a_prompt_that_leaves_no_room_is_refused_before_the_run(
        self, engine: Engine, ask: RequestFactory
    ) -> None:
        request = ask()
        token_ids = [request.prompt.token_ids[0]] * engine.context_length
        request = replace(request, prompt=replace(request.prompt, token_ids=token_ids))
        with pytest.raises(RequestError) as refused:
            await engine.generate(request)
        assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "input")

    async def test_a_run_may_be_left_at_any_step(self, engine: Engine, ask: RequestFactory) -> None:
        whole = await steps_of(engine, ask(max_tokens=8))
        async with aclosing(await engine.generate(ask())) as steps:
            async for step in steps:
                assert step.finish is None
                break
        await (await engine.generate(ask())).aclose()
        assert text_of(await steps_of(engine, ask(max_tokens=8))) == text_of(whole)

    async def test_a_cancelled_reader_leaves_the_engine_working(
        self, engine: Engine, ask: RequestFactory
    ) -> None:
        reading = asyncio.create_task(steps_of(engine, ask(ignore_eos=True, max_tokens=1000)))
        await asyncio.sleep(0)
        reading.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reading
        await engine.check()
        assert await steps_of(engine, ask(max_tokens=2))

    async def test_concurrent_runs_do_not_mix(self, engine: Engine, ask: RequestFactory) -> None:
        alone = await steps_of(engine, ask(max_tokens=16))
        together = await asyncio.gather(
            *(steps_of(engine, ask(max_tokens=limit)) for limit in (16, 5, 16, 9))
        )
        assert [tokens_of(steps) for steps in together] == [
            tokens_of(alone)[:limit] for limit in (16, 5, 16, 9)
        ]

    async def test_cached_tokens_are_known_at_the_end_and_within_the_prompt(
        self, engine: Engine, ask: RequestFactory
    ) -> None:
        for _ in range(2):
            request = ask(max_tokens=4)
            steps = await steps_of(engine, request)
            cached = steps[-1].cached_tokens
            assert {step.cached_tokens for step in steps} <= {0, cached}
            assert 0 <= cached < len(request.prompt.token_ids)
