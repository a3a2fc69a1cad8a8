"""`POST /v1/embeddings`: vectors of texts and tokens, and every input that has none."""

from __future__ import annotations

import base64
import math
import time
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from msgspec.structs import replace
from openai import OpenAI
from tests.adapters.fake_embeddings import FakeEmbeddings, embedding, vector_of
from tests.http.conftest import wait_until

from antiphon.adapters.ids import new_id
from antiphon.adapters.keys.file import append
from antiphon.application.resources.keys import create_key
from antiphon.domain.access.limits import KeyPolicy

pytestmark = pytest.mark.slow

Json = dict[str, Any]


@pytest.fixture(scope="module")
def engine() -> Iterator[FakeEmbeddings]:
    with embedding() as fake:
        yield fake


@pytest.fixture(scope="module")
def keys_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("embedding") / "keys.toml"
    file.touch()
    return file


@pytest.fixture(scope="module")
def embeds(
    serve_from: Any,
    engine: FakeEmbeddings,
    keys_file: Path,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Any]:
    given = {"embeddings.url": engine.url, "embeddings.model": "small"}
    folder = tmp_path_factory.mktemp("served")
    with serve_from(folder, auth="on", keys_file=keys_file, store="sqlite", **given) as served:
        yield served


@pytest.fixture
def client_with(embeds: Any, engine: FakeEmbeddings, keys_file: Path) -> Any:
    engine.answer = engine.on_request = None
    engine.asked.clear()

    def client(**policy: Any) -> httpx.Client:
        key, api_key = create_key("ci", "t", new_id=new_id, now=time.time)
        append(keys_file, replace(api_key, policy=KeyPolicy(**policy)))
        headers = {"authorization": f"Bearer {key}"}
        return httpx.Client(base_url=embeds.api, headers=headers, timeout=30)

    return client


@pytest.fixture
def http(client_with: Any) -> Iterator[httpx.Client]:
    with client_with() as client:
        yield client


def embed(http: httpx.Client, **body: Any) -> Json:
    answer = http.post("/embeddings", json={"model": "small", **body})
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def vectors(answer: Json) -> list[list[float]]:
    assert [each["index"] for each in answer["data"]] == list(range(len(answer["data"])))
    return [each["embedding"] for each in answer["data"]]


def unit(numbers: list[float]) -> Any:
    length = math.hypot(*numbers)
    return pytest.approx([number / length for number in numbers], abs=1e-6)


