"""Find the rules of a template about roles, and how to keep them.

A system message only at the beginning, users and assistants in turns, a question in every
conversation: what breaks a template's rule is refused, or left out without a word. A client does
not know the model's rules, and has done nothing wrong. So samples are rendered when the model
starts, and each conversation is rewritten as far as its template needs it: all its texts are in the
prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from msgspec import Struct

from antiphon.adapters.formats.fitting import (
    ANSWERED_RESULTS,
    EMPTY_RESULTS,
    INSTRUCTIONS_AS_USER,
    JOINED_ANSWERS,
    JOINED_USERS,
    LATER_INSTRUCTIONS_AS_USER,
    SEPARATE_ANSWERS,
    USER_FIRST,
    USERS_IN_RESULTS,
    Fitting,
    Fittings,
    WriteCall,
    calls_as_text,
    in_order,
    write_as_json,
)
from antiphon.domain.errors import RequestError
from antiphon.domain.json import Json

Render = Callable[[Sequence[Json], Sequence[Json]], str]
"""Returns the prompt of chat messages and tools. Raises: RequestError if the template refuses."""

Sample = Sequence[Json]
"""Chat messages, each of whose texts is a word that no template writes."""

SAMPLE_NAME = "find_place"
SAMPLE_TOOL: Json = {
    "type": "function",
    "function": {
        "name": SAMPLE_NAME,
        "description": "Finds a place.",
        "parameters": {
            "type": "object",
            "properties": {"at": {"type": "string", "description": "Its name."}},
            "required": ["at"],
        },
    },
}


class RoleRule(Struct, frozen=True):
    """A rule that templates may have: conversations that break it, and ways to keep it."""

    name: str
    samples: Sequence[Sample]
    ways: Sequence[Fitting]


def find_fittings(render: Render, *, write_call: WriteCall = write_as_json) -> Fittings:
    """Return what a template needs: for each of its rules, the first way to keep it.

    `write_call` is for a template that shows no calls.
    """
    needed: list[Fitting] = []
    unmet: list[str] = []
    refusals: dict[str, str] = {}
    for rule in role_rules(write_call):
        samples = [each for each in rule.samples if _may_ask(render, each, needed)]
        if _keeps(render, samples, needed):
            continue
        candidates = ([*needed, way] for way in rule.ways)
        better = next((each for each in candidates if _keeps(render, samples, each)), None)
        refusal = _refusal(render, samples, needed)
        if better is None:
            unmet.append(rule.name)
        else:
            needed = better
        refusals[better[-1].name if better else rule.name] = refusal
    return Fittings(in_order(needed), unmet, refusals)


def _may_ask(render: Render, sample: Sample, fittings: Sequence[Fitting]) -> bool:
    """Return whether conversations have this form: only some templates show a text with a call."""
    if not any("tool_calls" in message and message["content"] for message in sample):
        return True
    return _keeps(render, [[USER, TEXT_AND_CALL, RESULT]], fittings)


def _keeps(render: Render, samples: Sequence[Sample], fittings: Sequence[Fitting]) -> bool:
    return all(_shows_all(render, sample, fittings) for sample in samples)


def _shows_all(render: Render, sample: Sample, fittings: Sequence[Fitting]) -> bool:
    """Whether the prompt has the sample's words once and in order.

    Some templates write leading instructions elsewhere.
    """
    prompt, _ = _render(render, sample, fittings)
    words = list(_words_of(sample))
    if not all(prompt.count(word) == 1 for word in words):
        return False
    places = [prompt.index(word) for word in words[sample[0]["role"] == "system" :]]
    return places == sorted(places)


def _refusal(render: Render, samples: Sequence[Sample], fittings: Sequence[Fitting]) -> str:
    """Return what the template says of the first sample that it refuses, "" if it refuses none."""
    refusals = (_render(render, sample, fittings)[1] for sample in samples)
    return next(filter(None, refusals), "")


def _render(render: Render, sample: Sample, fittings: Sequence[Fitting]) -> tuple[str, str]:
    """Return the prompt, or why there is none.

    Some templates are for conversations with tools alone, others for those without.
    """
    messages, _ = Fittings(in_order(fittings)).apply(sample)
    has_calls = any(message["role"] == "tool" or "tool_calls" in message for message in sample)
    refusal = ""
    for tools in ([SAMPLE_TOOL], []) if has_calls else ([], [SAMPLE_TOOL]):
        try:
            return render(messages, tools), ""
        except RequestError as error:
            refusal = refusal or error.message
    return "", refusal


def _words_of(sample: Sample) -> Iterator[str]:
    for message in sample:
        if message["content"]:
            yield message["content"]
        for call in message.get("tool_calls", ()):
            yield call["function"]["arguments"]["at"]


# --- samples --------------------------------------------------------------------------------------


def _message(role: str, word: str) -> Json:
    return {"role": role, "content": word}


def _call(word: str, number: int = 1, *, text: str = "") -> Json:
    function = {"name": SAMPLE_NAME, "arguments": {"at": word}}
    call = {"id": f"abcdefgh{number}", "type": "function", "function": function}
    return {"role": "assistant", "content": text, "tool_calls": [call]}


def _result(word: str, number: int = 1) -> Json:
    result = {"role": "tool", "tool_call_id": f"abcdefgh{number}", "name": SAMPLE_NAME}
    return result | {"content": word}


SYSTEM, USER = _message("system", "w0amber"), _message("user", "w1birch")
ANSWER, LATER_ANSWER = _message("assistant", "w2cedar"), _message("assistant", "w3dogwood")
NOTE, LATER_USER = _message("system", "w4elder"), _message("user", "w5fir")
CALL, RESULT = _call("w6gorse"), _result("w7hazel")
TEXT_AND_CALL = _call("w6gorse", text="w6aspen")
LAST_NOTE, LAST_USER = _message("system", "w8juniper"), _message("user", "w8larch")
LAST_ANSWER = _message("assistant", "w8maple")
LAST_CALL, LAST_RESULT = _call("w9oak", 2), _result("w9pine", 2)


def role_rules(write_call: WriteCall) -> Sequence[RoleRule]:
    """Return the rules in the order in which they are asked for: a later one may need an earlier.

    `write_call` is as for `find_fittings`.
    """
    return (
        RoleRule("two messages of a user", [[USER, LATER_USER]], [JOINED_USERS]),
        RoleRule("a call and its result", [[USER, CALL, RESULT]], calls_as_text(write_call)),
        RoleRule(
            "instructions",
            [[SYSTEM, USER], [SYSTEM, USER, ANSWER, LATER_USER], [SYSTEM, USER, CALL, RESULT]],
            [INSTRUCTIONS_AS_USER],
        ),
        RoleRule(
            "two messages of the assistant",
            [[USER, ANSWER, LATER_ANSWER, LAST_USER]],
            [JOINED_ANSWERS, *SEPARATE_ANSWERS],
        ),
        RoleRule(
            "a message before a call",
            [
                [USER, ANSWER, CALL, RESULT],
                [USER, ANSWER, CALL, RESULT, LAST_ANSWER],
                [USER, ANSWER, TEXT_AND_CALL, RESULT, LAST_ANSWER],
            ],
            SEPARATE_ANSWERS,
        ),
        RoleRule(
            "no user at the beginning",
            [[ANSWER, LATER_USER], [SYSTEM], [SYSTEM, CALL, RESULT], [CALL, RESULT]],
            USER_FIRST,
        ),
        RoleRule(
            "a user after a result",
            [
                [USER, CALL, RESULT, LAST_USER],
                [USER, CALL, RESULT, LAST_USER, LAST_CALL, LAST_RESULT],
            ],
            [*ANSWERED_RESULTS, USERS_IN_RESULTS],
        ),
        RoleRule(
            "later instructions",
            [
                [SYSTEM, USER, ANSWER, NOTE, LATER_USER],
                [USER, NOTE],
                [USER, CALL, RESULT, LAST_NOTE],
            ],
            [LATER_INSTRUCTIONS_AS_USER],
        ),
        RoleRule("a call without a result", [[USER, CALL, LAST_USER]], EMPTY_RESULTS),
    )
