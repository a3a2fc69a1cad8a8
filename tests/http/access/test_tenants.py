"""Two tenants on one server: each is told of the other's objects what is told of objects that never
were, by whatever way it asks.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import msgspec
import pytest
from tests.contracts.conftest import STORES
from tests.http.conftest import create, script
from tests.http.requests.test_media import png
from websockets.sync.client import connect

from antiphon.adapters.keys.file import append
from antiphon.application.ports import Store
from antiphon.application.resources.keys import create_key

MODEL = "scripted-chat"
Json = dict[str, Any]


class House(msgspec.Struct):
    """A server, and clients of its two tenants; `also_ours` has another key of the first."""

    server: Any
    keys: Mapping[str, str]
    ours: httpx.Client
    theirs: httpx.Client
    also_ours: httpx.Client


@pytest.fixture(scope="module", params=STORES)
def store(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Store]:
    place = STORES[request.param](tmp_path_factory.mktemp("place"))
    with asyncio.Runner() as runner:
        new_store = runner.run(place.__aenter__())
        yield new_store()
        runner.run(place.__aexit__(None, None, None))


@pytest.fixture(scope="module")
def house(
    store: Store,
    serve_from: Callable[..., AbstractContextManager[Any]],
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("house")
    keys = {name: _key(folder / "keys.toml", name) for name in ("ours", "theirs", "also_ours")}
    with serve_from(folder, instead=store, auth="on", keys_file=folder / "keys.toml") as server:
        clients = {
            name: httpx.Client(
                base_url=server.api, headers={"authorization": f"Bearer {key}"}, timeout=10
            )
            for name, key in keys.items()
        }
        with clients["ours"], clients["theirs"], clients["also_ours"]:
            yield House(server, keys, **clients)


def _key(file: Path, name: str) -> str:
    tenant = name.removeprefix("also_")
    key, kept = create_key(name, tenant, new_id=lambda prefix: f"{prefix}_{name}", now=lambda: 0)
    append(file, kept)
    return key


@pytest.fixture(scope="module")
def objects(house: House) -> Iterator[Mapping[str, str]]:
    """One object of each kind, of the first tenant: kind → id."""
    asked = script([{"think": "a thought"}, {"say": "a word"}])
    http = house.ours
    response = create(http, model=MODEL, input=asked)
    background = create(
        http, model=MODEL, input=script({"say": "x ", "repeat": 10_000, "tick": 0.01}),
        background=True,
    )  # fmt: skip
    conversation = http.post("/conversations", json={"items": [_said("hi")]}).json()
    item = http.get(f"/conversations/{conversation['id']}/items").json()["data"][0]
    form = {"purpose": "user_data"}
    text = http.post("/files", data=form, files={"file": ("a.txt", b"ours")}).json()
    image = http.post("/files", data=form, files={"file": ("a.png", png())}).json()
    vector_store = http.post("/vector_stores", json={"file_ids": [text["id"]]}).json()["id"]
    batch = http.post(
        f"/vector_stores/{vector_store}/file_batches", json={"file_ids": [text["id"]]}
    ).json()
    yield {
        "vector_store": vector_store,
        "file_batch": batch["id"],
        "response": response["id"],
        "background": background["id"],
        "output_item": response["output"][-1]["id"],
        "conversation": conversation["id"],
        "conversation_item": item["id"],
        "file": text["id"],
        "image": image["id"],
    }
    http.post(f"/responses/{background['id']}/cancel")  # the server waits for what still runs


def _said(text: str) -> Json:
    return {"type": "message", "role": "user", "content": text}


def _shown(part: Json) -> list[Json]:
    return [{"type": "message", "role": "user", "content": [part]}]


def _body(**fields: Any) -> Json:
    return {"model": MODEL, "input": "hi", **fields}


def _own_store(http: httpx.Client) -> str:
    return str(http.post("/vector_stores", json={}).json()["id"])


Ask = Callable[[httpx.Client, str], httpx.Response]

BY_PATH: Mapping[str, tuple[str, Ask]] = {
    "get": ("response", lambda http, it: http.get(f"/responses/{it}")),
    "stream": ("response", lambda http, it: http.get(f"/responses/{it}?stream=true")),
    "resume": (
        "response",
        lambda http, it: http.get(f"/responses/{it}?stream=true&starting_after=1"),
    ),
    "input items": ("response", lambda http, it: http.get(f"/responses/{it}/input_items")),
    "bundle": ("response", lambda http, it: http.get(f"/responses/{it}/explain")),
    "cancel": ("response", lambda http, it: http.post(f"/responses/{it}/cancel")),
    "delete": ("response", lambda http, it: http.delete(f"/responses/{it}")),
    "get a run": ("background", lambda http, it: http.get(f"/responses/{it}")),
    "stream a run": ("background", lambda http, it: http.get(f"/responses/{it}?stream=true")),
    "cancel a run": ("background", lambda http, it: http.post(f"/responses/{it}/cancel")),
    "delete a run": ("background", lambda http, it: http.delete(f"/responses/{it}")),
    "get conversation": ("conversation", lambda http, it: http.get(f"/conversations/{it}")),
    "update conversation": (
        "conversation",
        lambda http, it: http.post(f"/conversations/{it}", json={"metadata": {"a": "b"}}),
    ),
    "delete conversation": ("conversation", lambda http, it: http.delete(f"/conversations/{it}")),
    "list items": ("conversation", lambda http, it: http.get(f"/conversations/{it}/items")),
    "add items": (
        "conversation",
        lambda http, it: http.post(f"/conversations/{it}/items", json={"items": [_said("x")]}),
    ),
    "get file": ("file", lambda http, it: http.get(f"/files/{it}")),
    "read file": ("file", lambda http, it: http.get(f"/files/{it}/content")),
    "delete file": ("file", lambda http, it: http.delete(f"/files/{it}")),
    "list files after": ("file", lambda http, it: http.get(f"/files?after={it}")),
    "get vector store": ("vector_store", lambda http, it: http.get(f"/vector_stores/{it}")),
    "change vector store": (
        "vector_store",
        lambda http, it: http.post(f"/vector_stores/{it}", json={"name": "theirs"}),
    ),
    "delete vector store": ("vector_store", lambda http, it: http.delete(f"/vector_stores/{it}")),
    "search vector store": (
        "vector_store",
        lambda http, it: http.post(f"/vector_stores/{it}/search", json={"query": "ours"}),
    ),
    "list vector stores after": (
        "vector_store",
        lambda http, it: http.get(f"/vector_stores?after={it}"),
    ),
    "list store files": ("vector_store", lambda http, it: http.get(f"/vector_stores/{it}/files")),
    "add store file": (
        "vector_store",
        lambda http, it: http.post(f"/vector_stores/{it}/files", json={"file_id": "file-none"}),
    ),
    "add foreign file": (
        "file",
        lambda http, it: http.post(
            f"/vector_stores/{_own_store(http)}/files", json={"file_id": it}
        ),
    ),
    "begin with foreign file": (
        "file",
        lambda http, it: http.post("/vector_stores", json={"file_ids": [it]}),
    ),
    "add file batch": (
        "vector_store",
        lambda http, it: http.post(
            f"/vector_stores/{it}/file_batches", json={"file_ids": ["file-none"]}
        ),
    ),
    "get file batch": (
        "file_batch",
        lambda http, it: http.get(f"/vector_stores/{_own_store(http)}/file_batches/{it}"),
    ),
}
"""Way of asking → the kind of object it asks for, and how."""

IN_BODIES: Mapping[str, tuple[str, Callable[[str], Json]]] = {
    "previous response": ("response", lambda it: _body(previous_response_id=it)),
    "previous run": ("background", lambda it: _body(previous_response_id=it)),
    "reference": (
        "output_item",
        lambda it: _body(input=[{"type": "item_reference", "id": it}, _said("go on")]),
    ),
    "reference to an item of a conversation": (
        "conversation_item",
        lambda it: _body(input=[{"type": "item_reference", "id": it}]),
    ),
    "conversation": ("conversation", lambda it: _body(conversation=it)),
    "conversation as an object": ("conversation", lambda it: _body(conversation={"id": it})),
    "file": ("file", lambda it: _body(input=_shown({"type": "input_file", "file_id": it}))),
    "image": ("image", lambda it: _body(input=_shown({"type": "input_image", "file_id": it}))),
    "file search": (
        "vector_store",
        lambda it: _body(tools=[{"type": "file_search", "vector_store_ids": [it]}]),
    ),
    "screenshot": (
        "image",
        lambda it: _body(
            input=[
                {
                    "type": "computer_call", "id": "cu_1", "call_id": "c", "status": "completed",
                    "action": {"type": "screenshot"}, "pending_safety_checks": [],
                },
                {
                    "type": "computer_call_output", "call_id": "c",
                    "output": {"type": "computer_screenshot", "file_id": it},
                },
            ]
        ),
    ),
    "approval": (
        "output_item",
        lambda it: _body(
            input=[{"type": "mcp_approval_response", "approval_request_id": it, "approve": True}]
        ),
    ),
}  # fmt: skip
"""What a request to create a response refers to → its kind, and the body."""


def unknown(known: str) -> str:
    """Return an id of the same form that nobody has."""
    return known[:-6] + ("aaaaaa" if not known.endswith("aaaaaa") else "bbbbbb")


def alike(foreign: httpx.Response, absent: httpx.Response, known: str) -> None:
    assert 400 <= foreign.status_code < 500, foreign.text
    assert foreign.status_code == absent.status_code
    assert foreign.text.replace(known, "ID") == absent.text.replace(unknown(known), "ID")
    told = {"x-request-id", "content-length"}
    assert foreign.headers.keys() - told == absent.headers.keys() - told


@pytest.mark.parametrize("way", BY_PATH)
def test_a_foreign_object_is_as_unknown_as_one_that_never_was(
    house: House, objects: Mapping[str, str], way: str
) -> None:
    kind, ask = BY_PATH[way]
    known = objects[kind]
    alike(ask(house.theirs, known), ask(house.theirs, unknown(known)), known)


@pytest.mark.parametrize("path", ["/responses", "/responses/input_tokens", "/responses/compact"])
@pytest.mark.parametrize("way", IN_BODIES)
def test_no_request_refers_to_a_foreign_object(
    house: House, objects: Mapping[str, str], way: str, path: str
) -> None:
    kind, body = IN_BODIES[way]
    known = objects[kind]
    foreign, absent = (house.theirs.post(path, json=body(each)) for each in (known, unknown(known)))
    alike(foreign, absent, known)


@pytest.mark.parametrize("way", IN_BODIES)
def test_no_message_on_a_websocket_refers_to_a_foreign_object(
    house: House, objects: Mapping[str, str], way: str
) -> None:
    kind, body = IN_BODIES[way]
    known = objects[kind]
    url = f"{house.server.api}/responses".replace("http", "ws", 1)
    headers = {"authorization": f"Bearer {house.keys['theirs']}"}
    answers = []
    with connect(url, additional_headers=headers, proxy=None) as connection:
        for each in (known, unknown(known)):
            connection.send(json.dumps({"type": "response.create", **body(each)}))
            answers.append(str(connection.recv(timeout=30)).replace(each, "ID"))
    assert answers[0] == answers[1]
    assert json.loads(answers[0])["type"] == "error"


def test_no_prompt_is_compared_with_a_foreign_one(house: House, objects: Mapping[str, str]) -> None:
    def compare(http: httpx.Client, known: str) -> Any:
        options = {"comparison_response_id": known}
        return create(http, **_body(prompt_cache_options=options))["prompt_cache_diagnostics"]

    known = objects["response"]
    assert compare(house.also_ours, known)["type"] == "cache_miss"
    for each in (known, unknown(known)):
        assert compare(house.theirs, each) == {"type": "comparison_response_not_found"}


@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_an_item_of_a_foreign_conversation_is_unknown(
    house: House, objects: Mapping[str, str], method: str
) -> None:
    known, item = objects["conversation"], objects["conversation_item"]

    def ask(conversation: str) -> httpx.Response:
        return house.theirs.request(method, f"/conversations/{conversation}/items/{item}")

    alike(ask(known), ask(unknown(known)), known)


def test_a_foreign_item_is_in_no_conversation_of_mine(
    house: House, objects: Mapping[str, str]
) -> None:
    mine = house.theirs.post("/conversations", json={}).json()["id"]
    item = objects["conversation_item"]
    reference = {"items": [{"type": "item_reference", "id": item}]}
    absent = {"items": [{"type": "item_reference", "id": unknown(item)}]}
    for path in (f"/conversations/{mine}/items", "/conversations"):
        alike(house.theirs.post(path, json=reference), house.theirs.post(path, json=absent), item)
    path = f"/conversations/{mine}/items"
    for method in ("GET", "DELETE"):
        answers = [house.theirs.request(method, f"{path}/{each}") for each in (item, unknown(item))]
        alike(*answers, item)
    assert house.theirs.get(path).json()["data"] == []


def test_a_foreign_item_is_no_place_in_a_list_of_mine(
    house: House, objects: Mapping[str, str]
) -> None:
    mine = create(house.theirs, model=MODEL, input="hi")["id"]
    item = objects["conversation_item"]

    def after(id: str) -> httpx.Response:
        return house.theirs.get(f"/responses/{mine}/input_items", params={"after": id})

    alike(after(item), after(unknown(item)), item)


def test_lists_contain_only_the_tenants_objects(house: House, objects: Mapping[str, str]) -> None:
    assert house.theirs.get("/files").json()["data"] == []
    listed = house.theirs.get("/vector_stores").json()["data"]
    assert objects["vector_store"] not in [each["id"] for each in listed]
    assert {each["id"] for each in house.also_ours.get("/files").json()["data"]} == {
        objects["file"],
        objects["image"],
    }


def test_every_key_of_a_tenant_opens_its_objects(house: House, objects: Mapping[str, str]) -> None:
    for path in ("responses", "conversations", "files"):
        known = objects[path.removesuffix("s")]
        mine, also_mine = (http.get(f"/{path}/{known}") for http in (house.ours, house.also_ours))
        assert mine.status_code == also_mine.status_code == 200
        assert mine.content == also_mine.content
    went_on = create(
        house.also_ours, model=MODEL, input="go on", previous_response_id=objects["response"]
    )
    assert went_on["previous_response_id"] == objects["response"]


def test_another_tenants_requests_change_nothing(house: House, objects: Mapping[str, str]) -> None:
    paths = {
        f"/{kind}s/{objects[kind]}{rest}"
        for kind, rest in (
            ("response", ""),
            ("response", "/input_items"),
            ("conversation", ""),
            ("conversation", "/items"),
            ("file", ""),
            ("file", "/content"),
        )
    }
    before = {path: house.ours.get(path).content for path in paths}
    for kind, ask in BY_PATH.values():
        ask(house.theirs, objects[kind])
    assert {path: house.ours.get(path).content for path in paths} == before
    assert house.ours.get(f"/responses/{objects['background']}").json()["status"] == "in_progress"


# --- what is sealed -------------------------------------------------------------------------------


def _spoiled(sealed: str) -> str:
    blob = bytearray(base64.urlsafe_b64decode(sealed))
    blob[-1] ^= 1
    return base64.urlsafe_b64encode(blob).decode()


def test_sealed_reasoning_of_another_tenant_is_as_unreadable_as_nonsense(house: House) -> None:
    thought = create(
        house.ours,
        model=MODEL,
        input=script([{"think": "a thought of ours"}, {"say": "a word"}]),
        include=["reasoning.encrypted_content"],
        store=False,
    )["output"][0]

    def replayed(http: httpx.Client, sealed: str) -> Json:
        item = {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": sealed}
        return create(http, model=MODEL, input=[_said("hi"), item], store=False)

    sealed = thought["encrypted_content"]
    foreign, spoiled = (replayed(house.theirs, each) for each in (sealed, _spoiled(sealed)))
    assert foreign["input_transformations"] == spoiled["input_transformations"]
    assert foreign["usage"]["input_tokens"] == spoiled["usage"]["input_tokens"]
    assert "input_transformations" not in replayed(house.also_ours, sealed)


def test_a_sealed_summary_of_another_tenant_is_refused_like_nonsense(house: House) -> None:
    window = house.ours.post("/responses/compact", json=_body(input=[_said("hi")] * 3)).json()
    [item] = [each for each in window["output"] if each["type"] == "compaction"]
    assert create(house.also_ours, model=MODEL, input=[item, _said("go on")])
    foreign, spoiled = (
        house.theirs.post(
            "/responses",
            json=_body(input=[{**item, "encrypted_content": sealed}, _said("go on")]),
        )
        for sealed in (item["encrypted_content"], _spoiled(item["encrypted_content"]))
    )
    assert foreign.status_code == spoiled.status_code == 400
    assert foreign.json() == spoiled.json()
    assert foreign.json()["error"]["code"] == "invalid_encrypted_content"


# --- what is shared in the engine -----------------------------------------------------------------


def test_tenants_share_no_cached_prefix(house: House) -> None:
    prompt = "the same long words " * 40

    def cached(http: httpx.Client, **fields: Any) -> bool:
        usage = create(http, model=MODEL, input=prompt, **fields)["usage"]
        return bool(usage["input_tokens_details"]["cached_tokens"])

    assert not cached(house.ours)
    assert cached(house.also_ours)
    assert cached(house.ours, prompt_cache_key="k")
    assert not cached(house.theirs)
    # What a client calls its own salt is its own, and no way into another's cache.
    assert not cached(house.ours, cache_salt="s")
    assert cached(house.also_ours, cache_salt="s")
    assert not cached(house.theirs, cache_salt="s")


def test_an_id_that_a_client_chose_is_only_echoed(house: House) -> None:
    mine = create(house.ours, model=MODEL, input="mine")
    other = create(house.theirs, model=MODEL, input="theirs", request_id=mine["id"])
    assert other["request_id"] == mine["id"] != other["id"]
    assert house.ours.get(f"/responses/{mine['id']}").json() == mine
    assert house.theirs.get(f"/responses/{mine['id']}").status_code == 404


# --- Idempotency-Keys -----------------------------------------------------------------------------


def test_an_idempotency_key_is_its_tenants_own(house: House) -> None:
    def asked(http: httpx.Client, said: str) -> httpx.Response:
        body = _body(input=said)
        return http.post("/responses", json=body, headers={"idempotency-key": "order-1"})

    mine, theirs = asked(house.ours, "mine"), asked(house.theirs, "theirs")
    assert mine.status_code == theirs.status_code == 200
    assert "idempotent-replayed" not in theirs.headers
    assert asked(house.also_ours, "mine").content == mine.content
    assert asked(house.theirs, "theirs").content == theirs.content


# --- ids that nobody ever had ---------------------------------------------------------------------

STRANGE = (
    "resp_\0",
    "resp_\x1a0",
    "resp_" + "a" * 10_000,
    "resp_a:resp_b",
    "resp_*",
    "resp_' OR '1'='1",
    "%25",
    "resp_a\r\nb",
    "resp_\N{SNOWMAN}",
)
NO_TEXT = "%ED%A0%80"
"""Half of a pair of surrogates, in a path: no UTF-8."""


@pytest.mark.parametrize("way", BY_PATH)
def test_a_strange_id_in_a_path_is_unknown(house: House, way: str) -> None:
    _, ask = BY_PATH[way]
    for given in (*(quote(each, safe="") for each in STRANGE), NO_TEXT):
        answer = ask(house.ours, given)
        assert answer.status_code in (400, 404), (given, answer.text)


@pytest.mark.parametrize("way", IN_BODIES)
def test_a_strange_id_in_a_body_is_unknown(house: House, way: str) -> None:
    for given in STRANGE:
        answer = house.ours.post("/responses", json=IN_BODIES[way][1](given))
        assert 400 <= answer.status_code < 500, (given, answer.text)
