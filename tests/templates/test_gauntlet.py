"""Conversations of agents, and every real template: no refusal, and every text once and in order.

`make test-templates` fetches the templates and runs this.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.adapters.formats.format_check import TOOL
from antiphon.application.model.compaction import compaction_of
from antiphon.application.ports import Turn
from antiphon.domain import items as i
from antiphon.domain.errors import RequestError
from antiphon.domain.history.compaction import REQUEST
from antiphon.domain.history.conversation import droppable_groups, leading_instructions

from .table import UNUSABLE
from .test_real_templates import TEMPLATES, renderer_of, tokenizer_of

pytestmark = pytest.mark.templates

NOT_SERVED = (
    "chat_templates/template_kimi_audio",  # it writes nothing but sounds
    "templates/openai-gpt-oss-120b",  # Harmony is written without it
)

USABLE = [name for name in TEMPLATES if name not in UNUSABLE and name not in NOT_SERVED]
each_template = pytest.mark.parametrize("name", USABLE)


def user(text: str) -> i.Item:
    return i.Message(role="user", content=text)


def note(text: str) -> i.Item:
    return i.Message(role="developer", content=text)


def answer(text: str) -> i.Item:
    return i.Message(role="assistant", content=text)


def call(number: int, arguments: str | None = None) -> i.Item:
    written = json.dumps({"city": f"Bonn{number}", "days": 3}) if arguments is None else arguments
    return i.FunctionCall(call_id=f"call_{number}", name=TOOL.name, arguments=written)


def result(number: int) -> i.Item:
    return i.FunctionCallOutput(call_id=f"call_{number}", output=f"result{number} is here")


CONVERSATIONS: Mapping[str, Sequence[i.Item]] = {
    "a late note": [user("amber#1"), answer("birch#2"), note("cedar#3"), user("dill#4")],
    "a note at the end": [user("amber#1"), note("birch#2")],
    "a note after a result": [user("amber#1"), call(1), result(1), note("birch#2")],
    "two users": [user("amber#1"), user("birch#2")],
    "a user after a result": [user("amber#1"), call(1), result(1), user("birch#2")],
    "a note of the client among calls": [
        *(user("amber#1"), call(1), result(1), user("birch#2"), call(2), result(2)),
    ],
    "an answer first": [answer("amber#1"), user("birch#2")],
    "two answers": [user("amber#1"), answer("birch#2"), answer("cedar#3"), user("dill#4")],
    "no user": [note("amber#1"), call(1), result(1)],
    "calls alone": [call(1), result(1)],
    "notes alone": [note("amber#1")],
    "a call that was cut": [user("amber#1"), call(1, '{"city": "Bonn1'), result(1)],
    "a call without arguments": [user("amber#1"), call(1, ""), result(1)],
    "a call with null": [user("amber#1"), call(1, "null"), result(1)],
    "a call with a list": [user("amber#1"), call(1, '["Bonn1"]'), result(1)],
    "text before a call": [
        user("amber#1"),
        answer("birch#2"),
        call(1),
        result(1),
        answer("cedar#3"),
    ],
    "text before a second call": [
        *(user("amber#1"), answer("birch#2"), call(1), result(1)),
        *(answer("cedar#3"), call(2), result(2), user("dill#4")),
    ],
    "two calls at a time": [user("amber#1"), call(1), call(2), result(1), result(2)],
    "a call without a result": [user("amber#1"), call(1), user("birch#2")],
    "a long day": [
        *(note("amber#1"), user("birch#2"), answer("cedar#3"), call(1), result(1), note("dill#4")),
        *(call(2), call(3), result(2), result(3), answer("elder#5"), answer("fir#6")),
        *(user("gorse#7"), user("hazel#8"), call(4), result(4), user("iris#9")),
    ],
}


def turn_of(items: Sequence[i.Item]) -> Turn:
    return Turn(model="m", items=items, instructions="Always polite.", tools=[TOOL])


def texts_of(items: Iterable[i.Item]) -> list[str]:
    texts: list[str] = []
    for item in items:
        match item:
            case i.Message(content=str(text)):
                texts.append(text)
            case i.FunctionCall(arguments=arguments) if "Bonn" in arguments:
                texts.append(f"Bonn{item.call_id[-1]}")
            case i.FunctionCallOutput(output=str(text)):
                texts.append(text)
    return texts


def check(name: str, turn: Turn) -> None:
    """Every text is in the prompt once, and in order after the leading instructions."""
    prompt = asyncio.run(renderer_of(name).render(turn))
    text = tokenizer_of(name).decode(prompt.token_ids)
    assert text.count(turn.instructions) == 1, text
    words = texts_of(turn.items)
    assert [text.count(word) for word in words] == [1] * len(words), text
    _, rest = leading_instructions(turn.items)
    # Where a message may have one call, each result follows its call.
    for is_chosen in (is_result, lambda item: not is_result(item)):
        places = [text.index(word) for word in texts_of(filter(is_chosen, rest))]
        assert places == sorted(places), text


def is_result(item: i.Item) -> bool:
    return isinstance(item, i.FunctionCallOutput)


@each_template
@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_every_text_is_in_the_prompt(name: str, conversation: str) -> None:
    check(name, turn_of(CONVERSATIONS[conversation]))


@each_template
@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_every_conversation_can_be_compacted(name: str, conversation: str) -> None:
    compaction = compaction_of(turn_of(CONVERSATIONS[conversation]))
    assert compaction.items[-1] == user(REQUEST)
    check(name, compaction)


@each_template
@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_every_conversation_can_be_truncated(name: str, conversation: str) -> None:
    items = CONVERSATIONS[conversation]
    dropped: frozenset[int] = frozenset()
    for group in droppable_groups(items):
        dropped |= group
        rest = [item for number, item in enumerate(items) if number not in dropped]
        check(name, turn_of(rest))


@st.composite
def conversations(draw: st.DrawFn) -> Sequence[i.Item]:
    found: list[i.Item] = []
    kinds = draw(st.lists(st.sampled_from(["user", "note", "answer", "call"]), min_size=1))
    for number, kind in enumerate(kinds[:8]):
        makers: Mapping[str, Callable[[], list[i.Item]]] = {
            "user": lambda number=number: [user(f"asked{number} it")],
            "note": lambda number=number: [note(f"noted{number} it")],
            "answer": lambda number=number: [answer(f"answered{number} it")],
            "call": lambda number=number: [call(number), result(number)],
        }
        found += makers[kind]()
    return found


@each_template
@settings(max_examples=15, deadline=None)
@given(items=conversations())
def test_whatever_the_order_of_roles(name: str, items: Sequence[i.Item]) -> None:
    check(name, turn_of(items))


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_template_that_cannot_be_used_says_why(name: str) -> None:
    with pytest.raises(RequestError, match=re.escape(UNUSABLE[name])):
        check(name, turn_of(CONVERSATIONS["two users"]))
