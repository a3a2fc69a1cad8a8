"""All kinds of tools in one response: what the server runs, and what the client does."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI
from tests.http.conftest import create, frames, script, text_of, wait_until
from tests.support import fake_mcp_server
from tests.support.fake_mcp_server import FakeMcpServer
from websockets.sync.client import connect

pytestmark = pytest.mark.slow

Json = dict[str, Any]

SHELL = {"type": "shell", "environment": {"type": "container_auto"}}
PYTHON = {"type": "code_interpreter", "container": {"type": "auto"}}
MINE = {"type": "function", "name": "mine", "parameters": {"type": "object"}}
INCLUDE = [
    "code_interpreter_call.outputs",
    "file_search_call.results",
    "web_search_call.results",
    "web_search_call.action.sources",
]
ADD = {"mcp": "add", "args": {"a": 2, "b": 40}}
CALL_MINE = {"call": "mine", "args": {}}
RUNS = [
    ADD,
    {"call": "browser.search", "args": {"query": "psalms"}},
    {"python": "open('n.txt', 'w').write('7')"},
    {"call": "shell", "args": {"commands": ["cat n.txt"]}},
    {"call": "file_search", "args": {"queries": ["refunds paid?"]}},
]
"""A call of each kind that the server runs."""

ENDS = ("response.completed", "response.incomplete", "response.failed", "error")
SHOWN = [
    "mcp_call",
    "web_search_call",
    "code_interpreter_call",
    "shell_call",
    "shell_call_output",
    "file_search_call",
]
"""Their items."""


class All:
    def __init__(
        self, client: httpx.Client, tools: list[Json], server: Any, audit_log: Path
    ) -> None:
        self.client, self.tools, self.server = client, tools, server
        self._audit_log = audit_log

    def audited(self, response: Json) -> list[tuple[str, str, str]]:
        """Return the tool, name and result of each call of the response in the audit log."""
        records = [json.loads(line) for line in self._audit_log.read_text().splitlines()]
        return sorted(
            (record["tool"], record["name"], record["result"])
            for record in records
            if record["response_id"] == response["id"]
        )

    def create(self, model: str, *turns: Any, **fields: Any) -> Json:
        return create(self.client, **self.body(model, *turns, **fields))

    def body(self, model: str, *turns: Any, **fields: Any) -> Json:
        given = {"input": script(*turns), "tools": self.tools, "include": INCLUDE}
        return {"model": model, **given, **fields}


@pytest.fixture(scope="module")
def site() -> Iterator[FakeMcpServer]:
    with fake_mcp_server.site() as listening:
        yield listening


@pytest.fixture(scope="module")
def every(
    site: FakeMcpServer, serve_from: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[All]:
    """A server that runs all that there is."""
    if shutil.which("bwrap") is None:
        pytest.skip("there is no bwrap here: apt-get install bubblewrap")
    folder: Path = tmp_path_factory.mktemp("every")
    (folder / "psalms.md").write_text("# Psalms\n\nThere are 150 psalms.")
    settings = {
        "fetch.urls": True,
        "fetch.hosts": ["127.0.0.1:*"],
        "fetch.private": ["127.0.0.1"],
        "code_interpreter": True,
        "shell": True,
        "code.cgroup": "off",
        "web_search": "corpus",
        "web.folder": folder,
        "audit_log": folder / "audit.jsonl",
        "store": "sqlite",
    }
    with (
        serve_from(folder, **settings) as server,
        httpx.Client(base_url=server.api, timeout=20) as client,
        OpenAI(base_url=server.api, api_key="none") as official,
    ):
        file = official.files.create(file=("refunds.txt", b"Paid refunds."), purpose="user_data")
        store = official.vector_stores.create()
        official.vector_stores.files.create_and_poll(
            file.id, vector_store_id=store.id, poll_interval_ms=10
        )
        mcp = {"type": "mcp", "server_label": "calc", "server_url": f"{site.origin}/mcp"}
        tools = [
            {**mcp, "require_approval": "never"},
            {"type": "web_search"},
            PYTHON,
            SHELL,
            {"type": "file_search", "vector_store_ids": [store.id]},
            MINE,
        ]
        yield All(client, tools, server, folder / "audit.jsonl")


def kinds(response: Json) -> list[str]:
    return [item["type"] for item in response["output"]]


def call_of(response: Json) -> Json:
    [call] = [item for item in response["output"] if item["type"] == "function_call"]
    return call


def answered(response: Json, **more: Any) -> Json:
    call_id = call_of(response)["call_id"]
    return {"type": "function_call_output", "call_id": call_id, "output": "ours", **more}


def turns_for(model: str) -> list[Any]:
    """The calls, the client's last: side by side where the model can, else one a turn."""
    return [[*RUNS, CALL_MINE]] if model == "scripted-chat" else [*RUNS, CALL_MINE]


