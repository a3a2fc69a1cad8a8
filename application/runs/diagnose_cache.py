"""Diagnose the prompt cache: compare a response's prompt with that of an earlier response
(docs/reference/api.md#prompt-cache-diagnostics).

No prompt is stored for this, so requests that compare nothing pay nothing. The earlier prompt is
rendered again from what the store has of its response, for the time and the model that it had. If
no trace has its tokens, it counts only if it has as many as were counted then.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import takewhile
from typing import Any

import msgspec
from msgspec import UNSET, Struct
from msgspec.structs import replace

from antiphon.application.input.from_request import with_verbosity
from antiphon.application.input.items import to_stored_item
from antiphon.application.input.submission import Submission
from antiphon.application.ports import Model, ModelTurn, RenderedTurn, ResponseStore, Turn
from antiphon.application.runs.prepare_turn import PreparedTurn, PrepareTurn
from antiphon.application.support.fair_queue import FairQueue
from antiphon.application.support.lru_cache import digest_of
from antiphon.application.support.threads import ITEM_BYTES, run_in_thread
from antiphon.application.telemetry.run_trace import KeepTraces
from antiphon.domain.errors import AntiphonError, NotFound, RequestError
from antiphon.domain.history import conversation as c
from antiphon.domain.items import AnyItem, Compaction, McpCall, McpListTools
from antiphon.domain.requests.request import (
    AnyFormat,
    CreateResponse,
    ReasoningParams,
    TextParams,
)
from antiphon.domain.responses.cache_diagnostics import (
    CacheDiagnostics,
    CacheHit,
    CacheMiss,
    ComparisonResponseNotFound,
    DiagnosticsUnavailable,
    MissReason,
    Part,
    PromptComparison,
    PromptParts,
    changed_parts,
    first_other_image,
    has_other_cache,
    reason_of,
)
from antiphon.domain.responses.metrics import MODEL_TURNS, TurnMetrics
from antiphon.domain.responses.response import Response
from antiphon.domain.responses.traces import PrefixComparison, compare_prefix

logger = logging.getLogger("antiphon.runs")

TIMEOUT_S = 10.0
"""The response has been written: its end waits no longer than this."""

MAX_DIAGNOSES, MAX_DIAGNOSES_OF_TENANT = 8, 2
"""At a time: each of them holds a history and some prompts."""

ANSWERS = frozenset({"answer", "warm_up"})
"""The kinds of turns whose prompts are compared."""

NOT_ENDED = "The other response has not ended, or its model never ran."
NO_TOKENS = "The model's server is sent texts: only it knows their tokens."
OTHER_PROMPT = (
    "The other prompt cannot be made again: it had {recorded} tokens, and would have {rendered} "
    "now. The store may lack a part of it, or the server's settings have changed."
)
OTHER_EXTRAS = (
    "One of the requests had another 'chat_template_kwargs', 'previous_input_messages' or "
    "'raw_prompt'. Responses do not keep these."
)
OTHER_IMAGE = "An image is another one, and the prompt cannot be made without it."
TOO_SLOW = "The comparison took too long."


class Diagnosis(Struct, frozen=True, kw_only=True):
    """The diagnostics that the client is shown, and the comparison for the record."""

    diagnostics: CacheDiagnostics
    comparison: PromptComparison


class _Unavailable(Exception):
    """The prompts cannot be compared; the message says why."""


class _Prompt(Struct, frozen=True, kw_only=True):
    """A prompt, the turn that it renders, and the model that can render it again."""

    model: Model
    turn: Turn
    parts: PromptParts


class DiagnoseCache:
    """Says of a response's first answer what the cache could have from an earlier response."""

    def __init__(
        self,
        prepare_turn: PrepareTurn,
        store: ResponseStore,
        traces: KeepTraces | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        self._prepare_turn = prepare_turn
        self._store = store
        self._traces = traces
        self._timeout_s = timeout_s
        self._slots = FairQueue(MAX_DIAGNOSES, per_tenant=MAX_DIAGNOSES_OF_TENANT)

    async def __call__(
        self, submission: Submission, prepared: PreparedTurn, turn: ModelTurn, *, compacts: bool
    ) -> Diagnosis:
        """Compare the prompt of `turn`. Never raises: the response matters more.

        `compacts`: the response has compacted its conversation before.
        """
        response_id = submission.request.comparison_response_id or ""
        try:
            async with (
                asyncio.timeout(self._timeout_s),
                self._slots.slot(submission.caller.tenant),
            ):
                compared = await self._find(submission.caller.tenant, response_id)
                if compared is None:
                    return _without_tokens(response_id, ComparisonResponseNotFound())
                return await self._diagnose(compared, submission, prepared, turn, compacts)
        except _Unavailable as error:
            return _without_tokens(response_id, DiagnosticsUnavailable(), str(error))
        except TimeoutError:
            return _without_tokens(response_id, DiagnosticsUnavailable(), TOO_SLOW)
        except AntiphonError as error:
            logger.info("the prompt of %s cannot be made again: %s", response_id, error)
            return _without_tokens(response_id, DiagnosticsUnavailable(), str(error))
        except Exception:
            logger.exception("the prompt of %s cannot be compared", response_id)
            return _without_tokens(response_id, DiagnosticsUnavailable(), "An error of the server.")

    async def _diagnose(
        self,
        compared: Response,
        submission: Submission,
        prepared: PreparedTurn,
        model_turn: ModelTurn,
        compacts: bool,
    ) -> Diagnosis:
        transcript = model_turn.transcript()
        if transcript is None or not transcript.prompt_token_ids:
            raise _Unavailable(NO_TOKENS)
        request, shown = submission.request, transcript.turn
        compactions = _compactions_in(prepared.conversation)
        now = _Prompt(
            model=prepared.model,
            turn=shown,
            parts=_parts_of(
                shown,
                transcript.prompt_token_ids,
                request,
                salt=digest_of_salt(request, shown),
                dropped=0 if compacts else len(prepared.turn.items) - len(shown.items),
                compactions=compactions | {"its own"} if compacts else compactions,
            ),
        )
        answer, usage_index = _first_answer(compared)
        metrics = compared.metrics
        salt, extras = ("", "") if metrics is UNSET else (metrics.cache_salt, metrics.prompt_extras)
        before = PromptParts(model=answer.model or compared.model, token_ids=(), salt=salt)
        if reason := has_other_cache(before, now.parts):
            nothing = PrefixComparison(
                previous_response_id=compared.id,
                parent_tokens=_input_tokens_of(compared, usage_index),
                prompt_tokens=len(now.parts.token_ids),
                shared_tokens=0,
                differs_at=0,
            )
            return _miss(nothing, reason, _field_of(reason))
        if extras != digest_of_extras(request):
            raise _Unavailable(OTHER_EXTRAS)
        earlier = await self._render_again(submission, compared, answer, usage_index)
        return await _diagnose(compared.id, earlier, now)

    async def _find(self, tenant: str, response_id: str) -> Response | None:
        try:
            return await self._store.get_response(tenant, response_id)
        except NotFound:
            return None

    async def _render_again(
        self, submission: Submission, compared: Response, answer: TurnMetrics, usage_index: int
    ) -> _Prompt:
        """Return the prompt of the answer. Raises: _Unavailable, RequestError, NotFound."""
        request = _request_of(submission.request, compared)
        first_output = _output_before_answer(compared)
        output = [to_stored_item(c.entry(item)) for item in first_output]
        is_compacted = bool(first_output) and isinstance(first_output[0], Compaction)
        items = (
            []
            if is_compacted
            else await self._store.list_input_items(submission.caller.tenant, compared.id)
        )
        remembered = {**(submission.remembered or {}), compared.id: [*items, *output]}
        prepared = await self._prepare_turn(
            replace(submission, request=request, remembered=remembered, strict=False)
        )
        turn = replace(
            prepared.turn,
            model=answer.model or compared.model,
            rendered_at=answer.started_at,
        )
        rendered = await prepared.model.render(turn)
        if rendered is None:
            raise _Unavailable(NO_TOKENS)
        token_ids = await self._traced_tokens(submission.caller.tenant, compared.id)
        if not token_ids:
            token_ids, recorded = rendered.token_ids, _input_tokens_of(compared, usage_index)
            if recorded != len(token_ids):
                raise _Unavailable(OTHER_PROMPT.format(recorded=recorded, rendered=len(token_ids)))
        return _Prompt(
            model=prepared.model,
            turn=rendered.turn,
            parts=_parts_of(
                rendered.turn,
                token_ids,
                request,
                salt="",
                dropped=len(prepared.turn.items) - len(rendered.turn.items),
                compactions=_compactions_in(prepared.conversation),
            ),
        )

    async def _traced_tokens(self, tenant: str, response_id: str) -> Sequence[int]:
        """Return the prompt's tokens if a trace has them, else none."""
        trace = None if self._traces is None else await self._traces.load(tenant, response_id)
        turns = () if trace is None else trace.turns
        return next((turn.prompt_token_ids for turn in turns if turn.kind in ANSWERS), ())


def is_answer(turn: ModelTurn) -> bool:
    """Return whether the turn is one whose prompt is compared."""
    return turn.facts().kind in ANSWERS


async def _diagnose(response_id: str, before: _Prompt, now: _Prompt) -> Diagnosis:
    """Compare two prompts of one model."""
    tokens = before.parts.token_ids
    prefix = compare_prefix(response_id, tokens, now.parts.token_ids)
    size = ITEM_BYTES * len(before.parts.items)
    image = await run_in_thread(size, first_other_image, before.parts, now.parts)
    if image is not None:
        index, items_without_it = image
        at = await _shared_with(now.parts.token_ids, now, items=items_without_it)
        if at is None:
            raise _Unavailable(OTHER_IMAGE)
        if at < prefix.shared_tokens:
            prefix = replace(prefix, shared_tokens=at, differs_at=at)
            return _miss(prefix, "input_changed", f"input[{index}]")
    is_hit = prefix.shared_tokens == min(prefix.parent_tokens, prefix.prompt_tokens)
    parts = [] if is_hit else changed_parts(before.parts, now.parts)
    undone = {
        part: await _shared_with(tokens, now, **_undo([part], before, now)) or 0 for part in parts
    }
    all_undone = 0
    if len(parts) > 1:
        all_undone = await _shared_with(tokens, now, **_undo(parts, before, now)) or 0
    find = partial(reason_of, undone=undone, all_undone=all_undone)
    found = await run_in_thread(size, find, before.parts, now.parts, prefix)
    if found is not None:
        return _miss(prefix, *found)
    comparison = PromptComparison(
        response_id=response_id,
        result="cache_hit",
        compared_tokens=prefix.parent_tokens,
        prompt_tokens=prefix.prompt_tokens,
        shared_tokens=prefix.shared_tokens,
    )
    return Diagnosis(diagnostics=CacheHit(), comparison=comparison)


async def _shared_with(token_ids: Sequence[int], now: _Prompt, **changes: Any) -> int | None:
    """Return how many of the tokens the prompt would begin with if its turn were changed; None if
    it could not be."""
    turn = replace(now.turn, truncate=False, **changes)
    try:
        rendered: RenderedTurn | None = await now.model.render(turn)
    except RequestError:  # the items may need the new tools, or be too long with the old ones
        return None
    tokens = () if rendered is None else rendered.token_ids
    return compare_prefix("", token_ids, tokens).shared_tokens


def _undo(parts: Sequence[Part], before: _Prompt, now: _Prompt) -> Mapping[str, Any]:
    """Return the fields of the turn with these parts as they were before."""
    changes: dict[str, Any] = {}
    if "tools" in parts:
        changes |= {"tools": before.turn.tools, "choice": before.turn.choice}
    if "text.format" in parts:
        changes["text"] = replace(now.turn.text, format=before.turn.text.format)
    if "reasoning.effort" in parts:
        changes["effort"] = before.turn.effort
    instructions = before if "instructions" in parts else now
    verbosity = before if "text.verbosity" in parts else now
    changes["instructions"] = with_verbosity(
        instructions.parts.instructions, verbosity.parts.verbosity
    )
    return changes


def _miss(prefix: PrefixComparison, reason: MissReason, part: str) -> Diagnosis:
    shared = prefix.shared_tokens
    return Diagnosis(
        diagnostics=CacheMiss(
            reason=reason,
            cache_missed_tokens=prefix.prompt_tokens - shared,
            comparison_reusable_tokens=shared,
        ),
        comparison=PromptComparison(
            response_id=prefix.previous_response_id,
            result="cache_miss",
            reason=reason,
            part=part,
            compared_tokens=prefix.parent_tokens,
            prompt_tokens=prefix.prompt_tokens,
            shared_tokens=shared,
            differs_at=shared,
        ),
    )


def _without_tokens(
    response_id: str, diagnostics: CacheDiagnostics, unavailable: str = ""
) -> Diagnosis:
    result = str(type(diagnostics).__struct_config__.tag)
    comparison = PromptComparison(response_id=response_id, result=result, unavailable=unavailable)
    return Diagnosis(diagnostics=diagnostics, comparison=comparison)


def _field_of(reason: MissReason) -> str:
    return "model" if reason == "model_changed" else "cache_salt"


# --- what a stored response tells of its prompt ---------------------------------------------------


def _request_of(request: CreateResponse, compared: Response) -> CreateResponse:
    """Return a request for the prompt of `compared`; the extras are those of `request`."""
    context = compared.reasoning.context
    return replace(
        request,
        model=compared.model,
        input=(),
        previous_response_id=compared.id,
        conversation=None,
        context_management=None,
        prompt=None,
        instructions=compared.instructions,
        tools=compared.tools or None,
        tool_choice=None if compared.tool_choice == "auto" else compared.tool_choice,
        parallel_tool_calls=compared.parallel_tool_calls,
        max_output_tokens=compared.max_output_tokens,
        truncation=msgspec.convert(compared.truncation, type=Any),
        text=TextParams(
            format=msgspec.convert(compared.text.format, AnyFormat),
            verbosity=msgspec.convert(compared.text.verbosity, Any),
        ),
        reasoning=ReasoningParams(
            effort=msgspec.convert(compared.reasoning.effort, Any),
            context=None if context is UNSET else msgspec.convert(context, Any),
        ),
    )


def _first_answer(compared: Response) -> tuple[TurnMetrics, int]:
    """Return the record of the first answer, and the place of its tokens in `usage_per_turn`.

    Raises: _Unavailable.
    """
    turns = () if compared.metrics is UNSET else compared.metrics.turns
    index = 0
    for turn in turns:
        if turn.kind in ANSWERS and turn.input_tokens:
            return turn, index
        index += turn.kind in MODEL_TURNS
    raise _Unavailable(NOT_ENDED)


def _input_tokens_of(compared: Response, usage_index: int) -> int:
    if compared.usage_per_turn is not UNSET:
        return compared.usage_per_turn[usage_index].input_tokens
    return 0 if compared.usage is None else compared.usage.input_tokens


def _output_before_answer(compared: Response) -> Sequence[AnyItem]:
    """Return the items that were there before the model's first answer."""

    def is_before(item: AnyItem) -> bool:
        if isinstance(item, McpCall):
            return item.approval_request_id is not None
        return isinstance(item, Compaction | McpListTools)

    return list(takewhile(is_before, compared.output))


def _compactions_in(conversation: Iterable[AnyItem]) -> frozenset[str]:
    return frozenset(
        item.encrypted_content for item in conversation if isinstance(item, Compaction)
    )


def digest_of_salt(request: CreateResponse, turn: Turn) -> str:
    """Return a digest of the salt, "" if the client named none."""
    if request.cache_salt is None or turn.cache_salt is None:
        return ""
    return digest_of(turn.cache_salt.encode()).hex()


def digest_of_extras(request: CreateResponse) -> str:
    """Return a digest of the fields that change the prompt and are not echoed, "" without any."""
    extras = (request.chat_template_kwargs, request.previous_input_messages, request.raw_prompt)
    if not any(extras):
        return ""
    return digest_of(repr(extras).encode("utf-8", "backslashreplace")).hex()


def _parts_of(
    turn: Turn,
    token_ids: Sequence[int],
    request: CreateResponse,
    *,
    salt: str,
    dropped: int,
    compactions: frozenset[str],
) -> PromptParts:
    text = request.text or TextParams()
    return PromptParts(
        model=turn.model,
        token_ids=token_ids,
        salt=salt,
        tools=turn.tools,
        choice=turn.choice,
        text_format=turn.text.format,
        effort=turn.effort,
        verbosity=text.verbosity or "medium",
        instructions=request.instructions,
        items=turn.items,
        dropped=dropped,
        compactions=compactions,
    )
