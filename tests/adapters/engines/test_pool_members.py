"""The members of a pool: where they come from, how they are checked, and how they are drained."""

from __future__ import annotations

import asyncio
import json
import logging
import socket
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.adapters.engines.pool_fixtures import TALE, TestPool, pool
from tests.upstreams.token_server import TokenServer

from antiphon.adapters.engines.vllm_http import VllmHttpEngine, VllmHttpOptions
from antiphon.domain.errors import EngineDead, SettingsError
from antiphon.entrypoints.settings import load
from antiphon.entrypoints.wiring.models import build_models
from antiphon.entrypoints.wiring.own_classes import convert_options
from antiphon.testing.engine import steps_of, text_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "servers.txt"


@pytest.fixture
async def pair(file: Path) -> AsyncIterator[TestPool]:
    """Two servers, both listed in the file."""
    async with pool(wires=["generate"] * 2) as running:
        list_servers(file, *running.servers)
        options = VllmHttpOptions(urls_file=str(file), probe_s=3600.0)
        engine = VllmHttpEngine(["pool"], options)
        await engine.start()
        yield replace(running, engine=engine)
        await engine.aclose()


def list_servers(file: Path, *servers: TokenServer) -> None:
    write(file, "# the pool\n" + "\n".join(f"{server.url}/v1" for server in servers))


def write(file: Path, text: str) -> None:
    file.write_text(text)


async def test_servers_come_and_go_with_the_file(pair: TestPool, file: Path) -> None:
    first, second = pair.servers
    list_servers(file, second)
    await pair.engine._pool.probe()
    await steps_of(pair.engine, pair.request())
    assert (len(first.requests), len(second.requests)) == (0, 1)
    list_servers(file, first)
    await pair.engine._pool.probe()
    await steps_of(pair.engine, pair.request())
    assert (len(first.requests), len(second.requests)) == (1, 1)


async def test_runs_of_a_drained_server_end_normally(pair: TestPool, file: Path) -> None:
    async with aclosing(await pair.engine.generate(pair.request())) as run:
        texts = [(await anext(aiter(run))).text]
        busy = next(server for server in pair.servers if server.requests)
        list_servers(file, *(server for server in pair.servers if server is not busy))
        await pair.engine._pool.probe()
        await steps_of(pair.engine, pair.request())
        assert len(busy.requests) == 1
        texts += [step.text async for step in run]
    assert "".join(texts) == TALE


