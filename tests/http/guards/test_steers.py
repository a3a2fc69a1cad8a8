"""A client of a WebSocket steers a response: guards are asked about what it adds."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.http.conftest import script, text_of
from tests.http.guards.conftest import ServeGuarded
from tests.http.guards.odd_guards import MESSAGE, WORD
from tests.http.wire.test_steering import THINKS, joined

pytestmark = pytest.mark.one_process


@pytest.fixture(scope="module")
def server(serve_guarded: ServeGuarded) -> Iterator[Any]:
    with serve_guarded("refuse", "input") as served:
        yield served


@pytest.mark.parametrize("store", [True, False])
def test_a_steer_that_is_refused_is_not_read(server: Any, model: str, store: bool) -> None:
    with joined(server, model) as client:
        target = client.begin(THINKS, "response.reasoning_text.delta", store=store)
        assert client.steer(target, script({"say": f"It is {WORD}."}))["type"] == (
            "response.steer.accepted"
        )
        assert client.end()["status"] == "incomplete"
        successor = client.successor()
    assert successor["status"] == "completed"
    assert WORD not in json.dumps(successor["output"])
    [message] = successor["output"]
    assert message["content"] == [{"type": "refusal", "refusal": MESSAGE}]


@pytest.mark.parametrize("store", [True, False])
def test_a_steer_that_passes_goes_on(server: Any, model: str, store: bool) -> None:
    with joined(server, model) as client:
        target = client.begin(THINKS, "response.reasoning_text.delta", store=store)
        client.steer(target, script({"say": "Steered."}))
        client.end()
        assert text_of(client.successor()) == "Steered."