@pytest.mark.parametrize(
    ("given", "inputs", "tokens"),
    [
        ("a dog", ["a dog"], 2),
        (["a dog", "snow and ice"], ["a dog", "snow and ice"], 5),
        ([1, 2, 3], [[1, 2, 3]], 3),
        ([[1, 2], [3]], [[1, 2], [3]], 3),
    ],
)
def test_each_form_of_input_has_vectors_in_its_order(
    http: httpx.Client, given: Any, inputs: list[Any], tokens: int
) -> None:
    answer = embed(http, input=given)
    assert vectors(answer) == [unit(vector_of(each)) for each in inputs]
    assert (answer["object"], answer["model"]) == ("list", "small")
    assert answer["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}


def test_more_inputs_than_the_engine_gets_at_once_keep_their_order(
    http: httpx.Client, engine: FakeEmbeddings
) -> None:
    inputs = [[number, 1] for number in range(150)]
    assert vectors(embed(http, input=inputs)) == [unit(vector_of(each)) for each in inputs]
    assert [len(body["input"]) for _, body in engine.asked] == [64, 64, 22]


def test_base64_holds_the_same_numbers(http: httpx.Client) -> None:
    [numbers] = vectors(embed(http, input="a dog"))
    [encoded] = vectors(embed(http, input="a dog", encoding_format="base64"))
    assert list(array("f", base64.b64decode(str(encoded)))) == numbers


def test_fewer_dimensions_are_the_first_numbers_scaled_again(http: httpx.Client) -> None:
    assert vectors(embed(http, input=[[3, 4, 5]], dimensions=2)) == [unit([1.0, 3.0])]


def test_the_official_client_gets_its_vectors(http: httpx.Client, embeds: Any) -> None:
    key = http.headers["authorization"].removeprefix("Bearer ")
    with OpenAI(base_url=embeds.api, api_key=key, max_retries=0, timeout=10) as official:
        answer = official.embeddings.create(model="small", input=["a dog", "a car"])
        assert answer.data[1].embedding == unit(vector_of("a car"))
        assert answer.usage.prompt_tokens == 4
        with pytest.raises(openai.BadRequestError) as refused:
            official.embeddings.create(model="other", input="a")
        assert refused.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": ["a", 1]}, "input"),
        ({"input": ["a", [1]]}, "input"),
        ({"input": [[]]}, "input[0]"),
        ({"input": [-1]}, "input[0]"),
        ({"input": {"text": "a"}}, "input"),
        ({"input": [None]}, "input[0]"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 5}, "dimensions"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "model": None}, "model"),
        ({"input": "a", "model": "scripted"}, "model"),
    ],
)
def test_a_body_that_asks_for_no_vector_is_refused_by_name(
    http: httpx.Client, body: Json, param: str
) -> None:
    answer = http.post("/embeddings", json={"model": "small", **body})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param
    assert param.partition("[")[0] in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("theirs", "ours", "code"),
    [
        (400, 400, "invalid_value"),
        (413, 400, "invalid_value"),
        (422, 400, "invalid_value"),
        (429, 503, "embeddings_unavailable"),
        (500, 503, "embeddings_unavailable"),
    ],
)
def test_an_engine_that_refuses_an_input_is_no_engine_that_fails(
    http: httpx.Client, engine: FakeEmbeddings, theirs: int, ours: int, code: str
) -> None:
    engine.answer = (theirs, b"{}")
    answer = http.post("/embeddings", json={"model": "small", "input": "a"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (ours, code)


def test_a_key_needs_the_right_to_the_model(client_with: Any) -> None:
    with client_with(models=("scripted-chat",)) as http:
        refused = http.post("/embeddings", json={"model": "small", "input": "a"})
        assert refused.status_code == 400
        assert refused.json()["error"]["code"] == "model_not_found"
        assert "This server has" not in refused.json()["error"]["message"]
    with client_with(models=("small",)) as http:
        assert embed(http, input="a")


def test_a_list_of_models_says_which_one_makes_vectors(client_with: Any) -> None:
    with client_with() as all_models, client_with(models=("scripted",)) as others:
        *answering, last = all_models.get("/models").json()["data"]
        assert (last["id"], last["type"]) == ("small", "embedding")
        assert not any("type" in each for each in answering)
        assert all_models.get("/models/small").json() == last
        assert others.get("/models/small").status_code == 404
        assert "small" not in others.get("/models").text


def test_inputs_count_as_the_tokens_of_a_key(client_with: Any) -> None:
    limits = {"tokens/day": 100, "requests/day": 3, "runs": 1}
    with client_with(limits=limits) as http:
        answer = http.post("/embeddings", json={"model": "small", "input": "one two three"})
        assert answer.headers["x-ratelimit-remaining-requests"] == "2"
        second = http.post("/embeddings", json={"model": "small", "input": "a"})
        # Three of the first are counted as its engine did; the second has one, estimated, and
        # room for an output.
        assert second.headers["x-ratelimit-remaining-tokens"] == str(100 - 3 - 1 - 1)
        long = http.post("/embeddings", json={"model": "small", "input": "x" * 500})
        assert long.status_code == 429
        assert "tokens" in long.json()["error"]["message"]


def test_a_long_answer_to_a_short_request_counts_as_work(
    embeds: Any, http: httpx.Client, engine: FakeEmbeddings
) -> None:
    account = embeds.app.bytes_in_work
    held: list[int] = []
    engine.on_request = lambda: held.append(account.by_subject["model_output"])
    answer = http.post("/embeddings", json={"model": "small", "input": ["a"] * 2048})
    assert answer.status_code == 200
    # Each batch but the first is asked for when the answer counts, all of it.
    assert held[0] == 0
    assert min(held[1:]) > len(answer.content) // 2
    wait_until(lambda: account.total == 0)


def test_a_server_without_an_embedding_model_says_so(server: Any) -> None:
    answer = httpx.post(f"{server.api}/embeddings", json={"model": "a", "input": "b"})
    assert (answer.status_code, answer.json()["error"]["code"]) == (404, "model_not_found")
    assert "embeddings.url" in answer.json()["error"]["message"]
