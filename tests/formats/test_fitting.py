"""Conversations are written for templates with rules, and no text is lost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.adapters.formats.fitting import (
    ALTERNATING,
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
    calls_as_text,
    in_order,
    write_as_json,
)
from antiphon.adapters.formats.role_rules import find_fittings
from antiphon.domain.errors import RequestError
from antiphon.domain.json import Json

ALL = (
    INSTRUCTIONS_AS_USER,
    LATER_INSTRUCTIONS_AS_USER,
    *calls_as_text(write_as_json),
    *EMPTY_RESULTS,
    *USER_FIRST,
    JOINED_USERS,
    JOINED_ANSWERS,
    *SEPARATE_ANSWERS,
    *ANSWERED_RESULTS,
    USERS_IN_RESULTS,
)


def said(role: str, text: str) -> Json:
    return {"role": role, "content": text}


def call(number: int, text: str = "") -> Json:
    function = {"name": "look", "arguments": {"at": f"call{number}"}}
    calls = [{"id": f"id{number}", "type": "function", "function": function}]
    return {"role": "assistant", "content": text, "tool_calls": calls}


def result(number: int, text: str) -> Json:
    return {"role": "tool", "tool_call_id": f"id{number}", "name": "look", "content": text}


SYSTEM, USER, ANSWER = said("system", "a"), said("user", "b"), said("assistant", "c")

EXAMPLES: Sequence[tuple[Fitting, list[Json], list[Json]]] = [
    (
        INSTRUCTIONS_AS_USER,
        [SYSTEM, USER],
        [said("user", "a"), USER],
    ),
    (
        LATER_INSTRUCTIONS_AS_USER,
        [SYSTEM, USER, said("system", "d")],
        [SYSTEM, USER, said("user", "Instructions:\n\nd")],
    ),
    (
        calls_as_text(write_as_json)[0],
        [call(1, "I look."), result(1, "d")],
        [
            said("assistant", 'I look.\n\n{"name": "look", "arguments": {"at": "call1"}}'),
            result(1, "d"),
        ],
    ),
    (EMPTY_RESULTS[1], [USER, call(1), USER], [USER, call(1), result(1, "…"), USER]),
    (EMPTY_RESULTS[1], [USER, call(1)], [USER, call(1), result(1, "…")]),
    (USER_FIRST[0], [SYSTEM, call(1)], [SYSTEM, said("user", ""), call(1)]),
    (USER_FIRST[0], [SYSTEM], [SYSTEM, said("user", "")]),
    (JOINED_USERS, [USER, said("user", "d"), ANSWER], [said("user", "b\n\nd"), ANSWER]),
    (
        JOINED_USERS,
        [USER, {"role": "user", "content": [{"type": "image"}]}],
        [{"role": "user", "content": [{"type": "text", "text": "b"}, {"type": "image"}]}],
    ),
    (JOINED_ANSWERS, [ANSWER, said("assistant", "d")], [said("assistant", "c\n\nd")]),
    (JOINED_ANSWERS, [ANSWER, call(1)], [ANSWER, call(1)]),
    (SEPARATE_ANSWERS[1], [ANSWER, call(1)], [ANSWER, said("user", "…"), call(1)]),
    (
        ANSWERED_RESULTS[0],
        [call(1), result(1, "d"), USER],
        [call(1), result(1, "d"), said("assistant", ""), USER],
    ),
    (
        USERS_IN_RESULTS,
        [call(1), result(1, "d"), USER],
        [call(1), result(1, "d\n\nThe user says:\n\nb")],
    ),
]


@pytest.mark.parametrize(("fitting", "messages", "fitted"), EXAMPLES)
def test_a_fitting_keeps_a_rule(fitting: Fitting, messages: list[Json], fitted: list[Json]) -> None:
    assert Fittings([fitting]).apply(messages) == (fitted, [fitting.name] * (messages != fitted))
    assert Fittings([fitting]).apply(fitted) == (fitted, [])


@st.composite
def conversations(draw: st.DrawFn) -> list[Json]:
    kinds = draw(st.lists(st.sampled_from(["system", "user", "assistant", "call", "tool"])))
    found: list[Json] = []
    for place, kind in enumerate(kinds):
        number = draw(st.integers(0, 3))
        match kind:
            case "call":
                found.append(call(place, f"t{place}." if number else ""))
            case "tool":
                found.append(result(max(0, place - number), f"t{place}."))
            case role:
                found.append(said(role, f"t{place}."))
    return found


def texts_of(messages: Sequence[Json]) -> str:
    calls = [each for m in messages for each in m.get("tool_calls", ())]
    written = "".join(str(each["function"]["arguments"]) for each in calls)
    return "\n".join(str(message["content"]) for message in messages) + written


@given(messages=conversations(), chosen=st.sets(st.sampled_from(range(len(ALL)))))
def test_no_text_is_lost_doubled_or_moved(messages: list[Json], chosen: set[int]) -> None:
    fitted, _ = Fittings(in_order([ALL[number] for number in sorted(chosen)])).apply(messages)
    written = texts_of(fitted)
    places = [written.index(f"t{n}.") for n, m in enumerate(messages) if m["content"]]
    assert places == sorted(places)
    assert all(written.count(f"t{n}.") == 1 for n, m in enumerate(messages) if m["content"])
    for number, message in enumerate(messages):
        if message.get("tool_calls"):
            assert written.count(f"call{number}'") + written.count(f'call{number}"') == 1


@given(messages=conversations())
def test_roles_take_turns_where_they_must(messages: list[Json]) -> None:
    fitted, _ = ALTERNATING.apply(messages)
    roles = [message["role"] for message in fitted]
    assert "system" not in roles[1:]
    spoken = [role for role in roles[roles[:1] == ["system"] :] if role != "tool"]
    assert spoken[:1] in ([], ["user"])
    assert ("user", "user") not in pairwise(spoken)
    answered = {message.get("tool_call_id") for message in fitted}
    assert all(each["id"] in answered for m in fitted for each in m.get("tool_calls", ()))


# --- finding them ---------------------------------------------------------------------------------

REFUSAL = "That is not how we talk."


def write(messages: Sequence[Json], _tools: Sequence[Json]) -> str:
    """Write a prompt as a template without rules does."""
    return "".join(f"[{message['role']}]{texts_of([message])}" for message in messages)


def refuse_if(is_wrong: Callable[[list[str]], bool]) -> Callable[..., str]:
    def render(messages: Sequence[Json], tools: Sequence[Json]) -> str:
        if is_wrong([message["role"] for message in messages]):
            raise RequestError(REFUSAL)
        return write(messages, tools)

    return render


def drop_if(is_dropped: Callable[[int, Json], bool]) -> Callable[..., str]:
    def render(messages: Sequence[Json], tools: Sequence[Json]) -> str:
        kept = [each for number, each in enumerate(messages) if not is_dropped(number, each)]
        return write(kept, tools)

    return render


TEMPLATES: dict[str, tuple[Callable[..., str], list[str]]] = {
    "no rules": (write, []),
    "refuses instructions": (refuse_if(lambda r: "system" in r), ["instructions_as_user"]),
    "drops instructions": (drop_if(lambda _, m: m["role"] == "system"), ["instructions_as_user"]),
    "drops later instructions": (
        drop_if(lambda n, m: n > 0 and m["role"] == "system"),
        ["later_instructions_as_user"],
    ),
    "refuses two users": (refuse_if(lambda r: ("user", "user") in pairwise(r)), ["joined_users"]),
    "refuses a user after a result": (
        refuse_if(lambda r: ("tool", "user") in pairwise(r)),
        ["answered_results"],
    ),
    "refuses to begin without a user": (
        refuse_if(lambda r: "user" not in r[:2]),
        ["user_first"],
    ),
    "drops calls": (
        lambda messages, tools: write([{**m, "tool_calls": []} for m in messages], tools),
        ["calls_as_text"],
    ),
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_template_gets_what_it_needs_and_nothing_else(name: str) -> None:
    render, expected = TEMPLATES[name]
    found = find_fittings(render)
    assert [fitting.name for fitting in found.needed] == expected
    assert found.unmet == []
    words = REFUSAL if name.startswith("refuses") else ""
    assert found.refusals == dict.fromkeys(expected, words)


def test_what_nothing_helps_to_show_is_named() -> None:
    found = find_fittings(refuse_if(lambda _: True))
    assert found.needed == []
    assert "instructions" in found.unmet
