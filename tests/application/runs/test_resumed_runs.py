"""A run goes on at another server, from the last token, wherever its server died."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from typing import Any

import msgspec
import pytest
from msgspec import UnsetType
from tests.application.conftest import FailingStore, FakeTools, House

from antiphon.adapters.engines.scripted.engine import ScriptedEngine
from antiphon.adapters.formats.chat_template import ScriptedMarkup, scripted_chat
from antiphon.adapters.formats.harmony import HarmonyFormat, HarmonyMarkup
from antiphon.application.model.token_model import TokenModel
from antiphon.application.ports import EventChunk, Lease
from antiphon.application.runs.stored_events import log_of
from antiphon.application.tools.calls import LOST
from antiphon.application.tools.hosted import ToolProvider
from antiphon.domain import events as e
from antiphon.domain.items import McpCall, Message
from antiphon.domain.json import Json
from antiphon.domain.responses.response import TERMINAL, Response

pytestmark = pytest.mark.slow

TENANT = "t"
MOST_ROUNDS = 4
FOREVER = 10**9
TOKENS_PER_S = 600.0
"""Slow enough that an answer is written to the store in many portions."""

ADDER = {
    "type": "mcp",
    "server_label": "sums",
    "server_url": "https://sums.test",
    "require_approval": "never",
}


def say(*turns: Any, **fields: Any) -> Json:
    return {"input": f"@@script {json.dumps(turns)}", **fields}


TEXT = say([{"think": "They want a rhyme."}, {"say": "Roses are red, violets are blue."}])
SUMS = say(
    [
        {"think": "I add."},
        {"say": "Let me add."},
        {"mcp": "add", "args": {"a": 1}},
        {"mcp": "add", "args": {"a": 2}},
    ],
    [{"think": "Once more."}, {"mcp": "add", "args": {"a": 3}}],
    [{"say": "It is six."}],
    tools=[ADDER],
)


def make_model(name: str) -> TokenModel:
    if name == "harmony":
        harmony = HarmonyFormat()
        engine = ScriptedEngine(HarmonyMarkup(), ["m"], tokens_per_s=TOKENS_PER_S)
        return TokenModel(lambda: harmony, engine)
    engine = ScriptedEngine(ScriptedMarkup(), ["m"], tokens_per_s=TOKENS_PER_S)
    return TokenModel(scripted_chat, engine)


class KilledStore:
    """A server's view of the store: after so many writes of events, it never returns again."""

    def __init__(self, store: FailingStore, writes: int) -> None:
        self._store = store
        self.writes = writes
        self.is_dead = asyncio.Event()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def append_events(self, lease: Lease, events: EventChunk) -> bool:
        await self._count()
        return await self._store.append_events(lease, events)

    async def finish_response(self, *args: Any, **kwargs: Any) -> bool:
        await self._count()
        return await self._store.finish_response(*args, **kwargs)

    async def _count(self) -> None:
        if self.writes <= 0:
            self.is_dead.set()
            await asyncio.Event().wait()
        self.writes -= 1


