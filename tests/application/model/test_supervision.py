"""Each model starts, fails and recovers by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import pytest

from antiphon.application.model.models import Models
from antiphon.application.model.supervision import RestartPolicy, SupervisedModel, SuperviseModels
from antiphon.domain.errors import EngineDead, ModelUnavailable, SettingsError

from .scripted_models import FlakyEngine, model_on, play, text_of

AT_ONCE = RestartPolicy(max_failures=2, first_pause_s=0.001, max_pause_s=0.004, check_s=0.001)
NEVER_AGAIN = RestartPolicy(first_pause_s=3600, max_pause_s=3600, check_s=0.001)


def supervised(engine: FlakyEngine, policy: RestartPolicy = AT_ONCE) -> SupervisedModel:
    return SupervisedModel(model_on(engine), policy)


@asynccontextmanager
async def supervising(*models: SupervisedModel) -> AsyncIterator[SuperviseModels]:
    service = SuperviseModels(models)
    try:
        await service.start()
        yield service
    finally:
        await service.aclose()


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - no event tells of it
            await asyncio.sleep(0.001)


async def test_before_its_start_a_model_refuses_turns_and_says_that_it_is_starting() -> None:
    model = supervised(FlakyEngine("a"))
    with pytest.raises(ModelUnavailable, match="'a' is starting"):
        await text_of(model, play({"say": "hello"}))
    assert await Models([model]).states() == {"a": "starting"}


async def test_a_started_model_runs_turns() -> None:
    model = supervised(FlakyEngine("a"))
    async with supervising(model):
        assert await text_of(model, play({"say": "hello"})) == "hello"
        assert await Models([model]).states() == {"a": "ok"}


async def test_a_dead_engine_is_closed_and_started_again() -> None:
    engine = FlakyEngine("a")
    model = supervised(engine)
    async with supervising(model):
        with pytest.raises(EngineDead):
            await text_of(model, play({"die": True}))
        await until(lambda: engine.starts == 2 and not engine.is_dead)
        assert await text_of(model, play({"say": "again"})) == "again"
    assert engine.closes == 2


async def test_while_it_waits_to_be_started_again_the_model_is_unavailable() -> None:
    engine = FlakyEngine("a")
    model = supervised(engine, NEVER_AGAIN)
    async with supervising(model):
        engine.die()
        await until(lambda: engine.closes == 1)
        with pytest.raises(ModelUnavailable, match="'a' is not available now"):
            await text_of(model, play({"say": "hello"}))
        assert await Models([model]).states() == {"a": "unavailable"}
        with pytest.raises(EngineDead):
            await Models([model]).check()


async def test_a_model_whose_server_is_not_there_yet_is_waited_for_without_a_limit() -> None:
    engine = FlakyEngine("a", start_errors=[EngineDead("not there")] * 9)
    model = supervised(engine)
    async with supervising(model):
        await until(lambda: engine.starts == 10)
        await until(lambda: model.error is None)
        assert not model.has_failed


async def test_settings_with_which_no_model_starts_end_the_server() -> None:
    wrong = SettingsError("there is no such folder")
    model = supervised(FlakyEngine("a", start_errors=[wrong]))
    with pytest.raises(SettingsError, match="no such folder"):
        async with supervising(model):
            pass


async def test_settings_with_which_one_of_two_models_does_not_start_keep_none_from_serving() -> (
    None
):
    wrong = [SettingsError("there is no such folder")]
    broken = supervised(FlakyEngine("a", start_errors=wrong), NEVER_AGAIN)
    model = supervised(FlakyEngine("b"))
    async with supervising(broken, model):
        assert await text_of(model, play({"say": "hello"}, model="b")) == "hello"
        assert await Models([broken, model]).states() == {"a": "unavailable", "b": "ok"}
        await Models([broken, model]).check()


async def test_a_slow_start_keeps_no_other_model_from_serving() -> None:
    is_loaded = asyncio.Event()

    class SlowEngine(FlakyEngine):
        async def start(self) -> None:
            await is_loaded.wait()

    slow, fast = supervised(SlowEngine("a")), supervised(FlakyEngine("b"))
    service = SuperviseModels([slow, fast])
    starting = asyncio.create_task(service.start())
    await until(lambda: not fast.is_starting)
    assert await text_of(fast, play({"say": "hello"}, model="b")) == "hello"
    assert await Models([slow, fast]).states() == {"a": "starting", "b": "ok"}
    is_loaded.set()
    await starting
    assert await Models([slow, fast]).states() == {"a": "ok", "b": "ok"}
    await service.aclose()


async def test_too_many_deaths_in_a_row_are_told_but_do_not_end_the_attempts() -> None:
    engine = FlakyEngine("a")
    model = supervised(engine)
    async with supervising(model) as service:
        failing = asyncio.create_task(service.wait_until_all_failed())
        for death in range(3):
            assert not failing.done()
            await until(lambda death=death: engine.starts == death + 1 and not engine.is_dead)
            engine.die()
        async with asyncio.timeout(10):
            await failing
        await until(lambda: engine.starts == 4)


async def test_a_model_that_works_keeps_the_process_although_another_one_has_failed() -> None:
    wrong = [SettingsError("out of memory")] * 9
    broken, model = supervised(FlakyEngine("a", start_errors=wrong)), supervised(FlakyEngine("b"))
    async with supervising(broken, model) as service:
        failing = asyncio.create_task(service.wait_until_all_failed())
        await until(lambda: broken.has_failed)
        await asyncio.sleep(0)
        assert not failing.done()
        failing.cancel()


async def test_deaths_far_apart_do_not_add_up() -> None:
    engine = FlakyEngine("a")
    patient = RestartPolicy(
        max_failures=1, first_pause_s=0.001, max_pause_s=0.001, check_s=0.001, stable_s=0
    )
    model = supervised(engine, patient)
    async with supervising(model):
        for death in range(4):
            await until(lambda death=death: engine.starts == death + 1 and not engine.is_dead)
            engine.die()
        await until(lambda: engine.starts == 5)
        assert not model.has_failed
