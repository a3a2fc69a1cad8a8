"""`/v1/batches`, with the official client over a real socket."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from msgspec.structs import replace
from openai.types import Batch
from tests.adapters.fake_embeddings import embedding
from tests.http.conftest import wait_until

from antiphon.adapters.ids import new_id
from antiphon.adapters.keys.file import append
from antiphon.application.resources.keys import create_key
from antiphon.domain.access.limits import KeyPolicy

Json = dict[str, Any]
ENDED = ("completed", "failed", "expired", "cancelled")
WAIT_S = 15


def chat(text: str = "Hello") -> Json:
    return {"model": "scripted", "messages": [{"role": "user", "content": text}]}


def line(custom_id: str, body: Json | None = None, **other: Any) -> Json:
    request = {"custom_id": custom_id, "method": "POST", "url": "/v1/chat/completions"}
    return {**request, "body": body or chat(), **other}


@pytest.fixture(scope="module")
def client(server: Any) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.api, api_key="none", max_retries=0) as made:
        yield made


def upload(client: openai.OpenAI, lines: Iterable[Json | str]) -> str:
    texts = (each if isinstance(each, str) else json.dumps(each) for each in lines)
    content = "\n".join(texts).encode()
    return client.files.create(file=("in.jsonl", content), purpose="batch").id


def create(
    client: openai.OpenAI, lines: Iterable[Json | str], endpoint: Any = "/v1/chat/completions"
) -> Batch:
    return client.batches.create(
        input_file_id=upload(client, lines), endpoint=endpoint, completion_window="24h"
    )


def wait(client: openai.OpenAI, batch: Batch) -> Batch:
    """Return the batch when it has ended."""

    def has_ended() -> bool:
        nonlocal batch
        batch = client.batches.retrieve(batch.id)
        return batch.status in ENDED

    wait_until(has_ended, limit_s=WAIT_S)
    return batch


def lines_of(client: openai.OpenAI, file_id: str | None) -> list[Json]:
    if file_id is None:
        return []
    return [json.loads(each) for each in client.files.content(file_id).text.splitlines()]


def counts(batch: Batch) -> tuple[int, int, int]:
    assert batch.request_counts is not None
    each = batch.request_counts
    return each.total, each.completed, each.failed


def codes(batch: Batch) -> list[tuple[str | None, int | None, str | None]]:
    assert batch.errors is not None
    return [(each.code, each.line, each.param) for each in batch.errors.data or ()]


BODIES: dict[str, tuple[Json, Callable[[Json], str]]] = {
    "/v1/chat/completions": (chat(), lambda body: body["choices"][0]["message"]["content"]),
    "/v1/responses": (
        {"model": "scripted", "input": "Hello"},
        lambda body: body["output"][0]["content"][0]["text"],
    ),
    "/v1/completions": (
        {"model": "scripted", "prompt": "Hello"},
        lambda body: body["choices"][0]["text"],
    ),
}


@pytest.mark.parametrize("endpoint", BODIES)
def test_each_line_is_answered_as_its_endpoint_answers(
    client: openai.OpenAI, endpoint: str
) -> None:
    body, text_of = BODIES[endpoint]
    lines = [line(f"line-{number}", body, url=endpoint) for number in range(5)]
    created = create(client, lines, endpoint)
    assert (created.status, created.object) == ("validating", "batch")
    batch = wait(client, created)
    assert (batch.status, counts(batch)) == ("completed", (5, 5, 0))
    assert (batch.error_file_id, batch.errors) == (None, None)
    answers = lines_of(client, batch.output_file_id)
    assert {each["custom_id"] for each in answers} == {f"line-{number}" for number in range(5)}
    for each in answers:
        assert each.keys() == {"id", "custom_id", "response", "error"}
        assert each["error"] is None
        assert each["response"]["status_code"] == 200
        assert each["response"]["request_id"].startswith("req_")
        assert text_of(each["response"]["body"])


def test_an_answer_has_the_lowest_priority(client: openai.OpenAI) -> None:
    body = {"model": "scripted", "input": "Hello", "service_tier": "priority", "priority": -5}
    lines = [line("a", body, url="/v1/responses")]
    batch = wait(client, create(client, lines, "/v1/responses"))
    [answer] = lines_of(client, batch.output_file_id)
    response = answer["response"]["body"]
    # Without keys, a request may choose its tier; in a batch, it may not.
    assert response["service_tier"] == "flex"
    # It is stored, as one that was created over HTTP.
    assert client.responses.retrieve(response["id"]).output_text == "Echo: Hello"


def test_lines_that_are_refused_are_in_the_error_file(client: openai.OpenAI) -> None:
    lines = [
        line("good"),
        line("unknown-model", {**chat(), "model": "nobody"}),
        line("no-messages", {"model": "scripted"}),
        line("too-deep", {**chat(), "metadata": {"a": {"b": 1}}}),
    ]
    batch = wait(client, create(client, lines))
    assert (batch.status, counts(batch)) == ("completed", (4, 1, 3))
    [good] = lines_of(client, batch.output_file_id)
    assert good["custom_id"] == "good"
    errors = {each["custom_id"]: each for each in lines_of(client, batch.error_file_id)}
    assert errors.keys() == {"unknown-model", "no-messages", "too-deep"}
    for each in errors.values():
        assert each["error"] is None
        assert 400 <= each["response"]["status_code"] < 500
        assert each["response"]["body"]["error"]["message"]
    answer = errors["no-messages"]["response"]
    assert answer["status_code"] == 400
    assert answer["body"]["error"]["param"] == "messages"


def test_a_file_with_wrong_lines_fails_as_a_whole(client: openai.OpenAI) -> None:
    lines = [
        line("a"),
        "{not json",
        line("a"),
        line("b", url="/v1/responses"),
        line("c", method="GET"),
        line("d", {**chat(), "stream": True}),
    ]
    batch = wait(client, create(client, lines))
    assert (batch.status, batch.output_file_id, batch.error_file_id) == ("failed", None, None)
    assert codes(batch) == [
        ("invalid_json_line", 2, None),
        ("duplicate_custom_id", 3, "custom_id"),
        ("invalid_url", 4, "url"),
        ("invalid_method", 5, "method"),
        ("unsupported_value", 6, "body.stream"),
    ]
    assert batch.failed_at is not None


def test_the_times_and_the_metadata_of_a_batch_are_told(client: openai.OpenAI) -> None:
    created = client.batches.create(
        input_file_id=upload(client, [line("a")]),
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"team": "red"},
    )
    assert created.expires_at == created.created_at + 86_400
    batch = wait(client, created)
    assert batch.metadata == {"team": "red"}
    assert batch.completion_window == "24h"
    times = (batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at)
    assert None not in times
    assert list(times) == sorted(each for each in times if each is not None)
    assert (batch.expired_at, batch.cancelled_at, batch.failed_at) == (None, None, None)
    output = client.files.retrieve(str(batch.output_file_id))
    assert (output.purpose, output.filename) == ("batch_output", f"{batch.id}_output.jsonl")


def test_batches_are_listed_in_pages(client: openai.OpenAI) -> None:
    made = [create(client, [line("a")]).id for _ in range(3)]
    page = client.batches.list(limit=2)
    assert [each.id for each in page.data] == [made[2], made[1]]
    assert page.has_more
    assert next(iter(page.get_next_page().data)).id == made[0]
    with pytest.raises(openai.BadRequestError, match="not found"):
        client.batches.list(after="batch_none")


def test_a_cancelled_batch_keeps_what_it_has(client: openai.OpenAI) -> None:
    slow = [{"say": "slow", "tick": 0.3}]
    lines = [line("quick")] + [
        line(f"slow-{number}", chat(f"@@script {json.dumps(slow)}")) for number in range(100)
    ]
    batch = create(client, lines)

    def has_begun() -> bool:
        return counts(client.batches.retrieve(batch.id))[1] > 0

    wait_until(has_begun, limit_s=WAIT_S)
    cancelled = client.batches.cancel(batch.id)
    assert cancelled.status == "cancelling"
    assert client.batches.cancel(batch.id).cancelling_at == cancelled.cancelling_at
    batch = wait(client, cancelled)
    assert batch.status == "cancelled"
    total, completed, failed = counts(batch)
    assert (total, failed) == (101, 0)
    assert 0 < completed < 101
    assert len(lines_of(client, batch.output_file_id)) == completed


def test_a_batch_that_has_ended_cannot_be_cancelled(client: openai.OpenAI) -> None:
    batch = wait(client, create(client, [line("a")]))
    with pytest.raises(openai.BadRequestError, match="Cannot cancel a batch with the status 'comp"):
        client.batches.cancel(batch.id)


@pytest.mark.parametrize(
    ("fields", "param", "code"),
    [
        ({"endpoint": "/v1/moderations"}, "endpoint", "invalid_value"),
        ({"completion_window": "1h"}, "completion_window", "invalid_value"),
        ({"completion_window": None}, "completion_window", "invalid_type"),
        ({"input_file_id": 1}, "input_file_id", "invalid_type"),
        ({"metadata": {"a": 1}}, "metadata.a", "invalid_type"),
    ],
)
def test_a_wrong_field_is_named(
    http: httpx.Client, client: openai.OpenAI, fields: Json, param: str, code: str
) -> None:
    right = {
        "input_file_id": upload(client, [line("a")]),
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
    }
    answer = http.post("/batches", json={**right, **fields})
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error["param"], error["code"]) == (param, code)


def test_what_a_batch_cannot_have_is_named_as_ignored(
    http: httpx.Client, client: openai.OpenAI
) -> None:
    body = {
        "input_file_id": upload(client, [line("a")]),
        "endpoint": "/v1/chat/completions",
        "completion_window": "24h",
        "output_expires_after": {"anchor": "created_at", "seconds": 3600},
    }
    answer = http.post("/batches", json=body)
    assert answer.status_code == 200
    assert answer.headers["x-antiphon-ignored"] == "output_expires_after"


def test_an_input_file_must_exist_and_be_for_a_batch(client: openai.OpenAI) -> None:
    asked: Json = {"endpoint": "/v1/responses", "completion_window": "24h"}
    with pytest.raises(openai.NotFoundError, match="file-none"):
        client.batches.create(input_file_id="file-none", **asked)
    other = client.files.create(file=("a.txt", b"{}"), purpose="user_data").id
    with pytest.raises(openai.BadRequestError, match="purpose 'batch', not 'user_data'"):
        client.batches.create(input_file_id=other, **asked)


@pytest.mark.parametrize("name", ["batch_none", "%00", "a" * 300])
def test_a_batch_that_there_is_not_is_a_404(http: httpx.Client, name: str) -> None:
    for answer in (http.get(f"/batches/{name}"), http.post(f"/batches/{name}/cancel")):
        assert answer.status_code == 404, answer.text


# --- keys -----------------------------------------------------------------------------------------


class Keys:
    """Creates keys in the file of a server, and takes them away."""

    def __init__(self, file: Path, server: Any) -> None:
        self._file, self._server = file, server

    def client(self, tenant: str = "t", **policy: Any) -> openai.OpenAI:
        key, api_key = create_key("ci", tenant, new_id=new_id, now=time.time)
        append(self._file, replace(api_key, policy=KeyPolicy(**policy)))
        return openai.OpenAI(base_url=self._server.api, api_key=key, max_retries=0)

    def revoke_all(self) -> None:
        self._file.write_text("")


@pytest.fixture
def keys(serve_from: Callable[..., AbstractContextManager[Any]], tmp_path: Path) -> Iterator[Keys]:
    file = tmp_path / "keys.toml"
    file.touch()
    with serve_from(tmp_path, auth="on", keys_file=file, store="sqlite") as server:
        yield Keys(file, server)


def test_a_batch_has_the_rights_of_its_key(keys: Keys) -> None:
    with keys.client(models=("scripted-chat",)) as ours, keys.client("them") as theirs:
        lines = [line("own"), line("other", {**chat(), "model": "scripted-harmony"})]
        batch = wait(ours, create(ours, lines))
        assert counts(batch) == (2, 1, 1)
        [failed] = lines_of(ours, batch.error_file_id)
        assert failed["custom_id"] == "other"
        assert failed["response"]["body"]["error"]["code"] == "model_not_found"
        # Another tenant knows of nothing.
        for ask in (theirs.batches.retrieve, theirs.batches.cancel):
            with pytest.raises(openai.NotFoundError):
                ask(batch.id)
        with pytest.raises(openai.NotFoundError):
            theirs.files.content(str(batch.output_file_id))
        with pytest.raises(openai.NotFoundError):
            theirs.batches.create(
                input_file_id=batch.input_file_id,
                endpoint="/v1/chat/completions",
                completion_window="24h",
            )
        assert theirs.batches.list().data == []


def test_a_key_that_only_reads_creates_no_batch(keys: Keys) -> None:
    with keys.client() as writer, keys.client(scopes=("read",)) as reader:
        file_id = upload(writer, [line("a")])
        batch = create(writer, [line("a")])
        assert reader.batches.retrieve(batch.id).id == batch.id
        with pytest.raises(openai.PermissionDeniedError):
            reader.batches.create(
                input_file_id=file_id, endpoint="/v1/responses", completion_window="24h"
            )
        with pytest.raises(openai.PermissionDeniedError):
            reader.batches.cancel(batch.id)


def test_lines_count_for_the_limits_of_the_key_and_wait_for_them(keys: Keys) -> None:
    with keys.client(limits={"runs": 1, "requests/day": 1000}) as client:
        # One run at a time: all others are refused, and sent again.
        batch = wait(client, create(client, [line(f"{number}") for number in range(4)]))
        assert (batch.status, counts(batch)) == ("completed", (4, 4, 0))
        answer = client.files.with_raw_response.list()
        assert answer.status_code == 200
        used = client.chat.completions.with_raw_response.create(**chat())
        # An upload, a list and the reads of the batch do not count; each answered line does.
        assert int(used.headers["x-ratelimit-remaining-requests"]) == 1000 - 5


def test_a_batch_ends_with_errors_when_its_key_is_revoked(keys: Keys) -> None:
    slow = [{"say": "slow", "tick": 0.5}]
    with keys.client() as owner:
        body = chat(f"@@script {json.dumps(slow)}")
        batch = create(owner, [line(f"{number}", body) for number in range(200)])
    keys.revoke_all()
    with keys.client() as client:
        batch = wait(client, batch)
        assert batch.status == "completed"
        errors = lines_of(client, batch.error_file_id)
    assert errors
    assert {each["response"]["status_code"] for each in errors} == {401}
    assert {each["response"]["body"]["error"]["code"] for each in errors} == {"invalid_api_key"}


def test_vectors_are_made_in_batches(serve: Any) -> None:
    with embedding() as engine:
        given = {"embeddings.url": engine.url, "embeddings.model": "small", "store": "sqlite"}
        with (
            serve(**given) as server,
            openai.OpenAI(base_url=server.api, api_key="none", max_retries=0) as client,
        ):
            lines = [
                line("a", {"model": "small", "input": "a"}, url="/v1/embeddings"),
                line("b", {"model": "small", "input": []}, url="/v1/embeddings"),
            ]
            batch = wait(client, create(client, lines, "/v1/embeddings"))
            assert counts(batch) == (2, 1, 1)
            [made] = lines_of(client, batch.output_file_id)
            assert made["custom_id"] == "a"
            [entry] = made["response"]["body"]["data"]
            assert (
                entry["embedding"]
                == client.embeddings.create(model="small", input="a", encoding_format="float")
                .data[0]
                .embedding
            )
            [refused] = lines_of(client, batch.error_file_id)
            assert refused["response"]["body"]["error"]["param"] == "input"


def test_batches_and_their_results_outlive_the_server(serve: Any) -> None:
    with (
        serve(store="sqlite") as server,
        openai.OpenAI(base_url=server.api, api_key="none", max_retries=0) as client,
    ):
        slow = [{"say": "slow", "tick": 0.2}]
        lines = [line(f"{n}", chat(f"@@script {json.dumps(slow)}")) for n in range(40)]
        batch = create(client, [line("quick"), *lines])
        wait_until(lambda: counts(client.batches.retrieve(batch.id))[1] > 0)
    with (
        serve(store="sqlite") as server,
        openai.OpenAI(base_url=server.api, api_key="none", max_retries=0) as client,
    ):
        batch = wait(client, batch)
        assert (batch.status, counts(batch)) == ("completed", (41, 41, 0))
        answers = lines_of(client, batch.output_file_id)
        assert len({each["custom_id"] for each in answers}) == len(answers) == 41
