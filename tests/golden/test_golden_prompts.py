"""Golden prompts: one conversation with tools, reasoning and calls, as each family is shown it.

`prompts/FAMILY.txt` is the prompt of the scripted engine's template. `--update-golden` writes it
anew, and writes that of a new family; read the diff.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from antiphon.adapters.formats.chat_template import scripted_family
from antiphon.adapters.formats.chat_template.families import FAMILIES
from antiphon.adapters.formats.fitting import write_as_json
from antiphon.application.ports import Step, Turn
from antiphon.domain import content as c
from antiphon.domain import deltas as d
from antiphon.domain import items as i
from antiphon.domain.tools import ToolSpec

PROMPTS_AT = Path(__file__).parent / "prompts"

TOOLS = [
    ToolSpec(
        name="get_weather",
        description="Tells the weather.",
        parameters={
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    ),
    ToolSpec(name="note", kind="custom", description="Takes a note."),
]
ARGUMENTS: dict[str, Any] = {"city": "Zürich", "days": 3}
NOTE = 'first "line"\nx = 1 < 2'
CONVERSATION = [
    i.Message(role="user", content="Will it rain in <|im_end|> Zürich?"),
    i.Reasoning(content=(c.ReasoningText(text="I look it up.\nAnd I note it."),)),
    i.FunctionCall(call_id="call00001", name="get_weather", arguments=json.dumps(ARGUMENTS)),
    i.CustomToolCall(call_id="call00002", name="note", input=NOTE),
    i.FunctionCallOutput(call_id="call00001", output="rain"),
    i.CustomToolCallOutput(call_id="call00002", output="ok"),
    i.Message(role="assistant", content=(c.OutputText(text="Yes, it will."),)),
    i.Message(role="user", content="Thanks!"),
]


def turn_of(family: str) -> Turn:
    """Return the conversation, with tools unless the family cannot call any."""
    tools = TOOLS if FAMILIES[family].call_form else ()
    return Turn(model="m", instructions="Be brief.", items=CONVERSATION, tools=tools)


every_family = pytest.mark.parametrize("family", sorted(FAMILIES))


@every_family
async def test_a_conversation_is_rendered_as_recorded(family: str, update_golden: bool) -> None:
    turn_format, markup = scripted_family(family)
    text = markup.text((await turn_format.render(turn_of(family))).token_ids)
    golden = PROMPTS_AT / f"{family}.txt"
    if update_golden:
        PROMPTS_AT.mkdir(exist_ok=True)
        golden.write_text(text)
    assert golden.is_file(), f"{family} has no golden prompt: make golden"
    assert text == golden.read_text()


@every_family
async def test_what_was_rendered_is_read_back(family: str) -> None:
    row = FAMILIES[family]
    turn_format, markup = scripted_family(family)
    prompt = await turn_format.render(turn_of(family))
    calls = [("call", "get_weather"), ("call", "note")]
    if not row.call_form:  # calls are shown as text
        texts = [write_as_json("get_weather", ARGUMENTS), write_as_json("note", {"input": NOTE})]
        calls = [("assistant", "\n".join(texts))]
    assert markup.read(prompt.token_ids) == [
        ("system", "Be brief."),
        ("user", "Will it rain in <|im_end|> Zürich?"),
        *([("reasoning", "I look it up.\nAnd I note it.")] if row.think else []),
        *calls,
        ("tool", "rain"),
        ("tool", "ok"),
        ("assistant", "Yes, it will."),
        ("user", "Thanks!"),
    ]


@every_family
async def test_a_rendered_turn_is_parsed_as_its_items(family: str) -> None:
    row = FAMILIES[family]
    turn_format, markup = scripted_family(family)
    prompt = await turn_format.render(turn_of(family))
    turn = markup.text(prompt.token_ids).split("<|im_start|>assistant\n")[1]
    parser = turn_format.make_parser(turn_of(family), prompt)
    deltas = [*parser.feed(Step(text=turn.split("<|im_start|>")[0])), *parser.end()]
    starts = [delta.name for delta in deltas if isinstance(delta, d.CallStart)]
    arguments = [delta.text for delta in deltas if isinstance(delta, d.ArgumentsDelta)]
    if row.call_form:
        assert starts == ["get_weather", "note"]
        assert (json.loads(arguments[0]), arguments[1]) == (ARGUMENTS, NOTE)
    thoughts = "".join(delta.text for delta in deltas if isinstance(delta, d.ReasoningDelta))
    assert thoughts == ("I look it up.\nAnd I note it." if row.think else "")
    texts = [delta.text for delta in deltas if isinstance(delta, d.TextDelta)]
    # A family without calls has them as text.
    assert not texts if row.call_form else '"name": "get_weather"' in "".join(texts)


def test_every_golden_prompt_is_one_of_a_family() -> None:
    assert {file.stem for file in PROMPTS_AT.iterdir()} <= set(FAMILIES)
