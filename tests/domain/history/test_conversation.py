"""Conversation rules: calls and their outputs, what a model is shown, what may be dropped."""

from __future__ import annotations

import pytest

from antiphon.domain import items as i
from antiphon.domain.content import ComputerScreenshot, ReasoningText
from antiphon.domain.errors import RequestError
from antiphon.domain.history.conversation import (
    check_call_output_pairs,
    droppable_groups,
    items_for_model,
    pair_outputs_with_calls,
)


def user(text: str) -> i.Message:
    return i.Message(role="user", content=text)


def assistant(text: str, phase: str | None = None) -> i.Message:
    return i.Message(role="assistant", content=text, phase=phase)  # type: ignore[arg-type]


def thought(text: str) -> i.Reasoning:
    return i.Reasoning(content=(ReasoningText(text=text),))


def call(call_id: str, status: str = "completed") -> i.FunctionCall:
    return i.FunctionCall(call_id=call_id, name="f", arguments="{}", status=status)


def output(call_id: str) -> i.FunctionCallOutput:
    return i.FunctionCallOutput(call_id=call_id, output="x")


def test_an_output_without_a_call_is_refused() -> None:
    with pytest.raises(RequestError, match="No tool call found .* call_a") as caught:
        check_call_output_pairs([user("hi"), output("call_a")])
    assert caught.value.param == "input"


def test_a_call_without_an_output_is_refused() -> None:
    with pytest.raises(RequestError, match="No tool output found .* call_a"):
        check_call_output_pairs([user("hi"), call("call_a")])


def test_the_order_of_outputs_does_not_matter() -> None:
    check_call_output_pairs([output("call_b"), call("call_a"), call("call_b"), output("call_a")])


@pytest.mark.parametrize(
    ("conversation", "pairs"),
    [
        # an id used again
        ([call("c"), output("c"), call("c"), output("c")], {1: 0, 3: 2}),
        # the nearest call first
        ([call("c"), call("c"), output("c"), output("c")], {2: 1, 3: 0}),
        # a further output of an answered call
        ([call("c"), output("c"), output("c")], {1: 0, 2: 0}),
        ([call("c"), output("c"), output("c"), call("c"), output("c")], {1: 0, 2: 0, 4: 3}),
        # outputs before their calls
        ([output("c"), output("c"), call("c"), call("c")], {0: 2, 1: 3}),
        ([output("c"), output("c"), call("c")], {0: 2, 1: 2}),
        ([output("c"), call("c"), call("d"), output("d")], {0: 1, 3: 2}),
        # no call at all
        ([output("c"), call("d")], {}),
    ],
)
def test_an_output_belongs_to_the_nearest_earlier_unanswered_call_with_its_id(
    conversation: list[i.AnyItem], pairs: dict[int, int]
) -> None:
    assert pair_outputs_with_calls(conversation) == pairs


CALLS_AND_OUTPUTS: list[tuple[i.AnyItem, i.AnyItem]] = [
    (call("c"), output("c")),
    (
        i.CustomToolCall(call_id="c", name="p", input=""),
        i.CustomToolCallOutput(call_id="c", output=""),
    ),
    (i.ShellCall(call_id="c", action={}), i.ShellCallOutput(call_id="c", output=())),
    (i.LocalShellCall(id="l", call_id="c", action={}), i.LocalShellCallOutput(id="c", output="")),
    (i.ComputerCall(call_id="c"), i.ComputerCallOutput(call_id="c", output=ComputerScreenshot())),
    (
        i.ApplyPatchCall(call_id="c", operation={}),
        i.ApplyPatchCallOutput(call_id="c", status="completed"),
    ),
    (i.ToolSearchCall(call_id="c", arguments={}), i.ToolSearchOutput(call_id="c", tools=())),
]


@pytest.mark.parametrize("first", CALLS_AND_OUTPUTS)
@pytest.mark.parametrize("second", CALLS_AND_OUTPUTS)
def test_a_second_call_with_the_id_of_an_answered_one_needs_an_output_of_its_own(
    first: tuple[i.AnyItem, i.AnyItem], second: tuple[i.AnyItem, i.AnyItem]
) -> None:
    check_call_output_pairs([*first, *second])
    with pytest.raises(RequestError, match=r"No tool output found .* c\."):
        check_call_output_pairs([*first, second[0]])


def test_a_partial_call_is_not_shown_if_only_an_earlier_call_with_its_id_has_an_output() -> None:
    conversation = [call("c"), output("c"), call("c", "incomplete"), user("go on")]
    check_call_output_pairs(conversation)
    assert items_for_model(conversation) == [*conversation[:2], conversation[3]]


