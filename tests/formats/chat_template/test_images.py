"""Images in prompts of templates that can write them."""

from __future__ import annotations

import pytest

from antiphon.adapters.formats.chat_template.families import FAMILIES
from antiphon.adapters.formats.chat_template.renderer import TemplateRenderer
from antiphon.adapters.formats.chat_template.template import ChatTemplate
from antiphon.adapters.formats.chat_template.template_capabilities import (
    TemplateCapabilities,
    detect_capabilities,
)
from antiphon.adapters.formats.chat_template.word_tokenizer import WordTokenizer
from antiphon.application.ports import Turn
from antiphon.domain import content as c
from antiphon.domain import items as i
from antiphon.domain.errors import RequestError

TEXT_ONLY = """{% for m in messages %}[{{ m.role }}]{{ m.content + '' }}{% endfor %}"""
CARELESS = """{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"""
AS_JSON = """{% for m in messages %}[{{ m.role }}]{{ m.content | tojson }}{% endfor %}"""
EITHER = """
{%- for m in messages %}[{{ m.role }}]
    {%- if m.content is string %}{{ m.content }}
    {%- else %}
        {%- for part in m.content %}
            {%- if part.type == 'image' %}<img>{% else %}{{ part.text }}{% endif %}
        {%- endfor %}
    {%- endif %}
{%- endfor %}"""
USERS_ALONE = EITHER.replace(
    "{%- if m.content is string %}",
    "{%- if m.content is string or m.role == 'tool' %}{{ m.content + '' if m.role == 'tool' }}",
).replace("{{ m.content }}", "{{ m.content if m.role != 'tool' }}")
PARTS_ALONE = """
{%- for m in messages %}[{{ m.role }}]
    {%- for part in m.content | selectattr('type', 'equalto', 'image') %}<img>{% endfor %}
    {%- for part in m.content | selectattr('type', 'equalto', 'text') %}{{ part.text }}{% endfor %}
{%- endfor %}"""

LOOK = '{"name": "look", "arguments": {}}'
"""A call, as it is written for a template that shows none."""

A, B, C = (f"data:image/png;base64,{letter}" for letter in "ABC")


def template(source: str) -> ChatTemplate:
    return ChatTemplate({"default": source}, {})


async def rendered(source: str, *items: i.Item) -> tuple[str, list[str]]:
    """Return the prompt's text, and its images."""
    tokenizer = WordTokenizer(["<img>"])
    renderer = TemplateRenderer(template(source), tokenizer, FAMILIES["plain"])
    prompt = await renderer.render(Turn(model="m", items=items))
    return tokenizer.decode(prompt.token_ids), list(prompt.image_urls)


def said(*parts: str, role: str = "user") -> i.Message:
    return i.Message(role=role, content=_parts(*parts))  # type: ignore[arg-type]


def call(call_id: str) -> i.FunctionCall:
    return i.FunctionCall(call_id=call_id, name="look", arguments="{}")


def returned(call_id: str, *parts: str) -> i.FunctionCallOutput:
    return i.FunctionCallOutput(call_id=call_id, output=_parts(*parts))


def _parts(*parts: str) -> tuple[c.InputText | c.InputImage, ...]:
    return tuple(
        c.InputImage(image_url=part) if part.startswith("data:") else c.InputText(text=part)
        for part in parts
    )


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (TEXT_ONLY, TemplateCapabilities()),
        (CARELESS, TemplateCapabilities()),
        (AS_JSON, TemplateCapabilities()),
        (EITHER, TemplateCapabilities(images=True, tool_images=True)),
        (USERS_ALONE, TemplateCapabilities(images=True)),
        (PARTS_ALONE, TemplateCapabilities(text_content=False, images=True, tool_images=True)),
        ("{{ raise_exception('never') }}", TemplateCapabilities()),
        ("{{ messages[5].content }}", TemplateCapabilities()),
    ],
)
def test_capabilities_of_a_template_are_detected_by_rendering(
    source: str, expected: TemplateCapabilities
) -> None:
    assert detect_capabilities(template(source)) == expected


async def test_images_keep_their_places_and_their_order() -> None:
    text, images = await rendered(
        EITHER,
        said("Be brief.", role="system"),
        said("one ", A, " two ", B),
        said("Hm.", role="assistant"),
        said(C, A),
    )
    assert text == "[system]Be brief.[user]one <img> two <img>[assistant]Hm.[user]<img><img>"
    assert images == [A, B, C, A]


async def test_a_template_for_parts_gets_lists_of_parts() -> None:
    text, images = await rendered(PARTS_ALONE, said("Hi ", A), said("Yes?", role="assistant"))
    assert text == "[user]<img>Hi [assistant]Yes?"
    assert images == [A]


async def test_images_of_tools_are_in_their_results() -> None:
    text, images = await rendered(EITHER, said("Look"), call("a"), returned("a", "Here: ", A))
    assert text == f"[user]Look[assistant]{LOOK}[tool]Here: <img>"
    assert images == [A]


async def test_images_of_tools_follow_as_a_users_message_where_only_users_may_show_images() -> None:
    text, images = await rendered(
        USERS_ALONE,
        said("Look"),
        call("a"),
        call("b"),
        returned("a", "first ", A),
        returned("b", B, "second"),
        said("And ", C),
    )
    assert text == (
        f"[user]Look[assistant]{LOOK}\n{LOOK}[tool]first [tool]second[user]<img><img>"
        "[user]And <img>"
    )
    assert images == [A, B, C]


async def test_a_template_for_texts_refuses_images() -> None:
    for source in (TEXT_ONLY, CARELESS):
        with pytest.raises(RequestError, match="images"):
            await rendered(source, said("Look", A))
