"""Servers of a pool that are killed, refuse, or send nonsense: each run has a defined end."""

from __future__ import annotations

import asyncio
import tracemalloc
from collections.abc import Mapping, Sequence
from contextlib import aclosing
from pathlib import Path

import httpx
import pytest
from dependency_injector import providers
from tests.adapters.engines.pool_fixtures import TALE, TestPool, pool
from tests.conftest import settings_for
from tests.http.conftest import frames, script
from tests.upstreams.token_server import TokenServer, serving

from antiphon.adapters.engines.scripted.engine import ScriptedEngine
from antiphon.adapters.engines.vllm_http import VllmHttpEngine, VllmHttpOptions
from antiphon.adapters.formats.chat_template import ScriptedMarkup, scripted_chat
from antiphon.application.model.supervision import SupervisedModel
from antiphon.application.model.token_model import TokenModel
from antiphon.application.ports import Step
from antiphon.domain.errors import EngineDead, EngineError, ServerOverloaded
from antiphon.entrypoints.container import Container
from antiphon.testing.engine import steps_of, text_of, tokens_of
from antiphon.testing.server import serving_in_thread

TOKENS = 24
CHOICE = b'data: {"choices":[{"index":0,"text":"w0","token_ids":[3]}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"text":"","token_ids":[],"finish_reason":"stop"}]}\n\n'
MEGABYTE = b"x" * 1_000_000


class Reading:
    """A run that is read in a task of its own. `count` tokens have come so far."""

    def __init__(self, running: TestPool) -> None:
        self.steps: list[Step] = []
        self._more = asyncio.Event()
        self.task = asyncio.create_task(self._read(running))

    async def _read(self, running: TestPool) -> None:
        async with aclosing(
            await running.engine.generate(running.request(max_tokens=TOKENS))
        ) as run:
            async for step in run:
                self.steps.append(step)
                self._more.set()

    async def wait_for(self, count: int) -> None:
        while len(tokens_of(self.steps)) < count:
            self._more.clear()
            await self._more.wait()


class Stop:
    """Makes a server wait for ever after some tokens of its next run."""

    def __init__(self, servers: Sequence[TokenServer], count: int) -> None:
        self.reached = asyncio.Event()
        self._count = count
        for server in servers:
            server.before_token = lambda sent, server=server: self._wait(server, sent)
        self._servers = servers

    async def _wait(self, server: TokenServer, sent: int) -> None:
        if sent == self._count:
            self.server = server
            for each in self._servers:
                each.before_token = None
            self.reached.set()
            await asyncio.Event().wait()


@pytest.mark.parametrize("wire", ["generate", "completions"])
@pytest.mark.parametrize("count", range(TOKENS))
async def test_another_server_goes_on_if_one_is_killed_at_any_token(wire: str, count: int) -> None:
    async with pool(wires=[wire, wire]) as running, asyncio.timeout(30):
        whole = await steps_of(running.engine, running.request(max_tokens=TOKENS))
        stop = Stop(running.servers, count)
        reading = Reading(running)
        await stop.reached.wait()
        await reading.wait_for(count)
        await stop.server.kill()
        await reading.task
        assert text_of(reading.steps) == text_of(whole)
        assert tokens_of(reading.steps) == tokens_of(whole)
        await check_that_the_other_serves_and_the_killed_one_comes_back(running, stop.server)


async def check_that_the_other_serves_and_the_killed_one_comes_back(
    running: TestPool, killed: TokenServer
) -> None:
    position = running.servers.index(killed)
    await running.until_up(position != 0, position != 1)
    count = len(killed.requests)
    await steps_of(running.engine, running.request(max_tokens=2))
    assert len(killed.requests) == count
    await killed.start()
    await running.until_up(True, True)
    await steps_of(running.engine, running.request(max_tokens=2, salt="new"))
    assert len(killed.requests) == count + 1


async def test_no_server_of_the_pool_means_dead_until_one_is_back() -> None:
    async with pool(wires=["generate"]) as running, asyncio.timeout(30):
        [server] = running.servers
        await server.kill()
        with pytest.raises(EngineDead):
            await running.engine.generate(running.request())
        with pytest.raises(EngineDead):
            await running.engine.check()
        await server.start()
        await running.until_up(True)
        await running.engine.check()
        assert text_of(await steps_of(running.engine, running.request())) == TALE


@pytest.mark.parametrize("status", [429, 503])
async def test_a_busy_server_is_passed_over_and_if_all_are_busy_the_client_is_told(
    status: int,
) -> None:
    async with pool(wires=["generate"] * 2) as running, asyncio.timeout(30):
        running.servers[0].refusal = status
        for _ in range(4):
            assert text_of(await steps_of(running.engine, running.request())) == TALE
        running.servers[1].refusal = status
        with pytest.raises(ServerOverloaded):
            await running.engine.generate(running.request())
        running.servers[1].refusal = None
        assert text_of(await steps_of(running.engine, running.request())) == TALE


async def test_busy_servers_do_not_keep_a_run_from_the_last_free_one() -> None:
    async with pool(wires=["generate"] * 5) as running, asyncio.timeout(30):
        for server in running.servers[:4]:
            server.refusal = 429
        assert text_of(await steps_of(running.engine, running.request())) == TALE