class Street:
    """Servers on one store, with the same tools; each dies after some writes."""

    def __init__(self, format_name: str, hosted: Sequence[ToolProvider] = ()) -> None:
        self.format_name = format_name
        self.hosted = hosted
        self.store = FailingStore()
        self.tools = FakeTools()
        self.houses: list[House] = []

    async def add(self, writes: int = FOREVER) -> tuple[House, KilledStore]:
        store, model = KilledStore(self.store, writes), make_model(self.format_name)
        await model.start()
        owner = f"srv_{len(self.houses)}"
        house = House(store, owner=owner, model=model, hosted=self.hosted)  # type: ignore[arg-type]
        house.tools.called, house.tools.listed = self.tools.called, self.tools.listed
        self.houses.append(house)
        return house, store

    async def run(self, *deaths: int, **body: Any) -> Response:
        """Run a response through servers that die after so many writes, and one that does not."""
        house, store = await self.add((*deaths, FOREVER)[0])
        created = await house.create(background=True, **body)
        for writes in (*deaths, FOREVER)[1:]:
            if not await self._dies(store, created.id):
                break  # on a busy machine, an answer is written in fewer portions
            await self.store.end_heartbeat(house.owner)
            house, store = await self.add(writes)
            assert await house.start_background_runs.run_once() == 1
        return await wait_for_end(self.store, created.id)

    async def _dies(self, store: KilledStore, response_id: str) -> bool:
        """Wait until the server dies, or the response has ended."""
        dies = asyncio.ensure_future(store.is_dead.wait())
        ends = asyncio.ensure_future(wait_for_end(self.store, response_id))
        await asyncio.wait({dies, ends}, return_when=asyncio.FIRST_COMPLETED)
        ends.cancel()
        dies.cancel()
        await asyncio.gather(ends, dies, return_exceptions=True)
        return store.is_dead.is_set()

    async def log(self, response: Response) -> list[str]:
        """Return the events of the response, with ids in the order in which they appear."""
        events = await log_of(self.store, TENANT, response.id)
        assert [event.sequence_number for event in events] == list(range(len(events)))
        return without_ids([msgspec.json.encode(event).decode() for event in events])

    async def count_writes(self, **body: Any) -> int:
        house, store = await self.add()
        created = await house.create(background=True, **body)
        await wait_for_end(self.store, created.id)
        return FOREVER - store.writes

    async def close(self) -> None:
        for house in self.houses:
            await house.runs.drain(0)


async def wait_until(holds: Callable[[], Awaitable[Any]]) -> Any:
    async with asyncio.timeout(20):
        while not (result := await holds()):  # noqa: ASYNC110 - what it waits for sets no event
            await asyncio.sleep(0.002)
    return result


async def wait_for_end(store: Any, response_id: str) -> Response:
    async def ended() -> Response | None:
        response: Response = await store.get_response(TENANT, response_id)
        return response if response.status in TERMINAL else None

    response: Response = await wait_until(ended)
    return response


def without_ids(lines: Sequence[str]) -> list[str]:
    known: dict[str, str] = {}
    pattern = re.compile(r"[a-z]+_srv_\d+_\d+")
    return [
        pattern.sub(lambda match: known.setdefault(match[0], f"id_{len(known)}"), line)
        for line in lines
    ]


def kinds(response: Response) -> list[str]:
    return [type(item).__name__ for item in response.output]


def texts(response: Response) -> list[str]:
    messages = (item for item in response.output if isinstance(item, Message))
    return [part.text for message in messages for part in message.content]  # type: ignore[union-attr]


def tokens_of(response: Response) -> list[tuple[int, ...]]:
    """Return the tokens of each turn; how many of them are cached depends on the server."""
    assert not isinstance(response.usage_per_turn, UnsetType)
    return [
        (turn.input_tokens, turn.output_tokens, turn.reasoning_tokens, turn.tool_output_tokens)
        for turn in response.usage_per_turn
    ]


def calls(response: Response) -> list[McpCall]:
    return [item for item in response.output if isinstance(item, McpCall)]


@pytest.fixture(params=["chat", "harmony"])
async def street(request: pytest.FixtureRequest) -> AsyncIterator[Street]:
    street = Street(request.param)
    yield street
    await street.close()


async def test_a_killed_answer_has_the_events_of_an_unkilled_one(street: Street) -> None:
    whole = await street.run(**TEXT)
    expected = await street.log(whole)
    for writes in range(await street.count_writes(**TEXT)):
        response = await street.run(writes, **TEXT)
        assert response.status == "completed"
        assert await street.log(response) == expected, f"killed after {writes} writes"
        assert response.usage == whole.usage


async def test_a_killed_answer_goes_on_counting_its_tokens(street: Street) -> None:
    body = {**TEXT, "stream_options": {"continuous_usage_stats": True}}
    for writes in range(await street.count_writes(**body)):
        response = await street.run(writes, **body)
        assert response.status == "completed", response.error
        assert response.usage is not None
        events = await log_of(street.store, TENANT, response.id)
        counts = [event.usage for event in events if not isinstance(event.usage, UnsetType)]
        outputs = [usage.output_tokens for usage in counts]
        assert outputs == sorted(outputs)
        assert outputs[-1] == response.usage.output_tokens


