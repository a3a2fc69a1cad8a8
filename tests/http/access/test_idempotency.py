"""Idempotency-Keys: one run and one answer, however often and wherever a request is repeated."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from msgspec import structs
from tests.contracts.conftest import STORES, NewStore

from antiphon.adapters.stores.memory.store import MemoryStore
from antiphon.application.ports import IdempotencyRecord, Store, StoredResponse
from antiphon.domain.errors import StoreError
from antiphon.domain.responses.response import Response

pytestmark = pytest.mark.slow

MODEL = "scripted-chat"
BODY = {"model": MODEL, "input": "hi"}
KEY = "Idempotency-Key"
REPLAYED = "Idempotent-Replayed"


class Servers:
    """Servers on one store, and a client of each."""

    def __init__(self, running: list[Any], clients: list[httpx.Client]) -> None:
        self.running = running
        self.clients = clients

    @property
    def engine_calls(self) -> int:
        return sum(each.engine(MODEL).begun for each in self.running)


@pytest.fixture
def servers(serve: Any) -> Callable[..., Any]:
    @contextmanager
    def start(count: int, *stores: Store, **settings: Any) -> Iterator[Servers]:
        """Start so many servers on one SQLite file, or on these stores, one for each."""
        with ExitStack() as stack:
            running = [
                stack.enter_context(serve(store="sqlite", instead=instead, **settings))
                for instead in (stores or [None] * count)
            ]
            clients = [
                stack.enter_context(
                    httpx.Client(
                        base_url=each.api, timeout=15, limits=httpx.Limits(max_connections=None)
                    )
                )
                for each in running
            ]
            yield Servers(running, clients)

    return start


@pytest.fixture(params=sorted(STORES.keys() - {"memory"}))
async def shared(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[NewStore]:
    """Makes stores that several servers have together."""
    async with STORES[request.param](tmp_path) as new_store:
        yield new_store


@pytest.fixture
def served(servers: Any) -> Iterator[Servers]:
    with servers(1) as served:
        yield served


def post(client: httpx.Client, key: str = "k", **body: Any) -> httpx.Response:
    return client.post("/responses", json={**BODY, **body}, headers={KEY: key})


def code_of(answer: httpx.Response) -> str:
    code: str = answer.json()["error"]["code"]
    return code


@pytest.mark.timeout(60)
@pytest.mark.parametrize("stream", [False, True])
def test_a_hundred_concurrent_requests_on_two_servers_share_one_run(
    servers: Any, shared: NewStore, script: Any, stream: bool
) -> None:
    slow = script({"say": "Hello there.", "delay": 0.2})
    with servers(2, shared(), shared()) as both, ThreadPoolExecutor(100) as pool:
        asking = [
            pool.submit(post, both.clients[n % 2], input=slow, stream=stream) for n in range(100)
        ]
        answers = [each.result() for each in asking]
        assert [each.status_code for each in answers] == [200] * 100
        assert len({each.text for each in answers}) == 1
        assert both.engine_calls == 1
        assert sum(REPLAYED not in each.headers for each in answers) == 1


@pytest.mark.parametrize(
    "wanted", [{}, {"stream": True}, {"include": ["message.output_text.logprobs"]}]
)
def test_after_the_end_the_same_bytes_come_again(served: Servers, wanted: Any) -> None:
    [client] = served.clients
    first, again = post(client, **wanted), post(client, **wanted)
    assert first.status_code == 200
    assert again.content == first.content
    assert (REPLAYED in first.headers, again.headers[REPLAYED]) == (False, "true")
    assert served.engine_calls == 1


def test_a_background_response_comes_again_as_it_is_now(served: Servers, eventually: Any) -> None:
    [client] = served.clients
    first = post(client, background=True).json()
    eventually(lambda: client.get(f"/responses/{first['id']}").json()["status"] == "completed")
    again = post(client, background=True)
    assert (again.json()["id"], again.json()["status"]) == (first["id"], "completed")
    assert served.engine_calls == 1


def test_a_response_outlives_its_first_client_when_it_has_a_key(
    served: Servers, script: Any
) -> None:
    [client] = served.clients
    slow = script({"say": "one two three four", "tick": 0.1})
    body = {**BODY, "input": slow, "stream": True}
    with client.stream("POST", "/responses", json=body, headers={KEY: "k"}) as left:
        next(left.iter_bytes())
    again = post(client, input=slow, stream=True)
    assert "one two three four" in again.text
    assert "response.completed" in again.text
    assert served.engine_calls == 1
    assert served.running[0].engine(MODEL).aborted == 0


def test_another_body_is_refused_and_other_spelling_of_the_same_is_not(served: Servers) -> None:
    [client] = served.clients
    first = post(client)
    other = post(client, input="ho")
    assert (other.status_code, code_of(other)) == (400, "idempotency_key_reused")
    assert other.json()["error"]["param"] == KEY
    spelled = b'{ "input": "hi",\n "model": "scripted-chat" }'
    again = client.post(
        "/responses", content=spelled, headers={KEY: "k", "content-type": "application/json"}
    )
    assert again.json()["id"] == first.json()["id"]


def test_another_key_is_another_response(served: Servers) -> None:
    [client] = served.clients
    assert post(client, "a").json()["id"] != post(client, "b").json()["id"]
    assert served.engine_calls == 2


@pytest.mark.parametrize("key", ["", "a b", "é", "k" * 256])
def test_an_invalid_idempotency_key_is_refused_by_name(served: Servers, key: str) -> None:
    [client] = served.clients
    answer = client.post("/responses", json=BODY, headers=[(KEY.encode(), key.encode())])
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == KEY


@pytest.mark.parametrize("second", ["k", "l"])
def test_two_keys_are_refused(served: Servers, second: str) -> None:
    [client] = served.clients
    answer = client.post("/responses", json=BODY, headers=[(KEY, "k"), (KEY, second)])
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, KEY)


def test_a_request_that_comes_to_nothing_leaves_its_key_free(served: Servers) -> None:
    [client] = served.clients
    assert post(client, model="none").status_code == 400
    assert post(client, temperature=9).status_code == 400
    answer = post(client)
    assert answer.status_code == 200
    assert REPLAYED not in answer.headers


def test_a_failed_run_comes_again_as_failed_and_is_not_run_again(
    served: Servers, script: Any
) -> None:
    [client] = served.clients
    failing = script({"fail": "server_error"})
    for answer in (post(client, input=failing), post(client, input=failing)):
        assert answer.status_code == 500
        assert answer.headers["x-should-retry"] == "false"
    assert served.engine_calls == 1


def test_a_key_is_free_again_when_its_response_is_deleted(served: Servers) -> None:
    [client] = served.clients
    first = post(client).json()
    assert client.delete(f"/responses/{first['id']}").status_code == 200
    assert post(client).json()["id"] != first["id"]


def test_without_store_a_key_has_no_effect_and_that_is_said(served: Servers) -> None:
    [client] = served.clients
    first, again = post(client, store=False), post(client, store=False)
    assert first.json()["id"] != again.json()["id"]
    assert KEY in first.headers["x-antiphon-ignored"]


def test_a_stream_whose_events_are_gone_is_refused_with_the_id_of_its_response(
    servers: Any, eventually: Any
) -> None:
    with servers(2, keep_events_s=0, sweep_s=0.01) as both:
        here, there = both.clients
        first = post(here, stream=True)
        response_id = first.text.partition("resp_")[2].partition('"')[0]
        path = f"/responses/resp_{response_id}"
        params = {"stream": "true"}
        eventually(lambda: there.get(path, params=params).status_code == 400, limit_s=15)
        again = post(there, stream=True)
        assert again.status_code == 400
        assert response_id in again.json()["error"]["message"]


def test_the_official_client_repeats_with_the_key_that_it_is_given(served: Servers) -> None:
    with openai.OpenAI(base_url=served.running[0].api, api_key="none") as client:
        ids = {
            client.responses.create(model=MODEL, input="hi", extra_headers={KEY: "k"}).id
            for _ in range(3)
        }
    assert len(ids) == 1


def test_a_server_that_is_gone_leaves_its_answers_to_the_others(servers: Any) -> None:
    with servers(1) as other:
        with servers(1) as first:
            answer = post(first.clients[0])
        again = post(other.clients[0])
        assert again.content == answer.content
        assert other.engine_calls == 0


class ForgetfulStore(MemoryStore):
    """Keeps what it is given, and cannot read it."""

    async def get_response(self, tenant: str, response_id: str) -> Response:
        raise StoreError("the disk cannot be read")


@pytest.mark.parametrize("key", [None, "k"])
def test_who_asked_for_a_response_in_the_background_is_told_its_id_whatever_fails_then(
    servers: Any, key: str | None
) -> None:
    with servers(1, ForgetfulStore()) as served:
        [client] = served.clients
        headers = {KEY: key} if key else {}
        answer = client.post("/responses", json={**BODY, "background": True}, headers=headers)
        assert answer.status_code == 200
        assert answer.json()["id"]


class LateStore(MemoryStore):
    """Has a server that stops before its first response is kept: meanwhile another answers."""

    def __init__(self) -> None:
        super().__init__()
        self._asked: Any = None

    async def reserve_idempotency_key(
        self, tenant: str, key: str, **asked: Any
    ) -> IdempotencyRecord:
        self._asked = self._asked or {**asked, "tenant": tenant, "key": key}
        return await super().reserve_idempotency_key(tenant, key, **asked)

    async def create_response(self, tenant: str, stored: StoredResponse) -> None:
        asked, self._asked = self._asked, {"nobody": "else"}
        if "key" in asked:
            await self.end_heartbeat(asked["owner"])
            other = structs.replace(stored.response, id="resp_other", status="completed")
            await super().reserve_idempotency_key(
                **{**asked, "owner": "srv_other", "response_id": other.id}
            )
            await super().create_response(tenant, StoredResponse(response=other))
        await super().create_response(tenant, stored)


def test_a_server_that_slept_over_its_key_answers_with_the_response_that_has_it(
    servers: Any,
) -> None:
    with servers(1, LateStore()) as served:
        [client] = served.clients
        late = post(client)
        assert (late.status_code, late.json()["error"]["param"]) == (503, KEY)
        assert "retry-after" in late.headers
        again = post(client)
        assert (again.json()["id"], again.headers[REPLAYED]) == ("resp_other", "true")