@pytest.mark.parametrize("status", [401, 404, 500, 502])
async def test_a_server_that_fails_is_down_and_another_serves(status: int) -> None:
    async with pool(wires=["generate"] * 2) as running, asyncio.timeout(30):
        running.servers[0].refusal, running.servers[0].health = status, 500
        for _ in range(4):
            assert text_of(await steps_of(running.engine, running.request())) == TALE
        assert len(running.servers[0].requests) <= 1


async def test_a_request_that_breaks_servers_does_not_break_all_of_them() -> None:
    async with pool(wires=["generate"] * 5) as running, asyncio.timeout(30):
        for server in running.servers:
            server.refusal = 500
        with pytest.raises(EngineError) as failed:
            await running.engine.generate(running.request())
        assert not isinstance(failed.value, EngineDead)
        assert sum(len(server.requests) for server in running.servers) == 3


FAULTS: Mapping[str, Sequence[bytes]] = {
    "no events": [],
    "no JSON": [b"data: {nope\n\n"],
    "no UTF-8": [b'data: {"choices":[{"text":"\xff","token_ids":[1]}]}\n\n'],
    "other types": [b'data: {"choices":[{"token_ids":"many"}]}\n\n'],
    "no token ids": [b'data: {"choices":[{"text":"w0"}]}\n\n'],
    "a line of 100 MB": [b"data: ", *[MEGABYTE] * 100, b"\n\n"],
    "an error of the engine": [b'data: {"error":{"message":"at http://gpu1","code":500}}\n\n'],
    "an abort": [b'data: {"choices":[{"token_ids":[],"finish_reason":"abort"}]}\n\n'],
    "an unknown end": [b'data: {"choices":[{"token_ids":[],"finish_reason":"moon"}]}\n\n'],
    "done at once": [b"data: [DONE]\n\n"],
}


@pytest.mark.parametrize("fault", FAULTS)
async def test_nonsense_before_the_first_token_is_another_servers_turn(fault: str) -> None:
    async with pool(wires=["generate"] * 2) as running, asyncio.timeout(60):
        running.servers[0].stream = FAULTS[fault]
        for _ in range(2):
            assert text_of(await steps_of(running.engine, running.request())) == TALE
        assert running.servers[0].requests


@pytest.mark.parametrize("fault", FAULTS)
async def test_nonsense_after_a_token_fails_the_run(fault: str) -> None:
    async with pool() as running, asyncio.timeout(60):
        running.servers[0].stream = [CHOICE, *FAULTS[fault]]
        steps = []
        with pytest.raises(EngineError) as failed:
            async for step in await running.engine.generate(running.request()):
                steps.append(step)  # noqa: PERF401 - what came before the failure counts
        assert text_of(steps) == "w0"
        assert "http" not in str(failed.value)


async def test_a_line_of_100_mb_costs_less_than_20_mb() -> None:
    async with pool() as running, asyncio.timeout(60):
        running.servers[0].stream = FAULTS["a line of 100 MB"]
        tracemalloc.start()
        with pytest.raises(EngineError):
            await steps_of(running.engine, running.request())
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 20_000_000


async def test_a_stream_that_drips_byte_by_byte_is_read() -> None:
    async with pool() as running, asyncio.timeout(30):
        text = b"".join([CHOICE, CHOICE, LAST, b"data: [DONE]\n\n"])
        running.servers[0].stream = [bytes([byte]) for byte in text]
        steps = await steps_of(running.engine, running.request())
        assert text_of(steps) == "w0w0"


async def test_a_server_that_never_ends_its_stream_does_not_hold_the_run() -> None:
    async with pool() as running, asyncio.timeout(30):
        running.servers[0].stream = [CHOICE, LAST, None]
        steps = await steps_of(running.engine, running.request())
        assert steps[-1].finish == "stop"


async def test_a_connection_that_was_closed_while_idle_costs_no_run() -> None:
    async with pool() as running, asyncio.timeout(30):
        [server] = running.servers
        await steps_of(running.engine, running.request(max_tokens=2))
        server.drops = 1
        assert text_of(await steps_of(running.engine, running.request())) == TALE
        server.drops = 2
        with pytest.raises(EngineError):
            await running.engine.generate(running.request())
        assert text_of(await steps_of(running.engine, running.request())) == TALE


def test_a_response_whose_server_is_lost_fails_with_its_output_so_far(tmp_path: Path) -> None:
    server = TokenServer(ScriptedEngine(ScriptedMarkup()))

    async def cut_after(sent: int) -> None:
        if sent == 5:
            server.cut()
            await asyncio.Event().wait()

    server.before_token = cut_after
    with serving(server):
        engine = VllmHttpEngine(["pool"], VllmHttpOptions(url=server.url))
        container = Container(settings=settings_for(tmp_path))
        models = [SupervisedModel(TokenModel(scripted_chat, engine))]
        container.supervised_models.override(providers.Object(models))
        with serving_in_thread(container) as served:
            body = {"model": "pool", "input": script({"say": TALE}), "stream": True}
            events = frames(httpx.post(f"{served.url}/v1/responses", json=body, timeout=30).text)
    assert events[-1]["type"] == "response.failed"
    response = events[-1]["response"]
    assert response["error"]["code"] == "server_error"
    assert "127.0.0.1" not in str(response["error"])
    [message] = response["output"]
    assert message["status"] == "incomplete"
    text = message["content"][0]["text"]
    assert text
    assert TALE.startswith(text)