def test_calls_with_the_same_id_are_dropped_one_by_one() -> None:
    conversation = [call("c"), output("c"), call("c"), output("c"), user("newest")]
    assert droppable_groups(conversation) == [frozenset({0, 1}), frozenset({2, 3})]


def test_a_partial_call_needs_no_output_and_is_not_shown() -> None:
    conversation = [user("hi"), call("call_a", "incomplete"), user("go on")]
    check_call_output_pairs(conversation)
    assert items_for_model(conversation) == [conversation[0], conversation[2]]


@pytest.mark.parametrize("output_id", ["call_s", "lsh_1"])
def test_a_local_shell_call_is_answered_by_either_of_its_ids(output_id: str) -> None:
    shell = i.LocalShellCall(id="lsh_1", call_id="call_s", action={})
    check_call_output_pairs([user("hi"), shell, i.LocalShellCallOutput(id=output_id, output="x")])
    with pytest.raises(RequestError, match="No tool output found .* call_s"):
        check_call_output_pairs([user("hi"), shell])


def test_an_output_that_names_a_tool_answers_no_call() -> None:
    check_call_output_pairs([i.FunctionCallOutput(name="clock", output="12:00")])


@pytest.mark.parametrize(
    ("conversation", "is_shown"),
    [
        # the current turn keeps its reasoning, across tool calls
        ([user("q"), thought("a"), call("c"), output("c")], [True]),
        # a new user message finishes a turn
        ([user("q"), thought("a"), assistant("x"), user("q2"), thought("b")], [False, True]),
        # so does a final answer
        (
            [user("q"), thought("a"), assistant("x", "final_answer"), thought("b")],
            [False, True],
        ),
        # a preamble does not
        ([user("q"), thought("a"), assistant("x", "commentary"), thought("b")], [True, True]),
    ],
)
def test_reasoning_of_finished_turns_is_dropped(
    conversation: list[i.AnyItem], is_shown: list[bool]
) -> None:
    shown_items = items_for_model(conversation)
    reasoning_items = [item for item in conversation if isinstance(item, i.Reasoning)]
    assert [item in shown_items for item in reasoning_items] == is_shown


@pytest.mark.parametrize(
    ("conversation", "is_shown"),
    [
        # a question does not finish a turn
        ([user("q"), thought("a"), call("c"), output("c"), user("q2"), thought("b")], [True, True]),
        ([user("q"), thought("a"), assistant("x", "commentary"), user("q2")], [True]),
        # an answer does
        (
            [user("q"), thought("a"), assistant("x", "final_answer"), user("q2"), thought("b")],
            [False, True],
        ),
    ],
)
def test_a_model_may_see_its_reasoning_until_it_answers(
    conversation: list[i.AnyItem], is_shown: list[bool]
) -> None:
    shown_items = items_for_model(conversation, only_answers_end_turns=True)
    reasoning_items = [item for item in conversation if isinstance(item, i.Reasoning)]
    assert [item in shown_items for item in reasoning_items] == is_shown


def test_all_reasoning_is_shown_on_request() -> None:
    conversation = [user("q"), thought("a"), assistant("x"), user("q2")]
    assert items_for_model(conversation, all_reasoning=True) == conversation


def test_nothing_before_the_last_compaction_is_shown() -> None:
    summary = i.Compaction(encrypted_content="x")
    conversation = [user("old"), summary, user("new")]
    assert items_for_model(conversation) == [summary, conversation[2]]


def test_a_call_is_dropped_together_with_its_output() -> None:
    conversation = [
        i.Message(role="developer", content="rules"),
        user("q"),
        call("c"),
        user("more"),
        output("c"),
        user("newest"),
    ]
    assert droppable_groups(conversation) == [
        frozenset({2, 4}),
        frozenset({1}),
        frozenset({3}),
    ]


def test_a_question_is_dropped_with_its_answer_after_the_calls_that_led_to_it() -> None:
    conversation = [user("q"), call("c"), output("c"), assistant("a"), user("newest")]
    assert droppable_groups(conversation) == [frozenset({1, 2}), frozenset({0, 3})]


def test_the_question_of_a_tool_loop_is_never_dropped() -> None:
    loop = [assistant("I look."), call("c"), output("c"), call("d"), output("d")]
    assert droppable_groups([user("q"), *loop]) == [frozenset({1}), frozenset({2, 3})]


def test_the_newest_item_is_never_dropped() -> None:
    assert droppable_groups([user("only")]) == []
    assert droppable_groups([call("c"), output("c")]) == []
