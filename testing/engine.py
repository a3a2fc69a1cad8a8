"""Contract tests for the port `Engine`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection
from contextlib import aclosing, suppress
from typing import ClassVar, NoReturn

import pytest
from msgspec.structs import replace

from antiphon.application.ports import Constraint, Engine, EngineRequest, Step
from antiphon.domain.errors import CannotResume, EngineDead, EngineError, RequestError

RequestFactory = Callable[..., EngineRequest]
Kill = Callable[[], Awaitable[None]]
IsIdle = Callable[[], Awaitable[bool]]

PATIENCE_S = 30.0
"""How long an engine has to notice that it is dead, or that a reader has left."""

DEATH_S = 2.0
"""How long after its connections a killed process may end."""

LONG_PROMPT_TOKENS = 300
"""Engines cache prompts in whole blocks, of at most 128 tokens as far as we know."""

_TAG = {"type": "structural_tag", "format": {"type": "const_string", "value": "<b>x</b>"}}

Holds = Callable[[str], bool]
CONSTRAINTS: dict[str, tuple[Constraint, Holds]] = {
    # An object may have spaces, of which a model with random weights writes any number.
    "json_schema": (
        Constraint(kind="json_schema", value={"enum": ["Paris", True]}),
        {'"Paris"', "true"}.__contains__,
    ),
    "json_object": (Constraint(kind="json_object"), lambda text: text.startswith("{")),
    "regex": (Constraint(kind="regex", value="ab{3}c"), "abbbc".__eq__),
    "grammar": (Constraint(kind="grammar", value='root ::= "yes" "no"'), "yesno".__eq__),
    "choice": (
        Constraint(kind="choice", value=["Paris", "Tokyo"]),
        {"Paris", "Tokyo"}.__contains__,
    ),
    "structural_tag": (Constraint(kind="structural_tag", value=_TAG), "<b>x</b>".__eq__),
}
"""A constraint of each kind, and whether a whole text satisfies it."""

LACKABLE = frozenset(
    {
        *CONSTRAINTS,
        "constraints",
        "resumed_constraints",
        "stop_token_ids",
        "cached_tokens",
        "process",
    }
)


async def steps_of(engine: Engine, request: EngineRequest) -> list[Step]:
    async with aclosing(await engine.generate(request)) as steps:
        return [step async for step in steps]


def text_of(steps: list[Step]) -> str:
    return "".join(step.text for step in steps)


def tokens_of(steps: list[Step]) -> list[int]:
    return [token_id for step in steps for token_id in step.token_ids]


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Raises: TimeoutError if the condition does not become true in time."""
    async with asyncio.timeout(PATIENCE_S):
        while not await condition():  # noqa: ASYNC110  (what another process does has no event)
            await asyncio.sleep(0.01)


