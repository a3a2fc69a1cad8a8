"""How a template is told the effort of reasoning."""

from __future__ import annotations

from typing import Any

import pytest

from antiphon.adapters.formats.chat_template.effort import EFFORTS, EffortOptions
from antiphon.adapters.formats.chat_template.families import FAMILIES
from antiphon.adapters.formats.chat_template.renderer import TemplateRenderer
from antiphon.adapters.formats.chat_template.template import ChatTemplate
from antiphon.adapters.formats.chat_template.word_tokenizer import WordTokenizer
from antiphon.application.ports import Turn
from antiphon.domain import items as i

ACCEPTS_THREE = """
{%- if reasoning_effort is defined and reasoning_effort not in ['low', 'high', 'no_think'] %}
{{- raise_exception('not ' + reasoning_effort) }}
{%- endif %}
"""
ACCEPTS_PARTS_ALONE = """
{%- for part in messages[0].content %}{{ part.text }}{% endfor %}
{%- if reasoning_effort not in ['none', 'high'] %}{{ raise_exception('no') }}{% endif %}
"""


def options(effort: str | None, source: str = "") -> dict[str, Any]:
    return EffortOptions(ChatTemplate({"default": source}, {})).find(effort)


def test_without_an_effort_the_template_keeps_its_default() -> None:
    assert options(None) == {}


@pytest.mark.parametrize("effort", EFFORTS)
def test_an_effort_is_passed_under_every_name(effort: str) -> None:
    thinks = effort != "none"
    found = options(effort)
    assert (found["reasoning_effort"], found["enable_thinking"]) == (effort, thinks)
    assert found["thinking"] is thinks


@pytest.mark.parametrize(
    ("variable", "values"),
    [
        ("thinking_effort", [None, "low", "low", "high", "high", "max", "max"]),
        ("thinking_mode", ["disabled", None, None, None, "enabled", "enabled", "enabled"]),
        ("thinking_budget", [0, 512, 1024, 4096, None, None, None]),
    ],
)
def test_other_variables_have_values_of_their_own(variable: str, values: list[Any]) -> None:
    assert [options(effort).get(variable) for effort in EFFORTS] == values


@pytest.mark.parametrize(
    ("effort", "accepted"),
    [
        ("none", "no_think"),
        ("minimal", "low"),
        ("low", "low"),
        ("medium", "high"),
        ("xhigh", "high"),
        ("max", "high"),
    ],
)
def test_the_nearest_value_stands_for_one_that_the_template_refuses(
    effort: str, accepted: str
) -> None:
    assert options(effort, ACCEPTS_THREE)["reasoning_effort"] == accepted


def test_a_template_for_parts_is_asked_with_parts() -> None:
    assert options("medium", ACCEPTS_PARTS_ALONE)["reasoning_effort"] == "high"


def test_a_template_that_refuses_everything_gets_the_effort_itself() -> None:
    assert options("medium", "{{ raise_exception('no') }}")["reasoning_effort"] == "medium"


async def test_the_variables_of_a_request_go_before_those_of_its_effort() -> None:
    template = ChatTemplate({"default": "{{ reasoning_effort }} {{ thinking }} {{ x }}"}, {})
    tokenizer = WordTokenizer(["<unused>"])
    renderer = TemplateRenderer(template, tokenizer, FAMILIES["plain"])
    turn = Turn(
        model="m",
        items=[i.Message(role="user", content="?")],
        effort="high",
        template_kwargs={"thinking": 1, "x": 2},
    )
    assert tokenizer.decode((await renderer.render(turn)).token_ids) == "high 1 2"


async def test_a_prompt_tells_the_day_for_which_it_is_rendered() -> None:
    template = ChatTemplate({"default": "{{ strftime_now('%Y') }}"}, {})
    tokenizer = WordTokenizer(["<unused>"])
    renderer = TemplateRenderer(template, tokenizer, FAMILIES["plain"])
    turn = Turn(
        model="m", items=[i.Message(role="user", content="?")], rendered_at=86_400.0 * 365 * 3
    )
    assert tokenizer.decode((await renderer.render(turn)).token_ids) == "1972"
