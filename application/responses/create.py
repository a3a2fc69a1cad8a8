"""Create a response: check the request, claim its conversation, prepare the response, start it.

An error that a status code can report is raised here, before anything is sent to the client.
"""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager, nullcontext

from msgspec import Struct
from msgspec.structs import replace

from antiphon.application.input.prompt_templates import ExpandPrompt
from antiphon.application.input.submission import Submission
from antiphon.application.ports import AdmitPrompt
from antiphon.application.resources.conversation_claim import ClaimConversation
from antiphon.application.resources.limits import EnforceLimits, Reservation
from antiphon.application.resources.quotas import CheckQuota, size_of
from antiphon.application.responses.admission import Admission
from antiphon.application.responses.enter_session import Entered, EnterSession
from antiphon.application.responses.prepare import PrepareResponse
from antiphon.application.responses.start import AcceptedResponse, StartResponse
from antiphon.application.runs.active_runs import ActiveRuns
from antiphon.domain.access.service_tiers import (
    highest_tier_of,
    limit_tier,
    priority_of,
    with_tier_of,
)
from antiphon.domain.requests.checks import check_request
from antiphon.domain.requests.request import CreateResponse


class CallerBounds(Struct, frozen=True, kw_only=True):
    """The bounds of a caller: the limits of its key, and the storage of its tenant."""

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
        enter_session: EnterSession,
        prepare: PrepareResponse,
        start: StartResponse,
        runs: ActiveRuns,
        admission: Admission,
    ) -> None:
        self._expand_prompt = expand_prompt
        self._bounds = bounds
        self._claim_conversation = claim_conversation
        self._enter_session = enter_session
        self._prepare = prepare
        self._start = start
        self._runs = runs
        self._admission = admission

    async def __call__(self, submission: Submission) -> AcceptedResponse:
        """Start a run, or queue it. A foreground run first waits for its admission.

        Raises: RequestError, LimitExceeded, ServerOverloaded, ConcurrencyLimitExceeded,
        QuotaExceeded, ServerShuttingDown, EngineDead, StoreError.
        """
        self._runs.check_open()
        caller = submission.caller
        # Only keys have limits.
        reservation = (
            self._bounds.limits.reserve(caller, submission.response_id)
            if caller.key_id
            else nullcontext()
        )
        async with reservation as reserved:
            if submission.request.prompt is not None and not submission.is_expanded:
                expanded = await self._expand_prompt(submission.request)
                submission = replace(submission, request=expanded)
            check_request(submission.request)
            submission = _limit_tier(submission)
            return await self._admit(submission, reserved)

    async def _admit(
        self, submission: Submission, reservation: Reservation | None
    ) -> AcceptedResponse:
        request = submission.request
        if request.background:  # background runs have slots of their own
            return await self._create(submission, reservation)
        admission = self._admission.enter(
            submission.caller.tenant,
            priority=0 if _names_no_tier(request) else priority_of(request),
            client_left=submission.client_left,
        )
        async with admission as ticket:
            self._runs.check_open()
            accepted = await self._create(submission, reservation, admit=ticket.admit_prompt)
            if accepted.task is not None:
                ticket.hand_over(accepted.task)
            return accepted

    async def _create(
        self,
        submission: Submission,
        reservation: Reservation | None,
        *,
        admit: AdmitPrompt | None = None,
    ) -> AcceptedResponse:
        request, tenant = submission.request, submission.caller.tenant
        if self._bounds.check_quota.has_quotas:
            await self._check_quota(submission)
        if submission.session is not None:
            entering: AbstractAsyncContextManager[Entered | None] = self._enter_session(submission)
        elif request.conversation is not None:
            entering = self._claim_conversation(
                request, tenant=tenant, response_id=submission.response_id
            )
        else:
            entering = nullcontext()
        async with entering as entered:
            if entered is not None:
                submission = entered.submission
            prepared = await self._prepare(submission, reservation)
            accepted = await self._start(prepared, admit=admit)
            if prepared.turn.answered_calls:
                await self._prepare.record_denials(prepared)
            return accepted if entered is None else entered.accept(accepted)

    async def _check_quota(self, submission: Submission) -> None:
        """Check whether the tenant may store what the response will. Raises: QuotaExceeded."""
        request = submission.request
        has_conversation = request.conversation_id is not None or submission.session is not None
        if request.store is not False or has_conversation:
            await self._bounds.check_quota(
                submission.caller.tenant,
                responses=int(request.store is not False),
                size=size_of(request),
            )


def _limit_tier(submission: Submission) -> Submission:
    """Return the submission with a tier that its caller may use."""
    request, body = submission.request, submission.body
    if _names_no_tier(request) and submission.caller.policy.service_tier == "default":
        return submission
    limited = limit_tier(request, highest_tier_of(submission.caller))
    if limited is request:
        return submission
    return replace(submission, request=limited, body=body and with_tier_of(limited, body))


def _names_no_tier(request: CreateResponse) -> bool:
    return request.service_tier is None and request.priority is None
