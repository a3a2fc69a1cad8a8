"""A tenant's requests are worked on a few at a time, and keep no other tenant waiting."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from antiphon.application.support.precedence import Precedence
from antiphon.entrypoints.http.access.turns import AT_WORK, TakeTurns

LIMIT_S = 30.0
START: Any = {"type": "http.response.start", "status": 200, "headers": []}
WHOLE: Any = {"type": "http.request", "body": b"x", "more_body": False}


class Requests:
    """Requests to an app that reads the body, notes the request, and answers on `go_on`."""

    def __init__(self) -> None:
        self.at_work: list[str] = []
        self.answered: list[str] = []
        self.go_on = asyncio.Event()
        self.precedence = Precedence()
        self._app = TakeTurns(self._answer, self.precedence)

    async def _answer(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["method"] == "POST":
            await receive()
        self.at_work.append(scope["name"])
        await self.go_on.wait()
        await send(START)

    async def send(
        self,
        name: str,
        *,
        tenant: str = "greedy",
        method: str = "GET",
        path: str = "/v1/files",
        has_arrived: bool = True,
    ) -> None:
        async def receive() -> Any:
            if not has_arrived:
                await asyncio.Event().wait()
            return WHOLE

        async def sent(_: Any) -> None:
            self.answered.append(name)

        scope: Any = {
            "type": "http",
            "method": method,
            "path": path,
            "name": name,
            "auth": SimpleNamespace(tenant=tenant),
        }
        await self._app(scope, receive, sent)


@asynccontextmanager
async def running(*requests: Any) -> AsyncIterator[None]:
    tasks = [asyncio.create_task(each) for each in requests]
    for _ in range(3):
        await asyncio.sleep(0)
    try:
        async with asyncio.timeout(LIMIT_S):
            yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE"])
async def test_a_tenant_with_many_requests_has_a_few_at_work_and_others_go_on(method: str) -> None:
    requests = Requests()
    many = [requests.send(f"greedy {n}", method=method) for n in range(40)]
    async with running(*many, requests.send("other", tenant="other", method=method)):
        assert requests.at_work == [*(f"greedy {n}" for n in range(AT_WORK)), "other"]
        requests.go_on.set()
        while len(requests.answered) < 41:  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0)


async def test_a_tenant_whose_requests_wait_begins_none_during_short_work_of_another() -> None:
    requests = Requests()
    many = [requests.send(f"greedy {n}") for n in range(40)]
    async with running(requests.send("other", tenant="other"), *many):
        assert requests.at_work == ["other", "greedy 0", "greedy 1"]
        requests.go_on.set()
        work = requests.precedence.begin_short("other")
        while len(requests.answered) < 41:  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0)
        assert work.has_ended


async def test_a_body_that_has_not_arrived_keeps_no_turn() -> None:
    requests = Requests()
    slow = [requests.send(f"slow {n}", method="POST", has_arrived=False) for n in range(40)]
    async with running(*slow, requests.send("next", method="POST")):
        assert requests.at_work == ["next"]


async def test_a_request_that_waits_for_something_else_makes_room() -> None:
    requests = Requests()
    async with running(*(requests.send(f"{n}") for n in range(3 * AT_WORK))):
        while len(requests.at_work) < 3 * AT_WORK:  # noqa: ASYNC110 - no event reports it
            await asyncio.sleep(0.001)
        assert requests.answered == []


async def test_a_client_that_leaves_gives_its_turn_back() -> None:
    requests = Requests()
    async with running(*(requests.send(f"left {n}") for n in range(AT_WORK))):
        pass
    async with running(requests.send("next")):
        assert requests.at_work[-1] == "next"


async def test_what_waits_for_admission_takes_no_turn() -> None:
    requests = Requests()
    many = [requests.send(f"{n}", method="POST", path="/v1/responses") for n in range(40)]
    async with running(*many):
        assert len(requests.at_work) == 40


async def test_computations_of_others_give_way_while_a_response_is_asked_for() -> None:
    requests = Requests()
    requests.precedence.note("greedy")
    asked = requests.send("response", tenant="other", method="POST", path="/v1/responses")
    async with running(asked):
        assert requests.precedence.must_give_way("greedy")
        assert not requests.precedence.must_give_way("other")
        requests.go_on.set()