def test_the_servers_calls_run_before_the_clients_calls_are_returned(
    every: All, model: str
) -> None:
    first = every.create(model, *turns_for(model), {"say": "All done."})
    assert kinds(first) == ["mcp_list_tools", *SHOWN, "function_call"]
    assert {item.get("status", "completed") for item in first["output"]} == {"completed"}
    [shown] = first["output"][5]["output"]
    assert shown == {"stdout": "7", "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}
    second = create(
        every.client,
        model=model,
        input=[answered(first)],
        previous_response_id=first["id"],
        tools=every.tools,
    )
    assert (second["status"], text_of(second)) == ("completed", "All done.")
    wait_until(lambda: len(every.audited(first)) == len(RUNS))
    assert every.audited(first) == [
        ("code_interpreter", "python", "ok"),
        ("file_search", "file_search", "ok"),
        ("mcp", "add", "ok"),
        ("shell", "shell", "ok"),
        ("web_search", "web_search", "ok"),
    ]


def prompt_of(response: Json) -> list[int]:
    """Return the tokens of the last prompt."""
    return [token for each in response["input_messages"] for token in each["tokens"]]


@pytest.mark.parametrize("how", ["previous response", "conversation", "items"])
def test_what_comes_after_extends_the_prompt_exactly(every: All, model: str, how: str) -> None:
    asked = {"role": "user", "content": script(*turns_for(model), {"say": "All done."})}
    body = {"model": model, "tools": every.tools, "enable_response_messages": True}
    links: Json = {}
    if how == "conversation":
        links = {"conversation": every.client.post("/conversations", json={}).json()["id"]}
    first = create(
        every.client, input=[asked], include=INCLUDE, store=how != "items", **links, **body
    )
    given = [answered(first)]
    if how == "previous response":
        links = {"previous_response_id": first["id"]}
    if how == "items":
        given = [asked, *first["output"], *given]
    second = create(every.client, input=given, **links, **body)
    before = prompt_of(first)
    assert prompt_of(second)[: len(before)] == before
    assert text_of(second) == "All done."


@pytest.mark.parametrize("include", [INCLUDE, []], ids=["with results", "without"])
def test_all_output_items_can_be_sent_back(every: All, model: str, include: list[str]) -> None:
    asked = {"role": "user", "content": script(*turns_for(model), {"say": "Fine."})}
    first = every.create(model, input=[asked], store=False, include=include)
    given = [asked, *first["output"], answered(first)]
    for more in ({"tools": every.tools}, {}):  # nobody has to offer the tools any longer
        second = create(every.client, model=model, input=given, store=False, **more)
        assert (second["status"], text_of(second)) == ("completed", "Fine.")


def test_without_parallel_calls_there_is_one_call_at_a_time(every: All) -> None:
    turn = [*RUNS, CALL_MINE]
    response = every.create("scripted-chat", turn, parallel_tool_calls=False)
    assert kinds(response)[:2] == ["mcp_list_tools", "mcp_call"]
    assert {item.get("status", "completed") for item in response["output"]} == {"completed"}


def test_calls_of_all_kinds_count_together(every: All, model: str) -> None:
    turns = [RUNS] if model == "scripted-chat" else RUNS
    response = every.create(model, *turns, {"say": "Enough."}, max_tool_calls=2)
    of_calls = [item for item in response["output"] if item["type"] in SHOWN]
    assert [item["type"] for item in of_calls] == SHOWN
    assert [item["status"] for item in of_calls][:2] == ["completed"] * 2
    refused = of_calls[2:]
    assert all(
        "max_tool_calls" in json.dumps(item) for item in refused if item["type"] != "shell_call"
    )
    assert (response["status"], text_of(response)) == ("completed", "Enough.")


def test_each_kind_can_be_forced(every: All, model: str) -> None:
    for kind in ("web_search", "code_interpreter", "shell", "file_search"):
        response = every.create(model, tool_choice={"type": kind}, input="Go.")
        assert kinds(response)[1].startswith(kind), kind
    chosen = {"type": "mcp", "server_label": "calc", "name": "add"}
    assert "mcp_call" in kinds(every.create(model, tool_choice=chosen, input="Go."))
    chosen = {"type": "function", "name": "mine"}
    assert kinds(every.create(model, tool_choice=chosen, input="Go."))[-1] == "function_call"


def test_all_that_was_done_can_be_compacted(every: All, model: str) -> None:
    asked = {"role": "user", "content": script(*turns_for(model))}
    first = every.create(model, input=[asked])
    body = {"model": model, "input": [asked, *first["output"], answered(first)]}
    answer = every.client.post("/responses/compact", json=body)
    assert answer.status_code == 200, answer.text
    again = [*answer.json()["output"], {"role": "user", "content": script({"say": "On."})}]
    assert text_of(create(every.client, model=model, input=again, tools=every.tools)) == "On."


def test_a_websocket_sends_the_same_events_as_a_stream(every: All, model: str) -> None:
    turns = *turns_for(model), {"say": "Fine."}
    body = every.body(model, *turns)
    told = frames(every.client.post("/responses", json={**body, "stream": True}).text)
    url = every.server.api.replace("http:", "ws:") + "/responses"
    heard: list[Json] = []
    with connect(url) as socket:
        socket.send(json.dumps({"type": "response.create", **body}))
        while not heard or heard[-1]["type"] not in ENDS:
            heard.append(json.loads(socket.recv(timeout=20)))

    assert [each["type"] for each in heard if "delta" not in each["type"]] == [
        each["type"] for each in told if "delta" not in each["type"]
    ]
