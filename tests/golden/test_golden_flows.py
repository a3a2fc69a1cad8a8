"""Golden flows: what a client sees of responses in which the server runs tools, request by request.

A flow is a row of FLOWS. It is played on a whole server, by each scripted model, streamed, not
streamed and in the background: what comes out is the same, and the streams are as recorded but for
ids and times. With `--update-golden` they are written anew; read the diff.
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from msgspec import Struct
from openai import OpenAI
from tests.http.conftest import MODELS, create, frames, script, wait_until
from tests.support import fake_mcp_server
from tests.support.fake_mcp_server import FakeMcpServer

from antiphon.domain.events import EVENT_TYPES
from antiphon.domain.lifecycle import OVER, START, advance

Json = dict[str, Any]
Ask = Callable[[Sequence[Json]], Json]
"""The responses so far -> the next request's fields. `{site}` is where the MCP server is, `{file}`
the id of an uploaded file, `{files}` that of a vector store with it in it."""

FLOWS_AT = Path(__file__).parent / "flows"
STEP_TOKENS = 8


# --- the flows ------------------------------------------------------------------------------------


class Flow(Struct, frozen=True):
    """Requests, one after another. `needs`: a program without which it cannot be played.
    `web`: what is searched, a row of WEBS."""

    requests: Sequence[Ask]
    models: Sequence[str] = MODELS
    needs: str | None = None
    web: str = "a folder"


def ask(*turns: Any, **fields: Any) -> Ask:
    return lambda _: {"input": script(*turns), **fields}


def answer(*, approve: bool, **fields: Any) -> Ask:
    """Answer the approval request that the last response ended with."""

    def asked(before: Sequence[Json]) -> Json:
        given = {
            "type": "mcp_approval_response",
            "approval_request_id": before[-1]["output"][-1]["id"],
            "approve": approve,
        }
        return {"input": [given], "previous_response_id": before[-1]["id"], **fields}

    return asked


def shell(*commands: str, **action: Any) -> Json:
    return {"call": "shell", "args": {"commands": list(commands), **action}}


def search_files(*queries: str) -> Json:
    return {"call": "file_search", "args": {"queries": list(queries)}}


def program(code: str) -> Json:
    return {"call": "program", "args": {"code": code}}


def answer_calls(*outputs: str, **fields: Any) -> Ask:
    """Answer the calls that the last response has, in their order."""

    def asked(before: Sequence[Json]) -> Json:
        calls = [item for item in before[-1]["output"] if item["type"] == "function_call"]
        given = [
            {"type": "function_call_output", "call_id": call["call_id"], "output": output}
            for call, output in zip(calls, outputs, strict=True)
        ]
        return {"input": given, "previous_response_id": before[-1]["id"], **fields}

    return asked


def mcp(**fields: Any) -> list[Json]:
    tool = {"type": "mcp", "server_label": "calc", "server_url": "{site}/mcp"}
    return [{**tool, "require_approval": "never", **fields}]


ADD: Json = {"mcp": "add", "args": {"a": 2, "b": 40}}
FIRST_ADD: Json = {"mcp": "add", "args": {"a": 1, "b": 1}}
ALWAYS = mcp(require_approval="always")
OTHER = mcp(require_approval="always", server_url="{site}/other")
PYTHON: Json = {
    "tools": [{"type": "code_interpreter", "container": {"type": "auto"}}],
    "include": ["code_interpreter_call.outputs"],
}
SHELL = [{"type": "shell", "environment": {"type": "container_auto"}}]
WEB: Json = {
    "tools": [{"type": "web_search"}],
    "include": ["web_search_call.action.sources", "web_search_call.results"],
}
FILES: Json = {
    "tools": [{"type": "file_search", "vector_store_ids": ["{files}"]}],
    "include": ["file_search_call.results"],
}
TEXT = "Refunds are paid within two weeks."
PAGE = "# Psalms\n\nThere are 150 psalms."
SEARCH: Json = {"call": "browser.search", "args": {"query": "psalms"}}
MINE: Json = {"type": "function", "name": "mine", "parameters": {"type": "object"}}
PROGRAMS = [
    {"type": "programmatic_tool_calling"},
    {**MINE, "allowed_callers": ["programmatic"]},
    *mcp(allowed_callers=["programmatic"]),
]
HIDDEN = [
    {"type": "function", "name": "pay", "description": "Pays a bill.", "defer_loading": True},
    {"type": "tool_search"},
]

FLOWS: Mapping[str, Flow] = {
    "mcp_list_and_call": Flow([ask(ADD, {"say": "42 it is."}, tools=mcp())]),
    "mcp_thought_and_preamble": Flow(
        [
            ask(
                [{"think": "Add."}, {"say": "I add them.", "phase": "commentary"}, ADD],
                [{"think": "Done."}, {"say": "42."}],
                tools=mcp(),
            )
        ]
    ),
    "mcp_three_turns": Flow([ask(FIRST_ADD, ADD, {"say": "2 and 42."}, tools=mcp())]),
    "mcp_side_by_side": Flow(
        [ask([FIRST_ADD, ADD], {"say": "2 and 42."}, tools=mcp())], models=["scripted-chat"]
    ),
    "mcp_call_error": Flow(
        [ask({"mcp": "boom", "args": {}}, {"say": "There is none."}, tools=mcp())]
    ),
    "mcp_arguments_malformed": Flow(
        [ask({"mcp": "add", "args": '{"a": 2, "b"'}, {"say": "I slipped."}, tools=mcp())]
    ),
    "mcp_list_error": Flow([ask({"say": "Without it."}, tools=mcp(server_url="{site}/refused"))]),
    "mcp_listed_once_in_a_chain": Flow(
        [
            ask(FIRST_ADD, {"say": "2."}, tools=mcp()),
            lambda before: {
                "input": script(ADD, {"say": "42."}),
                "tools": mcp(),
                "previous_response_id": before[-1]["id"],
            },
        ]
    ),
    "mcp_beyond_max_tool_calls": Flow(
        [ask(FIRST_ADD, ADD, {"say": "2, and no more."}, tools=mcp(), max_tool_calls=1)]
    ),
    "mcp_cut_in_a_call": Flow([ask(ADD, {"say": "42."}, tools=mcp(), max_output_tokens=16)]),
    "mcp_approved": Flow(
        [ask(ADD, {"say": "42."}, tools=ALWAYS), answer(approve=True, tools=ALWAYS)]
    ),
    "mcp_denied": Flow(
        [ask(ADD, {"say": "Not then."}, tools=ALWAYS), answer(approve=False, tools=ALWAYS)]
    ),
    "mcp_approved_of_another_tool": Flow(
        [
            ask(ADD, {"say": "42."}, tools=ALWAYS),
            answer(approve=True, tools=OTHER),
            answer(approve=True, tools=OTHER),
        ]
    ),
    "mcp_beside_a_clients_call": Flow(
        [ask([ADD, {"call": "mine", "args": {}}], tools=[MINE, *mcp()])], models=["scripted-chat"]
    ),
    "code_interpreter": Flow(
        [ask({"think": "Count."}, {"python": "print(6 * 7)"}, {"say": "42."}, **PYTHON)],
        needs="bwrap",
    ),
    "code_interpreter_error": Flow(
        [ask({"python": "raise SystemExit(3)"}, {"say": "It failed."}, **PYTHON)], needs="bwrap"
    ),
    "code_interpreter_and_mcp": Flow(
        [
            ask(
                {"python": "x = 41; x + 1"},
                ADD,
                {"say": "42, twice."},
                **{**PYTHON, "tools": [*PYTHON["tools"], *mcp()]},
            )
        ],
        needs="bwrap",
    ),
    "code_interpreter_files": Flow(
        [
            ask(
                {"python": "open('loud.txt', 'w').write(open('refunds.txt').read().upper())"},
                {"say": "It is in [loud.txt](sandbox:/mnt/data/loud.txt)."},
                include=PYTHON["include"],
                tools=[
                    {
                        "type": "code_interpreter",
                        "container": {"type": "auto", "file_ids": ["{file}"]},
                    }
                ],
            )
        ],
        needs="bwrap",
    ),
    "shell": Flow(
        [
            ask(
                [{"think": "Look."}, shell("echo one", "echo two >&2; exit 3")],
                {"say": "One and two."},
                tools=SHELL,
            )
        ],
        needs="bwrap",
    ),
    "shell_timeout": Flow(
        [ask(shell("sleep 60", timeout_ms=200), {"say": "Too long."}, tools=SHELL)],
        needs="bwrap",
    ),
    "shell_arguments_malformed": Flow(
        [ask({"call": "shell", "args": '{"comm'}, {"say": "I slipped."}, tools=SHELL)],
        needs="bwrap",
    ),
    "web_search": Flow(
        [
            ask(
                [{"think": "Look it up."}, SEARCH],
                {"call": "browser.open", "args": {"id": 0}},
                {"call": "browser.find", "args": {"pattern": "150"}},
                {"say": "There are 150【1†L2】."},
                **WEB,
            )
        ]
    ),
    "web_search_of_no_page": Flow(
        [
            ask(
                {"call": "browser.open", "args": {"id": "https://corpus.invalid/none"}},
                {"say": "It is not there."},
                **WEB,
            )
        ]
    ),
    "web_search_without_an_answer": Flow(
        [ask(SEARCH, {"say": "Nobody answers."}, **WEB)], web="nobody"
    ),
    "file_search": Flow(
        [
            ask(
                [{"think": "Look."}, search_files("refunds paid?")],
                {"say": "Within two weeks 【0:0†refunds.txt】."},
                **FILES,
            )
        ]
    ),
    "file_search_arguments_malformed": Flow([ask(search_files(), {"say": "I slipped."}, **FILES)]),
    "program_of_the_servers_calls": Flow(
        [
            ask(
                [
                    {"think": "Add them."},
                    program(
                        "const [a, b] = await Promise.all([1, 2].map((n) => "
                        "tools.calc__add({ a: n, b: n })));\n"
                        "text(await tools.calc__add({ a: Number(a), b: Number(b) }));"
                    ),
                ],
                {"say": "6."},
                tools=PROGRAMS,
            )
        ],
        needs="bwrap",
    ),
    "program_of_calls_of_both": Flow(
        [
            ask(
                program(
                    "const add = tools.calc__add({ a: 2, b: 40 });\n"
                    "text(...(await Promise.all([tools.mine({}), add])));\n"
                    "text(await tools.mine({ more: true }));"
                ),
                {"say": "Done."},
                tools=PROGRAMS,
            ),
            answer_calls("one", tools=PROGRAMS),
            answer_calls("two", tools=PROGRAMS),
        ],
        needs="bwrap",
    ),
    "program_that_fails": Flow(
        [
            ask(
                program("text('begun');\nawait tools.calc__boom({});"),
                {"say": "It failed."},
                tools=PROGRAMS,
            )
        ],
        needs="bwrap",
    ),
    "program_cut_while_written": Flow(
        [
            ask(
                program("text('one'); text('two'); text('three');"),
                tools=PROGRAMS,
                max_output_tokens=16,
            )
        ],
        needs="bwrap",
    ),
    "tool_search": Flow(
        [
            ask(
                {"call": "tool_search", "args": {"query": "pay a bill"}},
                {"call": "pay", "args": {}},
                tools=HIDDEN,
            )
        ]
    ),
    "tool_search_in_vain": Flow(
        [
            ask(
                {"call": "tool_search", "args": {"query": "zebra"}},
                {"say": "There is nothing."},
                tools=HIDDEN,
            )
        ]
    ),
}
"""A tool that the server runs joins with its rows: a call, and each way in which it can fail."""

PLAYED = [(name, model) for name, flow in FLOWS.items() for model in flow.models]


# --- playing them ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def site() -> Iterator[FakeMcpServer]:
    with fake_mcp_server.site() as listening:
        yield listening


class Playing(Struct, frozen=True):
    """A server, and what its requests name."""

    client: httpx.Client
    named: Mapping[str, str]


WEBS: Mapping[str, Json] = {
    "a folder": {"web_search": "corpus"},
    "nobody": {"web_search": "searxng", "web.url": "http://127.0.0.1:1/"},
}


@pytest.fixture(scope="module")
def play(
    site: FakeMcpServer, serve_from: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Mapping[str, Playing]]:
    with servers(serve_from, site, tmp_path_factory) as playing:
        yield playing


@contextmanager
def servers(
    serve_from: Any,
    site: FakeMcpServer,
    tmp_path_factory: pytest.TempPathFactory,
    webs: Mapping[str, Json] = WEBS,
) -> Iterator[Mapping[str, Playing]]:
    """Servers by the web that they search; each runs whatever this machine has the programs for."""
    with ExitStack() as stack:
        playing = {}
        for web, searched in webs.items():
            folder = tmp_path_factory.mktemp("flows")
            (folder / "psalms.md").write_text(PAGE)
            settings = {
                "fetch.urls": True,
                "fetch.hosts": ["127.0.0.1:*"],
                "fetch.private": ["127.0.0.1"],
                "scripted.step_tokens": STEP_TOKENS,
                "code_interpreter": shutil.which("bwrap") is not None,
                "shell": shutil.which("bwrap") is not None,
                "programs": shutil.which("bwrap") is not None,
                "code.cgroup": "off",
                **searched,
                **({"web.folder": folder} if searched["web_search"] == "corpus" else {}),
            }
            server = stack.enter_context(serve_from(folder, **settings))
            client = stack.enter_context(httpx.Client(base_url=server.api, timeout=15))
            playing[web] = Playing(client, {"site": site.origin, **searchable(server.api)})
        yield playing


def searchable(api: str) -> Mapping[str, str]:
    """Make a vector store with a file in it."""
    with OpenAI(base_url=api, api_key="none") as client:
        file = client.files.create(file=("refunds.txt", TEXT.encode()), purpose="user_data")
        store = client.vector_stores.create()
        client.vector_stores.files.create_and_poll(
            file.id, vector_store_id=store.id, poll_interval_ms=10
        )
    return {"file": file.id, "files": store.id}


def streamed(client: httpx.Client, body: Json) -> tuple[Json, list[Json]]:
    events = frames(client.post("/responses", json={**body, "stream": True}).text)
    return events[-1]["response"], events


def whole(client: httpx.Client, body: Json) -> tuple[Json, list[Json]]:
    return create(client, **body), []


def in_background(client: httpx.Client, body: Json) -> tuple[Json, list[Json]]:
    params = {"include[]": body.get("include", [])}
    path = f"/responses/{create(client, **body, background=True)['id']}"
    wait_until(lambda: client.get(path).json()["status"] not in ("queued", "in_progress"))
    response = client.get(path, params=params).json()
    stream = client.get(path, params={"stream": "true", **params})
    return response, frames(stream.text)


def played(
    play: Mapping[str, Playing],
    name: str,
    model: str,
    way: Callable[[httpx.Client, Json], tuple[Json, list[Json]]],
) -> tuple[list[Json], list[list[Json]]]:
    """Play a flow; return its responses and their events, with ids and times as if they were small.

    Ids are numbered in the order in which they are met, so equal ids stay equal.
    """
    flow = FLOWS[name]
    if flow.needs is not None and shutil.which(flow.needs) is None:
        pytest.skip(f"there is no {flow.needs} on this machine")
    playing = play[flow.web]
    salt = secrets.token_hex(8)  # what was played before makes no prompt a cached one
    responses: list[Json] = []
    streams: list[list[Json]] = []
    for asked in flow.requests:
        text = json.dumps(asked(responses))
        for name, value in playing.named.items():
            text = text.replace(f"{{{name}}}", value)
        response, events = way(
            playing.client, {"model": model, "cache_salt": salt, **json.loads(text)}
        )
        responses.append(response)
        streams.append(events)
    plainly = Plain(playing.named["site"])
    return plainly(responses), plainly(streams)


class Plain:
    """Replaces what differs from one run to the next. One for all that one run has told."""

    _ID = re.compile(r"\b([a-z]+)([_-])[0-9A-Za-z]{20,}\b")
    _TIME = re.compile(r'("(?:created|completed|expires)_at": )[0-9.]+')
    _SEALED = re.compile(r'("encrypted_content": )"[^"]+"')

    def __init__(self, site: str) -> None:
        self._site = site
        self._known: dict[str, str] = {}
        self._counts: dict[str, int] = {}

    def __call__(self, told: Any) -> Any:
        text = json.dumps(told).replace(self._site, "http://mcp.example")
        text = self._TIME.sub(r"\g<1>1790000000", text)
        text = self._SEALED.sub(r'\1"sealed"', text)
        return json.loads(self._ID.sub(self._small, text))

    def _small(self, found: re.Match[str]) -> str:
        if found[0] not in self._known:
            count = self._counts[found[1]] = self._counts.get(found[1], 0) + 1
            self._known[found[0]] = f"{found[1]}{found[2]}{count}"
        return self._known[found[0]]


_COUNT = re.compile(r'(_tokens": )[0-9]+')


def as_sse(events: Sequence[Json]) -> str:
    """Return the events as they are kept: without how many tokens a prompt of today takes."""
    told = "".join(
        f"event: {event['type']}\ndata: {json.dumps(event, ensure_ascii=False)}\n\n"
        for event in events
    )
    return _COUNT.sub(r"\g<1>0", told)


@pytest.mark.parametrize(("name", "model"), PLAYED)
def test_a_flow_is_told_as_recorded(
    play: Mapping[str, Playing], name: str, model: str, update_golden: bool
) -> None:
    _, streams = played(play, name, model, streamed)
    FLOWS_AT.mkdir(exist_ok=True)
    for number, events in enumerate(streams, 1):
        golden = FLOWS_AT / f"{name}.{model}.{number}.sse"
        written = as_sse(events)
        if update_golden:
            golden.write_text(written)
        assert written == golden.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "model"), PLAYED)
def test_however_a_flow_is_asked_for_its_items_are_the_same(
    play: Mapping[str, Playing], name: str, model: str
) -> None:
    expected, streams = played(play, name, model, streamed)
    for events in streams:
        check_order(events)
    for way in (whole, in_background):
        responses, again = played(play, name, model, way)
        for response, wanted in zip(responses, expected, strict=True):
            assert response == {**wanted, "background": response["background"]}
        for events in filter(None, again):
            check_order(events)


def check_order(events: Sequence[Json]) -> None:
    """Events follow each other as the table has it, and their items are those of the response."""
    state = START
    for number, event in enumerate(events):
        assert event["sequence_number"] == number
        state = advance(
            state, msgspec.json.decode(json.dumps(event), type=EVENT_TYPES[event["type"]])
        )
    assert state == OVER
    done = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert done == events[-1]["response"]["output"]


def test_every_recorded_stream_is_one_of_a_flow() -> None:
    known = {f"{name}.{model}" for name, model in PLAYED}
    assert {file.name.rsplit(".", 2)[0] for file in FLOWS_AT.iterdir()} == known
