"""Chat templates are rendered as Hugging Face renders them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from antiphon.adapters.formats.chat_template.template import (
    ENVIRONMENT,
    ChatTemplate,
    load_template,
)
from antiphon.domain.errors import RequestError, SettingsError


def render(source: str, *messages: dict[str, Any], tools: Any = (), **options: Any) -> str:
    return ChatTemplate({"default": source}, {"bos_token": "<s>"}).render(messages, tools, options)


def test_blocks_leave_no_whitespace() -> None:
    source = (
        "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}"
    )
    assert render(source, {"content": "a"}, {"content": "b"}) == "a\nb\n"


@pytest.mark.parametrize(
    ("source", "text"),
    [
        ("{{ bos_token }}{{ eos_token }}", "<s>"),
        ("{{ {'a': '<é>'} | tojson }}", '{"a": "<é>"}'),
        ("{{ [1, 2] | tojson(indent=1) }}", "[\n 1,\n 2\n]"),
        ("{% for n in [1, 2, 3] %}{% if n == 2 %}{% break %}{% endif %}{{ n }}{% endfor %}", "1"),
        ("{% generation %}a{% endgeneration %}b", "ab"),
        ("{{ add_generation_prompt }} {{ tools is none }}", "True True"),
        ("{{ enable_thinking is defined }}", "False"),
        ("{{ strftime_now('%Y') | length }}", "4"),
    ],
)
def test_templates_get_the_variables_and_filters_that_they_expect(source: str, text: str) -> None:
    assert render(source) == text


def test_options_do_not_replace_the_conversation() -> None:
    assert render("{{ messages | length }}{{ x }}", {"content": ""}, messages=[], x=2) == "12"


def test_a_template_that_refuses_is_the_clients_error() -> None:
    with pytest.raises(RequestError, match="Roles must alternate") as raised:
        render("{{ raise_exception('Roles must alternate') }}")
    assert raised.value.param == "input"


def test_a_template_that_fails_is_the_clients_error() -> None:
    with pytest.raises(RequestError, match="cannot render"):
        render("{{ messages[0].content + 1 }}", {"content": "a"})


def test_a_template_cannot_access_python_internals() -> None:
    with pytest.raises(RequestError, match="unsafe"):
        render("{{ ''.__class__.__mro__ }}")


@pytest.mark.parametrize(
    "source",
    [
        *(f"{{{{ m.{name} }}}}" for name in ("content", "items", "keys", "update", "missing")),
        *(f"{{{{ m.{name} }}}}" for name in ("_private", "__class__", "clear", "func_code")),
        *(f"{{{{ m[{name!r}] }}}}" for name in ("content", "items", "__class__", "missing")),
        *(f"{{{{ m.content.{name} }}}}" for name in ("upper()", "split()[0]", "__class__")),
        "{{ m.content.format(m) }}",
        "{{ '{0.__class__}'.format(m) }}",
        "{{ '{0.__class__}'.format_map(m) }}",
        "{{ m.own.content }} {{ m.own.upper() }}",
        "{{ m.items()|list }} {{ m.none.content }}",
        "{{ m.numbers.append(1) }}",
        "{% for n in m.numbers %}{{ loop.index0 }} {{ loop.last }} {{ loop.length }}{% endfor %}",
        "{% for n in m.numbers %}{{ loop.previtem }} {{ loop.cycle('a', 'b') }}{% endfor %}",
        "{% for n in m.numbers %}{{ loop._iterator }}{% endfor %}",
        "{% for n in m.numbers %}{{ loop.__class__ }}{% endfor %}",
        "{% for n in m.numbers %}{{ loop.missing }}{% endfor %}",
    ],
)
def test_what_a_template_reads_is_what_jinjas_own_sandbox_reads(source: str) -> None:
    """Also of keys that are named like methods, and of subclasses of `dict` and `str`."""

    class OwnText(str):
        content = "an attribute"

    message = {
        "content": "Good {0} day",
        "items": ["a key"],
        "_private": "a key",
        "__class__": "a key",
        "own": OwnText("text"),
        "numbers": [1, 2],
        "none": None,
    }

    def written(environment: ImmutableSandboxedEnvironment) -> str:
        try:
            return environment.from_string(source).render(m=message)
        except Exception as error:
            return repr(error)

    assert written(ENVIRONMENT) == written(ImmutableSandboxedEnvironment())


def test_a_broken_template_prevents_the_start() -> None:
    with pytest.raises(SettingsError, match="does not compile"):
        ChatTemplate({"default": "{% if %}"}, {})


# --- files ----------------------------------------------------------------------------------------


def write(folder: Path, name: str, content: Any) -> None:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))


def text_of(folder: Path, *, tools: Any = ()) -> str:
    return load_template(folder).render([], tools, {})


def test_the_template_is_in_the_tokenizers_settings(tmp_path: Path) -> None:
    write(
        tmp_path,
        "tokenizer_config.json",
        {"chat_template": "{{ bos_token }}{{ eos_token }}!", "bos_token": {"content": "<b>"}},
    )
    write(tmp_path, "special_tokens_map.json", {"bos_token": "<x>", "eos_token": "<e>"})
    assert text_of(tmp_path) == "<b><e>!"


def test_there_may_be_a_separate_template_for_tools(tmp_path: Path) -> None:
    named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
    write(tmp_path, "tokenizer_config.json", {"chat_template": named})
    assert (text_of(tmp_path), text_of(tmp_path, tools=[{}])) == ("plain", "tools")


def test_a_template_file_takes_precedence_over_the_settings(tmp_path: Path) -> None:
    write(tmp_path, "tokenizer_config.json", {"chat_template": "settings"})
    write(tmp_path, "chat_template.json", {"chat_template": "json"})
    assert text_of(tmp_path) == "json"
    write(tmp_path, "chat_template.jinja", "jinja")
    write(tmp_path, "additional_chat_templates/tool_use.jinja", "tools")
    assert (text_of(tmp_path), text_of(tmp_path, tools=[{}])) == ("jinja", "tools")


@pytest.mark.parametrize(
    ("content", "why"), [({}, "no chat template"), ("{", "not JSON"), ("[]", "not JSON")]
)
def test_a_folder_without_a_template_prevents_the_start(
    tmp_path: Path, content: Any, why: str
) -> None:
    write(tmp_path, "tokenizer_config.json", content)
    with pytest.raises(SettingsError, match=why):
        load_template(tmp_path)
