"""Prepare a response: the model's input, the initial Response and the turns to run."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial

from msgspec import Struct

from antiphon.application.input.from_request import response_of
from antiphon.application.input.items import to_new_stored_items, to_stored_item
from antiphon.application.input.submission import Submission
from antiphon.application.ports import Clock, NewId, StoredItem
from antiphon.application.progress.run_progress import RunProgress
from antiphon.application.resources.limits import Reservation, RunCharge
from antiphon.application.runs.diagnose_cache import digest_of_extras, digest_of_salt
from antiphon.application.runs.jobs import Jobs
from antiphon.application.runs.plan_turns import PlanTurns
from antiphon.application.runs.prepare_turn import (
    PreparedTurn,
    PrepareTurn,
    prepare_guarded,
)
from antiphon.application.runs.turns import Turns
from antiphon.application.support.threads import ITEM_BYTES, run_in_thread
from antiphon.application.telemetry.recorder import RunRecorder
from antiphon.application.tools.approvals import ApprovalAnswers
from antiphon.domain.access.limits import LimitState
from antiphon.domain.errors import AlreadyAnswered, StoreError
from antiphon.domain.history.conversation import Entry
from antiphon.domain.offers import mcp
from antiphon.domain.responses.preview import preview_of_input
from antiphon.domain.responses.response import Response

logger = logging.getLogger("antiphon.requests")


class PreparedResponse(Struct, frozen=True, kw_only=True):
    """A checked request and its initial Response; no turn is admitted yet.

    `input` holds the request's own items if they are stored or remembered. `job` is None if only
    this server can start the run. `charge` is what the run has reserved of its key's limits, and
    `rate_limits` what the key has used. `is_durable`: the events are in the store, from which any
    server can go on, and sub-agents can read them.
    """

    submission: Submission
    turn: PreparedTurn
    response: Response
    turns: Turns
    recorder: RunRecorder
    input: Sequence[StoredItem] = ()
    job: bytes | None = None
    charge: RunCharge | None = None
    rate_limits: Sequence[LimitState] = ()
    is_durable: bool = False

    @property
    def id(self) -> str:
        return self.response.id

    @property
    def tenant(self) -> str:
        return self.submission.caller.tenant

    @property
    def shown_items(self) -> list[StoredItem]:
        """All items that the model is shown."""
        return [*map(to_stored_item, self.turn.history), *self.input]


def outlives_client(submission: Submission) -> bool:
    """Return whether the run continues when its client leaves."""
    return submission.idempotency_key is not None or bool(submission.request.background)


class PrepareResponse:
    """Turns a checked request into a response that can be started.

    `can_resume`: another server may go on with the run, so what it reads is recorded.
    """

    def __init__(
        self,
        prepare_turn: PrepareTurn,
        plan_turns: PlanTurns,
        jobs: Jobs,
        answers: ApprovalAnswers,
        *,
        can_resume: bool,
        owner: str,
        new_id: NewId,
        now: Clock,
    ) -> None:
        self._prepare_turn = prepare_turn
        self._plan_turns = plan_turns
        self._jobs = jobs
        self._answers = answers
        self._can_resume = can_resume
        self._owner = owner
        self._new_id = new_id
        self._now = now

    async def __call__(
        self, submission: Submission, reservation: Reservation | None
    ) -> PreparedResponse:
        """Return the prepared response. Raises: RequestError, LimitExceeded, StoreError."""
        request, body, caller = submission.request, submission.body, submission.caller
        recorder = RunRecorder.of_request(
            submission.context, caller, server=self._owner, background=bool(request.background)
        )
        is_durable = outlives_client(submission) or submission.agent_name is not None
        if is_durable and body and self._can_resume:
            recorder.progress = RunProgress()
        guards = self._plan_turns.open_guards(submission, recorder)
        if guards is None:
            turn = await self._prepare_turn(submission)
        else:
            submission, turn = await prepare_guarded(self._prepare_turn, submission, guards)
            request = submission.request
        recorder.digest_prompt(
            salt=digest_of_salt(request, turn.turn), extras=digest_of_extras(request)
        )
        if turn.answered_calls:
            await self._check_answers(submission, turn)
        response = response_of(
            request,
            turn.offer,
            turn.model,
            response_id=submission.response_id,
            created_at=int(self._now()),
            removed=turn.removed,
            cleared=turn.cleared,
        )
        if response.store:
            recorder.preview = preview_of_input([entry.item for entry in turn.input])
        turns = await self._plan_turns(submission, turn, recorder, guards=guards)
        charge = None
        if reservation is not None:
            # The very turn that starts: a model need not render a prompt again that it has counted.
            await reservation.reserve_tokens(partial(turn.model.count, turns.first))
            charge = reservation.charge
        needs_input = (
            response.store or response.conversation is not None or submission.remembered is not None
        )
        return PreparedResponse(
            submission=submission,
            turn=turn,
            response=response,
            turns=turns,
            recorder=recorder,
            input=await self._to_stored(turn.input) if needs_input else (),
            job=await self._jobs.write(
                caller,
                body,
                charge,
                submission.agent,
                takes_outputs=submission.injections is not None,
            )
            if is_durable and body
            else None,
            charge=charge,
            rate_limits=() if reservation is None else reservation.states,
            is_durable=is_durable,
        )

    async def _check_answers(self, submission: Submission, turn: PreparedTurn) -> None:
        """Refuse to answer a request again. Raises: AlreadyAnswered.

        Of two requests at the same time, both may pass: the run that is second does not call.
        """
        ids = mcp.ids_of(turn.own_answers)
        found = await self._answers.find(submission.caller.tenant, ids)
        for request_id, response_id in found.items():
            if response_id != submission.response_id:
                raise AlreadyAnswered(request_id, response_id)

    async def record_denials(self, prepared: PreparedResponse) -> None:
        """Remember what the request of a started response has denied; never raises.

        What it has approved is remembered before it is called.
        """
        ids = mcp.ids_of(call for call in prepared.turn.own_answers if not call.is_approved)
        if not ids:
            return
        try:
            await self._answers.use(prepared.tenant, prepared.id, ids)
        except StoreError:
            logger.exception("response %s: its denials are not remembered", prepared.id)

    async def _to_stored(self, entries: Sequence[Entry]) -> Sequence[StoredItem]:
        size = len(entries) * ITEM_BYTES
        return await run_in_thread(size, to_new_stored_items, entries, self._new_id)
