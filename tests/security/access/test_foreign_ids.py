"""Every route with an id, and every list that begins after one: an id of another tenant is answered
like one that nobody has, byte for byte and in time.

The routes come from the router and the parameters from the OpenAPI document, so a new route fails
here until `IDS` and `BODIES` know it.
"""

from __future__ import annotations

import inspect
import os
import re
import shutil
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from antiphon.adapters.keys.file import append
from antiphon.application.resources.keys import create_key
from antiphon.entrypoints.http.app import create_app

ROUNDS = int(os.environ.get("ANTIPHON_TEST_ROUNDS", "9"))
ATTEMPTS = 3
MODEL = "scripted-chat"
TENANTS = ("mine", "foreign")

SLOWER_FACTOR = 1.5
SLOWER_S = 0.002
"""How much the two medians may differ: by this factor and this time, for a busy machine."""

Json = dict[str, Any]
Ids = Mapping[str, str]
"""Path of an object, with its parameters in braces → the id of one tenant's object there."""

SAID = {"type": "message", "role": "user", "content": "hi"}
FORM = {"purpose": "user_data"}
SKILL = b"---\nname: ours\ndescription: Ours.\n---\n"

BODIES: Mapping[str, Json] = {
    "/v1/batches/{batch_id}/cancel": {},
    "/v1/containers/{container_id}/files": {"files": {"file": ("a.txt", b"mine")}},
    "/v1/conversations/{conversation_id}": {"json": {"metadata": {"a": "b"}}},
    "/v1/conversations/{conversation_id}/items": {"json": {"items": [SAID]}},
    "/v1/responses/{response_id}/cancel": {},
    "/v1/skills/{skill_id}": {"json": {"default_version": "1"}},
    "/v1/skills/{skill_id}/versions": {"files": {"files": ("SKILL.md", SKILL)}},
    "/v1/vector_stores/{vector_store_id}": {"json": {"name": "mine"}},
    "/v1/vector_stores/{vector_store_id}/file_batches": {"json": {"file_ids": ["file-none"]}},
    "/v1/vector_stores/{vector_store_id}/file_batches/{batch_id}/cancel": {},
    "/v1/vector_stores/{vector_store_id}/files": {"json": {"file_id": "file-none"}},
    "/v1/vector_stores/{vector_store_id}/files/{file_id}": {"json": {"attributes": {"a": 1}}},
    "/v1/vector_stores/{vector_store_id}/search": {"json": {"query": "ours"}},
}
"""What a valid POST to each path with an id sends."""

SHARED = {
    "/console/assets/{name}": "files of a page for all",
    "/schema/{path}": "pages for all",
    "/v1/models/{name}": "models are the operator's",
}
"""Paths whose parameter names nothing that a tenant owns."""


NUMBERS = frozenset({"{version}"})
"""Parameters that are numbers in an object, the same for all tenants."""


