"""Requests that a server sends to itself: whatever the app does, its answer is one line."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

from antiphon.application.resources.keys import RefreshCaller
from antiphon.domain.access.callers import Caller
from antiphon.domain.access.limits import KeyPolicy
from antiphon.domain.errors import ServerShuttingDown
from antiphon.entrypoints.http.wire.in_process import InProcessRequests

ANYBODY = Caller(tenant="t")
BODY = b'{"model":"m"}'
App = Callable[[Any, Any, Any], Awaitable[None]]


async def ask(app: App, caller: Caller = ANYBODY) -> Any:
    requests = InProcessRequests(RefreshCaller([]))
    requests.app = app
    return await requests(caller, "/v1/responses", BODY)


def answering(status: int, body: bytes, *headers: tuple[bytes, bytes]) -> App:
    async def app(_scope: Any, _receive: Any, send: Any) -> None:
        start = {"type": "http.response.start", "status": status, "headers": [*headers]}
        await send(start)
        for byte in body:
            await send({"type": "http.response.body", "body": bytes([byte]), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    return app


async def test_the_app_gets_a_request_of_the_caller_with_the_lowest_tier() -> None:
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope["method"], scope["path"], scope["auth"], await receive()))
        await answering(200, b"{}")(scope, receive, send)

    await ask(app, Caller(tenant="t", policy=KeyPolicy(models=("m",), service_tier="priority")))
    [(method, path, caller, message)] = seen
    assert (method, path) == ("POST", "/v1/responses")
    policy = KeyPolicy(models=("m",), service_tier="flex")
    assert caller == Caller(tenant="t", policy=policy)
    assert message == {"type": "http.request", "body": BODY, "more_body": False}


async def test_an_answer_is_put_together_on_one_line() -> None:
    answer = await ask(answering(200, b'{\n"a": "\\n"}', (b"x-request-id", b"req_1")))
    assert (answer.status_code, answer.request_id) == (200, "req_1")
    assert answer.body == b'{ "a": "\\n"}'
    assert answer.retry_after_s is None


@pytest.mark.parametrize(
    ("status", "headers", "retry_after_s"),
    [
        (429, [(b"retry-after", b"7")], 7.0),
        (503, [], 1.0),
        (429, [(b"retry-after", b"7"), (b"x-should-retry", b"false")], None),
        (500, [(b"retry-after", b"7")], None),
        (400, [], None),
    ],
)
async def test_only_what_was_refused_for_now_is_sent_again(
    status: int, headers: list[tuple[bytes, bytes]], retry_after_s: float | None
) -> None:
    assert (await ask(answering(status, b"{}", *headers))).retry_after_s == retry_after_s


async def test_an_app_that_fails_is_a_500() -> None:
    async def fail(_scope: Any, _receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b'{"half', "more_body": True})
        raise ValueError("a bug")

    answer = await ask(fail)
    assert (answer.status_code, answer.retry_after_s) == (500, None)
    assert msgspec.json.decode(answer.body)["error"]["code"] == "server_error"


async def test_an_app_that_answers_nothing_is_asked_again() -> None:
    async def say_nothing(_scope: Any, _receive: Any, _send: Any) -> None:
        return

    assert (await ask(say_nothing)).retry_after_s == 1.0


async def test_a_caller_whose_key_was_revoked_is_a_401() -> None:
    answer = await ask(answering(200, b"{}"), Caller(tenant="t", key_id="key_gone"))
    assert answer.status_code == 401
    assert msgspec.json.decode(answer.body)["error"]["code"] == "invalid_api_key"


async def test_a_server_that_has_no_app_yet_refuses() -> None:
    with pytest.raises(ServerShuttingDown):
        await InProcessRequests(RefreshCaller([]))(ANYBODY, "/v1/responses", BODY)
