"""Histories that clients of several APIs send again, compared with what a conversation holds."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.domain import items as i
from antiphon.domain.content import InputImage, InputText, OutputText, ReasoningText
from antiphon.domain.history.sessions import Known, compare
from antiphon.domain.kinds.configuration_update import ReasoningUpdate


def asks(text: str) -> i.Item:
    return i.Message(role="user", content=text)


def says(text: str, **fields: str) -> i.Item:
    return i.Message(role="assistant", content=(OutputText(text=text),), **fields)


def calls(call_id: str, arguments: str = "{}", **fields: str) -> i.Item:
    return i.FunctionCall(call_id=call_id, name="add", arguments=arguments, **fields)


def returns(call_id: str, text: str = "3") -> i.Item:
    return i.FunctionCallOutput(call_id=call_id, output=text)


SEARCH = i.McpCall(id="mcp_1", server_label="web", name="find", arguments="{}", output="found")
LISTED = i.McpListTools(id="mcpl_1", server_label="web", tools=())
THOUGHT = i.Reasoning(id="rs_1", content=(ReasoningText(text="Hm."),))
EFFORT = i.ConfigurationUpdate(reasoning=ReasoningUpdate(effort="low"))
IMAGE = InputImage(image_url="data:image/png;base64,AA")
SHOWN = i.Message(role="user", content=(InputText(text="See"), IMAGE))
TWO = [asks("one?"), says("one"), asks("two?"), says("two")]
CUT = [asks("one?"), says("one and", status="incomplete")]

WHOLE: list[tuple[str, Sequence[i.Item], Sequence[i.Item], tuple[int, int] | None]] = [
    ("nothing is there", [], [asks("one?")], (0, 0)),
    ("the next question", TWO[:2], TWO[:3], (2, 2)),
    ("the same again", TWO, TWO, (4, 4)),
    ("the answer is asked for again", TWO, TWO[:3], (3, 3)),
    ("the last question was edited", TWO, [*TWO[:2], asks("three?")], (2, 2)),
    ("the last question was taken back", TWO, TWO[:2], (2, 2)),
    ("less than that", TWO, TWO[:1], None),
    ("the only question was edited", TWO[:2], [asks("none?")], None),
    ("a question was edited", TWO, [asks("none?"), *TWO[1:], asks("more?")], None),
    ("the last answer was edited", TWO, [*TWO[:3], says("2"), asks("more?")], (3, 3)),
    (
        "nobody sees what the server did",
        [asks("one?"), LISTED, THOUGHT, says("Wait."), SEARCH, says("one")],
        [asks("one?"), says("Wait.\n\none"), asks("two?")],
        (2, 6),
    ),
    (
        "texts are in other parts and items",
        [asks("one?"), says("I add. "), THOUGHT, calls("a"), calls("b"), returns("a")],
        [
            i.Message(role="user", content=(InputText(text="one"), InputText(text="?"))),
            THOUGHT,
            says("I "),
            says("add."),
            calls("a"),
            calls("b"),
            returns("a"),
            returns("b"),
        ],
        (7, 6),
    ),
    (
        "arguments are written in another way",
        [asks("one?"), calls("a", '{"x":1,"y":[2]}')],
        [asks("one?"), calls("a", '{"y": [2], "x": 1}'), returns("a")],
        (2, 2),
    ),
    ("arguments are others", [*TWO, calls("a", '{"x":1}')], [*TWO, calls("a", '{"x":2}')], (3, 3)),
    ("an output is another", [calls("a"), returns("a")], [calls("a"), returns("a", "4")], (1, 1)),
    ("an image is the same", [SHOWN, says("A.")], [SHOWN, says("A."), asks("And?")], (2, 2)),
    ("a setting that comes with the next question", TWO[:2], [*TWO[:2], EFFORT, asks("?")], (2, 2)),
    ("the client has less of the answer", CUT, [CUT[0], says("one"), asks("more?")], (1, 1)),
    ("the client has nothing of the answer", CUT, [CUT[0], asks("more?")], (1, 1)),
]

JOINED: list[tuple[str, Sequence[i.Item], Sequence[i.Item], int]] = [
    ("it knows nothing", TWO, [asks("more?")], 0),
    ("it asks what was asked before", TWO, [asks("one?")], 0),
    ("it knows all", TWO, [*TWO, asks("more?")], 4),
    ("it was not there from the start", TWO, [*TWO[2:], asks("more?")], 2),
    ("it has not seen the last of it", TWO, [*TWO[:2], asks("more?")], 2),
    ("it was away for a time", [*TWO, asks("3?"), says("3")], [*TWO[:2], asks("3?"), says("3")], 4),
    ("it brings a history of its own", TWO, [asks("x?"), says("x"), asks("y?")], 0),
    ("an output for a call that is there", [calls("a")], [calls("a"), returns("a")], 1),
]


@pytest.mark.parametrize(
    ("held", "sent", "known"), [case[1:] for case in WHOLE], ids=[c[0] for c in WHOLE]
)
def test_a_client_that_sends_all_repeats_what_is_held_or_is_elsewhere(
    held: Sequence[i.Item], sent: Sequence[i.Item], known: tuple[int, int] | None
) -> None:
    found = compare(held, sent, joins=False)
    assert (found and (found.sent, found.held)) == known


@pytest.mark.parametrize(
    ("held", "sent", "known"), [case[1:] for case in JOINED], ids=[c[0] for c in JOINED]
)
def test_a_client_that_joins_adds_what_follows_the_last_answer_that_it_knows(
    held: Sequence[i.Item], sent: Sequence[i.Item], known: int
) -> None:
    assert compare(held, sent, joins=True) == Known(known, len(held))


@given(st.lists(st.sampled_from(TWO), max_size=12))
def test_a_client_that_repeats_all_has_its_next_question_left(held: list[i.Item]) -> None:
    all_held = Known(len(held), len(held))
    assert compare(held, [*held, asks("more?")], joins=False) == all_held
