"""What templates can write of calls, found out by rendering samples."""

from __future__ import annotations

import pytest

from antiphon.adapters.formats.chat_template.renderer import chat_messages
from antiphon.adapters.formats.chat_template.template import ChatTemplate
from antiphon.adapters.formats.chat_template.template_capabilities import (
    TemplateCapabilities,
    detect_capabilities,
)
from antiphon.application.ports import Turn
from antiphon.domain import items as i


def template_of(assistant: str) -> ChatTemplate:
    source = (
        "{% for m in messages %}{% if m.role == 'assistant' %}"
        + assistant
        + "{% else %}{{ m.content }}{% endif %}{% endfor %}"
    )
    return ChatTemplate({"default": source}, {})


def each_call(arguments: str = "") -> str:
    return "{% for c in m.tool_calls %}{{ c.function.name }}" + arguments + "{% endfor %}"


@pytest.mark.parametrize(
    ("assistant", "expected"),
    [
        ("{{ m.content }}", {}),
        ("{{ m.content }}" + each_call("{{ c.function.arguments | tojson }}"), {}),
        ("{{ m.content }}{{ m.tool_calls[0].function.name }}", {"parallel_calls": False}),
        (
            "{{ m.content or '' }}" + each_call("{{ c.function.arguments }}"),
            {"object_arguments": False},
        ),
        (
            "{{ m.content or '' }}" + each_call("{{ '' + c.function.arguments }}"),
            {"object_arguments": False},
        ),
        (
            "{% if m.content %}{{ m.content }}{% else %}" + each_call() + "{% endif %}",
            {"calls_after_text": False},
        ),
        (
            "{% if m.content is none %}" + each_call() + "{% else %}{{ m.content }}{% endif %}",
            {"calls_after_text": False, "null_content": True},
        ),
        (
            "{% if m.content is none %}{{ m.content | length }}{% endif %}" + each_call(),
            {"calls_after_text": False},
        ),
    ],
)
def test_a_template_shows_how_it_writes_calls(assistant: str, expected: dict[str, bool]) -> None:
    assert detect_capabilities(template_of(assistant)) == TemplateCapabilities(**expected)


def test_text_and_calls_are_two_messages_for_a_template_that_writes_one_of_them() -> None:
    items = [
        i.Message(role="assistant", content="I look."),
        i.FunctionCall(call_id="a", name="look", arguments="{}"),
        i.FunctionCall(call_id="b", name="look", arguments="{}"),
        i.Message(role="assistant", content="Done."),
    ]
    messages = chat_messages(
        Turn(model="m", items=items), capabilities=TemplateCapabilities(calls_after_text=False)
    )
    assert [(each["content"], len(each.get("tool_calls", ()))) for each in messages] == [
        ("I look.", 0),
        ("", 2),
        ("Done.", 0),
    ]


def test_calls_without_results_are_messages_each_for_a_template_that_writes_one() -> None:
    items = [i.FunctionCall(call_id=name, name=name, arguments="{}") for name in ("a", "b")]
    messages = chat_messages(
        Turn(model="m", items=items), capabilities=TemplateCapabilities(parallel_calls=False)
    )
    assert [len(each["tool_calls"]) for each in messages] == [1, 1]


@pytest.mark.parametrize(
    ("condition", "content"), [("is none", None), ("is none or m.content | length == 0", "")]
)
def test_a_call_without_text_has_the_content_that_the_template_accepts(
    condition: str, content: str | None
) -> None:
    template = template_of("{% if m.content " + condition + " %}" + each_call() + "{% endif %}")
    (message,) = chat_messages(
        Turn(model="m", items=[i.FunctionCall(call_id="a", name="look", arguments="{}")]),
        capabilities=detect_capabilities(template),
    )
    assert message["content"] == content
    assert template.render([message], [], {}) == "look"


@pytest.mark.parametrize(
    "content",
    [
        "{{ m.content }}",
        "{{ m.content | string }}",
        "{{ m.content | tojson }}",
        "{{ m.content | tojson | tojson }}",
        "{{ {'content': m.content} | tojson(indent=2) }}",
        "{% for p in m.content %}{{ p | tojson | replace('\"', '~') }}{% endfor %}",
        "{% if m.content is string %}{{ m.content }}{% else %}{{ m.content | tojson }}{% endif %}",
    ],
)
def test_a_template_that_prints_the_parts_of_a_message_shows_no_images(content: str) -> None:
    source = f"{{% for m in messages %}}{content}{{% endfor %}}"
    found = detect_capabilities(ChatTemplate({"default": source}, {}))
    assert (found.images, found.tool_images) == (False, False)


def test_a_template_that_has_a_marker_for_images_shows_them() -> None:
    parts = "{% for p in m.content %}{{ '<image>' if p.type == 'image' else p.text }}{% endfor %}"
    source = f"{{% for m in messages %}}{parts}{{% endfor %}}"
    found = detect_capabilities(ChatTemplate({"default": source}, {}))
    assert (found.images, found.tool_images) == (True, True)
