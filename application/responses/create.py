"""Create a response: check the request, claim its conversation, prepare the response, start it.

An error that a status code can report is raised here, before anything is sent to the client.
"""

from __future__ import annotations

from contextlib import nullcontext

from msgspec import Struct

from antiphon.application.input.history import Remembered
from antiphon.application.input.prompt_templates import ExpandPrompt
from antiphon.application.ports import NewId
from antiphon.application.resources.conversation_claim import ClaimConversation
from antiphon.application.resources.limits import EnforceLimits
from antiphon.application.resources.quotas import CheckQuota, size_of
from antiphon.application.responses.admission import Admission, ClientLeft
from antiphon.application.responses.prepare import PrepareResponse
from antiphon.application.responses.start import AcceptedResponse, StartResponse
from antiphon.application.runs.active_runs import ActiveRuns
from antiphon.application.telemetry.request_context import NO_CONTEXT, RequestContext
from antiphon.domain.callers import Caller
from antiphon.domain.checks import check_request
from antiphon.domain.request import CreateResponse
from antiphon.domain.service_tiers import highest_tier_of, limit_tier, priority_of, with_tier_of


class CallerBounds(Struct, frozen=True, kw_only=True):
    """What a caller may use: the limits of its key, and the storage of its tenant."""

    limits: EnforceLimits
    check_quota: CheckQuota


class CreateResponseService:
    """`POST /v1/responses`. With or without streaming, the client's answer comes from the run's
    event log."""

    def __init__(
        self,
        expand_prompt: ExpandPrompt,
        bounds: CallerBounds,
        claim_conversation: ClaimConversation,
        prepare: PrepareResponse,
        start: StartResponse,
        runs: ActiveRuns,
        admission: Admission,
        *,
        new_id: NewId,
    ) -> None:
        self._expand_prompt = expand_prompt
        self._bounds = bounds
        self._claim_conversation = claim_conversation
        self._prepare = prepare
        self._start = start
        self._runs = runs
        self._admission = admission
        self._new_id = new_id

    async def __call__(
        self,
        request: CreateResponse,
        *,
        caller: Caller,
        body: bytes | None = None,
        context: RequestContext = NO_CONTEXT,
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
        async with self._bounds.limits.reserve(caller, response_id) as reservation:
            request = await self._expand_prompt(request)
            check_request(request)
            limited_request = limit_tier(request, highest_tier_of(caller))
            if limited_request is not request:
                request = limited_request
                body = body and with_tier_of(request, body)
            # Background runs have slots of their own.
            admission = (
                nullcontext()
                if request.background
                else self._admission.enter(
                    caller.tenant, priority=priority_of(request), client_left=client_left
                )
            )
            async with admission as ticket:
                self._runs.check_open()
                await self._check_quota(request, caller.tenant)
                async with self._claim_conversation(
                    request, tenant=caller.tenant, response_id=response_id
                ):
                    prepared = await self._prepare(
                        request,
                        response_id,
                        caller=caller,
                        reservation=reservation,
                        body=body,
                        context=context,
                        remembered=remembered,
                        idempotency_key=idempotency_key,
                        strict=strict,
                    )
                    accepted = await self._start(
                        prepared, admit=None if ticket is None else ticket.admit_prompt
                    )
                if ticket is not None and accepted.task is not None:
                    ticket.hand_over(accepted.task)
                return accepted

    async def _check_quota(self, request: CreateResponse, tenant: str) -> None:
        """Check whether the tenant may store what the response will. Raises: QuotaExceeded."""
        if request.store is not False or request.conversation_id is not None:
            size = size_of(request)
            await self._bounds.check_quota(
                tenant, responses=int(request.store is not False), size=size
            )
