"""Every real chat template: its family, its check, and six prompts equal to those of transformers.

`make test-templates` fetches the templates and runs this.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from antiphon.adapters.formats.chat_template.detection import Detection, detect
from antiphon.adapters.formats.chat_template.effort import EFFORTS
from antiphon.adapters.formats.chat_template.families import FAMILIES, Family
from antiphon.adapters.formats.chat_template.renderer import TemplateRenderer
from antiphon.adapters.formats.chat_template.template import ChatTemplate
from antiphon.adapters.formats.chat_template.tokenizer import Tokenizer
from antiphon.adapters.formats.format_check import check_format, stand_in_tokenizer
from antiphon.application.ports import Prompt, Turn
from antiphon.domain.errors import RequestError
from antiphon.domain.requests.request import Effort

from .conversations import (
    CONVERSATIONS,
    STYLES,
    Conversation,
    messages_of,
    shows_all,
    shows_calls,
    tools_of,
    turn_of,
)
from .sources import find_templates
from .table import DIFFERENCES, FITTED_FOR_OTHERS, TEMPLATES_OF, UNUSABLE, WITHOUT_CALLS

pytestmark = pytest.mark.templates

TOKENS = {"bos_token": "<bos>", "eos_token": "<eos>"}
TEMPLATES = find_templates()
FAMILY_OF = {
    name: family
    for table in (TEMPLATES_OF, WITHOUT_CALLS)
    for family in table
    for name in table[family]
}

each_template = pytest.mark.parametrize("name", TEMPLATES)


@cache
def load(name: str) -> ChatTemplate:
    return ChatTemplate({"default": TEMPLATES[name].read_text(encoding="utf-8")}, TOKENS)


@cache
def detect_family(name: str) -> Detection:
    return detect(load(name))


def test_each_template_has_its_answer_in_the_table() -> None:
    assert sorted(TEMPLATES) == sorted(FAMILY_OF)


@each_template
def test_the_family_is_detected(name: str) -> None:
    detection = detect_family(name)
    expected = FAMILY_OF[name], name not in WITHOUT_CALLS.get(FAMILY_OF[name], ())
    assert (detection.family, detection.knows_calls) == expected, detection.reasons


@each_template
def test_the_check_reads_a_call_back_or_says_why_not(name: str) -> None:
    report = check_format(TEMPLATES[name])
    if name in UNUSABLE:
        assert not report.prompt
        assert any(UNUSABLE[name] in note for note in report.notes), report.notes
    else:
        assert report.reads_call is report.knows_calls, report.notes
        assert report.prompt or not report.knows_calls, report.notes


@each_template
@pytest.mark.parametrize("conversation", CONVERSATIONS, ids=lambda each: each.name)
def test_a_prompt_is_the_one_of_transformers(name: str, conversation: Conversation) -> None:
    expected, written = render_with_transformers(name, conversation), render(name, conversation)
    if fittings_of(name, conversation) and (name, conversation.name) not in FITTED_FOR_OTHERS:
        assert not shows_all(conversation, expected), "it needed no fitting"
        assert shows_all(conversation, written), written
    elif (name, conversation.name) in DIFFERENCES:
        assert written != expected, "there is no difference any more"
    else:
        assert without_time(written) == without_time(expected)


@each_template
@pytest.mark.parametrize("effort", EFFORTS)
def test_every_effort_has_a_prompt(name: str, effort: str) -> None:
    conversation = CONVERSATIONS[0]
    if render(name, conversation) is not None:
        assert render(name, conversation, effort) is not None


def without_time(prompt: str | None) -> str | None:
    """Return the prompt without the time of day: some templates write it."""
    return prompt and re.sub(r"\d\d:\d\d:\d\d", "00:00:00", prompt)


def render(name: str, conversation: Conversation, effort: Effort | None = None) -> str | None:
    """Return the prompt, None if the template refuses the conversation."""
    prompt = prompt_of(name, replace(turn_of(conversation), effort=effort))
    return prompt and tokenizer_of(name).decode(prompt.token_ids)


def fittings_of(name: str, conversation: Conversation) -> Sequence[str]:
    prompt = prompt_of(name, turn_of(conversation))
    return () if prompt is None else prompt.fittings


def prompt_of(name: str, turn: Turn) -> Prompt | None:
    try:
        return asyncio.run(renderer_of(name).render(turn))
    except RequestError:
        return None


@cache
def tokenizer_of(name: str) -> Tokenizer:
    return stand_in_tokenizer(family_of(name))


@cache
def renderer_of(name: str) -> TemplateRenderer:
    return TemplateRenderer(load(name), tokenizer_of(name), family_of(name))


def family_of(name: str) -> Family:
    return FAMILIES.get(detect_family(name).family, FAMILIES["plain"])


def render_with_transformers(name: str, conversation: Conversation) -> str | None:
    """Return the prompt in the first style that shows the whole conversation.

    If no style does, it is the first that the template accepts; None if it accepts none.
    """
    accepted: list[str] = []
    for style in STYLES:
        messages = messages_of(conversation, style)
        text = apply_chat_template(TEMPLATES[name], messages, tools_of(conversation))
        # A template for texts may print a list of parts as Python would.
        if text is not None and "'type': 'text'" not in text:
            accepted.append(text)
            if shows_calls(conversation, text):
                return text
    return accepted[0] if accepted else None


@cache
def transformers_tokenizer() -> Any:
    """Return a tokenizer of transformers; it only lends its templates' environment."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel({"?": 0}, "?")), **TOKENS)


def apply_chat_template(
    file: Path, messages: list[dict[str, Any]], tools: list[Mapping[str, Any]] | None
) -> str | None:
    try:
        return str(
            transformers_tokenizer().apply_chat_template(
                messages,
                tools=tools,
                chat_template=file.read_text(encoding="utf-8"),
                tokenize=False,
                add_generation_prompt=True,
            )
        )
    except Exception:  # a template is a program and can fail in any way
        return None
