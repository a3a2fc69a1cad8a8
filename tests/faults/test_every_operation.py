"""Whatever call of the store fails, and however: every client has its answer, and what is kept is
what was told (tests/faults/support/invariants.py).

Each case runs a scenario once for each call that it makes, and lets that one fail. By default a few
of those; ANTIPHON_TEST_CALLS=1000 tries them all.
"""

from __future__ import annotations

import asyncio
import logging
import os
import random
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.faults.support.invariants import Invariants
from tests.faults.support.simulation import (
    Answer,
    Clients,
    Fault,
    SimulatedLoop,
    SimulatedServer,
    make_app,
)

from antiphon.adapters.stores.memory.store import MemoryStore

pytestmark = pytest.mark.faults

MANY = 200
SAID = '@@script [[{"say": "word ", "repeat": 3, "tick": 0.02}]]'
LONG = '@@script [[{"say": "word ", "repeat": 9, "tick": 1}]]'
BODY = {"model": "scripted-chat", "input": SAID}
ENDS = ("completed", "incomplete", "failed", "cancelled")


class Stage:
    """Two servers on one store, and those who ask them. The first is the one whose calls fail."""

    def __init__(self, folder: Path, app: Any) -> None:
        loop = asyncio.get_running_loop()
        self.kept = MemoryStore(steady=loop.time)
        self.first = SimulatedServer(folder, self.kept)
        self.second = SimulatedServer(folder, self.kept)
        self.invariants = Invariants(self.kept, [self.first, self.second])
        self.clients = Clients(app, self.invariants.shown)
        self.ask = self.clients.ask

    async def create(self, **fields: Any) -> Answer:
        return await self.post(self.first, **fields)

    async def post(self, server: SimulatedServer, **fields: Any) -> Answer:
        options = {name: fields.pop(name) for name in ("key", "leaves_after") if name in fields}
        return await self.ask(server, "POST", "/responses", {**BODY, **fields}, **options)

    async def over(self, server: SimulatedServer, response_id: str) -> None:
        """Poll as clients do."""
        async with asyncio.timeout(60):
            while True:
                answer = await self.ask(server, "GET", f"/responses/{response_id}")
                if answer.status == 404 or answer.json.get("status") in ENDS:
                    return
                await asyncio.sleep(0.1)


# --- what is done ---------------------------------------------------------------------------------

Scenario = Callable[[Stage], Awaitable[None]]
SCENARIOS: dict[str, Scenario] = {}


def scenario(play: Scenario) -> Scenario:
    SCENARIOS[play.__name__] = play
    return play


@scenario
async def foreground(stage: Stage) -> None:
    await stage.create()


@scenario
async def foreground_stream(stage: Stage) -> None:
    await stage.create(stream=True)


@scenario
async def client_leaves(stage: Stage) -> None:
    await stage.create(stream=True, leaves_after=4)


@scenario
async def background(stage: Stage) -> None:
    created = await stage.create(background=True)
    if created.response_id:
        await stage.over(stage.first, created.response_id)


@scenario
async def background_stream(stage: Stage) -> None:
    created = await stage.create(background=True, stream=True)
    if created.response_id:
        path = f"/responses/{created.response_id}?stream=true&starting_after=3"
        for server in (stage.first, stage.second):
            await stage.ask(server, "GET", path)


@scenario
async def background_waits(stage: Stage) -> None:
    for _ in range(4):
        await stage.create(background=True)


@scenario
async def repeated(stage: Stage) -> None:
    fields = {"metadata": {"key": "k"}, "key": "k"}
    for _ in range(5):
        if (await stage.create(**fields)).status == 200:
            break
    await stage.post(stage.second, **fields)


@scenario
async def repeated_stream(stage: Stage) -> None:
    fields = {"metadata": {"key": "k"}, "key": "k", "stream": True}
    await asyncio.gather(
        stage.create(**fields, leaves_after=3),
        stage.create(**fields),
        stage.post(stage.second, **fields),
    )


@scenario
async def repeated_background(stage: Stage) -> None:
    fields = {"metadata": {"key": "k"}, "key": "k", "background": True}
    await asyncio.gather(stage.create(**fields), stage.post(stage.second, **fields))


async def _talk(stage: Stage) -> str | None:
    talk = await stage.ask(stage.second, "POST", "/conversations", {})
    return str(talk.json["id"])


@scenario
async def conversation(stage: Stage) -> None:
    talk = await _talk(stage)
    await stage.create(conversation=talk)
    await stage.create(conversation=talk, background=True, stream=True)


@scenario
async def unstored_in_conversation(stage: Stage) -> None:
    await stage.create(conversation=await _talk(stage), store=False)


@scenario
async def repeated_in_conversation(stage: Stage) -> None:
    fields = {"metadata": {"key": "k"}, "key": "k", "conversation": await _talk(stage)}
    await asyncio.gather(stage.create(**fields), stage.post(stage.second, **fields))


