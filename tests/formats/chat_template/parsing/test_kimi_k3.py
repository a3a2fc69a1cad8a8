"""Text, reasoning and calls of Kimi K3, all of which are inside elements."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from antiphon.adapters.formats.chat_template.constraint import constraint
from antiphon.adapters.formats.chat_template.families import FAMILIES
from antiphon.application.ports import Turn
from antiphon.domain import deltas as d
from antiphon.domain.responses.response import TextConfig
from antiphon.domain.tools import ToolChoice, ToolSpec

Read = Callable[..., list[d.Delta]]

JSON = TextConfig(format={"type": "json_object"})
CALL = (
    '<|open|>tools<|sep|><|open|>call tool="get_weather" index="1"<|sep|>'
    '<|open|>argument key="city" type="string"<|sep|>Paris<|close|>argument<|sep|>'
    "<|close|>call<|sep|><|close|>tools<|sep|>"
)
CALLED_PARIS = [d.CallStart("get_weather"), d.ArgumentsDelta('{"city": "Paris"}'), d.ItemEnd()]
OPEN, CLOSE = "<|open|>response<|sep|>", "<|close|>response<|sep|>"


def test_text_may_start_before_the_turn(read: Read) -> None:
    assert read("kimi_k3", f"Hi{CLOSE}<|close|>message<|sep|>") == [d.TextDelta("Hi"), d.ItemEnd()]


def test_text_ends_reasoning_that_was_not_closed(read: Read) -> None:
    assert read("kimi_k3", f"Hm.{OPEN}Hi{CLOSE}", starts_in_reasoning=True) == [
        d.ReasoningDelta("Hm."),
        d.ItemEnd(),
        d.TextDelta("Hi"),
        d.ItemEnd(),
    ]


def test_json_ends_with_the_element_around_it(read: Read) -> None:
    answer = '{"a": "<|open|>tools<|sep|>"}'
    text = f"{OPEN}{answer}{CLOSE}{CALL}<|close|>message<|sep|>"
    for cuts in ((), range(1, len(text))):
        deltas = read("kimi_k3", text, cuts=cuts, text=JSON)
        assert deltas == [d.TextDelta(answer), d.ItemEnd(), *CALLED_PARIS]


@pytest.mark.parametrize(
    ("written", "expected"),
    [
        (' key="city" type="string"<|sep|>8080', {"city": "8080"}),
        (' key="city" type="number"<|sep|>8080', {"city": 8080}),
        (' key="days"<|sep|>3', {"days": 3}),
        (' key="city"<|sep|>3', {"city": "3"}),
        (' key="units" type="null"<|sep|>null', {"units": None}),
        (' key="a&quot;b&amp;" type="string"<|sep|>', {'a"b&': ""}),
    ],
)
def test_an_argument_has_the_type_that_it_says(
    read: Read, written: str, expected: dict[str, Any]
) -> None:
    argument = f"<|open|>argument{written}<|close|>argument<|sep|>"
    deltas = read("kimi_k3", f'<|open|>call tool="get_weather" index="1"<|sep|>{argument}')
    assert isinstance(deltas[1], d.ArgumentsDelta)
    assert json.loads(deltas[1].text.removesuffix("}") + "}") == expected


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        (
            ' key="city" type="str|sep|>Rome<|close|>argument<|sep|>',
            '{"city": "type=\\"str|sep|>Rome"',
        ),
        (' key="city" key="Rome"<|sep|>', '{"city": "key=\\"Rome\\"'),
        (' key="city" type="Rome"<|sep|>', '{"city": "type=\\"Rome\\"'),
        (' key="days" 3 days<|sep|>', '{"days": 3 days'),
        (' key="city" type="stri', '{"city": '),
        (' key="city"<|se', '{"city": '),
        (' key="city', '{"city'),
        (" ke", ""),
        (" Rome: yes", "{Rome: yes"),
    ],
)
def test_a_broken_head_is_kept_in_the_arguments(read: Read, written: str, arguments: str) -> None:
    text = f'<|open|>call tool="get_weather" index="1"<|sep|><|open|>argument{written}'
    for cuts in ((), range(1, len(text))):
        deltas = read("kimi_k3", text, cuts=cuts)
        assert "".join(getattr(delta, "text", "") for delta in deltas) == arguments


def test_text_in_the_head_of_a_call_stays_text(read: Read) -> None:
    written = '<|open|>call tool="get_weather" and Rome<|sep|><|close|>call<|sep|>'
    assert read("kimi_k3", written) == [d.TextDelta(written)]


def test_a_name_of_a_custom_tools_argument_that_is_none_is_text(read: Read) -> None:
    written = '<|open|>call tool="apply_patch"<|sep|><|open|>argument key="in: put"<|sep|>a'
    assert read("kimi_k3", written)[1] == d.ArgumentsDelta("in: puta")


@pytest.mark.vllm
@pytest.mark.filterwarnings("default")  # torch emits warnings that we cannot fix
def test_what_is_required_is_inside_its_element(tools: Sequence[ToolSpec]) -> None:
    import xgrammar  # comes with vLLM, which is not installed everywhere

    letters = [bytes([byte]) for byte in range(256)]
    info = xgrammar.TokenizerInfo(
        [*letters, b"<end>"], vocab_type=xgrammar.VocabType.RAW, stop_token_ids=[256]
    )
    compiler = xgrammar.GrammarCompiler(info)

    def accepts(turn: dict[str, Any], text: str) -> bool:
        built = Turn(model="m", items=(), tools=tools, **turn)
        bound = constraint(FAMILIES["kimi_k3"], built, inside_reasoning=False)
        assert bound
        grammar = compiler.compile_structural_tag(json.dumps(bound.value))
        matcher = xgrammar.GrammarMatcher(grammar)
        return bool(matcher.accept_string(text) and matcher.accept_token(256))

    think = "<|open|>think<|sep|>Hm.<|close|>think<|sep|>"
    required = {"choice": ToolChoice(mode="required")}
    for before in ("", f"{OPEN}{CLOSE}", CLOSE, f"{think}{OPEN}{CLOSE}"):
        assert accepts(required, before + CALL)
    assert not accepts(required, f"{OPEN}Hi{CLOSE}")
    for before in (OPEN, "", f"{think}{OPEN}"):
        assert accepts({"text": JSON}, f'{before}{{"a": 1}}{CLOSE}')
    assert accepts({"text": JSON}, f"{OPEN}{CLOSE}{CALL}")
    assert not accepts({"text": JSON}, f"{OPEN}Hi{CLOSE}")
