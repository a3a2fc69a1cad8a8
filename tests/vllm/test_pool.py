"""A pool of real vLLM servers behind one engine: one on each wire."""

from __future__ import annotations

import asyncio
import itertools
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import jsonschema
import pytest
from openai import OpenAI
from tests.conftest import running, settings_for
from tests.vllm.test_server import NO_REASONING, SCHEMAS, TOOLS
from tests.vllm.vllm_servers import WIRES, VllmServer, vllm_servers

from antiphon.adapters.engines.vllm_http import VllmHttpEngine, VllmHttpOptions
from antiphon.application.ports import Constraint, EngineRequest, Prompt, Sampling, Turn
from antiphon.domain.errors import RequestError
from antiphon.testing.engine import (
    EngineContract,
    IsIdle,
    Kill,
    RequestFactory,
    steps_of,
    text_of,
    tokens_of,
)

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(300),
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::antiphon"),
]

PROMPT = tuple(range(40, 80))  # letters and digits
_numbers = itertools.count()

Servers = dict[str, VllmServer]
RUNNING = re.compile(r"^vllm:num_requests_(?:running|waiting)\{.*\} (\S+)$", re.MULTILINE)


@pytest.fixture(scope="module")
def servers(models_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Servers]:
    with vllm_servers(models_folder / "chat", tmp_path_factory.mktemp("named")) as started:
        yield started


@pytest.fixture(params=WIRES)
async def on_one_server(
    request: pytest.FixtureRequest, servers: Servers
) -> AsyncIterator[VllmHttpEngine]:
    """An engine on one of the servers; its folder is the one that the server names."""
    engine = VllmHttpEngine(["pool"], VllmHttpOptions(url=servers[request.param].url))
    await engine.start()
    yield engine
    await engine.aclose()


@pytest.fixture
def engine(on_one_server: VllmHttpEngine) -> VllmHttpEngine:
    return on_one_server


def ask_engine(prompt: tuple[int, ...] = PROMPT, **sampling: Any) -> EngineRequest:
    return EngineRequest(
        request_id=f"run_{next(_numbers)}",
        model="pool",
        prompt=Prompt(token_ids=prompt),
        sampling=Sampling(**{"temperature": 0, "ignore_eos": True, **sampling}),
        turn=Turn(model="pool", items=()),
    )


class Relay:
    """Passes connections on to a server until it is cut: to its clients, the server has died."""

    def __init__(self, url: str) -> None:
        self._target = urlsplit(url)
        self._open: set[asyncio.StreamWriter] = set()

    async def start(self) -> str:
        """Return the URL."""
        self._listener = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        return f"http://127.0.0.1:{self._listener.sockets[0].getsockname()[1]}"

    async def cut(self) -> None:
        self._listener.close()
        for writer in self._open:
            writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        theirs, ours = await asyncio.open_connection(self._target.hostname, self._target.port)
        self._open |= {writer, ours}
        await asyncio.gather(_copy(reader, ours), _copy(theirs, writer))
        self._open -= {writer, ours}


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
    writer.close()


class TestVllmHttpEngine(EngineContract):
    lacks = frozenset({"resumed_constraints"})

    @pytest.fixture(params=WIRES)
    def server(self, request: pytest.FixtureRequest, servers: Servers) -> VllmServer:
        return servers[request.param]

    @pytest.fixture
    async def relay(self, server: VllmServer) -> AsyncIterator[Relay]:
        relay = Relay(server.url)
        yield relay
        await relay.cut()

    @pytest.fixture
    async def engine(self, relay: Relay) -> AsyncIterator[VllmHttpEngine]:
        engine = VllmHttpEngine(["pool"], VllmHttpOptions(url=await relay.start()))
        await engine.start()
        yield engine
        await engine.aclose()

    @pytest.fixture
    def ask(self) -> RequestFactory:
        return ask_engine

    @pytest.fixture
    def kill(self, relay: Relay) -> Kill:
        return relay.cut

    @pytest.fixture
    async def is_idle(self, server: VllmServer) -> AsyncIterator[IsIdle]:
        async with httpx.AsyncClient(base_url=server.url) as client:

            async def is_idle() -> bool:
                counts = RUNNING.findall((await client.get("/metrics")).text)
                assert counts
                return not any(map(float, counts))

            yield is_idle


