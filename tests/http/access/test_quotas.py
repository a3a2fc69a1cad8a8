"""Quotas over HTTP: what would be kept is refused, all else goes on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

pytestmark = pytest.mark.slow

MODEL = "scripted-chat"
BODY = {"model": MODEL, "input": "hi"}


@pytest.fixture
def full(serve: Any) -> Iterator[httpx.Client]:
    """A client whose tenant has all that it may keep."""
    with (
        serve(quota_responses=1) as server,
        httpx.Client(base_url=server.api, timeout=30) as client,
    ):
        assert client.post("/responses", json=BODY).status_code == 200
        yield client


def test_a_request_over_quota_is_refused_without_retry(full: httpx.Client) -> None:
    answer = full.post("/responses", json=BODY)
    assert answer.status_code == 429
    assert answer.json()["error"]["code"] == "insufficient_quota"
    assert answer.headers["x-should-retry"] == "false"


def test_the_quota_of_bytes_applies_to_conversation_items(serve: Any) -> None:
    items = {"items": [{"role": "user", "content": "a"}]}
    with (
        serve(store="sqlite") as server,
        httpx.Client(base_url=server.api, timeout=30) as client,
    ):
        kept = client.post("/conversations", json=items).json()["id"]
    with (
        serve(store="sqlite", quota_bytes=1) as server,
        httpx.Client(base_url=server.api, timeout=30) as client,
    ):
        in_it = {**BODY, "store": False, "conversation": kept}
        assert client.post("/responses", json=in_it).status_code == 429
        assert client.post("/conversations", json={}).status_code == 429
        assert client.post(f"/conversations/{kept}/items", json=items).status_code == 429
        assert client.get(f"/conversations/{kept}/items").status_code == 200


def test_the_official_client_does_not_retry(full: httpx.Client) -> None:
    with (
        openai.OpenAI(base_url=str(full.base_url), api_key="none", max_retries=5) as client,
        pytest.raises(openai.RateLimitError) as caught,
    ):
        client.responses.create(model=MODEL, input="hi")
    assert caught.value.code == "insufficient_quota"


def test_without_store_a_full_tenant_is_served(full: httpx.Client) -> None:
    assert full.post("/responses", json={**BODY, "store": False}).status_code == 200


def test_stored_responses_over_quota_can_be_read_and_deleted(serve: Any) -> None:
    with (
        serve(quota_responses=1) as server,
        httpx.Client(base_url=server.api, timeout=30) as client,
    ):
        kept = client.post("/responses", json=BODY).json()["id"]
        assert client.post("/responses", json=BODY).status_code == 429
        assert client.get(f"/responses/{kept}").status_code == 200
        assert client.get(f"/responses/{kept}/input_items").status_code == 200
        assert client.delete(f"/responses/{kept}").status_code == 200
