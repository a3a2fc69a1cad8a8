"""vLLM in process keeps the promises of an engine: with a tiny model, whose core is also killed."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from antiphon.adapters.engines.vllm_engine import VllmEngine
from antiphon.application.ports import EngineRequest, Prompt, Sampling, Turn
from antiphon.testing.engine import EngineContract, IsIdle, Kill, RequestFactory

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(300),
    # vLLM and torch warn a lot, which we cannot fix. Our own warnings stay errors.
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::antiphon"),
]

PROMPT = tuple(range(40, 80))  # letters and digits


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started(models_folder: Path) -> AsyncIterator[VllmEngine]:
    options = ("--dtype", "float32", "--max-model-len", "8192", "--enforce-eager")
    folder = str(models_folder / "chat")
    engine = VllmEngine(folder, served_names=["tiny"], engine_args=options)
    await engine.start()
    yield engine
    await engine.aclose()


class TestVllmEngine(EngineContract, loop_scope="module"):
    @pytest.fixture
    def engine(self, started: VllmEngine) -> VllmEngine:
        return started

    @pytest.fixture
    def ask(self) -> RequestFactory:
        numbers = itertools.count()
        return lambda **sampling: EngineRequest(
            request_id=f"run_{next(numbers)}",
            model="tiny",
            prompt=Prompt(token_ids=PROMPT),
            sampling=Sampling(**{"temperature": 0, "ignore_eos": True, **sampling}),
            turn=Turn(model="tiny", items=()),
        )

    @pytest.fixture
    def kill(self) -> Kill:
        async def kill() -> None:
            [core] = multiprocessing.active_children()
            assert core.pid is not None
            os.kill(core.pid, signal.SIGKILL)

        return kill

    @pytest.fixture
    def is_idle(self, engine: VllmEngine) -> IsIdle:
        async def is_idle() -> bool:
            # There is no public API for this.
            core = engine._llm.engine_core  # type: ignore[union-attr]
            return not await core.call_utility_async("has_work")

        return is_idle