async def _long(stage: Stage, server: SimulatedServer) -> str | None:
    created = await stage.post(server, input=LONG, background=True, stream=True, leaves_after=6)
    return created.response_id


@scenario
async def cancel_here(stage: Stage) -> None:
    if response_id := await _long(stage, stage.first):
        for _ in range(2):
            await stage.ask(stage.first, "POST", f"/responses/{response_id}/cancel")


@scenario
async def cancel_elsewhere(stage: Stage) -> None:
    if response_id := await _long(stage, stage.second):
        for _ in range(2):
            await stage.ask(stage.first, "POST", f"/responses/{response_id}/cancel")


@scenario
async def delete_here(stage: Stage) -> None:
    if response_id := await _long(stage, stage.first):
        for _ in range(2):
            await stage.ask(stage.first, "DELETE", f"/responses/{response_id}")


@scenario
async def delete_elsewhere(stage: Stage) -> None:
    if response_id := await _long(stage, stage.second):
        for _ in range(2):
            await stage.ask(stage.first, "DELETE", f"/responses/{response_id}")


@scenario
async def recovery(stage: Stage) -> None:
    """The second dies; the first takes what it had."""
    talk = await _talk(stage)
    heard = await stage.post(
        stage.second,
        input=LONG,
        background=True,
        stream=True,
        leaves_after=6,
        conversation=talk,
    )
    assert heard.response_id
    silent = await stage.post(
        stage.second, input='@@script [[{"say": "x", "delay": 4}]]', background=True
    )
    assert silent.response_id
    alone = asyncio.create_task(stage.post(stage.second, input=LONG, stream=True))
    await asyncio.sleep(2)
    await stage.second.kill()
    await stage.kept.end_heartbeat(stage.second.owner)  # as if its time were up
    for each in (heard, silent):
        path = f"/responses/{each.response_id}?stream=true"
        await stage.ask(stage.first, "GET", path)
    alone.cancel()
    await asyncio.wait([alone])


@scenario
async def drain(stage: Stage) -> None:
    """The first stops; the second goes on with what can go on."""
    for said in (LONG, '@@script [[{"say": "x", "delay": 5}]]', SAID, SAID):
        await stage.create(input=said, background=True)
    await asyncio.sleep(2)
    await stage.first.stop(limit_s=1)


# --- how it fails ---------------------------------------------------------------------------------

FAULTS: dict[str, Callable[[int], Fault]] = {
    "fails": lambda at: Fault(at=at),
    "answer is lost": lambda at: Fault(at=at, effects=MANY),
    "fails 4 times": lambda at: Fault(at=at, calls=4),
    "4 answers are lost": lambda at: Fault(at=at, calls=4, effects=MANY),
    "hangs": lambda at: Fault(at=at, takes_s=2, fails=False),
    "hangs and fails": lambda at: Fault(at=at, takes_s=2),
    "is out for 5 s": lambda at: Fault(at=at, lasts_s=5),
    "is out for 30 s": lambda at: Fault(at=at, lasts_s=30),
    "answer is lost, then out for 5 s": lambda at: Fault(at=at, lasts_s=5, effects=1),
    "loses answers for 5 s": lambda at: Fault(at=at, lasts_s=5, effects=MANY),
}
CALLS = int(os.environ.get("ANTIPHON_TEST_CALLS", "3"))
"""Of each scenario, so many calls are tried."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("simulated")


@pytest.fixture(scope="module")
def app(folder: Path) -> Any:
    return make_app(folder)


@pytest.fixture(autouse=True)
def silent() -> Iterator[None]:
    """Tracebacks of a thousand failures take longer than the failures."""
    logging.disable()
    yield
    logging.disable(logging.NOTSET)


async def _play(play: Scenario, fault: Fault | None, folder: Path, app: Any) -> int:
    """Return how many calls the first server made."""
    stage = Stage(folder, app)
    await stage.second.start()
    await stage.first.start()
    stage.first.store.fault = fault
    await play(stage)
    made = len(stage.first.store.calls)
    if fault is not None and made >= fault.at:
        await asyncio.sleep(fault.lasts_s + fault.takes_s)
    stage.first.store.heal()
    await stage.invariants.check(stage.clients)
    return made


@pytest.mark.timeout(120)
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("play", SCENARIOS)
def test_whatever_call_fails_what_is_kept_is_what_was_told(
    play: str, fault: str, folder: Path, app: Any
) -> None:
    def run(at: Fault | None) -> int:
        random.seed(0)
        with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
            return runner.run(_play(SCENARIOS[play], at, folder, app))

    made = run(None)
    assert made < MANY
    some = random.Random(f"{play} {fault}").sample(range(1, made + 1), min(CALLS, made))
    for at in sorted(some):
        try:
            run(FAULTS[fault](at))
        except BaseException as error:
            error.add_note(f"call {at} of {made}")
            raise