async def test_a_run_goes_on_over_many_servers(street: Street) -> None:
    whole = await street.run(**TEXT)
    response = await street.run(1, 2, 1, **TEXT)
    assert response.status == "completed"
    assert await street.log(response) == await street.log(whole)


async def test_a_loop_over_tools_that_may_be_repeated_goes_on_as_if_nothing_had_happened(
    street: Street,
) -> None:
    street.tools.listed = ({"name": "add", "annotations": {"idempotentHint": True}},)
    whole = await street.run(**SUMS)
    for writes in range(0, await street.count_writes(**SUMS), 3):
        response = await street.run(writes, **SUMS)
        assert response.status == "completed", response.error
        assert kinds(response) == kinds(whole)
        assert texts(response) == texts(whole)
        assert not [call for call in calls(response) if call.error]
        assert tokens_of(response) == tokens_of(whole)


async def test_a_call_that_may_have_run_is_not_repeated_and_the_model_is_told(
    street: Street,
) -> None:
    whole = await street.run(**SUMS)
    lost = 0
    deaths = [*range(await street.count_writes(**SUMS))]
    # On a busy machine, a call may be written with its result each time.
    for writes in deaths * MOST_ROUNDS:
        if lost and writes == 0:
            break
        street.tools.called.clear()
        response = await street.run(writes, **SUMS)
        assert response.status == "completed", response.error
        assert kinds(response) == kinds(whole)
        assert texts(response) == texts(whole)
        made = [arguments["a"] for _, arguments in street.tools.called]
        assert len(made) == len(set(made)), f"killed after {writes} writes: {made}"
        errors = [call.error["content"] for call in calls(response) if call.error]
        assert set(errors) <= {LOST}
        lost += len(errors)
    assert lost, "no server was killed while a call ran"


async def test_readers_see_one_stream_without_a_seam(street: Street) -> None:
    house, store = await street.add(3)
    created = await house.create(background=True, **TEXT)
    await store.is_dead.wait()
    other, _ = await street.add()
    reader = await other.follow(TENANT, created.id)
    reading = asyncio.ensure_future(read_all(reader))
    await street.store.end_heartbeat(house.owner)
    await other.start_background_runs.run_once()
    events = await reading
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert isinstance(events[-1], e.Completed)
    assert texts(events[-1].response) == ["Roses are red, violets are blue."]


async def test_a_server_that_stops_in_order_gives_its_runs_away(street: Street) -> None:
    house, _ = await street.add()
    created = await house.create(background=True, **TEXT)

    async def has_output() -> bool:
        return len(await log_of(street.store, TENANT, created.id)) > 6

    await wait_until(has_output)
    await house.runs.drain(0)
    assert (await street.store.get_response(TENANT, created.id)).status == "in_progress"
    other, _ = await street.add()
    assert await other.start_background_runs.run_once() == 1
    response = await wait_for_end(street.store, created.id)
    assert await street.log(response) == await street.log(await street.run(**TEXT))


async def test_the_facts_say_what_was_taken_over(street: Street) -> None:
    response = await street.run(3, **TEXT, include=["metrics"])
    metrics: Any = response.metrics
    assert metrics.epoch == 2
    assert metrics.turns[0].resumed_tokens > 0


async def test_a_run_that_differs_from_its_log_fails_with_its_items_closed(street: Street) -> None:
    house, store = await street.add(3)
    created = await house.create(background=True, **TEXT)
    await store.is_dead.wait()
    # The next server has another model under this name.
    street.format_name = "harmony" if street.format_name == "chat" else "chat"
    other, _ = await street.add()
    await street.store.end_heartbeat(house.owner)
    await other.start_background_runs.run_once()
    response = await wait_for_end(street.store, created.id)
    assert response.error is not None
    assert (response.status, response.error.code) == ("failed", "server_restarted")
    events = await log_of(street.store, TENANT, created.id)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert isinstance(events[-1], e.Failed)


async def read_all(batches: Any) -> list[e.Event]:
    return [event async for batch in batches for event in batch]
