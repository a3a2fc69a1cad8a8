"""No field of a request stops others, however long it is and whatever is in it.

Each field of each body, item and tool is filled once in each round, with another text in each.
ANTIPHON_TEST_LONG_FIELDS is the length in characters, ANTIPHON_TEST_LONG_FIELD_ROUNDS the number of
rounds: 6 try all texts with all fields. `pytest -s` prints the longest wait that one has caused.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from msgspec import Struct
from tests.security.support.long_fields import LongValues
from tests.security.support.odd_bodies import type_of
from tests.security.support.server_probe import ProbedServer, probe_server

from antiphon.domain.items import ITEM_TYPES
from antiphon.domain.requests import request as r
from antiphon.domain.requests.decisions import NewDecision
from antiphon.domain.retrieval.vector_stores import NewVectorStore
from antiphon.domain.tools import TOOL_TYPES
from antiphon.entrypoints.http.doors.chat.request import ChatRequest
from antiphon.entrypoints.http.doors.completions.request import CompletionRequest
from antiphon.entrypoints.http.doors.messages.request import MessagesRequest

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]

SIZE = int(os.environ.get("ANTIPHON_TEST_LONG_FIELDS", "1_000_000"))
ROUNDS = int(os.environ.get("ANTIPHON_TEST_LONG_FIELD_ROUNDS", "1"))
TRIES = 3
MODELS = ("scripted-chat", "scripted-harmony")
WITH_MODEL = ("/responses", "/chat/completions", "/messages", "/completions", "/decisions")
Body = tuple[str, str, dict[str, Any]]
"""The path of the request, that of the long field, and the body."""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProbedServer]:
    with probe_server(tmp_path_factory.mktemp("server"), "--store", "sqlite") as found:
        for model in MODELS:  # what the first request of each loads
            httpx.post(f"{found.url}/v1/responses", json={"model": model, "input": "hi"})
        yield found


def requests(values: LongValues) -> Iterator[Body]:
    kinds: dict[str, type[Struct]] = {
        "/responses": r.CreateResponse,
        "/conversations": r.NewConversation,
        "/vector_stores": NewVectorStore,
        "/containers": r.NewContainer,
    }
    for path, kind in kinds.items():
        for field, value in values.of(type_of(kind)):
            has_input = path != "/responses" or field.startswith(".raw_prompt")
            yield path, field, value if has_input else {"input": "hi", **value}


def doors(values: LongValues) -> Iterator[Body]:
    message = {"role": "user", "content": "hi"}
    question = {"type": "predicate", "instructions": "true"}
    kinds: dict[str, tuple[type[Struct], Any]] = {
        "/chat/completions": (ChatRequest, {"messages": [message]}),
        "/messages": (MessagesRequest, {"messages": [message], "max_tokens": 16}),
        "/completions": (CompletionRequest, {"prompt": "hi"}),
        "/decisions": (NewDecision, {"input": "hi", "questions": [question]}),
    }
    for path, (kind, least) in kinds.items():
        for field, value in values.of(type_of(kind)):
            yield path, f"{path} {field}", {**value, **least, **_sent(value, field)}


def _sent(value: dict[str, Any], field: str) -> dict[str, Any]:
    """Return the field of the body that is long."""
    name = field.removeprefix(".").split("[")[0].split("{")[0].split(".")[0].split()[0]
    return {name: value[name]}


def items(values: LongValues) -> Iterator[Body]:
    for name, kind in ITEM_TYPES.items():
        for field, value in values.of(type_of(kind)):
            message = {"role": "user", "content": "hi"}
            yield "/responses", f"{name}{field}", {"input": [message, value]}


def tools(values: LongValues) -> Iterator[Body]:
    for name, kind in TOOL_TYPES.items():
        for field, value in values.of(type_of(kind)):
            yield "/responses", f"{name}{field}", {"input": "hi", "tools": [value]}


JSON = {"content-type": "application/json"}


@pytest.mark.parametrize("bodies_of", [requests, items, tools, doors])
def test_no_long_field_stops_others(server: ProbedServer, bodies_of: Any) -> None:
    waits: list[tuple[float, str]] = []
    statuses: Counter[int] = Counter()

    def send(path: str, content: str) -> float:
        statuses[client.post(path, content=content).status_code] += 1
        return server.read_wait()

    with (
        httpx.Client(base_url=f"{server.url}/v1", headers=JSON, timeout=120) as client,
        server.watch() as seen,
    ):
        for turn in range(ROUNDS):
            for number, (path, field, body) in enumerate(bodies_of(LongValues(SIZE, start=turn))):
                if path in WITH_MODEL:
                    body |= {"model": MODELS[(number + turn) % 2]}
                if path == "/responses":
                    body |= {"store": False}
                content = json.dumps(body)
                wait_s = send(path, content)
                for _ in range(TRIES):  # others that use the machine do not come back each time
                    if wait_s < seen.max_freeze_s:
                        break
                    wait_s = min(wait_s, send(path, content))
                waits.append((wait_s, f"{body.get('model', path)} {field}"))
    longest_s, field = max(waits)
    print(f"{len(waits)} bodies: {dict(statuses)}; {longest_s * 1000:.0f} ms for {field}")
    assert all(status < 500 for status in statuses)
    assert statuses[200] > len(waits) / 10, "most are refused for another reason than their length"
    assert longest_s < seen.max_freeze_s
