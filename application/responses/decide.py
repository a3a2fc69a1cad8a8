"""Answer questions about an input with the probabilities of a model: `POST /v1/decisions`."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager

from msgspec import Struct
from msgspec.structs import replace

from antiphon.application.input.submission import ClientLeft, Submission
from antiphon.application.model.guards.ask_guards import STOPPED, Guards
from antiphon.application.model.models import Models
from antiphon.application.ports import Model, NewId, Turn, Weights
from antiphon.application.resources.limits import EnforceLimits
from antiphon.application.responses.admission import Admission
from antiphon.application.runs.active_runs import ActiveRuns
from antiphon.application.runs.prepare_turn import PreparedTurn, PrepareTurn, prepare_guarded
from antiphon.application.support.tasks import all_of
from antiphon.application.telemetry.recorder import RunRecorder
from antiphon.application.telemetry.request_context import RequestContext
from antiphon.domain.access.callers import Caller
from antiphon.domain.access.limits import LimitState
from antiphon.domain.errors import RequestError
from antiphon.domain.requests import decisions as d
from antiphon.domain.responses.guards import Refuse
from antiphon.domain.responses.usage import TurnUsage

NO_REASONING = "none"


class DecisionRequest(Struct, frozen=True, kw_only=True):
    """A decision with its sender, and the way it came; see `Submission`."""

    caller: Caller
    decision: d.NewDecision
    context: RequestContext
    strict: bool = False
    ignored: Sequence[str] = ()
    client_left: ClientLeft | None = None


class MadeDecision(Struct, frozen=True, kw_only=True):
    """The answers, the paths of fields without effect, and what the caller's key has used."""

    decision: d.Decision
    ignored: Sequence[str]
    rate_limits: Sequence[LimitState]


class Decide:
    """Asks a model each question as the end of one conversation, so that its engine computes what
    the questions share once. A request takes one run's place, however many questions it has."""

    def __init__(
        self,
        models: Models,
        prepare_turn: PrepareTurn,
        limits: EnforceLimits,
        admission: Admission,
        runs: ActiveRuns,
        *,
        new_id: NewId,
        guards: Guards | None = None,
    ) -> None:
        self._models = models
        self._prepare_turn = prepare_turn
        self._limits = limits
        self._admission = admission
        self._runs = runs
        self._new_id = new_id
        self._guards = guards or Guards()

    async def __call__(self, request: DecisionRequest) -> MadeDecision:
        """Answer all questions, or none.

        Raises: RequestError, LimitExceeded, ServerOverloaded, ConcurrencyLimitExceeded,
        ServerShuttingDown, EngineDead, EngineError.
        """
        self._runs.check_open()
        caller, decision = request.caller, request.decision
        d.check_decision(decision)
        request_id = self._new_id("decision")
        async with self._limits.reserve(caller, request_id) as reservation:
            admission = self._admission.enter(caller.tenant, client_left=request.client_left)
            async with admission as ticket:
                model = self._models.allowed_by(caller.policy).get(decision.model)
                options = [len(d.options_of(question)) for question in decision.questions]
                labels = await model.labels(max(options))
                prepared = await self._prepare(request, request_id, labels)
                turns = list(_turns(prepared, len(options)))
                # The other prompts differ from it by no more than their questions do.
                tokens = await model.count(turns[0])

                async def count() -> int:
                    return tokens * len(turns)

                await reservation.reserve_tokens(count)
                await ticket.admit_prompt(tokens * min(model.weighs_at_once, len(turns)))
                asked = [labels[:count] for count in options]
                async with _watching(request.client_left) as check_client:
                    weights = await _weigh(model, turns, asked, request_id, check_client)
        used = [each.usage for each in weights]
        if reservation.charge is not None:
            await self._limits.settle(reservation.charge, caller.tenant, request_id, used)
        return MadeDecision(
            decision=_decision_of(decision, weights, used),
            ignored=prepared.ignored,
            rate_limits=reservation.states,
        )

    async def _prepare(
        self, request: DecisionRequest, request_id: str, labels: Sequence[str]
    ) -> PreparedTurn:
        """Return the turn with all questions. Raises: RequestError, also if guards refuse it."""
        submission = Submission(
            caller=request.caller,
            request=d.request_of(request.decision, labels),
            context=request.context,
            strict=request.strict,
            ignored=request.ignored,
        )
        guards = self._guards.open(
            request.caller,
            response_id=request_id,
            model=request.decision.model,
            recorder=RunRecorder(),
        )
        submission, prepared = await prepare_guarded(self._prepare_turn, submission, guards)
        if (refused := submission.refused) is not None:
            message = refused.message if isinstance(refused, Refuse) else STOPPED
            raise RequestError(message, param="input", code="content_filter")
        return prepared


def _turns(prepared: PreparedTurn, questions: int) -> Iterator[Turn]:
    """Yield a turn for each of the messages at the end, after all that is before them."""
    model, turn = prepared.model, prepared.turn
    before, asked = turn.items[:-questions], turn.items[-questions:]
    for question in asked:
        yield replace(
            turn,
            items=[*before, question],
            effort=NO_REASONING if NO_REASONING in model.efforts else turn.effort,
            begins_answer=True,
        )


@asynccontextmanager
async def _watching(client_left: ClientLeft | None) -> AsyncIterator[Callable[[], None]]:
    """Yield a function that raises RequestError if the client has left."""
    left = client_left and asyncio.ensure_future(client_left())

    def check() -> None:
        if left and left.done():
            raise RequestError("The client disconnected before all questions were answered.")

    try:
        yield check
    finally:
        if left:
            left.cancel()


async def _weigh(
    model: Model,
    turns: Sequence[Turn],
    labels: Sequence[Sequence[str]],
    request_id: str,
    check_client: Callable[[], None],
) -> Sequence[Weights]:
    """Ask all questions: one alone, since its run computes what all share, then the others."""
    found: dict[int, Weights] = {}

    async def ask(numbers: Iterator[int]) -> None:
        for number in numbers:
            check_client()
            found[number] = await model.weigh(
                turns[number], labels[number], request_id=f"{request_id}_{number}"
            )

    numbers = iter(range(len(turns)))
    await ask(iter((next(numbers),)))
    await all_of(ask(numbers) for _ in range(min(model.weighs_at_once, len(turns) - 1)))
    return [found[number] for number in range(len(turns))]


def _decision_of(
    decision: d.NewDecision, weights: Sequence[Weights], used: Sequence[TurnUsage]
) -> d.Decision:
    input_tokens = sum(each.input for each in used)
    output_tokens = sum(each.output for each in used)
    return d.Decision(
        model=decision.model,
        answers=[
            d.answer_of(question, each.logs)
            for question, each in zip(decision.questions, weights, strict=True)
        ],
        usage=d.DecisionUsage(
            input_tokens=input_tokens,
            input_tokens_details=d.DecisionInputDetails(
                cached_tokens=sum(each.cached for each in used)
            ),
            output_tokens=output_tokens,
            total_tokens=input_tokens + output_tokens,
        ),
    )
