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
from antiphon.application.resources.quotas import CheckQuota, size_of
from antiphon.application.responses.prepare import PrepareResponse
from antiphon.application.responses.start import AcceptedResponse, StartResponse
from antiphon.application.runs.active_runs import ActiveRuns
from antiphon.domain.callers import Caller
from antiphon.domain.checks import check_request
from antiphon.domain.request import CreateResponse


class CreateResponseService:
    """`POST /v1/responses`. With or without streaming, the client's answer comes from the run's
    event log."""

    def __init__(
        self,
        expand_prompt: ExpandPrompt,
        check_quota: CheckQuota,
        claim_conversation: ClaimConversation,
        prepare: PrepareResponse,
        start: StartResponse,
        runs: ActiveRuns,
        limits: EnforceLimits,
        *,
        new_id: NewId,
    ) -> None:
        self._expand_prompt = expand_prompt
        self._check_quota = check_quota
        self._claim_conversation = claim_conversation
        self._prepare = prepare
        self._start = start
        self._runs = runs
        self._limits = limits
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
    ) -> AcceptedResponse:
        """Start a run, or queue it.

        `body` is the request as it arrived: without it, only this server can start the run.
        `remembered` holds the unstored responses that the caller keeps. `response_id` is a new id
        by default. `idempotency_key` belongs to a stored response: other requests with that key
        return it, so it continues when its client leaves, like a background response.
        `strict` refuses fields that would have no effect.

        Raises: RequestError, LimitExceeded, TooManyRequests, QueueFull, QuotaExceeded,
        ServerShuttingDown, EngineDead, StoreError.
        """
        self._runs.check_open()
        tenant, response_id = caller.tenant, response_id or self._new_id("resp")
        async with (
            self._limits.admit(caller, response_id) as admission,
            self._claim(request, tenant, response_id) as request,
        ):
            prepared = await self._prepare(
                request,
                response_id,
                caller=caller,
                admission=admission,
                body=body,
                trace_headers=trace_headers,
                remembered=remembered,
                idempotency_key=idempotency_key,
                strict=strict,
            )
            return await self._start(prepared)

    @asynccontextmanager
    async def _claim(
        self, request: CreateResponse, tenant: str, response_id: str
    ) -> AsyncIterator[CreateResponse]:
        """Check the request, claim its conversation, and yield it with its prompt template.

        An exception in the block releases the conversation.
        """
        request = await self._expand_prompt(request)
        check_request(request)
        if request.store is not False or request.conversation_id is not None:
            size = size_of(request)
            await self._check_quota(tenant, responses=int(request.store is not False), size=size)
        async with self._claim_conversation(request, tenant=tenant, response_id=response_id):
            yield request
