"""Programs in a conversation: which of them have not ended, and what their calls came to.

A program that waits is nothing but its items: the program, its calls and their outputs. Whoever has
those can repeat it up to where it waits, and go on (docs/decisions/0152).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from antiphon.domain import items as i
from antiphon.domain.content import InputText, OutputText
from antiphon.domain.history.agents import agent_of
from antiphon.domain.history.conversation import (
    UNFINISHED,
    pair_outputs_with_calls,
    view_of,
)
from antiphon.domain.history.nested_calls import caller_of, nested_calls
from antiphon.domain.kinds import CALL_KINDS
from antiphon.domain.kinds.mcp import error_text
from antiphon.domain.kinds.multi_agent import ROOT
from antiphon.domain.vocabulary.kind import TextArguments
from antiphon.domain.vocabulary.shown import Call, JsonBody, Result, View
from antiphon.domain.vocabulary.tool import ToolSpec, parse_arguments
from antiphon.domain.vocabulary.typed_call import ClientTool

NOT_ENDED = "The call was stopped before its result arrived. It was not repeated."
NO_OUTPUT = "The client sent no output of this call."
DENIED = "The user did not approve this call."
CHANGED = (
    "Error: the program could not go on. When it was repeated, it made another call than before: "
    "{made}, not {recorded}."
)
MAX_SHOWN_CHARS = 200


class ProgramCall(Struct, frozen=True):
    """A call that a program makes: the name of the tool, and the arguments as JSON text."""

    name: str
    arguments: str


class CallOutcome(Struct, frozen=True):
    """The outcome of a call: a text or, with `is_json`, a value as JSON text.

    With `is_error`, the call throws an error with the text as its message.
    """

    text: str
    is_json: bool = False
    is_error: bool = False


class NestedCall(Struct, frozen=True):
    """A call of a program that is in the conversation; without an `outcome`, it waits for one."""

    call: Call
    outcome: CallOutcome | None


class NewCall(Struct, frozen=True):
    """A call to make: of the tool, with the input as its kind of call has it."""

    tool: ToolSpec
    input: str


class MatchedCalls(Struct, frozen=True):
    """The calls of one step of a program, matched with those that are recorded.

    `outcomes` are in their order, as far as they are known; `waits` says that one is not. `new` are
    the calls that are not recorded yet, `recorded` is how many are. `mismatch` says why the program
    cannot go on.
    """

    outcomes: Sequence[CallOutcome] = ()
    new: Sequence[NewCall] = ()
    recorded: int = 0
    waits: bool = False
    mismatch: str | None = None


def extend_prompt(items: Sequence[i.AnyItem], new_items: Sequence[i.AnyItem]) -> list[i.AnyItem]:
    """Return the items that a model is shown, with new ones.

    It is not shown the calls of programs. The output of a program of an earlier response follows
    its program: what the client has said since comes after it.
    """
    nested = nested_calls(new_items)
    pairs = pair_outputs_with_calls(new_items) if nested else {}
    programs = {item.call_id: item for item in items if isinstance(item, i.Program)}
    shown = list(items)
    for position, item in enumerate(new_items):
        if position in nested or pairs.get(position) in nested:
            continue
        program = programs.get(item.call_id) if isinstance(item, i.ProgramOutput) else None
        place = len(shown) if program is None else shown.index(program) + 1
        shown.insert(place, item)
    return shown


def items_of_programs(conversation: Sequence[i.AnyItem]) -> list[i.AnyItem]:
    """Return the items that say how far the programs of a conversation are, in their order."""
    if not any(isinstance(item, i.Program) for item in conversation):
        return []
    nested = nested_calls(conversation)
    pairs = pair_outputs_with_calls(conversation)
    kinds = (i.Program, i.ProgramOutput, i.McpApprovalResponse)
    return [
        item
        for position, item in enumerate(conversation)
        if isinstance(item, kinds) or position in nested or pairs.get(position) in nested
    ]


def open_programs(
    conversation: Sequence[i.AnyItem], first_new: int, agent: str = ROOT
) -> list[i.Program]:
    """Return the programs of an agent without an output that are to run, in their order.

    Those are the ones from `first_new` on, and earlier ones that have made a call. An earlier one
    that has not was cut off, with the response that it was in.
    """
    programs = {
        item.call_id: (position, item)
        for position, item in enumerate(conversation)
        if isinstance(item, i.Program) and (agent_of(item) or ROOT) == agent
    }
    if not programs:
        return []
    for item in conversation:
        if isinstance(item, i.ProgramOutput):
            programs.pop(item.call_id, None)
    callers = set(map(caller_of, conversation))
    return [
        program
        for position, program in programs.values()
        if position >= first_new or program.call_id in callers
    ]


def was_stopped(program: i.Program, earlier: Sequence[i.AnyItem]) -> bool:
    """Return whether an earlier response ended, as by a cancellation, while the program ran.

    Then the last call that the program made is one of the server's, and has not ended.
    """
    calls = [at for at, caller in nested_calls(earlier).items() if caller == program.call_id]
    if not calls or i.waits_for_client(earlier[calls[-1]]):
        return False
    answer: i.Item | None = earlier[calls[-1]]
    if i.kind_of(earlier[calls[-1]]).answered_by is not None:
        pairs = pair_outputs_with_calls(earlier)
        outputs = (earlier[output] for output, call in pairs.items() if call == calls[-1])
        answer = next(outputs, None)
    return answer is None or getattr(answer, "status", None) in UNFINISHED


def recorded_calls(
    program: i.Program,
    earlier: Sequence[i.AnyItem],
    output: Sequence[i.AnyItem],
    tools: Sequence[ToolSpec],
    *,
    after: int = 0,
) -> list[NestedCall]:
    """Return the calls that the conversation has of a program, in their order, `after` so many.

    Those of the `earlier` items that are still not answered never will be: an approval that the
    client did not give counts as denied. Those of this response's `output` wait.
    """
    conversation = [*earlier, *output]
    view = view_of(conversation, tools)
    pairs = pair_outputs_with_calls(conversation)
    outputs = {call: conversation[output] for output, call in pairs.items()}
    approved: dict[object, i.McpCall] = {
        item.approval_request_id: item
        for item in conversation
        if isinstance(item, i.McpCall) and item.approval_request_id
    }
    reasons: dict[object, str] = {
        item.approval_request_id: item.reason or ""
        for item in earlier
        if isinstance(item, i.McpApprovalResponse) and not item.approve
    }
    schemas = {tool.name: tool.output_schema for tool in tools}
    recorded: list[NestedCall] = []
    positions = [
        position
        for position, caller_id in nested_calls(conversation).items()
        if caller_id == program.call_id and not _answers_request(conversation[position])
    ]
    for position in positions[after:]:
        item: Any = conversation[position]
        show = i.kind_of(item).shown.call
        assert show is not None, "only calls are nested"
        call = show(item, view)
        answer: Any = outputs.get(position, item)
        if isinstance(item, i.McpApprovalRequest):
            answer = approved.get(item.id)
        elif i.waits_for_client(item) and position not in outputs:
            answer = None
        outcome: CallOutcome | None = None
        if answer is not None:
            has_schema = schemas.get(call.name) is not None
            outcome = _outcome_of(answer, view, has_schema=has_schema)
        elif position < len(earlier):
            is_approval = isinstance(item, i.McpApprovalRequest)
            why = f"{DENIED} {reasons.get(item.id, '')}".strip() if is_approval else NO_OUTPUT
            outcome = CallOutcome(why, is_error=True)
        recorded.append(NestedCall(call, outcome))
    return recorded


def _answers_request(item: i.Item) -> bool:
    """Return whether the call was approved first: it is the outcome of that request."""
    return isinstance(item, i.McpCall) and bool(item.approval_request_id)


def match_calls(
    calls: Sequence[ProgramCall], recorded: Sequence[NestedCall], tools: Sequence[ToolSpec]
) -> MatchedCalls:
    """Match the calls of a program's step with what is recorded since its last step.

    A call that could never be made has an error as its outcome, and is never recorded.
    """
    by_name = {tool.name: tool for tool in tools}
    outcomes: list[CallOutcome] = []
    new: list[NewCall] = []
    waits = False
    remaining = iter(recorded)
    count = 0
    for call in calls:
        made = _check(call, by_name)
        if isinstance(made, CallOutcome):
            if not waits:
                outcomes.append(made)
            continue
        known = None if new else next(remaining, None)
        count += known is not None
        if known is None:
            new.append(made)
            waits = True
        elif not _is_same(made, known.call):
            return MatchedCalls(mismatch=_mismatch(_show(made.tool.name, made.input), known))
        elif known.outcome is None:
            waits = True
        elif not waits:
            outcomes.append(known.outcome)
    return MatchedCalls(outcomes=outcomes, new=new, recorded=count, waits=waits)


def ended_early(known: NestedCall) -> str:
    """Return why a program cannot have ended: a call that it has made before is left."""
    return _mismatch("none", known)


def _mismatch(made: str, known: NestedCall) -> str:
    return CHANGED.format(made=made, recorded=_show(known.call.name, known.call.text))


def _check(call: ProgramCall, tools: Mapping[str, ToolSpec]) -> NewCall | CallOutcome:
    """Return the call as it can be made, or the error with which it ends."""
    tool = tools.get(call.name)
    if tool is None:
        return CallOutcome(f"Programs cannot call {call.name}.", is_error=True)
    arguments = CALL_KINDS[tool.kind].arguments
    try:
        value = msgspec.json.decode(call.arguments)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return CallOutcome(f"{call.name}: the arguments are not valid JSON.", is_error=True)
    if isinstance(arguments, TextArguments):
        text = value.get(arguments.property) if isinstance(value, dict) else value
        if isinstance(text, str):
            return NewCall(tool, text)
        return CallOutcome(f"{call.name}: the input must be a string.", is_error=True)
    if not isinstance(value, dict):
        return CallOutcome(f"{call.name}: the input must be an object.", is_error=True)
    if isinstance(arguments, ClientTool) and arguments.fields_of(call.arguments) is None:
        return CallOutcome(
            f"{call.name}: the input does not follow the tool's schema.", is_error=True
        )
    return NewCall(tool, call.arguments)


def _is_same(made: NewCall, recorded: Call) -> bool:
    if made.tool.name != recorded.name:
        return False
    arguments = CALL_KINDS[made.tool.kind].arguments
    if isinstance(arguments, TextArguments):
        return made.input == recorded.text
    texts = [made.input, recorded.text]
    if isinstance(arguments, ClientTool):
        texts = [arguments.normalize(text) or text for text in texts]
    return parse_arguments(texts[0]) == parse_arguments(texts[1])


def _show(name: str, arguments: str) -> str:
    is_long = len(arguments) > MAX_SHOWN_CHARS
    return f"{name}({arguments[:MAX_SHOWN_CHARS]}{'…' if is_long else ''})"


def _outcome_of(answer: Any, view: View, *, has_schema: bool) -> CallOutcome:
    """Return the outcome that an item holds: a call that this server ran, or an output."""
    show = i.kind_of(answer).shown.result
    if show is None or getattr(answer, "status", None) == "in_progress":
        return CallOutcome(NOT_ENDED, is_error=True)
    result: Result = show(answer, view)
    is_error = result.is_error or getattr(answer, "status", None) in ("failed", "incomplete")
    match result.body:
        case None if result.status:
            return CallOutcome(result.status, is_error=is_error)
        case None:
            return CallOutcome(NOT_ENDED, is_error=True)
        case JsonBody(value) if is_error:
            return CallOutcome(error_text(value), is_error=True)
        case JsonBody(value):
            return CallOutcome(_to_json(value), is_json=True)
        case str(text):
            return CallOutcome(
                text, is_json=not is_error and _is_json(text, has_schema), is_error=is_error
            )
        case parts:
            if all(isinstance(part, InputText | OutputText) for part in parts):
                text = "\n".join(getattr(part, "text") for part in parts)  # noqa: B009
                return CallOutcome(
                    text, is_json=not is_error and _is_json(text, has_schema), is_error=is_error
                )
            return CallOutcome(_to_json(parts), is_json=not is_error, is_error=is_error)


def _is_json(text: str, has_schema: bool) -> bool:
    """Return whether a text is a JSON value that programs get as such.

    An object and an array are one. Another value is only one if the tool has an `output_schema`: a
    program could not tell the number 12 from the text.
    """
    if not has_schema and not text.lstrip().startswith(("{", "[")):
        return False
    try:
        msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return False
    return True


def _to_json(value: Any) -> str:
    return msgspec.json.encode(value).decode()
