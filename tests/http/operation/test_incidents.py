"""Each incident of the guide, made on purpose, and the sentence that its one command shows."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.docs.reader import ROOT
from tests.entrypoints.test_explain import antiphon
from tests.http.conftest import create, script, wait_until
from tests.http.operation.test_request_log import Lines, lines  # noqa: F401 - a fixture
from tests.support import fake_mcp_server
from tests.upstreams.chat_models import model_table
from tests.upstreams.chat_server import scripted_chat_server

from antiphon.adapters.stores.memory.store import MemoryStore

pytestmark = pytest.mark.slow

MODEL = "scripted-chat"
SITE = {"fetch.urls": True, "fetch.hosts": ["127.0.0.1:*"], "fetch.private": ["127.0.0.1"]}
ODD = [{"type": "mcp", "server_label": "odd", "require_approval": "never"}]
SAY = {"mcp": "say", "args": {}}


def rows() -> Iterator[tuple[str, str]]:
    """Yield each incident of the guide, and the sentence that shows it."""
    page = (ROOT / "docs" / "guides" / "incidents.md").read_text(encoding="utf-8")
    for line in page.splitlines():
        cells = [cell.strip() for cell in line.split("|")]
        if len(cells) == 6 and cells[3].startswith("`"):
            yield cells[1], cells[3].strip("`")


SENTENCES = dict(rows())


def shows(text: str, incident: str) -> bool:
    """Return whether a text has the sentence; `…` stands for anything in its line."""
    parts = SENTENCES[incident].split("…")
    return re.search(".*".join(map(re.escape, parts)), text) is not None


def explanation(client: httpx.Client, response_id: str = "") -> str:
    """Return what `antiphon explain` prints of a response, by default of the newest one."""
    newest = client.get("/responses").json()["data"][0]["id"]
    done = antiphon("explain", response_id or newest, "--url", str(client.base_url))
    assert done.returncode == 0, done.stderr
    return done.stdout


def ask(client: httpx.Client, *turns: Any, **body: Any) -> httpx.Response:
    return client.post("/responses", json={"model": MODEL, "input": script(*turns), **body})


@pytest.fixture
def asking(
    serve: Callable[..., AbstractContextManager[Any]],
) -> Callable[..., AbstractContextManager[httpx.Client]]:
    """Serve, and yield a client: `with asking(store="sqlite") as client: …`."""

    @contextmanager
    def asking(**given: Any) -> Iterator[httpx.Client]:
        with serve(**given) as server, httpx.Client(base_url=server.api, timeout=20) as client:
            yield client

    return asking


def test_the_guide_has_ten_incidents() -> None:
    assert len(SENTENCES) == 10


def test_an_engine_that_died(asking: Any) -> None:
    with asking() as client:
        ask(client, [{"say": "Once"}, {"die": True}])
        ready = str(client.base_url).replace("/v1/", "/readyz")
        wait_until(lambda: shows(httpx.get(ready).text, "A model's engine has died"))


def test_a_tool_that_hangs(serve_odd_tools: Any) -> None:
    with serve_odd_tools(**{"tools.timeout_s": 1}) as client:
        ask(client, {"mcp": "hang", "args": {}}, {"say": "Never mind."}, tools=ODD)
        assert shows(explanation(client), "A tool hangs")


class SlowStore(MemoryStore):
    async def append_events(self, *args: Any) -> bool:
        await asyncio.sleep(0.2)  # it is the store that is slow here
        return await super().append_events(*args)


def test_a_store_that_is_slow(asking: Any) -> None:
    with asking(instead=SlowStore()) as client:
        made = create(client, model=MODEL, input="hi", background=True)
        read = f"/responses/{made['id']}"
        wait_until(lambda: client.get(read).json()["status"] == "completed")
        assert shows(explanation(client), "The store is slow")


def test_a_template_that_refuses(tmp_path: Path) -> None:
    template = tmp_path / "chat_template.jinja"
    template.write_text(
        "{% if tools %}{{ raise_exception('no tools') }}{% endif %}"
        "{% for m in messages %}{{ m.content }}{% endfor %}"
    )
    options = ("--engine", "vllm", "--format", "chat:hermes", "--data-dir", tmp_path / "data")
    told = antiphon("doctor", template, *options, "--quick")
    assert told.returncode == 1
    assert shows(told.stdout, "The chat template refuses a conversation")


def test_a_budget_that_is_used_up(serve_odd_tools: Any) -> None:
    with serve_odd_tools(**{"tools.max_turns": 2}) as client:
        ask(client, *[SAY] * 5, tools=ODD)
        assert shows(explanation(client), "A budget is used up")


def test_a_client_that_left(asking: Any, lines: Lines) -> None:  # noqa: F811
    with asking() as client:
        hanging = {"model": MODEL, "input": script([{"say": "Once"}, {"hang": 600}])}
        with client.stream("POST", "/responses", json={**hanging, "stream": True}) as answer:
            next(answer.iter_raw())
        wait_until(lambda: any(shows(line, "The client has left") for line in lines.messages))


def test_a_stream_that_was_read_to_its_end_has_no_client_that_left(
    asking: Any,
    lines: Lines,  # noqa: F811
) -> None:
    with asking() as client:
        body = {"model": MODEL, "input": "hi", "stream": True}
        for _ in range(20):
            client.post("/responses", json=body)
        wait_until(lambda: len(lines.of(logger="antiphon.access", method="POST")) == 20)
        assert not any("client left" in line for line in lines.messages)


def test_a_server_that_was_lost(serve: Any, tmp_path: Path) -> None:
    shared = {"store": f"sqlite:///{tmp_path}/shared.db", "graceful_shutdown_s": 0}
    with serve(**shared) as second, httpx.Client(base_url=second.api, timeout=20) as client:
        with serve(**shared) as first:
            said = script([{"say": "word ", "repeat": 40, "tick": 0.05}])
            body = {"model": MODEL, "input": said, "background": True}
            made = httpx.post(f"{first.api}/responses", json=body).json()
        wait_until(lambda: client.get(f"/responses/{made['id']}").json()["status"] == "completed")
        told = explanation(client, made["id"])
        assert shows(told, "A server was lost, and another went on")


def test_an_mcp_credential_that_is_wrong(asking: Any) -> None:
    with fake_mcp_server.site() as site, asking(**SITE) as client:
        calc = {"type": "mcp", "server_label": "calc", "server_url": f"{site.origin}/refused"}
        ask(client, {"say": "Hm."}, tools=[{**calc, "authorization": "stale-token"}])
        told = explanation(client)
        assert shows(told, "The credential of an MCP server is wrong")
        assert "stale-token" not in told


def test_a_prompt_that_is_too_long(asking: Any, lines: Lines) -> None:  # noqa: F811
    with asking(**{"scripted.context_length": 1000}) as client:
        client.post("/responses", json={"model": MODEL, "input": "word " * 2000})
        wait_until(lambda: any(shows(line, "A prompt is too long") for line in lines.messages))


def test_a_model_server_that_takes_no_more(
    asking: Any,
    lines: Lines,  # noqa: F811
    tmp_path: Path,
) -> None:
    incident = "A model server takes no more requests"
    with scripted_chat_server() as upstream:
        config = tmp_path / "models.toml"
        config.write_text(model_table(upstream, "openai", "plain"))
        with asking(config=config) as client:
            upstream.faults.append("429")
            assert ask(client, {"say": "Hi."}, model="plain").status_code == 429
            wait_until(lambda: any(shows(line, incident) for line in lines.messages))
