"""A prompt that begins the answer: what the model writes next is visible text, in each family."""

from __future__ import annotations

import pytest

from antiphon.adapters.formats.chat_template import ChatTemplateFormat, scripted_family
from antiphon.adapters.formats.chat_template.families import FAMILIES
from antiphon.adapters.formats.chat_template.renderer import TemplateRenderer
from antiphon.adapters.formats.chat_template.scripted.family_markup import tokenizer_of
from antiphon.adapters.formats.chat_template.template import ChatTemplate
from antiphon.application.model.token_answers import LABELS
from antiphon.application.ports import Step, Turn
from antiphon.domain import deltas as d
from antiphon.domain.items import Message

OPENINGS = [(name, begin, end) for name in sorted(FAMILIES) for begin, end in FAMILIES[name].thinks]


def turn_of(**fields: object) -> Turn:
    items = (Message(role="user", content="A: true\nB: false"),)
    return Turn(model="m", items=items, begins_answer=True, **fields)  # type: ignore[arg-type]


async def text_after(spoken: ChatTemplateFormat, turn: Turn) -> tuple[str, list[d.Delta]]:
    """Return the prompt, and what the parser makes of a label after it."""
    prompt = await spoken.render(turn)
    parser = spoken.make_parser(turn, prompt)
    return spoken.text(prompt.token_ids), [*parser.feed(Step(text="B")), *parser.end()]


@pytest.mark.parametrize("family", sorted(FAMILIES))
@pytest.mark.parametrize("effort", [None, "none"])
async def test_a_label_is_visible_text(family: str, effort: str | None) -> None:
    spoken, _ = scripted_family(family)
    _, deltas = await text_after(spoken, turn_of(effort=effort))
    assert deltas == [d.TextDelta("B")]


@pytest.mark.parametrize("family", sorted(FAMILIES))
async def test_labels_are_one_token_each(family: str) -> None:
    spoken, _ = scripted_family(family)
    tokens = spoken.first_tokens(await spoken.render(turn_of()), [*LABELS, "two words"])
    assert tokens[-1] is None
    assert len({*tokens[:-1]}) == len(LABELS)
    assert [spoken.text([token or 0]) for token in tokens[:3]] == ["A", "B", "C"]


@pytest.mark.parametrize(("family", "begin", "end"), OPENINGS)
@pytest.mark.parametrize("space", ["", "\n"])
async def test_reasoning_that_a_template_opens_is_closed(
    family: str, begin: str, end: str, space: str
) -> None:
    row = FAMILIES[family]
    opening = f"{begin}{row.think_label}".rstrip() + space
    template = ChatTemplate({"": "{{ messages[-1].content }}" + opening}, {})
    tokenizer = tokenizer_of(row)
    spoken = ChatTemplateFormat(
        family, row, tokenizer, renderer=TemplateRenderer(template, tokenizer, row)
    )
    prompt, deltas = await text_after(spoken, turn_of())
    assert prompt.partition(opening.rstrip())[2].strip().startswith(end.strip())
    assert deltas == [d.TextDelta("B")]
