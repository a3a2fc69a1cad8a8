"""gpt-oss's own shell: described as `container.exec`, read as commands, continued exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from antiphon.adapters.formats.harmony import HarmonyFormat
from antiphon.adapters.formats.harmony.encoding import Encoding
from antiphon.application.ports import Parser, Prompt, Step, Turn
from antiphon.domain import deltas as d
from antiphon.domain import items as i
from antiphon.domain.offers.client_tools import item_fields_of
from antiphon.domain.offers.offer import ToolDefinition, make_offer
from antiphon.domain.tools import Shell, ToolChoice

from .conftest import NO_PROMPT, a_turn, joined

Render = Callable[[Turn], Prompt]
HELLO = i.Message(role="user", content="What is in there?")
ENVIRONMENT = {"type": "container_reference", "container_id": "cntr_1"}
[TOOL] = make_offer(
    [ToolDefinition(tool=Shell(environment=ENVIRONMENT), path="tools[0]", is_server_run=True)], None
).specs

WRITTEN = {
    "a script": ('{"cmd":["bash","-lc","ls | wc -l"]}', ["ls | wc -l"]),
    "a program": ('{"cmd":["ls","a b"]}', ["ls 'a b'"]),
    "elsewhere": ('{"cmd":["ls"],"workdir":"/tmp","env":{"A":"b c"}}', None),
    "with what there is not": ('{"cmd":["ls"],"session_name":"s","user":"root"}', ["ls"]),
    "in our words": ('{"commands":["ls","pwd"],"max_output_length":9}', ["ls", "pwd"]),
}
CHANNELS = ("analysis", "commentary")


def parsed(harmony: HarmonyFormat, render: Render, turn: Turn, ids: list[int]) -> list[d.Delta]:
    return joined(read(harmony, render, turn, ids)[0])


def read(
    harmony: HarmonyFormat, render: Render, turn: Turn, ids: list[int]
) -> tuple[list[d.Delta], Parser]:
    parser = harmony.make_parser(turn, render(turn))
    return [*parser.feed(Step(token_ids=ids)), *parser.end()], parser


@pytest.mark.parametrize("channel", CHANNELS)
@pytest.mark.parametrize(("written", "commands"), WRITTEN.values(), ids=WRITTEN)
def test_calls_become_commands_and_are_continued_exactly(
    harmony: HarmonyFormat,
    render: Render,
    encoding: Encoding,
    written: str,
    commands: Any,
    channel: str,
) -> None:
    turn = a_turn(items=(HELLO,), tools=(TOOL,))
    markup = f"<|channel|>{channel} to=container.exec code<|message|>{written}<|call|>"
    before, generated = list(render(turn).token_ids), encoding.encode_markup(markup)
    deltas, parser = read(harmony, render, turn, generated)
    start, arguments, *_ = joined(deltas)
    assert start == d.CallStart("shell", kind="container")
    assert isinstance(arguments, d.ArgumentsDelta)
    fields = item_fields_of("container", arguments.text)
    assert fields is not None
    assert commands is None or list(fields["action"]["commands"]) == commands
    call = i.ShellCall(call_id="c", environment=ENVIRONMENT, **fields)
    output = i.ShellCallOutput(call_id="c", output=({"stdout": "1"},))
    items = (call, output)
    harmony.remember(turn, render(turn), token_ids=generated, parser=parser, items=items)
    after = a_turn(items=(HELLO, *items), tools=(TOOL,))
    prompt = list(render(after).token_ids)
    assert prompt[: len(before) + len(generated)] == before + generated
    assert "<|start|>container.exec to=assistant" in encoding.text(prompt)


@pytest.mark.parametrize("written", ["", "{}", "ls -la", '{"cmd": []}', '{"cmd": "ls"}', "[" * 999])
def test_invalid_arguments_are_passed_on_unchanged(
    harmony: HarmonyFormat, render: Render, encoding: Encoding, written: str
) -> None:
    turn = a_turn(items=(HELLO,), tools=(TOOL,))
    markup = f"<|channel|>analysis to=container.exec code<|message|>{written}<|call|>"
    deltas = parsed(harmony, render, turn, encoding.encode_markup(markup))
    handed = "".join(each.text for each in deltas if isinstance(each, d.ArgumentsDelta))
    assert handed == written
    assert item_fields_of("container", handed or "{}") is None


def test_the_prompt_describes_the_namespace(prompt_text: Callable[[Turn], str]) -> None:
    prompt = prompt_text(a_turn(items=(HELLO,), tools=(TOOL,)))
    assert "## container" in prompt
    assert "namespace container {" in prompt
    assert "type exec = (_: {" in prompt
    assert "cmd: string[]," in prompt
    assert "namespace functions" not in prompt


def test_a_shell_that_the_client_runs_is_a_function(prompt_text: Callable[[Turn], str]) -> None:
    local = make_offer([ToolDefinition(tool=Shell(), path="tools[0]")], None).specs
    call = i.ShellCall(call_id="c", action={"commands": ["ls"]})
    prompt = prompt_text(a_turn(items=(HELLO, call), tools=local))
    assert "to=functions.shell" in prompt
    assert "container" not in prompt


def test_a_forced_call_must_match_the_parameters_in_the_prompt(harmony: HarmonyFormat) -> None:
    turn = a_turn(items=(HELLO,), tools=(TOOL,), choice=ToolChoice(mode="required"))
    constraint = harmony.constraint(turn, NO_PROMPT)
    assert constraint is not None
    bound = msgspec.json.encode(constraint).decode()
    assert "to=container.exec" in bound
    assert "cmd" in bound