def make_objects(http: httpx.Client) -> Ids:
    """Create one object of each kind, and return the ids by path."""

    def create(path: str, **given: Any) -> Json:
        answer = http.post(path, **given)
        assert answer.status_code == 200, answer.text
        result: Json = answer.json()
        return result

    def first(path: str) -> str:
        return str(http.get(path).json()["data"][0]["id"])

    response = create("/v1/responses", json={"model": MODEL, "input": "hi"})["id"]
    said = {"role": "user", "content": "hi"}
    chat = {"model": MODEL, "messages": [said], "store": True}
    conversation = create("/v1/conversations", json={"items": [SAID]})["id"]
    file = create("/v1/files", data=FORM, files={"file": ("a.txt", b"ours")})["id"]
    input_file = create("/v1/files", data={"purpose": "batch"}, files={"file": ("a", b"{}")})["id"]
    asked = {"input_file_id": input_file, "endpoint": "/v1/responses", "completion_window": "24h"}
    skill = create("/v1/skills", files={"files": ("SKILL.md", SKILL)})["id"]
    store = create("/v1/vector_stores", json={})["id"]
    batch = create(f"/v1/vector_stores/{store}/file_batches", json={"file_ids": [file]})["id"]
    ids = {
        "/v1/responses/{response_id}": response,
        "/console/threads/{response_id}": response,
        "/v1/responses/{response_id}/input_items/{item_id}": first(
            f"/v1/responses/{response}/input_items"
        ),
        "/v1/chat/completions/{completion_id}": create("/v1/chat/completions", json=chat)["id"],
        "/v1/conversations/{conversation_id}": conversation,
        "/v1/conversations/{conversation_id}/items/{item_id}": first(
            f"/v1/conversations/{conversation}/items"
        ),
        "/v1/files/{file_id}": file,
        "/v1/batches/{batch_id}": create("/v1/batches", json=asked)["id"],
        "/v1/skills/{skill_id}": skill,
        "/v1/skills/{skill_id}/versions/{version}": "1",
        "/v1/skills/{skill_id}/versions?after": first(f"/v1/skills/{skill}/versions"),
        "/v1/vector_stores/{vector_store_id}": store,
        "/v1/vector_stores/{vector_store_id}/files/{file_id}": file,
        "/v1/vector_stores/{vector_store_id}/file_batches/{batch_id}": batch,
        "/v1/vector_stores/{vector_store_id}/file_batches/{batch_id}/files/{file_id}": file,
    }
    if shutil.which("bwrap") is not None:
        container = create("/v1/containers", json={"name": "a"})["id"]
        path = f"/v1/containers/{container}/files"
        ids["/v1/containers/{container_id}"] = container
        ids["/v1/containers/{container_id}/files/{file_id}"] = create(
            path, files={"file": ("a.txt", b"ours")}
        )["id"]
    return ids


def unknown(known: str) -> str:
    """Return an id of the same form that nobody has."""
    return known[:-6] + ("aaaaaa" if not known.endswith("aaaaaa") else "bbbbbb")


class Operation(msgspec.Struct, frozen=True):
    method: str
    path: str
    query: tuple[str, ...] = ()
    """Parameters of a list that name a place in it."""

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Pair(msgspec.Struct, frozen=True):
    """Two requests that differ in one id: another tenant's, and one that nobody has."""

    method: str
    foreign: str
    absent: str
    id: str
    options: Json
    is_query: bool


def is_with_id(operation: Operation) -> bool:
    return "{" in operation.path and operation.path not in SHARED


class House(msgspec.Struct, frozen=True):
    """A server, a client of the one tenant, and the objects of both."""

    http: httpx.Client
    mine: Ids
    foreign: Ids
    operations: Sequence[Operation]

    def pairs(self, operation: Operation) -> Iterator[Pair]:
        """Yield the requests of an operation, a pair for each place that takes an id."""
        options = (
            BODIES[operation.path] if operation.method == "POST" and is_with_id(operation) else {}
        )
        for place in re.finditer(r"\{[^}]+\}", operation.path):
            if not is_with_id(operation):
                break
            if place.group() in NUMBERS:
                continue
            prefix = operation.path[: place.end()]
            known = self.foreign[prefix]
            # What is before the place is mine, and what is behind it belongs to the other tenant.
            start = _fill(operation.path[: place.start()], "", self.mine)
            end = _fill(operation.path[place.end() :], prefix, self.foreign)
            foreign, absent = (f"{start}{each}{end}" for each in (known, unknown(known)))
            yield Pair(operation.method, foreign, absent, known, options, is_query=False)
        for name in operation.query:
            [known] = (
                self.foreign[path]
                for path in self.foreign
                if re.fullmatch(re.escape(operation.path) + r"(/\{[^}]+\}|\?after)", path)
                and not path.endswith(tuple(NUMBERS))
            )
            path = _fill(operation.path, "", self.mine)
            foreign, absent = (f"{path}?{name}={each}" for each in (known, unknown(known)))
            yield Pair(operation.method, foreign, absent, known, options, is_query=True)


def _fill(path: str, before: str, ids: Ids) -> str:
    """Return a part of a path with its parameters filled in; `before` is the path up to it."""
    return re.sub(r"\{[^}]+\}", lambda place: ids[before + path[: place.end()]], path)


