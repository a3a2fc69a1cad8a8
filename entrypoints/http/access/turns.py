"""What tenants take turns for: the time of the event loop, and two short requests at a time.

The second keeps few of a tenant's requests in threads at once, for which the loop has no turns. And
a tenant whose requests wait gives way to one that has none waiting.
"""

from __future__ import annotations

import asyncio
from typing import Any

from litestar.enums import ScopeType
from litestar.types import ASGIApp, Message, Receive, Scope, Send

from antiphon.application.support.fair_loop import take_loop_share
from antiphon.application.support.fair_queue import UNBOUNDED, FairQueue
from antiphon.application.support.precedence import Precedence, Work
from antiphon.entrypoints.http.access.refusals import admitted_route

AT_WORK = 2
"""Requests of a tenant at the same time. With one, the loop would idle while the store works. While
other tenants send requests too, they begin one by one all the same (see Precedence)."""
TURN_S = 0.05
"""A request that takes longer waits for something else than the loop, and makes room for the next.
"""


class ShareLoop:
    """ASGI middleware, inside of authentication: a request uses its tenant's share of the loop."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("auth") is not None:
            await take_loop_share(scope["auth"].tenant)
        await self._app(scope, receive, send)


class TakeTurns:
    """ASGI middleware, inside of authentication. What waits for admission takes no turn here."""

    def __init__(self, app: ASGIApp, precedence: Precedence) -> None:
        self._app = app
        self._precedence = precedence
        self._at_work = FairQueue(UNBOUNDED, per_tenant=AT_WORK)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("auth") is None:
            await self._app(scope, receive, send)
            return
        tenant = scope["auth"].tenant
        if scope["type"] != ScopeType.HTTP:
            self._precedence.note(tenant)
            await self._app(scope, receive, send)
            return
        if admitted_route(scope) is not None:
            work = self._precedence.begin_response(tenant)
            try:
                await self._app(scope, receive, send)
            finally:
                if work is not None:
                    work.end()
            return
        turn = _Turn(self._at_work, self._precedence, tenant, receive, send)
        try:
            if scope["method"] != "POST":  # nothing has to arrive
                await turn.start()
            await self._app(scope, turn.receive, turn.send)
        finally:
            turn.end()


class _Turn:
    """A request's turn, from when it has arrived until its answer starts."""

    __slots__ = (
        "_at_work",
        "_is_held",
        "_precedence",
        "_receive",
        "_send",
        "_tenant",
        "_timer",
        "_work",
    )

    def __init__(
        self,
        at_work: FairQueue,
        precedence: Precedence,
        tenant: str,
        receive: Receive,
        send: Send,
    ) -> None:
        self._at_work = at_work
        self._precedence = precedence
        self._tenant = tenant
        self._receive = receive
        self._send = send
        self._is_held = False
        self._work: Work | None = None
        self._timer: asyncio.TimerHandle | None = None

    async def receive(self) -> Any:
        # A body that arrives slowly, or never, keeps no turn.
        message = await self._receive()
        if message["type"] == "http.request" and not message.get("more_body"):
            await self.start()
        return message

    async def send(self, message: Message) -> None:
        await self._send(message)
        if self._is_held:
            self.end()

    async def start(self) -> None:
        if self._timer is None:
            await self._at_work.acquire(self._tenant)
            self._is_held = True
            if self._at_work.waiting_of(self._tenant):
                self._work = await self._precedence.begin(self._tenant)
            else:
                self._work = self._precedence.begin_short(self._tenant)
            self._timer = asyncio.get_running_loop().call_later(TURN_S, self.end)

    def end(self) -> None:
        if self._is_held:
            self._is_held = False
            self._at_work.release(self._tenant)
            if self._work is not None:
                self._work.end()
        if self._timer is not None:
            self._timer.cancel()
