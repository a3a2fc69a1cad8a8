"""Constraints of turns, and what xgrammar accepts with them."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from antiphon.adapters.formats.chat_template.constraint import constraint
from antiphon.adapters.formats.chat_template.families import FAMILIES
from antiphon.application.ports import Constraint, Turn
from antiphon.domain.errors import RequestError
from antiphon.domain.kinds import web_search
from antiphon.domain.kinds.code_interpreter import PYTHON_SPEC
from antiphon.domain.kinds.file_search import FILE_SEARCH_SPEC
from antiphon.domain.offers.offer import ToolDefinition, make_offer
from antiphon.domain.responses.response import TextConfig
from antiphon.domain.tools import Shell, ToolChoice, ToolSpec

SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER = ToolSpec(name="get_weather", parameters=SCHEMA, strict=True)
PATCH = ToolSpec(name="patch", kind="custom")
ZIP = ToolSpec(name="zip", kind="custom", grammar=("regex", "[0-9]{5}"))
BEYOND = ToolSpec(name="beyond", kind="custom", grammar=("lark", 'start: %json {"type": "null"}'))
[SHELL] = make_offer(
    [
        ToolDefinition(
            tool=Shell(environment={"type": "container_auto"}), path="tools[0]", is_server_run=True
        )
    ],
    None,
).specs
HOSTED_TOOLS = (*web_search.SPECS.values(), PYTHON_SPEC, FILE_SEARCH_SPEC, SHELL)
REQUIRED = ToolChoice(mode="required")
JSON = TextConfig(format={"type": "json_schema", "name": "n", "schema": SCHEMA})


def constraint_for(
    family: str = "hermes", *, inside: bool = False, **turn: Any
) -> Constraint | None:
    built = Turn(model="m", items=(), **turn)
    return constraint(FAMILIES[family], built, inside_reasoning=inside)


def test_a_turn_without_requirements_has_no_constraint() -> None:
    assert constraint_for() is None
    assert constraint_for(tools=[ToolSpec(name="f"), PATCH, BEYOND]) is None
    assert constraint_for(tools=[WEATHER], choice=ToolChoice(mode="none")) is None


def test_a_text_format_without_reasoning_is_its_schema_with_limited_whitespace() -> None:
    plain = constraint_for("plain", text=JSON)
    assert plain is not None
    assert plain == constraint_for("hermes", text=JSON, effort="none")
    assert plain.value["format"]["json_schema"] == SCHEMA
    # Without a limit, a confused model would write blanks until it runs out of tokens.
    assert plain.value["format"]["max_whitespace_cnt"] > 0
    anything = constraint_for("plain", text=TextConfig(format={"type": "json_object"}))
    assert anything is not None
    assert anything.value["format"]["json_schema"] == {"type": "object"}


def test_a_family_without_calls_cannot_be_made_to_call() -> None:
    with pytest.raises(RequestError) as raised:
        constraint_for("plain", tools=[WEATHER], choice=REQUIRED)
    assert raised.value.param == "tool_choice"


def test_calls_without_a_marker_are_only_constrained_if_required() -> None:
    assert constraint_for("llama3_json", tools=[WEATHER]) is None
    assert constraint_for("llama3_json", tools=[WEATHER], choice=REQUIRED) is not None


# --- in xgrammar ----------------------------------------------------------------------------------


def needs_xgrammar(test: Any) -> Any:
    """Mark a test of `make test-vllm`, in which torch emits warnings that we cannot fix."""
    return pytest.mark.filterwarnings("default")(pytest.mark.vllm(test))


Accepts = Callable[[Constraint | None, str], bool]

PARIS = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
CODE = '<tool_call>\n{"name": "python", "arguments": {"code": "print(1)\\n"}}\n</tool_call>'
FOUND = '<tool_call>\n{"name": "file_search", "arguments": {"queries": ["a", "b"]}}\n</tool_call>'
SEARCHED = '<tool_call>\n{"name": "web_search", "arguments": {"query": "bonn"}}\n</tool_call>'
OPENED = '<tool_call>\n{"name": "open_page", "arguments": {"id": "https://a.b"}}\n</tool_call>'
LISTED = '<tool_call>\n{"name": "shell", "arguments": {"commands": ["ls"]}}\n</tool_call>'
DIFF = '<tool_call>\n{"name": "patch", "arguments": {"input": "a\\nb"}}\n</tool_call>'
BAD = '<tool_call>\n{"name": "get_weather", "arguments": {"town": "Paris"}}\n</tool_call>'
THOUGHT = "<think>\nA <tool_call> { maybe.\n</think>\n\n"


@pytest.fixture(scope="module")
def accepts() -> Accepts:
    import xgrammar  # comes with vLLM, which is not installed everywhere

    letters = [bytes([byte]) for byte in range(256)]
    info = xgrammar.TokenizerInfo(
        [*letters, b"<end>"], vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[256]
    )
    compiler = xgrammar.GrammarCompiler(info)

    def run(turn_constraint: Constraint | None, text: str) -> bool:
        assert turn_constraint is not None
        grammar = compiler.compile_structural_tag(json.dumps(turn_constraint.value))
        matcher = xgrammar.GrammarMatcher(grammar)
        return bool(matcher.accept_string(text) and matcher.accept_token(256))

    return run


@needs_xgrammar
@pytest.mark.parametrize(
    ("turn", "allowed", "refused"),
    [
        (
            {"tools": [WEATHER, PATCH], "choice": REQUIRED},
            [PARIS, f"{PARIS}\n{DIFF}", THOUGHT + PARIS, f"<think></think>{DIFF}"],
            ["", "Hi", BAD, f"Hi{PARIS}", THOUGHT, f"{THOUGHT}Hi", f"<think>{PARIS}"],
        ),
        (
            {"tools": [WEATHER, PATCH], "choice": REQUIRED, "effort": "none"},
            [PARIS],
            [THOUGHT + PARIS, f"<think></think>{PARIS}"],
        ),
        (
            {"tools": [WEATHER, PATCH], "choice": REQUIRED, "parallel_tool_calls": False},
            [PARIS, THOUGHT + DIFF],
            [f"{PARIS}\n{DIFF}"],
        ),
        (
            {
                "tools": [WEATHER, PATCH],
                "choice": ToolChoice(mode="required", names=frozenset({"patch"})),
            },
            [DIFF],
            [PARIS],
        ),
        (
            {
                "tools": HOSTED_TOOLS,
                "choice": ToolChoice(mode="required", names=frozenset(web_search.SPECS)),
            },
            [SEARCHED, OPENED, THOUGHT + SEARCHED],
            ["Hi", CODE, FOUND, LISTED, SEARCHED.replace("bonn", "")],
        ),
        (
            {
                "tools": HOSTED_TOOLS,
                "choice": ToolChoice(mode="required", names=frozenset({"python"})),
            },
            [CODE, THOUGHT + CODE],
            ["Hi", SEARCHED, FOUND, LISTED, CODE.replace("code", "cod")],
        ),
        (
            {
                "tools": HOSTED_TOOLS,
                "choice": ToolChoice(mode="required", names=frozenset({"file_search"})),
            },
            [FOUND, THOUGHT + FOUND],
            ["Hi", SEARCHED, CODE, LISTED, FOUND.replace('"a", "b"', "")],
        ),
        (
            {
                "tools": HOSTED_TOOLS,
                "choice": ToolChoice(mode="required", names=frozenset({"shell"})),
            },
            [LISTED, THOUGHT + LISTED],
            ["Hi", SEARCHED, CODE, FOUND, LISTED.replace("commands", "cmd")],
        ),
        (
            {
                "tools": HOSTED_TOOLS,
                "choice": ToolChoice(names=frozenset({"python", "file_search"})),
            },
            ["Hi", f"Hi\n{CODE}\n{FOUND}"],
            [SEARCHED, LISTED],
        ),
        (
            {"tools": [WEATHER, PATCH]},
            ["Hi", f"Hi\n{PARIS}\nBye", THOUGHT + PARIS, f"{THOUGHT}Hi\n{PARIS}\n{DIFF}"],
            [BAD, f"Hi {BAD}", THOUGHT + BAD, "<tool_call>Hi"],
        ),
        (
            {"tools": [WEATHER, PATCH], "effort": "none", "parallel_tool_calls": False},
            ["Hi", f"Hi {PARIS}"],
            [f"Hi {PARIS}{PARIS}", THOUGHT, f"Hi {THOUGHT}"],
        ),
        (
            {"tools": [PATCH, BEYOND], "choice": ToolChoice(names=frozenset({"patch"}))},
            ["Hi", DIFF],
            [DIFF.replace('"patch"', '"beyond"')],
        ),
        (
            {"tools": [ZIP]},
            ['<tool_call>\n{"name": "zip", "arguments": {"input": "01234"}}\n</tool_call>'],
            ['<tool_call>\n{"name": "zip", "arguments": {"input": "0123"}}\n</tool_call>'],
        ),
        (
            {"text": JSON},
            ['{"city": "Oslo"}', THOUGHT + '{"city": "Oslo", "days": 3}', '{\n  "city": "x"\n}'],
            ["Hi", '{"town": "x"}', THOUGHT, '{"city": "Oslo"} ', '{"city":' + " " * 50 + '"x"}'],
        ),
        ({"text": JSON, "effort": "none"}, ['{"city": "Oslo"}'], [THOUGHT + '{"city": "Oslo"}']),
        (
            {"text": JSON, "tools": [WEATHER]},
            ['{"city": "Oslo"}', PARIS, THOUGHT + PARIS],
            ["Hi", BAD, f'{PARIS}{{"city": "Oslo"}}'],
        ),
        ({"text": TextConfig(format={"type": "json_object"})}, ['{"a": [1]}', "{}"], ["[]", "1"]),
    ],
)
def test_hermes_is_constrained_as_requested(
    accepts: Accepts, turn: dict[str, Any], allowed: list[str], refused: list[str]
) -> None:
    turn_constraint = constraint_for(**turn)
    assert [text for text in allowed if not accepts(turn_constraint, text)] == []
    assert [text for text in refused if accepts(turn_constraint, text)] == []


LINES = ToolSpec(name="lines", kind="custom", grammar=("lark", 'start: (/"[a-c]+"/ "\\n")+'))
TEXTS = [('"a"\n', True), ('"ab"\n"c"\n', True), ('"d"\n', False), ('"a"', False), ("", False)]


@needs_xgrammar
@pytest.mark.parametrize("mode", ["auto", "required"])
@pytest.mark.parametrize(
    ("family", "call"),
    [
        ("hermes", '<tool_call>\n{"name": "lines", "arguments": {"input": %s}}\n</tool_call>'),
        ("mistral", '[TOOL_CALLS]lines[ARGS]{"input":%s}'),
        ("mistral_array", '[TOOL_CALLS] [{"name": "lines", "arguments": {"input": %s}}]'),
        ("llama3_json", '{"name": "lines", "parameters": {\n "input": %s\n}}'),
        ("pythonic", "[lines(input=%s)]"),
    ],
)
def test_a_custom_tool_is_called_with_its_grammar(
    accepts: Accepts, family: str, call: str, mode: Any
) -> None:
    turn_constraint = constraint_for(
        family, tools=[LINES, WEATHER], choice=ToolChoice(mode=mode), effort="none"
    )
    form = FAMILIES[family].call_form
    assert form
    if mode == "auto" and not form.trigger:
        assert turn_constraint is None
        return
    for text, is_sentence in TEXTS:
        assert accepts(turn_constraint, call % json.dumps(text)) is is_sentence, text


@needs_xgrammar
def test_a_custom_tool_is_called_with_its_grammar_verbatim(accepts: Accepts) -> None:
    turn_constraint = constraint_for("qwen3_coder", tools=[LINES], choice=REQUIRED, effort="none")
    head, end = "<tool_call>\n<function=lines>\n<parameter=input>\n", "\n</parameter>\n</function>"
    for text, is_sentence in TEXTS:
        assert accepts(turn_constraint, f"{head}{text}{end}\n</tool_call>") is is_sentence, text


@needs_xgrammar
def test_reasoning_that_the_prompt_opened_must_be_closed(accepts: Accepts) -> None:
    turn_constraint = constraint_for("deepseek_r1", text=JSON, inside=True)
    assert accepts(turn_constraint, 'Hm.\n</think>\n\n{"city": "Oslo"}')
    assert not accepts(turn_constraint, '{"city": "Oslo"}')
    assert not accepts(turn_constraint, '<think>Hm.</think>{"city": "Oslo"}Hi')


@needs_xgrammar
def test_a_call_may_follow_the_reasoning_of_any_markers(accepts: Accepts) -> None:
    turn_constraint = constraint_for("mistral", tools=[WEATHER], choice=REQUIRED)
    call = '[TOOL_CALLS]get_weather[ARGS]{"city": "Oslo"}'
    for thought in ("[THINK]Hm.[/THINK]", "<think>\nHm.\n</think>\n\n", ""):
        assert accepts(turn_constraint, thought + call)
    assert not accepts(turn_constraint, f"<think>Hm.{call}")
    opened = constraint_for("mistral", tools=[WEATHER], choice=REQUIRED, inside=True)
    assert accepts(opened, f"Hm.[/THINK]{call}")
    assert accepts(opened, f"Hm.</think>{call}")


@needs_xgrammar
def test_a_call_after_reasoning_may_be_a_message_of_its_own(accepts: Accepts) -> None:
    turn_constraint = constraint_for("solar", tools=[WEATHER], choice=REQUIRED)
    call = (
        "<|tool_calls|><|tool_call:begin|>call000000<|tool_call:name|>get_weather"
        '<|tool_call:args|>{"city": "Oslo"}<|tool_call:end|><|calls|>'
    )
    thought = "<|think|>Hm.<|end|>"
    for before in ("", thought, f"{thought}<|begin|>assistant"):
        assert accepts(turn_constraint, before + call)
    assert not accepts(turn_constraint, f"{thought}Hello.{call}")


B, S, E = "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>"  # noqa: RUF001
CALLS, DONE = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"  # noqa: RUF001
ARGUMENTS = '{"city": "Oslo"}'


@needs_xgrammar
@pytest.mark.parametrize(
    ("family", "one", "joint"),
    [
        (
            "qwen3_coder",
            "<tool_call>\n<function=get_weather>\n<parameter=city>\nOslo\n</parameter>\n"
            "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
            "\n",
        ),
        ("llama3_json", f'{{"name": "get_weather", "parameters": {ARGUMENTS}}}', "; "),
        ("mistral", f"[TOOL_CALLS]get_weather[ARGS]{ARGUMENTS}", ""),
        ("mistral_array", f'{{"name": "get_weather", "arguments": {ARGUMENTS}}}', ", "),
        ("deepseek_r1", f"{B}function{S}get_weather\n```json\n{ARGUMENTS}\n```{E}", "\n"),
        ("deepseek_v3", f"{B}function{S}get_weather\n```json\n{ARGUMENTS}\n```{E}", "\n"),
        ("deepseek_v31", f"{B}get_weather{S}{ARGUMENTS}{E}", ""),
        ("pythonic", 'get_weather(city="Oslo", days=-3)', ", "),
    ],
)
def test_every_family_is_constrained_in_its_own_markup(
    accepts: Accepts, family: str, one: str, joint: str
) -> None:
    form = FAMILIES[family].call_form
    assert form
    call = f"{form.open}{one}{form.close}"
    calls = f"{form.open}{one}{joint}{one}{form.close}"
    turn_constraint = constraint_for(family, tools=[WEATHER, PATCH], choice=REQUIRED, effort="none")
    assert accepts(turn_constraint, call)
    assert accepts(turn_constraint, calls)
    assert not accepts(turn_constraint, "Hi")
    assert not accepts(turn_constraint, call.replace("city", "town"))
    single = constraint_for(family, tools=[WEATHER], choice=REQUIRED, parallel_tool_calls=False)
    assert accepts(single, call)
    assert not accepts(single, calls)