def _operations(served: Any) -> Iterator[Operation]:
    # Only its routes are looked at: what no service has the name of may be anything.
    names = inspect.signature(create_app).parameters
    app = create_app(**{name: getattr(served, name, 0) for name in names})
    document: Json = app.openapi_schema.to_schema()
    for route in app.routes:
        path = re.sub(r"\{([^}:]+):[^}]+\}", r"{\1}", route.path)
        for method in sorted(getattr(route, "methods", ())):
            described = document["paths"].get(path, {}).get(method.lower(), {})
            query = {each["name"] for each in described.get("parameters", ())}
            if method not in ("HEAD", "OPTIONS"):
                yield Operation(method, path, tuple(sorted(query & {"after", "before"})))


@pytest.fixture(scope="module")
def house(
    serve_from: Callable[..., AbstractContextManager[Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("foreign")
    keys_file = folder / "keys.toml"
    headers = {name: {"authorization": f"Bearer {_key(keys_file, name)}"} for name in TENANTS}
    options = {} if shutil.which("bwrap") is None else {"code_interpreter": True}
    with (
        serve_from(folder, auth="on", keys_file=keys_file, store="sqlite", **options) as server,
        httpx.Client(base_url=server.url, headers=headers["mine"], timeout=30) as http,
        httpx.Client(base_url=server.url, headers=headers["foreign"], timeout=30) as other,
    ):
        operations = [
            each
            for each in _operations(server.app)
            if options or not each.path.startswith("/v1/containers")
        ]
        yield House(http, make_objects(http), make_objects(other), operations)


def _key(file: Path, tenant: str) -> str:
    key, kept = create_key(
        tenant, tenant, new_id=lambda prefix: f"{prefix}_{tenant}", now=lambda: 0
    )
    append(file, kept)
    return key


def test_every_route_with_an_id_is_known_here(house: House) -> None:
    with_ids = [each for each in house.operations if is_with_id(each)]
    assert len(with_ids) >= 20
    for operation in with_ids:
        for place in re.finditer(r"\{[^}]+\}", operation.path):
            assert operation.path[: place.end()] in house.foreign, operation
        if operation.method == "POST":
            assert operation.path in BODIES, operation


def _told(answer: httpx.Response, id: str) -> tuple[int, bytes, Json]:
    headers = {
        name: value
        for name, value in answer.headers.items()
        if name not in ("x-request-id", "date")
    }
    return answer.status_code, answer.content.replace(id.encode(), b"ID"), headers


def test_a_foreign_id_is_answered_like_an_unknown_one_byte_for_byte(house: House) -> None:
    for operation in house.operations:
        for pair in house.pairs(operation):
            foreign, absent = (
                house.http.request(pair.method, url, **pair.options)
                for url in (pair.foreign, pair.absent)
            )
            assert _told(foreign, pair.id) == _told(absent, unknown(pair.id)), operation
            assert pair.is_query or foreign.status_code in (400, 404), (operation, foreign.text)


def test_the_owner_is_answered_where_others_are_not(house: House) -> None:
    """Otherwise the tests beside this one would prove nothing."""
    for operation in house.operations:
        if operation.method == "GET" and is_with_id(operation):
            answer = house.http.get(_fill(operation.path, "", house.mine))
            assert answer.status_code == 200, (operation, answer.text)


@pytest.mark.faults
@pytest.mark.timeout(600)
def test_a_foreign_id_takes_as_long_as_an_unknown_one(house: House) -> None:
    for operation in house.operations:
        for pair in house.pairs(operation):
            # A busy machine can slow one of the two by chance, but not each time the same one.
            slower = {_slower_one(house.http, pair) for _ in range(ATTEMPTS)}
            assert len(slower) > 1 or slower == {None}, (operation, slower)


def _slower_one(http: httpx.Client, pair: Pair) -> str | None:
    """Return the URL whose median time is clearly longer, None if neither is."""
    took: Mapping[str, list[float]] = {pair.foreign: [], pair.absent: []}
    for _ in range(ROUNDS):
        for url, times in took.items():
            began = time.perf_counter()
            http.request(pair.method, url, **pair.options)
            times.append(time.perf_counter() - began)
    medians = {url: statistics.median(times) for url, times in took.items()}
    slower = max(medians, key=lambda url: medians[url])
    limit_s = SLOWER_FACTOR * min(medians.values()) + SLOWER_S
    return slower if medians[slower] > limit_s else None
