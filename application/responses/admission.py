"""Admission of foreground responses: some run, some wait, all others are refused at once.

Two capacities are shared between tenants: the number of runs, and the prompt tokens of all runs
together. A request waits for the first before its conversation is loaded, and for the second when
its prompt is rendered. What follows the first turn of a run needs no further admission.
"""

from __future__ import annotations

import asyncio
from typing import Any

from msgspec import Struct

from antiphon.application.input.submission import ClientLeft
from antiphon.application.support.fair_queue import FairQueue, Place
from antiphon.domain.errors import RequestError, ServerOverloaded


class AdmissionLimits(Struct, frozen=True, kw_only=True):
    """The capacities of a server, and one tenant's share of each.

    `queue_s` is the longest time that a request waits for both capacities together.
    """

    max_runs: int = 256
    max_runs_per_tenant: int = 256
    max_prompt_tokens: int = 4_000_000
    max_prompt_tokens_per_tenant: int = 4_000_000
    max_waiting: int = 1024
    max_waiting_per_tenant: int = 1024
    queue_s: float = 30.0


class Admission:
    """Admits foreground runs, tenant by tenant."""

    def __init__(self, limits: AdmissionLimits) -> None:
        self._limits = limits
        self.runs = FairQueue(
            limits.max_runs,
            per_tenant=limits.max_runs_per_tenant,
            max_waiting=limits.max_waiting_per_tenant,
            max_waiting_in_all=limits.max_waiting,
        )
        # Only requests that have a run wait here, so their number is bounded.
        self.prompt_tokens = FairQueue(
            limits.max_prompt_tokens, per_tenant=limits.max_prompt_tokens_per_tenant
        )

    def enter(
        self, tenant: str, *, priority: int = 0, client_left: ClientLeft | None = None
    ) -> Ticket:
        """Return a context manager that waits until a run of the tenant may start.

        A lower `priority` waits less. The run ends with the block, unless the ticket is handed to a
        task. Entering raises: ConcurrencyLimitExceeded; ServerOverloaded, at once or after
        `queue_s`; RequestError if the client leaves meanwhile.
        """
        return Ticket(self, tenant, priority, self._limits.queue_s, client_left)


class Ticket:
    """The share of this server's capacities that one run holds."""

    def __init__(
        self,
        admission: Admission,
        tenant: str,
        priority: int,
        queue_s: float,
        client_left: ClientLeft | None,
    ) -> None:
        self._admission = admission
        self._tenant = tenant
        self._priority = priority
        self._queue_s = queue_s
        self._deadline = asyncio.get_running_loop().time() + queue_s
        self._client_left = client_left
        self._held: list[tuple[FairQueue, int]] = []
        self._is_handed_over = False

    async def __aenter__(self) -> Ticket:
        await self.acquire(self._admission.runs)
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        if not self._is_handed_over:
            self.release()

    async def admit_prompt(self, tokens: int) -> None:
        """Wait until a prompt of so many tokens fits. Raises: ServerOverloaded, RequestError."""
        queue = self._admission.prompt_tokens
        # A prompt that is longer than the share waits until it is the tenant's only one.
        await self.acquire(queue, min(tokens, queue.per_tenant))

    async def acquire(self, queue: FairQueue, slots: int = 1) -> None:
        if not queue.take(self._tenant, slots):
            place = queue.join(self._tenant, slots, priority=self._priority)
            await self._wait(queue, place)
        self._held.append((queue, slots))

    def hand_over(self, task: asyncio.Task[None]) -> None:
        """Let the run end with this task."""
        self._is_handed_over = True
        task.add_done_callback(self.release)

    def release(self, _task: object = None) -> None:
        while self._held:
            queue, slots = self._held.pop()
            queue.release(self._tenant, slots)

    async def _wait(self, queue: FairQueue, place: Place) -> None:
        left = self._client_left and asyncio.ensure_future(self._client_left())
        waits: list[asyncio.Future[Any]] = [place.turn, left] if left else [place.turn]
        remaining_s = max(0.0, self._deadline - asyncio.get_running_loop().time())
        try:
            await asyncio.wait(waits, timeout=remaining_s, return_when=asyncio.FIRST_COMPLETED)
        except BaseException:
            queue.leave(place)
            raise
        finally:
            if left:
                left.cancel()
        if place.is_taken:
            return
        queue.leave(place)
        if left and left.done():
            raise RequestError("The client disconnected before its response could start.")
        raise ServerOverloaded(
            f"The server is full: the request has waited for {self._queue_s:g} seconds. Try again "
            "later."
        )