class EngineContract:
    """Subclass it where pytest collects tests.

    `ask(**sampling)` returns a new request, always with the same prompt, which the engine answers
    with the same text of at least 32 tokens. `kill()` ends the process or server that computes, as
    `kill -9` does. `is_idle()` says whether it computes nothing.

    `lacks` names what your engine cannot do. The tests check that it is so:

    - a kind of constraint, such as `regex`, or all `constraints`: they are refused, or not enforced
    - `resumed_constraints`: CannotResume is raised for a run that has begun and is constrained
    - `stop_token_ids`: they have no effect
    - `cached_tokens`: they are always 0
    - `process`: it computes in the server's own process while its steps are read. So nothing can
      die alone or go on after its reader has left: two tests are skipped, and `kill` and `is_idle`
      are not needed

    class TestMyEngine(EngineContract):
        lacks = {"constraints", "stop_token_ids"}

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

        @pytest.fixture
        def kill(self, engine):
            return engine.kill

        @pytest.fixture
        def is_idle(self, engine):
            return engine.is_idle

    An engine that takes long to start can be one for all tests: a fixture of the module with
    `class TestMyEngine(EngineContract, loop_scope="module")`, whose tests run in its event loop.
    """

    lacks: Collection[str] = frozenset()
    pytestmark: ClassVar[list[pytest.MarkDecorator]] = []

    def __init_subclass__(cls, *, loop_scope: str = "function") -> None:
        # Of the marks of a class, that of its base would be the one that counts.
        cls.pytestmark = [pytest.mark.asyncio(loop_scope=loop_scope)]

    @pytest.fixture
    def engine(self) -> Engine:
        raise NotImplementedError("override this fixture: return your engine, started")

    @pytest.fixture
    def ask(self) -> RequestFactory:
        raise NotImplementedError("override this fixture: return a function that makes requests")

    @pytest.fixture
    def kill(self) -> Kill:
        self._needs_process("an async function that kills the engine's process")

    @pytest.fixture
    def is_idle(self) -> IsIdle:
        self._needs_process("an async function that says whether the engine is idle")

    def _needs_process(self, value: str) -> NoReturn:
        if "process" in self.lacks:
            pytest.skip("the engine lacks a process of its own")
        raise NotImplementedError(
            f'override this fixture: return {value}; or `lacks = {{"process"}}`'
        )

    async def test_what_it_lacks_is_a_capability(self) -> None:
        assert LACKABLE.issuperset(self.lacks)

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

    async def test_the_tokens_are_the_same_without_their_text(
        self, engine: Engine, ask: RequestFactory
    ) -> None:
        whole = await steps_of(engine, ask(max_tokens=12))
        steps = await steps_of(engine, replace(ask(max_tokens=12), detokenize=False))
        assert tokens_of(steps) == tokens_of(whole)

    @pytest.mark.parametrize("count", [1, 7, 23])
    async def test_an_engine_that_resumes_goes_on_after_what_was_written(
        self, engine: Engine, ask: RequestFactory, count: int
    ) -> None:
        whole = await steps_of(engine, ask(max_tokens=24))
        if engine.resumes:
            request = replace(ask(max_tokens=24), written=tokens_of(whole)[:count])
            steps = await steps_of(engine, request)
            assert tokens_of(steps) == tokens_of(whole)[count:]
            assert text_of(whole).endswith(text_of(steps))
            assert steps[-1].finish == "length"

    async def test_a_stop_token_ends_the_run_and_is_not_in_its_text(
        self, engine: Engine, ask: RequestFactory
    ) -> None:
        whole = tokens_of(await steps_of(engine, ask(max_tokens=16)))
        end = max(whole.index(token_id) for token_id in whole)
        steps = await steps_of(engine, ask(max_tokens=16, stop_token_ids=(whole[end],)))
        if "stop_token_ids" in self.lacks:
            assert tokens_of(steps) == whole
            return
        assert tokens_of(steps) == whole[: end + 1]
        assert steps[-1].finish == "stop"
        assert text_of(steps) == text_of(await steps_of(engine, ask(max_tokens=end)))

    @pytest.mark.parametrize("kind", CONSTRAINTS)
    async def test_a_constraint_holds_from_the_first_token_to_the_end(
        self, engine: Engine, ask: RequestFactory, kind: str
    ) -> None:
        constraint, holds = CONSTRAINTS[kind]
        # Any object would do, and a model may write a long one.
        is_open = kind == "json_object"
        request = ask(max_tokens=8 if is_open else 100, constraint=constraint, ignore_eos=False)
        if {kind, "constraints"}.intersection(self.lacks):
            with suppress(RequestError):
                assert not holds(text_of(await steps_of(engine, request)))
            return
        steps = await steps_of(engine, request)
        assert holds(text_of(steps))
        assert is_open or steps[-1].finish == "stop"

    @pytest.mark.parametrize("kind", CONSTRAINTS)
    async def test_a_constrained_run_goes_on_after_what_was_written(
        self, engine: Engine, ask: RequestFactory, kind: str
    ) -> None:
        if not engine.resumes or {kind, "constraints"}.intersection(self.lacks):
            return
        constraint, _ = CONSTRAINTS[kind]
        fields = {"max_tokens": 24, "constraint": constraint, "ignore_eos": False}
        whole = tokens_of(await steps_of(engine, ask(**fields)))
        rest = replace(ask(**fields), written=whole[: len(whole) // 2])
        if "resumed_constraints" in self.lacks:
            with pytest.raises(CannotResume):
                await steps_of(engine, rest)
            return
        assert tokens_of(await steps_of(engine, rest)) == whole[len(whole) // 2 :]

    async def test_a_step_has_at_most_the_requested_number_of_tokens(
        self, engine: Engine, ask: RequestFactory
    ) -> None:
        steps = await steps_of(engine, ask(max_tokens=24, step_tokens=5))
        assert max(len(step.token_ids) for step in steps) <= 5

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

    async def test_the_bytes_of_the_tokens_spell_the_text(
        self, engine: Engine, ask: RequestFactory
    ) -> None:
        steps = await steps_of(engine, ask(max_tokens=12, logprobs=0))
        tokens = [token for step in steps for token in step.logprobs or ()]
        assert {token.top_logprobs for token in tokens} == {()}
        spelled = b"".join(bytes(token.bytes or ()) for token in tokens)
        # A character may be incomplete at the end.
        assert spelled.decode("utf-8", "ignore").startswith(text_of(steps).rstrip("\ufffd"))

    async def test_an_answer_is_one_of_its_tokens_and_says_how_likely_each_is(
        self, engine: Engine, ask: RequestFactory
    ) -> None:
        if not engine.weighs_at_once:
            return
        tokens = list(dict.fromkeys(tokens_of(await steps_of(engine, ask(max_tokens=12)))))[:4]
        found: list[list[float]] = []
        for answers in (tokens, tokens[::-1]):
            request = ask(max_tokens=1, logprobs=len(answers), answer_tokens=tuple(answers))
            steps = await steps_of(engine, request)
            [answer] = tokens_of(steps)
            assert answer in answers
            [logprob] = [each for step in steps for each in step.logprobs or ()]
            logs = [each.logprob for each in logprob.top_logprobs]
            assert len(logs) == len(answers)
            found.append([each - max(logs) for each in logs])
        assert found[0] == pytest.approx(found[1][::-1], abs=0.01)

    async def test_a_prompt_is_as_likely_as_when_the_engine_writes_it(
        self, engine: Engine, ask: RequestFactory
    ) -> None:
        if not engine.scores_prompts:
            return
        request = ask(max_tokens=6, logprobs=0)
        steps = await steps_of(engine, request)
        written = [each.logprob for step in steps for each in step.logprobs or ()]
        tokens = (*request.prompt.token_ids, *tokens_of(steps))
        scored = ask(max_tokens=1, prompt_logprobs=0)
        scored = replace(scored, prompt=replace(request.prompt, token_ids=tokens))
        first, *_ = await steps_of(engine, scored)
        assert first.prompt_logprobs is not None
        assert len(first.prompt_logprobs) == len(tokens)
        found = [each.logprob for each in first.prompt_logprobs[-len(written) :]]
        assert found == pytest.approx(written, abs=0.01)

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

    @pytest.mark.parametrize("tokens", [0, 3])
    async def test_a_run_that_is_left_costs_the_engine_nothing_more(
        self, engine: Engine, ask: RequestFactory, is_idle: IsIdle, tokens: int
    ) -> None:
        async with aclosing(await engine.generate(ask(ignore_eos=True))) as run:
            steps = aiter(run)
            for _ in range(tokens):
                assert (await anext(steps)).finish is None
        await until(is_idle)

    async def test_a_dead_engine_fails_its_runs_and_starts_again(
        self, engine: Engine, ask: RequestFactory, kill: Kill
    ) -> None:
        whole = await steps_of(engine, ask(max_tokens=8))
        run = await engine.generate(ask(ignore_eos=True))
        async with aclosing(run), asyncio.timeout(PATIENCE_S):
            steps = aiter(run)
            await anext(steps)
            await kill()
            with pytest.raises(EngineError):
                async for _ in steps:
                    pass

        async def refuses() -> bool:
            try:
                await engine.check()
            except EngineDead:
                return True
            return False

        await until(refuses)
        with pytest.raises(EngineDead):
            await engine.generate(ask())

        async def is_dead() -> bool:
            return engine.is_dead

        # Connections are gone before a large process is. Servers of others never count as dead.
        with suppress(TimeoutError):
            async with asyncio.timeout(DEATH_S):
                await until(is_dead)
        if engine.is_dead:
            await engine.aclose()
            await engine.start()
            assert text_of(await steps_of(engine, ask(max_tokens=8))) == text_of(whole)

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

    async def test_a_prompt_that_was_seen_is_cached(
        self, engine: Engine, ask: RequestFactory
    ) -> None:
        cached = []
        for _ in range(2):
            request = ask(max_tokens=2)
            repeats = -(-LONG_PROMPT_TOKENS // len(request.prompt.token_ids))
            token_ids = [*request.prompt.token_ids] * repeats
            prompt = replace(request.prompt, token_ids=token_ids)
            cached.append(
                (await steps_of(engine, replace(request, prompt=prompt)))[-1].cached_tokens
            )
        assert (cached[-1] == 0) == ("cached_tokens" in self.lacks)
