"""When vLLM's core process dies, the server starts it again; see also the engine's contract."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
from pathlib import Path

import pytest

from antiphon.application.model.models import Models
from antiphon.application.model.supervision import SuperviseModels
from antiphon.application.ports import Sampling, Turn
from antiphon.domain.deltas import TurnEnd
from antiphon.domain.errors import EngineDead
from antiphon.domain.items import Message
from antiphon.entrypoints.settings import ModelTable, Settings
from antiphon.entrypoints.wiring.models import build_models

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(300),
    # vLLM and torch warn a lot, which we cannot fix. Our own warnings stay errors.
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::antiphon"),
]


async def test_a_supervised_model_starts_its_dead_engine_again(models_folder: Path) -> None:
    options = ("--dtype", "float32", "--max-model-len", "8192", "--enforce-eager")
    table = {"model": str(models_folder / "chat"), "options": options}
    settings = Settings(models=(ModelTable(name=("tiny",), engine="vllm", options=table),))
    [model] = build_models(settings)
    supervise = SuperviseModels([model])
    await supervise.start()
    try:
        turn = Turn(
            model="tiny",
            items=[Message(role="user", content="hi")],
            sampling=Sampling(max_tokens=4),
        )
        assert await model.count(turn) > 0
        [core] = multiprocessing.active_children()
        assert core.pid is not None
        os.kill(core.pid, signal.SIGKILL)
        async with asyncio.timeout(30):
            while await Models([model]).states() == {"tiny": "ok"}:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        with pytest.raises(EngineDead):
            await model.start_turn(turn, request_id="too_early")
        async with asyncio.timeout(200):
            while await Models([model]).states() != {"tiny": "ok"}:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
        admitted = await model.start_turn(turn, request_id="again")
        deltas = [delta async for batch in aiter(admitted) for delta in batch]
        assert isinstance(deltas[-1], TurnEnd)
    finally:
        await supervise.aclose()
