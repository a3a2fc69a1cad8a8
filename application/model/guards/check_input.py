"""Ask guards about what a request sends, before it is read, stored or shown to a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Raw, Struct
from msgspec.structs import replace

from antiphon.application.input.submission import Submission
from antiphon.application.model.guards.ask_guards import ResponseGuards
from antiphon.application.model.guards.texts import texts_in, with_texts
from antiphon.application.ports import Turn
from antiphon.application.support.threads import ITEM_BYTES, run_in_thread
from antiphon.domain.errors import RequestError
from antiphon.domain.items import AnyItem, Item
from antiphon.domain.requests.request import CreateResponse
from antiphon.domain.responses.guards import Refuse, Stop

TEXT_COST = 4
"""Its texts are looked for in JSON that has been decoded for it alone."""


class CheckedInput(Struct, frozen=True, kw_only=True):
    """A submission with what may pass of its texts, and the `texts` that guards have passed."""

    submission: Submission
    texts: frozenset[str] = frozenset()


async def check_input(submission: Submission, guards: ResponseGuards | None) -> CheckedInput:
    """Ask about the request's own texts: as they may pass, they are stored and read.

    If guards refuse them, the submission has their verdict. Raises: GuardFailed; RequestError for a
    prompt of tokens, which no guard can read.
    """
    request = submission.request
    if guards is None or not (guards.ask_at("input") or guards.moderates):
        return CheckedInput(submission=submission)
    if request.raw_prompt is not None and request.raw_prompt.tokens is not None:
        raise RequestError(
            "This server's guards read text: send the prompt as a text, not as tokens.",
            param="raw_prompt",
        )
    size = TEXT_COST * len(submission.body or b"")
    values, texts = await run_in_thread(size, _read_request, request)
    guards.input_texts = texts
    submission = replace(submission, is_moderated=guards.moderates)
    answer = await guards.ask_about_all(texts, "input") if texts else texts
    if isinstance(answer, Refuse | Stop):
        submission = replace(submission, refused=answer)
    elif answer != texts:
        request = await run_in_thread(size, _replace_texts, request, values, answer)
        submission, texts = replace(submission, request=request), list(answer)
    return CheckedInput(submission=submission, texts=frozenset(texts))


async def check_turn(
    checked: CheckedInput, turn: Turn, guards: ResponseGuards | None
) -> tuple[Submission, Turn]:
    """Ask about all that a model would read, if the request brings more than its own texts.

    That is what came before it, in a conversation or another response, and the texts of files. If
    guards replace something of it, the model alone reads the other text. Raises: GuardFailed.
    """
    submission = checked.submission
    if guards is None or submission.refused is not None or not guards.ask_at("input"):
        return submission, turn
    size = ITEM_BYTES * len(turn.items)
    values, texts = await run_in_thread(size, _read_items, turn.items)
    if checked.texts.issuperset(texts):
        return submission, turn
    answer = await guards.ask_about_all(texts, "input")
    if isinstance(answer, Refuse | Stop):
        return replace(submission, refused=answer), turn
    if answer == texts:
        return submission, turn
    items = msgspec.convert(with_texts(values, iter(answer)), list[AnyItem])
    return submission, replace(turn, items=items)


def _read_items(items: Sequence[Item]) -> tuple[Any, list[str]]:
    values = msgspec.to_builtins(items)
    return values, texts_in(values)


def _read_request(request: CreateResponse) -> tuple[dict[str, Any], list[str]]:
    values = _values_of(request)
    return values, texts_in(values)


def _replace_texts(
    request: CreateResponse, values: Mapping[str, Any], texts: Sequence[str]
) -> CreateResponse:
    return _with_values(request, with_texts(values, iter(texts)))


def _values_of(request: CreateResponse) -> dict[str, Any]:
    """Return the parts of a request that a model reads."""
    content = request.input
    return {
        "instructions": request.instructions,
        "input": content
        if content is None or isinstance(content, str)
        else [msgspec.json.decode(item) for item in content],
        "previous_input_messages": msgspec.to_builtins(request.previous_input_messages),
        "raw_prompt": None if request.raw_prompt is None else request.raw_prompt.text,
    }


def _with_values(request: CreateResponse, values: Mapping[str, Any]) -> CreateResponse:
    content, raw_prompt = values["input"], request.raw_prompt
    return replace(
        request,
        instructions=values["instructions"],
        input=tuple([Raw(msgspec.json.encode(item)) for item in content])
        if isinstance(content, list)
        else content,
        previous_input_messages=None
        if values["previous_input_messages"] is None
        else tuple(values["previous_input_messages"]),
        raw_prompt=None if raw_prompt is None else replace(raw_prompt, text=values["raw_prompt"]),
    )
