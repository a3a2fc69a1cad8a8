"""llama.cpp in a process of ours keeps the promises of an engine, with real weights."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from antiphon.adapters.engines.llama import LlamaEngine, LlamaOptions
from antiphon.application.ports import EngineRequest, Prompt, Sampling, Turn
from antiphon.testing.engine import (
    EngineContract,
    IsIdle,
    Kill,
    RequestFactory,
    steps_of,
    tokens_of,
)

pytestmark = pytest.mark.real
TALE = "<|im_start|>user\nTell me a long tale about the sea.<|im_end|>\n<|im_start|>assistant\n"
IDLE_S = 0.1
"""A process that computes uses the processor in this time, whose clock ticks each 10 ms."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def started(weights: Path) -> AsyncIterator[LlamaEngine]:
    # What the contract compares are different computations of the same text.
    options = LlamaOptions(
        model=str(weights), context_length=512, slots=2, threads=1, repeatable=True
    )
    engine = LlamaEngine(["smollm2"], options)
    await engine.start()
    yield engine
    await engine.aclose()


class TestLlamaEngine(EngineContract, loop_scope="module"):
    @pytest.fixture
    def engine(self, started: LlamaEngine) -> LlamaEngine:
        return started

    @pytest.fixture
    def ask(self, engine: LlamaEngine) -> RequestFactory:
        numbers = itertools.count()
        assert engine._vocabulary is not None
        ids = engine._vocabulary.tokenizer.encode(TALE, add_special_tokens=False).ids
        return lambda **sampling: EngineRequest(
            request_id=f"run_{next(numbers)}",
            model="smollm2",
            prompt=Prompt(token_ids=ids),
            sampling=Sampling(temperature=0, **sampling),
            turn=Turn(model="smollm2", items=()),
        )

    @pytest.fixture
    def kill(self, engine: LlamaEngine) -> Kill:
        async def kill() -> None:
            os.kill(pid_of(engine), signal.SIGKILL)

        return kill

    @pytest.fixture
    def is_idle(self, engine: LlamaEngine) -> IsIdle:
        async def is_idle() -> bool:
            before = ticks_of(pid_of(engine))
            await asyncio.sleep(IDLE_S)
            return ticks_of(pid_of(engine)) == before

        return is_idle


def pid_of(engine: LlamaEngine) -> int:
    assert engine._process is not None
    assert engine._process.pid is not None
    return engine._process.pid


def ticks_of(pid: int) -> list[str]:
    """Return the time that the process has computed."""
    return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[11:13]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("first", [500, 5000, 20_000])
async def test_a_repeatable_model_goes_on_alike_however_much_was_cached(
    started: LlamaEngine, first: int
) -> None:
    def ask(*written: int) -> EngineRequest:
        return EngineRequest(
            request_id=f"run_{first}_{len(written)}",
            model="smollm2",
            prompt=Prompt(token_ids=range(first, first + 100)),
            written=written,
            sampling=Sampling(temperature=0, max_tokens=32, ignore_eos=True),
            turn=Turn(model="smollm2", items=()),
        )

    new = tokens_of(await steps_of(started, ask()))
    cached = tokens_of(await steps_of(started, ask()))
    assert cached == new
    await started.aclose()
    await started.start()
    assert new[:16] + tokens_of(await steps_of(started, ask(*new[:16]))) == new