async def test_the_model_is_known_from_the_server(
    engine: VllmHttpEngine, models_folder: Path
) -> None:
    assert engine.model_folder == models_folder / "chat"
    assert engine.model_type == "qwen3"
    assert engine.context_length == 4096
    assert engine.sampling_defaults == {"temperature": 0.7, "top_k": 20}


async def test_a_prompt_that_was_seen_is_cached(engine: VllmHttpEngine) -> None:
    prompt = tuple(40 + number % 37 for number in range(300))
    await steps_of(engine, ask_engine(prompt, max_tokens=2))
    steps = await steps_of(engine, ask_engine(prompt, max_tokens=2))
    assert steps[-1].cached_tokens >= 256


async def test_logprobs_leave_the_text_as_it_is(engine: VllmHttpEngine) -> None:
    plain = await steps_of(engine, ask_engine(max_tokens=20))
    steps = await steps_of(engine, ask_engine(max_tokens=20, logprobs=20, step_tokens=3))
    assert text_of(steps) == text_of(plain)
    first = steps[0].logprobs[0] if steps[0].logprobs else None
    assert first is not None
    assert len(first.top_logprobs) == 20
    assert bytes(first.bytes or ()).decode() == first.token == text_of(plain)[: len(first.token)]


async def test_a_constraint_applies_from_the_first_token(engine: VllmHttpEngine) -> None:
    choice = Constraint(kind="choice", value=["Paris", "Tokyo"])
    steps = await steps_of(engine, ask_engine(max_tokens=20, constraint=choice, ignore_eos=False))
    assert text_of(steps).startswith(("Paris", "Tokyo"))


INVALID: dict[str, tuple[dict[str, Any], str | None]] = {
    "a regex": ({"constraint": Constraint(kind="regex", value="([")}, "structured_outputs"),
    "a bias": ({"logit_bias": {"99999": 1.0}}, "logit_bias"),
    "a temperature": ({"temperature": 9}, "temperature"),
}


@pytest.mark.parametrize("what", INVALID)
async def test_what_vllm_refuses_is_refused_before_the_run(
    engine: VllmHttpEngine, what: str
) -> None:
    fields, param = INVALID[what]
    with pytest.raises(RequestError) as refused:
        await engine.generate(ask_engine(**fields))
    assert refused.value.param == param
    assert "parameter=" not in refused.value.message


async def test_both_wires_give_the_same_tokens(servers: Servers) -> None:
    outputs = []
    for server in servers.values():
        engine = VllmHttpEngine(["pool"], VllmHttpOptions(url=server.url))
        await engine.start()
        steps = await steps_of(engine, ask_engine(max_tokens=50, logit_bias={"50": 2.0}))
        outputs.append((tokens_of(steps), text_of(steps)))
        await engine.aclose()
    assert outputs[0] == outputs[1]


def test_a_whole_server_calls_functions_through_the_pool(servers: Servers, tmp_path: Path) -> None:
    config = tmp_path / "antiphon.toml"
    urls = json.dumps([server.url for server in servers.values()])
    config.write_text(f'[[models]]\nname = "pool"\nengine = "vllm_http"\nurls = {urls}\n')
    with (
        running(settings_for(tmp_path, config=config)) as server,
        OpenAI(base_url=server.api, api_key="none") as client,
    ):
        for number in range(4):
            response = client.responses.create(
                model="pool",
                input=f"What is the weather in city {number}?",
                temperature=0,
                reasoning=NO_REASONING,
                tools=TOOLS,
                tool_choice={"type": "function", "name": "get_weather"},
                max_output_tokens=400,
            )
            [call] = response.output
            assert call.type == "function_call"
            jsonschema.validate(json.loads(call.arguments), SCHEMAS["get_weather"])


async def test_another_server_goes_on_with_the_run_of_a_killed_one(servers: Servers) -> None:
    """The last test: it leaves one server."""
    options = VllmHttpOptions(urls=tuple(server.url for server in servers.values()))
    engine = VllmHttpEngine(["pool"], options)
    await engine.start()
    tokens = 0
    async with aclosing(await engine.generate(ask_engine(max_tokens=1000))) as steps:
        async for step in steps:
            tokens += len(step.token_ids)
            if servers["generate"].process.poll() is None:
                servers["generate"].kill()
    assert tokens == 1000
    for _ in range(3):
        assert await steps_of(engine, ask_engine(max_tokens=4))
    assert list(engine.health.values()) == [False, True]
    await engine.aclose()
