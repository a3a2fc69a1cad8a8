"""Create a response: check the request, claim its conversation, prepare the response, start it.

An error that a status code can report is raised here, before anything is sent to the client.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

from antiphon.application.input.history import Remembered
from antiphon.application.input.prompt_templates import ExpandPrompt
from antiphon.application.ports import NewId
from antiphon.application.resources.conversation_claim import ClaimConversation
from antiphon.application.resources.limits import EnforceLimits
from antiphon.application.responses.admission import Admission, ClientLeft, Ticket
from antiphon.application.responses.prepare import PrepareResponse
from antiphon.application.responses.start import AcceptedResponse, StartResponse
from antiphon.application.runs.active_runs import ActiveRuns
from antiphon.domain.callers import Caller
from antiphon.domain.checks import check_request
from antiphon.domain.request import CreateResponse
from antiphon.domain.service_tiers import highest_tier_of, limit_tier, priority_of, with_tier_of


class CreateResponseService:
    """`POST /v1/responses`. With or without streaming, the client's answer comes from the run's
    event log."""

    def __init__(
        self,
        expand_prompt: ExpandPrompt,
        claim_conversation: ClaimConversation,
        prepare: PrepareResponse,
        start: StartResponse,
        runs: ActiveRuns,
        limits: EnforceLimits,
        admission: Admission,
        *,
        new_id: NewId,
    ) -> None:
        self._expand_prompt = expand_prompt
        self._claim_conversation = claim_conversation
        self._prepare = prepare
        self._start = start
        self._runs = runs
        self._limits = limits
        self._admission = admission
        self._new_id = new_id

    async def __call__(
        self,
        request: CreateResponse,
        *,
        caller: Caller,
        body: bytes | None = None,
        trace_headers: Mapping[str, str] | None = None,
        remembered: Remembered | None = None,
        response_id: str | None = None,
        idempotency_key: str | None = None,
        strict: bool = False,
        client_left: ClientLeft | None = None,
    ) -> AcceptedResponse:
        """Start a run, or queue it. A foreground run first waits for its admission.

        `body` is the request as it arrived: without it, only this server can start the run.
        `remembered` holds the unstored responses that the caller keeps. `response_id` is a new id
        by default. `idempotency_key` belongs to a stored response: other requests with that key
        return it, so it continues when its client leaves, like a background response.
        `strict` refuses fields that would have no effect. `client_left` returns when the client has
        left, which ends the wait.

        Raises: RequestError, LimitExceeded, TooManyRequests, QueueFull, QuotaExceeded,
        ServerShuttingDown, EngineDead, StoreError.
        """
        self._runs.check_open()
        response_id = response_id or self._new_id("resp")
        async with self._limits.admit(caller, response_id) as reservation:
            request = await self._expand_prompt(request)
            check_request(request)
            limited_request = limit_tier(request, highest_tier_of(caller))
            if limited_request is not request:
                request = limited_request
                body = body and with_tier_of(request, body)
            async with (
                self._queue(request, caller.tenant, client_left) as ticket,
                self._claim_conversation(request, tenant=caller.tenant, response_id=response_id),
            ):
                prepared = await self._prepare(
                    request,
                    response_id,
                    caller=caller,
                    reservation=reservation,
                    body=body,
                    trace_headers=trace_headers,
                    remembered=remembered,
                    idempotency_key=idempotency_key,
                    strict=strict,
                )
                if ticket is None:
                    return await self._start(prepared)
                accepted = await self._start(prepared, admit=ticket.admit_prompt)
                if accepted.task is not None:
                    ticket.hand_over(accepted.task)
                return accepted

    @asynccontextmanager
    async def _queue(
        self, request: CreateResponse, tenant: str, client_left: ClientLeft | None
    ) -> AsyncIterator[Ticket | None]:
        """Wait until the run may start. Background runs have slots of their own, and no ticket."""
        if request.background:
            yield None
            return
        admission = self._admission.enter(
            tenant, priority=priority_of(request), client_left=client_left
        )
        async with admission as ticket:
            self._runs.check_open()
            yield ticket
