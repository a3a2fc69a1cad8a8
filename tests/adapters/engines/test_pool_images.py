"""Images on a pool: counted before the run, and sent with it to whichever server runs it."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.adapters.engines.pool_fixtures import TestPool, pool

from antiphon.application.ports import EngineRequest, Prompt
from antiphon.domain.errors import EngineError, RequestError, ServerOverloaded
from antiphon.testing.engine import steps_of, text_of

RED, BLUE = "data:image/png;base64,cmVk", "data:image/png;base64,Ymx1ZQ=="
SEEN = "I see it."


@pytest.fixture
async def seeing() -> AsyncIterator[TestPool]:
    """Two servers of a model for which an image is four tokens."""
    async with pool(wires=["generate"] * 2) as running:
        await let_see(running)
        yield running


async def let_see(running: TestPool) -> None:
    for server in running.servers:
        server.image = [running.markup._id(word) for word in ("<start>", "<row>", "<row>", "<im>")]
    await running.engine.start()
    for server in running.servers:
        server.renderings.clear()


def request_with(running: TestPool, *urls: str, placeholders: int | None = None) -> EngineRequest:
    """Return a request whose prompt ends with the images' placeholders."""
    request: EngineRequest = running.request(SEEN)
    count = len(urls) if placeholders is None else placeholders
    token_ids = [*request.prompt.token_ids, *[running.markup._id("<im>")] * count]
    return replace(request, prompt=Prompt(token_ids=token_ids, image_urls=urls))


async def prepared(running: TestPool, request: EngineRequest) -> EngineRequest:
    return replace(request, prompt=await running.engine.prepare(request.prompt))


async def answer(running: TestPool, request: EngineRequest) -> str:
    return text_of(await steps_of(running.engine, request))


# --- which pools read images ----------------------------------------------------------------------


async def test_a_pool_reads_images_if_all_of_its_servers_do(seeing: TestPool) -> None:
    assert seeing.engine.reads_images
    seeing.servers[1].image = ()
    await seeing.engine.start()
    assert not seeing.engine.reads_images


@pytest.mark.parametrize("wires", [["completions"], ["generate", "completions"]])
async def test_images_need_the_wire_of_tokens(wires: list[str]) -> None:
    async with pool(wires=wires) as running:
        await let_see(running)
        assert not running.engine.reads_images


async def test_a_model_of_text_refuses_images() -> None:
    async with pool() as running:
        with pytest.raises(RequestError) as refused:
            await running.engine.prepare(request_with(running, RED).prompt)
        assert refused.value.param == "input"


# --- counts and runs ------------------------------------------------------------------------------


async def test_each_image_is_counted_as_the_server_runs_it(
    seeing: TestPool, caplog: pytest.LogCaptureFixture
) -> None:
    request = request_with(seeing, RED, BLUE)
    ready = await prepared(seeing, request)
    assert len(ready.prompt.token_ids) == len(request.prompt.token_ids) + 2 * 3
    assert await answer(seeing, ready) == SEEN
    assert not caplog.records
    [body] = [body for server in seeing.servers for body in server.requests]
    assert body["token_ids"] == request.prompt.token_ids
    assert [part["url"] for part in body["content_parts"]] == [RED, BLUE]


async def test_a_count_that_the_server_does_not_share_is_logged(
    seeing: TestPool, caplog: pytest.LogCaptureFixture
) -> None:
    ready = await prepared(seeing, request_with(seeing, RED))
    for server in seeing.servers:
        server.image = [*server.image, *server.image[-1:]]
    with caplog.at_level(logging.WARNING):
        assert await answer(seeing, ready) == SEEN
    assert "was counted as" in caplog.text


async def test_images_that_were_counted_are_not_asked_for_again(seeing: TestPool) -> None:
    for _ in range(2):
        await prepared(seeing, request_with(seeing, RED, BLUE))
    await prepared(seeing, request_with(seeing, RED))
    assert sum(len(server.renderings) for server in seeing.servers) == 2


async def test_another_server_runs_a_prepared_prompt(seeing: TestPool) -> None:
    ready = await prepared(seeing, request_with(seeing, RED))
    [asked] = [server for server in seeing.servers if server.renderings]
    await asked.kill()
    assert await answer(seeing, ready) == SEEN


async def test_a_server_without_the_wire_of_tokens_runs_no_images(seeing: TestPool) -> None:
    ready = await prepared(seeing, request_with(seeing, RED))
    async with pool(wires=["completions"]) as other:
        with pytest.raises(EngineError):
            await answer(other, ready)
        assert not other.servers[0].requests


@pytest.mark.parametrize("placeholders", [0, 2])
async def test_a_prompt_needs_a_placeholder_for_each_image(
    seeing: TestPool, placeholders: int
) -> None:
    with pytest.raises(RequestError) as refused:
        await prepared(seeing, request_with(seeing, RED, placeholders=placeholders))
    assert refused.value.param == "input"


async def test_a_text_that_spells_the_image_token_is_refused(tmp_path: Path) -> None:
    async with pool(folder=tmp_path) as running:
        config = {"image_token_id": running.markup._id("<im>")}
        (tmp_path / "config.json").write_text(json.dumps(config))
        await let_see(running)
        for urls in ([], [RED]):
            with pytest.raises(RequestError, match="spells"):
                await prepared(running, request_with(running, *urls, placeholders=len(urls) + 1))
        assert await prepared(running, request_with(running, RED))


# --- servers that fail ----------------------------------------------------------------------------


async def test_a_busy_server_leaves_the_images_to_another(seeing: TestPool) -> None:
    seeing.servers[0].image_refusal = 503
    assert await answer(seeing, await prepared(seeing, request_with(seeing, RED))) == SEEN
    seeing.servers[1].image_refusal = 503
    with pytest.raises(ServerOverloaded):
        await prepared(seeing, request_with(seeing, BLUE))


@pytest.mark.parametrize(("status", "code"), [(400, None), (500, "invalid_image")])
async def test_images_that_cannot_be_read_are_refused(
    seeing: TestPool, status: int, code: str | None
) -> None:
    for server in seeing.servers:
        server.image_refusal = status
    with pytest.raises(RequestError) as refused:
        await prepared(seeing, request_with(seeing, RED))
    assert (refused.value.param, refused.value.code) == ("input", code)
    assert all(seeing.engine.health.values())


async def test_an_image_over_which_runs_fail_gets_another_id(seeing: TestPool) -> None:
    for server in seeing.servers:
        server.broken_images.add(RED)
    for _ in range(2):
        ready = await prepared(seeing, request_with(seeing, RED, BLUE))
        assert await answer(seeing, ready) == SEEN
    bodies = [body for server in seeing.servers for body in server.requests]
    ids = [part["uuid"] for body in bodies for part in body["content_parts"] if "uuid" in part]
    assert len(bodies) == 3
    assert len(ids) == 4
    assert len(set(ids)) == 2
    assert all(seeing.engine.health.values())


async def test_a_run_that_no_id_helps_fails(seeing: TestPool) -> None:
    ready = await prepared(seeing, request_with(seeing, RED))
    for server in seeing.servers:
        server.refusal = 500
    with pytest.raises(EngineError):
        await answer(seeing, ready)
    assert sum(len(server.requests) for server in seeing.servers) == 3
