"""Malformed bodies on every endpoint: no 5xx, no traceback, no memory that stays, no stall, and
what a POST accepts a GET can read.

`ANTIPHON_TEST_CASES` says how many bodies there are in all; they are the same ones each time.
"""

from __future__ import annotations

import http.client
import json
import os
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from msgspec import Struct
from tests.security.support.odd_bodies import OddBodies
from tests.security.support.server_probe import (
    BUSY_FACTOR,
    MAX_GROWTH_BYTES,
    ProbedServer,
    probe_server,
)

from antiphon.domain.batches.batch import NewBatch
from antiphon.domain.requests import request as r
from antiphon.domain.requests.decisions import NewDecision
from antiphon.domain.requests.moderations import NewModeration
from antiphon.domain.requests.skills import NewDefaultVersion
from antiphon.domain.retrieval import vector_stores as v
from antiphon.domain.retrieval.embeddings import NewEmbeddings
from antiphon.entrypoints.http.doors.chat.request import ChatRequest
from antiphon.entrypoints.http.doors.completions.request import CompletionRequest
from antiphon.entrypoints.http.doors.messages.request import CountedMessages, MessagesRequest

pytestmark = pytest.mark.slow

CASES = int(os.environ.get("ANTIPHON_TEST_CASES", "1000"))
FEW = 15
LIMIT_S = 60
MODEL = "scripted-chat"

Json = dict[str, Any]


class Endpoint(msgspec.Struct, frozen=True):
    """`base` makes a body of the type valid, most often. `reads` is where the result is read."""

    path: str
    body: type[Struct]
    base: Mapping[str, Any] = {}
    reads: tuple[str, ...] = ()


# Answers without an end, which `ignore_eos` makes, are the subject of test_long_answers.
ASKED = {"model": MODEL, "input": "hi", "max_output_tokens": 1000}
CHAT = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 1000,
    "max_completion_tokens": 1000,
}
MESSAGE = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "hi"}],
    "max_tokens": 1000,
}
ITEMS = {"items": [{"role": "user", "content": "hi"}]}

ENDPOINTS = (
    Endpoint(
        "/v1/responses",
        r.CreateResponse,
        ASKED,
        ("/v1/responses/{id}", "/v1/responses/{id}/input_items"),
    ),
    Endpoint(
        "/v1/responses",
        r.CreateResponse,
        {"model": MODEL, "max_output_tokens": 1000},
        ("/v1/responses/{id}",),
    ),
    Endpoint("/v1/responses", r.CreateResponse, {**ASKED, "stream": True}),
    Endpoint("/v1/responses", r.CreateResponse, {**ASKED, "model": "scripted-harmony"}),
    Endpoint("/v1/responses/input_tokens", r.CreateResponse, ASKED),
    Endpoint("/v1/responses/compact", r.CreateResponse, ASKED),
    Endpoint("/v1/chat/completions", ChatRequest, CHAT),
    Endpoint("/v1/chat/completions", ChatRequest, {**CHAT, "stream": True}),
    Endpoint(
        "/v1/decisions",
        NewDecision,
        {
            "model": MODEL,
            "input": [{"role": "user", "content": "hi"}],
            "questions": [
                {"type": "predicate", "instructions": "It is a greeting."},
                {
                    "type": "choice",
                    "instructions": [{"type": "input_json", "data": {"a": 1}}],
                    "choices": [{"value": "a"}, {"value": True}],
                },
                {"type": "score", "instructions": "?", "levels": [{"label": "a"}, {"label": "b"}]},
            ],
        },
    ),
    Endpoint("/v1/completions", CompletionRequest, {"model": MODEL, "prompt": "a"}),
    Endpoint("/v1/completions", CompletionRequest, {"model": MODEL, "prompt": "a", "stream": True}),
    Endpoint("/v1/embeddings", NewEmbeddings, {"model": MODEL, "input": ["a", "b"]}),
    Endpoint(
        "/v1/batches",
        NewBatch,
        {"input_file_id": "file-none", "endpoint": "/v1/responses", "completion_window": "24h"},
    ),
    Endpoint("/v1/messages", MessagesRequest, MESSAGE),
    Endpoint("/v1/messages", MessagesRequest, {**MESSAGE, "stream": True}),
    Endpoint("/v1/messages/count_tokens", CountedMessages, MESSAGE),
    Endpoint(
        "/v1/conversations",
        r.NewConversation,
        ITEMS,
        ("/v1/conversations/{id}", "/v1/conversations/{id}/items"),
    ),
    Endpoint(
        "/v1/conversations/{conversation}", r.NewMetadata, {}, ("/v1/conversations/{conversation}",)
    ),
    Endpoint(
        "/v1/conversations/{conversation}/items",
        r.NewItems,
        {},
        ("/v1/conversations/{conversation}/items?limit=100&order=desc",),
    ),
    Endpoint("/v1/containers", r.NewContainer, {"name": "a"}),
    Endpoint("/v1/containers/{none}/files", r.NewContainerFile),
    Endpoint("/v1/moderations", NewModeration, {"input": ["a", "b"]}),
    Endpoint("/v1/skills/{none}", NewDefaultVersion, {"default_version": "1"}),
    Endpoint(
        "/v1/vector_stores",
        v.NewVectorStore,
        {},
        ("/v1/vector_stores/{id}", "/v1/vector_stores/{id}/files"),
    ),
    Endpoint(
        "/v1/vector_stores/{vector_store}",
        v.VectorStoreChanges,
        {},
        ("/v1/vector_stores/{vector_store}",),
    ),
    Endpoint("/v1/vector_stores/{vector_store}/search", v.SearchRequest, {"query": "a"}),
    Endpoint("/v1/vector_stores/{vector_store}/files", v.NewStoreFile),
    Endpoint(
        "/v1/vector_stores/{vector_store}/files/{file}",
        v.NewAttributes,
        {},
        ("/v1/vector_stores/{vector_store}/files/{file}",),
    ),
    Endpoint("/v1/vector_stores/{vector_store}/file_batches", v.NewFileBatch),
)

