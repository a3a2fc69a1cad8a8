"""No request stops the server for the others, however much work it is, and none stays in memory.

ANTIPHON_TEST_FREEZE_FACTOR says how many times the wait of an idle machine a wait may be here: 1 is
what a server promises. ANTIPHON_TEST_ATTACK_FACTOR multiplies the sizes.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from tests.security.support.server_probe import (
    MAX_GROWTH_BYTES,
    Observation,
    ProbedServer,
    probe_server,
)

FREEZE_FACTOR = float(os.environ.get("ANTIPHON_TEST_FREEZE_FACTOR", "6"))
SIZE = float(os.environ.get("ANTIPHON_TEST_ATTACK_FACTOR", "1"))
HARMONY, CHAT = "scripted-harmony", "scripted-chat"
WORDS = "lorem ipsum dolor sit amet, consectetur "
TIMEOUT_S = 300

PROMPT_CACHES_BYTES = 20_000_000
"""What a model remembers of prompts: two caches of 8 MiB, and the prefixes of a scripted engine."""

pytestmark = pytest.mark.faults  # they measure the time and memory of a whole server


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProbedServer]:
    with probe_server(tmp_path_factory.mktemp("portions")) as probed:
        for model in (HARMONY, CHAT):  # what is loaded with the first request is no attack
            _send(probed, [_body(model, "hi", tools=[_function("x")])])
        yield probed


def _times(count: int) -> int:
    return int(count * SIZE)


def _text(chars: int) -> str:
    return (WORDS * (chars // len(WORDS) + 1))[:chars]


def _body(model: str, given: Any, **others: Any) -> dict[str, Any]:
    return {"model": model, "input": given, "store": False, **others}


def _function(description: str, name: str = "f") -> dict[str, Any]:
    properties = {"a": {"type": "string", "description": description}}
    parameters = {"type": "object", "properties": properties}
    return {"type": "function", "name": name, "parameters": parameters}


def _send(
    server: ProbedServer, bodies: Sequence[dict[str, Any]], path: str = "/v1/responses"
) -> list[httpx.Response]:
    """Send all bodies at the same time."""

    # One client for all: to make one takes as long as the server needs for the request.
    limits = httpx.Limits(max_connections=len(bodies))
    with (
        httpx.Client(base_url=server.url, limits=limits, timeout=TIMEOUT_S) as client,
        ThreadPoolExecutor(len(bodies)) as senders,
    ):
        return list(senders.map(lambda body: client.post(path, json=body), bodies))


def _assert_others_went_on(attack: Observation) -> None:
    assert attack.freeze_s < FREEZE_FACTOR * attack.max_freeze_s


@pytest.mark.parametrize("text", ["\n", "/\n", "a", "! ", "\\n"], ids=repr)
def test_a_description_of_one_letter_repeated_stops_nobody(server: ProbedServer, text: str) -> None:
    body = _body(HARMONY, "hi", tools=[_function(text * (_times(800_000) // len(text)))])
    with server.watch() as attack:
        (response,) = _send(server, [body])
    assert response.status_code in (200, 400)
    _assert_others_went_on(attack)


@pytest.mark.parametrize("model", [HARMONY, CHAT])
def test_a_text_of_ten_megabytes_is_refused_and_stops_nobody(
    server: ProbedServer, model: str
) -> None:
    with server.watch() as attack:
        (response,) = _send(server, [_body(model, _text(_times(10_000_000)))])
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    _assert_others_went_on(attack)


@pytest.mark.parametrize("model", [HARMONY, CHAT])
def test_forty_compactions_at_a_time_stop_nobody(server: ProbedServer, model: str) -> None:
    for attempt, cached_bytes in enumerate((PROMPT_CACHES_BYTES, 0)):
        bodies = [_body(model, f"{attempt} {n} {_text(_times(300_000))}") for n in range(40)]
        with server.watch() as attack:
            responses = _send(server, bodies, "/v1/responses/compact")
        assert {response.status_code for response in responses} == {200}
        _assert_others_went_on(attack)
        assert attack.growth_bytes < cached_bytes + MAX_GROWTH_BYTES


def test_sixty_thousand_items_are_refused(server: ProbedServer) -> None:
    items = [{"role": "user", "content": "x"}] * 60_000
    with server.watch() as attack:
        (response,) = _send(server, [_body(CHAT, items)])
    assert response.status_code == 400
    assert response.json()["error"] | {"message": ""} == {
        "message": "",
        "type": "invalid_request_error",
        "param": "input",
        "code": "array_above_max_length",
    }
    _assert_others_went_on(attack)


def test_ninety_thousand_unknown_tools_are_refused(server: ProbedServer) -> None:
    tools = [{"type": "unknown_to_all"}] * 90_000
    with server.watch() as attack:
        (response,) = _send(server, [_body(CHAT, "hi", tools=tools)])
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "tools"
    assert response.json()["error"]["code"] == "array_above_max_length"
    _assert_others_went_on(attack)


@pytest.mark.parametrize("model", [HARMONY, CHAT])
def test_as_many_items_as_are_allowed_stop_nobody(server: ProbedServer, model: str) -> None:
    calls = [
        item
        for number in range(5000)
        for item in (
            {"type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": f"c{number}", "output": "y"},
        )
    ]
    with server.watch() as attack:
        (response,) = _send(server, [_body(model, calls)])
    assert response.status_code in (200, 400)
    _assert_others_went_on(attack)


def _long_name(letter: str) -> dict[str, Any]:
    name = letter * _times(2_700_000)
    call = {"type": "function_call", "call_id": "c", "name": name, "arguments": "{}"}
    return _body(HARMONY, [call, {"type": "function_call_output", "call_id": "c", "output": "y"}])


def _long_options(letter: str) -> dict[str, Any]:
    return _body(CHAT, "hi", chat_template_kwargs={"a": letter * _times(5_000_000)})


def _long_tool(letter: str) -> dict[str, Any]:
    return _body(HARMONY, "hi", tools=[_function(f"{letter} " * _times(100_000))])


@pytest.mark.parametrize("attack_of", [_long_name, _long_options, _long_tool])
def test_what_requests_name_does_not_stay_in_memory(server: ProbedServer, attack_of: Any) -> None:
    # The first ones make the process as large as such a request needs it to be.
    for letter in "abc":
        _send(server, [attack_of(letter)])
    with server.watch() as attack:
        for letter in "defghij":
            _send(server, [attack_of(letter)])
    assert attack.growth_bytes < MAX_GROWTH_BYTES
    _assert_others_went_on(attack)
