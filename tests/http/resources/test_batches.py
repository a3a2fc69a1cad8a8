"""`/v1/batches`, with the official client over a real socket."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import openai
import pytest
from openai.types import Batch

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
    deadline = time.monotonic() + WAIT_S
    while batch.status not in ENDED:
        assert time.monotonic() < deadline, batch
        time.sleep(0.02)
        batch = client.batches.retrieve(batch.id)
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
