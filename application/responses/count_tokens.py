"""Count the input tokens of a request, exactly: by the rendering that a run would use."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from antiphon.application.input.prompt_templates import ExpandPrompt
from antiphon.application.runs.prepare_turn import PrepareTurn
from antiphon.domain.checks import check_conversation
from antiphon.domain.request import CreateResponse


class TokenCount(Struct, frozen=True, kw_only=True):
    """`ignored` are the paths of what a response to the same request would not heed."""

    tokens: int
    ignored: Sequence[str]


class CountTokens:
    """`POST /v1/responses/input_tokens`; nothing is created."""

    def __init__(self, expand_prompt: ExpandPrompt, prepare_turn: PrepareTurn) -> None:
        self._expand_prompt = expand_prompt
        self._prepare_turn = prepare_turn

    async def __call__(
        self, request: CreateResponse, *, tenant: str, strict: bool = False
    ) -> TokenCount:
        """Count; without a model, the first one does.

        Raises: RequestError, if `strict` also for what would have no effect.
        """
        request = await self._expand_prompt(request)
        check_conversation(request)
        prepared = await self._prepare_turn(request, tenant=tenant, strict=strict)
        return TokenCount(
            tokens=await prepared.model.count(prepared.turn),
            ignored=prepared.ignored,
        )
