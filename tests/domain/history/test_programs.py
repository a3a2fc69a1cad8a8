"""Programs in a conversation: which go on, and what their calls came to."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.domain import items as i
from antiphon.domain.history.conversation import items_for_model
from antiphon.domain.history.programs import (
    CallOutcome,
    ProgramCall,
    ended_early,
    extend_prompt,
    items_of_programs,
    match_calls,
    open_programs,
    recorded_calls,
    was_stopped,
)
from antiphon.domain.vocabulary.tool import ToolSpec

Json = dict[str, Any]

TOOLS = [
    ToolSpec(name="find"),
    ToolSpec(name="count", output_schema={"type": "integer"}),
    ToolSpec(name="speak", kind="custom"),
    ToolSpec(name="apply_patch", kind="apply_patch"),
]
PROGRAM = i.Program(id="prg_1", call_id="p", code="…", fingerprint="f")
ENDED = i.ProgramOutput(id="prgo_1", call_id="p", result="7", status="completed")
QUESTION = i.Message(role="user", content="Go.")
BY_PROGRAM: Json = {"type": "program", "caller_id": "p"}


def call(number: int, name: str = "find", arguments: str = "{}", **fields: Any) -> i.FunctionCall:
    return i.FunctionCall(
        id=f"fc_{number}",
        status="completed",
        call_id=f"c{number}",
        name=name,
        arguments=arguments,
        **{"caller": BY_PROGRAM, **fields},
    )


def output(number: int, text: str = "ok") -> i.FunctionCallOutput:
    return i.FunctionCallOutput(call_id=f"c{number}", output=text)


def mcp_call(status: str = "completed", **fields: Any) -> i.McpCall:
    return i.McpCall(
        id="mcp_1", status=status, server_label="s", name="f", arguments="{}", **fields
    )


NAMES = st.sampled_from(["find", "count", "nope"])
ARGUMENTS = st.dictionaries(st.sampled_from("ab"), st.integers(), max_size=2).map(json.dumps)


@given(
    calls=st.lists(st.builds(ProgramCall, NAMES, ARGUMENTS), max_size=6),
    cut=st.integers(0, 6),
    answered=st.integers(0, 6),
)
def test_what_is_recorded_is_not_made_again_wherever_the_record_ends(
    calls: list[ProgramCall], cut: int, answered: int
) -> None:
    possible = [each for each in calls if each.name != "nope"]
    items: list[Any] = [PROGRAM]
    for number, each in enumerate(possible[:cut]):
        items.append(call(number, each.name, each.arguments))
    items += [output(number, f'"{number}"') for number in range(min(answered, len(items) - 1))]
    matched = match_calls(calls, recorded_calls(PROGRAM, (), items, TOOLS), TOOLS)
    assert matched.mismatch is None
    assert [ProgramCall(new.tool.name, new.input) for new in matched.new] == possible[cut:]
    assert matched.waits == (min(cut, answered) < len(possible))
    if not matched.waits:
        errors = [outcome for outcome in matched.outcomes if outcome.is_error]
        assert len(errors) == len(calls) - len(possible)
        assert len(matched.outcomes) == len(calls)


@pytest.mark.parametrize(
    ("made", "recorded", "is_same"),
    [
        (ProgramCall("find", '{"a":1,"b":2}'), call(1, arguments='{"b": 2, "a": 1}'), True),
        (ProgramCall("find", '{"a":1}'), call(1, arguments='{"a": 2}'), False),
        (ProgramCall("count", "{}"), call(1), False),
        (
            ProgramCall("speak", '"Hi."'),
            i.CustomToolCall(call_id="c1", name="speak", input="Hi.", caller=BY_PROGRAM),
            True,
        ),
        (
            ProgramCall("speak", '"Hi."'),
            i.CustomToolCall(call_id="c1", name="speak", input="Ho.", caller=BY_PROGRAM),
            False,
        ),
        (
            ProgramCall("apply_patch", '{"operation":{"type":"delete_file","path":"a"}}'),
            i.ApplyPatchCall(
                call_id="c1", operation={"path": "a", "type": "delete_file"}, caller=BY_PROGRAM
            ),
            True,
        ),
    ],
)
def test_a_call_is_the_recorded_one_if_it_asks_for_the_same(
    made: ProgramCall, recorded: i.AnyItem, *, is_same: bool
) -> None:
    known = recorded_calls(PROGRAM, (), [PROGRAM, recorded], TOOLS)
    matched = match_calls([made], known, TOOLS)
    assert (matched.mismatch is None) == is_same
    assert not matched.new  # nothing is ever made in place of another call


def test_a_program_that_ends_before_its_recorded_calls_is_told_of() -> None:
    [known] = recorded_calls(PROGRAM, (), [PROGRAM, call(1)], TOOLS)
    assert "none, not find({})" in ended_early(known)
    assert recorded_calls(PROGRAM, (), [PROGRAM, call(1)], TOOLS, after=1) == []


@pytest.mark.parametrize(
    ("items", "outcome"),
    [
        ([call(1), output(1, "ok")], CallOutcome("ok")),
        ([call(1), output(1, '{"a": 1}')], CallOutcome('{"a": 1}', is_json=True)),
        ([call(1), output(1, "7")], CallOutcome("7")),
        ([call(1, "count"), output(1, "7")], CallOutcome("7", is_json=True)),
        ([mcp_call(caller=BY_PROGRAM, output="[1]")], CallOutcome("[1]", is_json=True)),
        (
            [mcp_call("failed", caller=BY_PROGRAM, error={"code": 1})],
            CallOutcome('{"code":1}', is_error=True),
        ),
        (
            [mcp_call("incomplete", caller=BY_PROGRAM)],
            CallOutcome(
                "The call was stopped before its result arrived. It was not repeated.",
                is_error=True,
            ),
        ),
        ([call(1)], None),
    ],
)
def test_an_outcome_is_what_the_items_hold(
    items: Sequence[i.AnyItem], outcome: CallOutcome | None
) -> None:
    [known] = recorded_calls(PROGRAM, (), [PROGRAM, *items], TOOLS)
    assert known.outcome == outcome


def test_a_call_of_an_earlier_response_that_stays_open_fails() -> None:
    request = i.McpApprovalRequest(
        id="mcpr_1", server_label="s", name="f", arguments="{}", caller=BY_PROGRAM
    )
    for item, why in ((request, "did not approve"), (call(1, async_=True), "no output")):
        [known] = recorded_calls(PROGRAM, [PROGRAM, item], (), TOOLS)
        assert known.outcome is not None
        assert known.outcome.is_error
        assert why in known.outcome.text


def test_the_programs_that_go_on_are_those_that_have_made_calls_and_the_new_ones() -> None:
    assert open_programs([PROGRAM], first_new=1) == []
    assert open_programs([PROGRAM], first_new=0) == [PROGRAM]
    assert open_programs([PROGRAM, call(1), output(1)], first_new=3) == [PROGRAM]
    assert open_programs([PROGRAM, call(1), output(1), ENDED], first_new=0) == []


def test_a_program_whose_last_call_has_not_ended_was_stopped_with_its_response() -> None:
    cut = mcp_call("incomplete", caller=BY_PROGRAM)
    assert was_stopped(PROGRAM, [PROGRAM, call(1), output(1), cut])
    assert not was_stopped(PROGRAM, [PROGRAM, cut, call(1), output(1)])
    assert not was_stopped(PROGRAM, [PROGRAM, mcp_call(caller=BY_PROGRAM, output="")])
    assert not was_stopped(PROGRAM, [PROGRAM])


def test_a_model_is_shown_the_program_and_its_output_and_no_calls() -> None:
    mine = call(9, caller=None)
    conversation = [QUESTION, PROGRAM, call(1), output(1), ENDED, mine, output(9)]
    assert items_for_model(conversation) == [QUESTION, PROGRAM, ENDED, mine, output(9)]
    assert items_for_model([QUESTION, PROGRAM]) == [QUESTION]
    waiting = [QUESTION, PROGRAM, call(1), output(1), QUESTION]
    assert items_for_model(waiting) == [QUESTION, PROGRAM, QUESTION]
    shown = extend_prompt([QUESTION, PROGRAM, QUESTION], [call(2), output(2), ENDED])
    assert shown == [QUESTION, PROGRAM, ENDED, QUESTION]


def test_only_the_items_of_programs_are_kept_for_them() -> None:
    mine = call(9, caller=None)
    conversation = [QUESTION, mine, output(9), PROGRAM, call(1), output(1)]
    assert items_of_programs(conversation) == [PROGRAM, call(1), output(1)]
    assert items_of_programs(conversation[:3]) == []