FORMS = frozenset(
    {
        "/v1/files",
        "/v1/containers/{container_id}/files",
        "/v1/skills",
        "/v1/skills/{skill_id}/versions",
    }
)
"""Endpoints that take a form; the second takes JSON as well."""


class Client:
    """Sends bodies as they are over one connection, and asserts what holds for every answer."""

    def __init__(self, server: ProbedServer) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=LIMIT_S)

    def close(self) -> None:
        self._connection.close()

    def send(self, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
        headers = {} if body is None else {"content-type": "application/json"}
        try:
            self._connection.request(method, path, body, headers)
        except ConnectionError:  # closed after the last answer, as for a body too long
            self._connection.close()
            self._connection.request(method, path, body, headers)
        answer = self._connection.getresponse()
        content = answer.read()
        assert answer.status < 500 or answer.status == 501, (path, body, content)
        if answer.status >= 400:
            error = json.loads(content)["error"]
            is_of_messages = path.startswith("/v1/messages")
            keys = {"message", "type"} if is_of_messages else {"message", "type", "param", "code"}
            assert set(error) - {"details"} == keys, (path, body, content)
            assert len(content) < 4000, (path, body, content)
        return answer.status, content


@pytest.fixture
def server(tmp_path: Path) -> Iterator[ProbedServer]:
    # What has ended is forgotten soon, so that only what a defect keeps counts as growth.
    with probe_server(tmp_path, "--store", "sqlite", "--keep-events-s", "1") as probed:
        yield probed


@pytest.fixture
def names(server: ProbedServer) -> Mapping[str, str]:
    """The objects that paths name."""
    with httpx.Client(base_url=server.url, timeout=LIMIT_S) as client:
        form = {"data": {"purpose": "user_data"}, "files": {"file": ("a.txt", b"a text")}}
        file = client.post("/v1/files", **form).json()["id"]
        body = {"file_ids": [file]}
        return {
            "conversation": client.post("/v1/conversations", json={}).json()["id"],
            "vector_store": client.post("/v1/vector_stores", json=body).json()["id"],
            "file": file,
            "none": "cntr_none",
        }


def test_every_endpoint_with_a_body_is_known_here(server: ProbedServer) -> None:
    document: Json = httpx.get(f"{server.url}/schema/openapi.json").json()
    described = {
        _plain(path)
        for path, operations in document["paths"].items()
        if "requestBody" in operations.get("post", {}) and path not in FORMS
    }
    assert described <= {_plain(endpoint.path) for endpoint in ENDPOINTS}


def _plain(path: str) -> str:
    return "/".join("{}" if part.startswith("{") else part for part in path.split("/"))


def test_malformed_bodies_are_refused_and_accepted_ones_can_be_read(
    server: ProbedServer, names: Mapping[str, str]
) -> None:
    rng = random.Random(20)
    with closing(Client(server)) as client:
        statuses = Counter(_send_all(client, names, rng, cases=FEW))
    assert "Traceback" not in server.log()
    assert statuses[200] > FEW  # nothing is proved by bodies that all fail the first check
    assert statuses[400] > FEW


@pytest.mark.faults
@pytest.mark.timeout(3600)
def test_malformed_bodies_leave_no_memory_and_stall_nobody(
    server: ProbedServer, names: Mapping[str, str]
) -> None:
    rng = random.Random(CASES)
    with closing(Client(server)) as client:
        # What the first requests load is no growth: Harmony's vocabulary (50 MB), and the pages
        # that each connection of the store keeps, up to 2 MB.
        _send_usual(client, requests=1, model="scripted-harmony")
        _send_all(client, names, rng, cases=CASES // len(ENDPOINTS))
        with server.watch() as usual:
            _send_usual(client, requests=CASES // 4)
        with server.watch() as seen:
            statuses = Counter(_send_all(client, names, rng, cases=CASES // len(ENDPOINTS)))
        with server.watch() as again:
            _send_all(client, names, rng, cases=CASES // len(ENDPOINTS))
    print(f"{sum(statuses.values())} bodies: {dict(statuses)}, {seen.growth_bytes / 2**20:.1f} MB")
    print(f"as many again: {again.growth_bytes / 2**20:.1f} MB")
    print(f"freeze {seen.freeze_s:.3f} s, with usual bodies {usual.freeze_s:.3f} s")
    assert "Traceback" not in server.log()
    # Both together: the allocator takes a step of some 10 MB once, in either of them.
    assert seen.growth_bytes + again.growth_bytes < MAX_GROWTH_BYTES
    assert seen.freeze_s < max(seen.max_freeze_s, BUSY_FACTOR * usual.freeze_s)


def _send_usual(client: Client, *, requests: int, model: str = MODEL) -> None:
    body = json.dumps({**ASKED, "model": model}).encode()
    for _ in range(requests):
        status, _ = client.send("POST", "/v1/responses", body)
        assert status == 200


def _send_all(
    client: Client, names: Mapping[str, str], rng: random.Random, *, cases: int
) -> list[int]:
    bodies = OddBodies(rng)
    statuses = []
    for _ in range(cases):
        for endpoint in ENDPOINTS:
            body = bodies.body(endpoint.body, endpoint.base)
            status, content = client.send("POST", endpoint.path.format(**names), body)
            statuses.append(status)
            if status == 200:
                _read_again(client, endpoint, names, content)
    return statuses


def _read_again(
    client: Client, endpoint: Endpoint, names: Mapping[str, str], content: bytes
) -> None:
    # Not stored, or not by its id.
    if endpoint.path.startswith(("/v1/chat/", "/v1/completions", "/v1/messages")):
        return
    if content.startswith((b"event:", b":")):
        first = content.partition(b"data: ")[2].partition(b"\n")[0]
        created = json.loads(first)["response"]
        places: tuple[str, ...] = ("/v1/responses/{id}",)
    else:
        created, places = json.loads(content), endpoint.reads
    if created.get("object") == "response" and not created.get("store", True):
        return
    for place in places:
        status, again = client.send("GET", place.format(**names, id=created.get("id")))
        assert status == 200, (place, again)
        assert json.loads(again)
