"""Count the input tokens of a request exactly, with the rendering that a run would use."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from antiphon.application.input.prompt_templates import ExpandPrompt
from antiphon.application.input.submission import Submission
from antiphon.application.resources.limits import EnforceLimits
from antiphon.application.responses.enter_session import EnterSession
from antiphon.application.runs.prepare_turn import PrepareTurn
from antiphon.domain.access.limits import LimitState
from antiphon.domain.history.tool_uses import ClearedToolUses
from antiphon.domain.requests.checks import check_conversation


class TokenCount(Struct, frozen=True, kw_only=True):
    """`cleared` says what is not shown to the model, to make room, and so not counted. `ignored`
    lists the paths of the request's fields that have no effect here; `rate_limits` is what the
    caller's key has used.
    """

    tokens: int
    cleared: ClearedToolUses | None = None
    ignored: Sequence[str]
    rate_limits: Sequence[LimitState] = ()


class CountTokens:
    """`POST /v1/responses/input_tokens`. It creates nothing."""

    def __init__(
        self,
        expand_prompt: ExpandPrompt,
        enter_session: EnterSession,
        prepare_turn: PrepareTurn,
        limits: EnforceLimits,
    ) -> None:
        self._limits = limits
        self._enter_session = enter_session
        self._expand_prompt = expand_prompt
        self._prepare_turn = prepare_turn

    async def __call__(self, submission: Submission) -> TokenCount:
        """Count for the request's model, or for the first one.

        Raises: LimitExceeded, RequestError.
        """
        async with self._limits.reserve(submission.caller) as reservation:
            request = await self._expand_prompt(submission.request)
            check_conversation(request)
            submission = replace(submission, request=request)
            if submission.session is not None:
                submission = (await self._enter_session.look(submission)).submission
            prepared = await self._prepare_turn(submission)
            return TokenCount(
                tokens=await prepared.model.count(prepared.turn),
                cleared=prepared.cleared,
                ignored=(*prepared.ignored, *prepared.model.ignored_fields(prepared.turn)),
                rate_limits=reservation.states,
            )
