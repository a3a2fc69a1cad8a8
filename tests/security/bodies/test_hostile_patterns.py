"""No pattern or schema of a client, or of a tool server, stops others, wherever it stands."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.security.support.server_probe import ProbedServer, probe_server
from tests.support import fake_mcp_server
from tests.support.fake_mcp_server import FakeMcpServer
from tests.support.hostile_schemas import HARD, LONG, SCHEMAS
from tests.support.machine_speed import slowness

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

MAX_FREEZE_S = 0.1
TRIES = 5
"""Since the machine may do something else at the same time."""

MODELS = ("scripted-chat", "scripted-harmony")
FETCH = ("--fetch-urls", "--fetch-hosts", "127.0.0.1:*", "--fetch-private", "127.0.0.1")

Json = dict[str, Any]

PATTERNS = [
    HARD,
    "^(a|a)*$",
    "^(a|aa)+$",
    "(.*)*x",
    "((a*)*)*a{12}[^a]",
    "(?=(a*)*b)a{30}c",
    r"^(a*)*\1$",
    "(a{0,99}){0,99999}" * 99,
    "(a*)*" * 2_000,
    "(?i)" + r"[^\w\s]" * 99,
    "(" * 900 + ")" * 900,
    "(",
]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProbedServer]:
    folder = tmp_path_factory.mktemp("server")
    with probe_server(folder, "--store", "memory", *FETCH) as found:
        for model in MODELS:  # what the first request of each loads
            grammar = custom("regex", r"(?i)\w")
            send(found, {"model": model, "input": "hi", "tools": grammar}).raise_for_status()
        yield found


@pytest.fixture(scope="module")
def site() -> Iterator[FakeMcpServer]:
    with fake_mcp_server.site() as listening:
        listening.says["look"] = "seen"
        yield listening


def send(server: ProbedServer, body: Json) -> httpx.Response:
    content = json.dumps(body).replace("Infinity", "1e999")
    headers = {"content-type": "application/json"}
    url = f"{server.url}/v1/responses"
    return httpx.post(url, content=content, headers=headers, timeout=30)


def custom(syntax: str, definition: str) -> list[Json]:
    grammar = {"type": "grammar", "syntax": syntax, "definition": definition}
    return [{"type": "custom", "name": "note", "format": grammar}]


def text_format(schema: Any) -> Json:
    return {"format": {"type": "json_schema", "name": "s", "strict": False, "schema": schema}}


def function(schema: Any, *, is_strict: bool) -> list[Json]:
    return [{"type": "function", "name": "f", "parameters": schema, "strict": is_strict}]


def within(schema: Any) -> Json:
    """Return the schema of an object that has an instance of this one."""
    definitions = {"$defs": schema.pop("$defs")} if "$defs" in schema else {}
    return {"type": "object", "properties": {"a": schema}, "required": ["a"], **definitions}


def places(site: FakeMcpServer, schema: Any) -> Iterator[Json]:
    """Yield a body for each place where a request, or a tool server, has a schema."""
    schema = within(dict(schema))
    yield {"text": text_format(schema)}
    yield {"tools": function(schema, is_strict=False)}
    yield {"tools": function(schema, is_strict=True)}
    yield {"structured_outputs": {"json": schema}}
    site.tools = [{"name": "look", "inputSchema": schema}]
    tool = {"type": "mcp", "server_label": "s", "server_url": site.url, "require_approval": "never"}
    yield {"tools": [tool], "tool_choice": "required", "max_tool_calls": 1}


def check(server: ProbedServer, bodies: Iterator[Json]) -> None:
    """Send all bodies to both models; each is answered, or refused by the name of its field."""
    with server.watch() as seen:
        waits = [
            longest_wait(server, {"model": model, **body}) for body in bodies for model in MODELS
        ]
    assert max(waits) < seen.limit(MAX_FREEZE_S)


def longest_wait(server: ProbedServer, body: Json) -> float:
    """Send a body until others did not wait long, and return how long they waited, in seconds."""
    waits: list[float] = []
    limit_s = MAX_FREEZE_S * slowness()
    while len(waits) < TRIES and min(waits, default=limit_s) >= limit_s:
        server.read_wait()
        answer = send(server, {"input": "hi", "store": False, **body})
        waits.append(server.read_wait())
        assert answer.status_code in (200, 400), answer.text
        if answer.status_code == 400:
            assert answer.json()["error"]["param"], answer.text
            # A schema may be too long for the model, together with the input.
            assert re.split(r"[.\[]", answer.json()["error"]["param"])[0] in {"input", *body}
    return min(waits)


def test_no_schema_stops_others(server: ProbedServer) -> None:
    check(server, ({"text": text_format(within(dict(schema)))} for schema in SCHEMAS.values()))


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern[:20])
def test_no_pattern_stops_others(server: ProbedServer, site: FakeMcpServer, pattern: str) -> None:
    def bodies() -> Iterator[Json]:
        yield from places(site, {"const": LONG, "pattern": pattern})
        yield from places(site, {"type": "string", "pattern": pattern, "minLength": 40})
        names = {"type": "object", "required": [LONG], "patternProperties": {pattern: {}}}
        yield from places(site, names)
        yield {"structured_outputs": {"regex": pattern}}
        yield {"tools": custom("regex", pattern)}
        yield {"tools": custom("lark", f"start: /{pattern}/")}

    check(server, bodies())


def test_no_number_of_grammars_stops_others(server: ProbedServer) -> None:
    def bodies() -> Iterator[Json]:
        definitions = (f"(?i){number}" + r"[^\w\s]" * 50 for number in range(100))
        tools = [tool for definition in definitions for tool in custom("regex", definition)]
        yield {"tools": [{**tool, "name": f"n{number}"} for number, tool in enumerate(tools)]}

    check(server, bodies())


def test_a_server_with_default_settings_answers_after_a_hard_pattern(tmp_path: Path) -> None:
    schema = within({"const": LONG, "pattern": HARD})
    with probe_server(tmp_path) as server:
        answer = send(
            server, {"model": "scripted-chat", "input": "hi", "text": text_format(schema)}
        )
        assert answer.status_code == 200
        assert answer.json()["output"][0]["content"][0]["text"] == "{}"
        assert httpx.get(f"{server.url}/livez", timeout=1).status_code == 200