async def test_a_file_that_is_broken_later_changes_nothing(
    pair: TestPool, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write(file, "not a URL")
    await pair.engine._pool.probe()
    assert list(pair.engine.health.values()) == [True, True]
    assert "line 1 is not an http(s) URL" in caplog.text


async def test_a_name_is_resolved_to_all_of_its_addresses() -> None:
    async with pool() as running:
        port = running.servers[0].url.rpartition(":")[2]
        engine = VllmHttpEngine(["pool"], VllmHttpOptions(dns=f"127.0.0.1:{port}"))
        await engine.start()
        assert dict(engine.health) == {running.servers[0].url: True}
        await engine.aclose()


async def test_a_name_that_cannot_be_resolved_may_be_later() -> None:
    engine = VllmHttpEngine(["pool"], VllmHttpOptions(dns="nowhere.invalid:8000"))
    with pytest.raises(EngineDead):
        await engine.start()


async def test_a_server_that_is_not_well_gets_nothing_until_it_is() -> None:
    async with pool(wires=["generate"] * 2) as running:
        sick, well = running.servers
        sick.health = 503
        await running.until_up(False, True)
        for _ in range(3):
            await steps_of(running.engine, running.request())
        assert (len(sick.requests), len(well.requests)) == (0, 3)
        sick.health = 200
        await running.until_up(True, True)
        await steps_of(running.engine, running.request(salt="new"))
        assert len(sick.requests) == 1


async def test_a_busy_server_may_miss_two_health_checks() -> None:
    async with pool(probe_timeout_s=0.05) as running:
        [server] = running.servers
        server.health = None
        seen = []
        for _ in range(3):
            await running.engine._pool.probe()
            seen += running.engine.health.values()
        assert seen == [True, True, False]
        server.health = 200
        await running.until_up(True)


async def test_health_is_checked_again_and_again() -> None:
    async with pool(probe_s=0.01) as running, asyncio.timeout(30):
        [server] = running.servers
        for status, is_up in ((500, False), (200, True)):
            server.health = status
            while list(running.engine.health.values()) != [is_up]:  # noqa: ASYNC110
                await asyncio.sleep(0)


async def test_a_pool_starts_with_what_answers(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    async with pool() as running:
        urls = (f"http://127.0.0.1:{unused_port()}", running.servers[0].url)
        engine = VllmHttpEngine(["pool"], VllmHttpOptions(urls=urls))
        await engine.start()
        assert list(engine.health.values()) == [False, True]
        await engine.aclose()


async def test_without_any_server_the_start_fails_and_can_be_repeated() -> None:
    async with pool() as running:
        [server] = running.servers
        await running.engine.aclose()
        await server.kill()
        for _ in range(2):
            with pytest.raises(EngineDead):
                await running.engine.start()
        await server.start()
        await running.engine.start()
        assert text_of(await steps_of(running.engine, running.request())) == TALE


async def test_a_server_with_another_model_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    async with pool(wires=["generate"] * 2) as running:
        other = running.servers[1]
        other.health = 500
        await running.until_up(True, False)
        other.health, other.model = 200, "other"
        await running.engine._pool.probe()
        assert list(running.engine.health.values()) == [True, False]
    assert "one serves 'other' and another 'tokens'" in caplog.text


async def test_a_name_that_no_server_serves_is_a_wrong_setting() -> None:
    async with pool() as running:
        options = VllmHttpOptions(url=running.servers[0].url, model_name="nope")
        with pytest.raises(SettingsError, match=r"'nope'.*but 'tokens'"):
            await VllmHttpEngine(["pool"], options).start()


async def test_a_server_that_is_not_vllm_is_a_wrong_setting() -> None:
    async with pool() as running:
        running.servers[0].model_fields = {"max_model_len": None}
        with pytest.raises(SettingsError, match="max_model_len"):
            await running.engine.start()


async def test_the_shortest_context_counts() -> None:
    async with pool(wires=["generate"] * 2) as running:
        running.servers[1].model_fields = {"max_model_len": 900}
        await running.engine.start()
        assert running.engine.context_length == 900


async def test_the_folder_that_the_servers_name_is_used_if_it_is_here(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    generation = {"temperature": 0.6, "top_k": 20, "max_new_tokens": 512, "eos_token_id": 2}
    (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    async with pool() as running:
        assert running.engine.model_folder is None
        running.servers[0].model_fields = {"root": str(tmp_path)}
        await running.engine.start()
        assert running.engine.model_folder == tmp_path
        assert running.engine.model_type == "qwen3"
        assert running.engine.sampling_defaults == {
            "temperature": 0.6,
            "top_k": 20,
            "max_tokens": 512,
        }


async def test_a_server_that_renders_nonsense_still_serves_text() -> None:
    async with pool() as running:
        for server in running.servers:
            server.rendering = {"object": "list"}
        await running.engine.start()
        assert not running.engine.reads_images
        assert await steps_of(running.engine, running.request(max_tokens=2))


async def test_leaving_a_run_ends_it_on_the_server() -> None:
    async with pool() as running, asyncio.timeout(30):
        engine = running.servers[0].engine
        run = await running.engine.generate(running.request(ignore_eos=True, max_tokens=1500))
        await anext(aiter(run))
        await run.aclose()
        while not engine.aborted:  # noqa: ASYNC110  (counters have no event)
            await asyncio.sleep(0)
        assert engine.running == 0


async def test_a_model_without_its_tokenizer_here_is_a_wrong_setting(tmp_path: Path) -> None:
    async with pool() as running:
        config = tmp_path / "antiphon.toml"
        table = (
            f'[[models]]\nname = "far"\nengine = "vllm_http"\nurl = "{running.servers[0].url}"\n'
        )
        write(config, table)
        [model] = build_models(load(config, {}, {}))
        with pytest.raises(
            SettingsError, match=r"The tokenizer of 'far' is not known: set `tokenizer`"
        ):
            await model.start()
        await model.aclose()


WRONG: dict[str, dict[str, Any]] = {
    "set exactly one of `url`, `urls`, `urls_file`, `dns`": {},
    "set exactly one of `url`, ": {"url": "http://a", "dns": "a:1"},
    "set either `key_env` or `key_file`": {"url": "http://a", "key_env": "A", "key_file": "b"},
    "url must be an http(s) URL, such as https://host:8000/path, without a user": {
        "url": "http://user:secret@a"
    },
    "unknown field": {"url": "http://a", "colour": "red"},
}


@pytest.mark.parametrize("message", WRONG)
def test_wrong_options_are_named(message: str) -> None:
    with pytest.raises(SettingsError) as refused:
        convert_options(WRONG[message], VllmHttpOptions)
    assert message in str(refused.value)
    assert "secret" not in str(refused.value)


def test_a_file_of_servers_that_is_not_there_is_a_wrong_setting(tmp_path: Path) -> None:
    engine = VllmHttpEngine(["pool"], VllmHttpOptions(urls_file=str(tmp_path / "none")))
    with pytest.raises(SettingsError, match="urls_file"):
        asyncio.run(engine.start())


def unused_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])
