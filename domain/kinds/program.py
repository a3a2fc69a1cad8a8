"""Programs: JavaScript of the model's that calls tools (docs/decisions/0152).

A program is a pure function of its code and of the outcomes of its calls. The calls are items of
their own, whose `caller` names the program. The model is shown the program and its output, and
nothing of the calls.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from msgspec.structs import replace

from antiphon.domain import deltas as d
from antiphon.domain.bounds import Text
from antiphon.domain.json import Json
from antiphon.domain.kinds.function import make_function_call
from antiphon.domain.vocabulary.builder import BuilderContext
from antiphon.domain.vocabulary.item import CallId, Item
from antiphon.domain.vocabulary.kind import (
    AS_SENT,
    CallKind,
    ItemKind,
    Kind,
    Shown,
    TextArguments,
    ToolKind,
)
from antiphon.domain.vocabulary.shown import Call, Result, View, name_of_kind, to_json_text
from antiphon.domain.vocabulary.steps import NO_EVENTS
from antiphon.domain.vocabulary.tool import Tool, ToolSpec
from antiphon.domain.vocabulary.typed_call import BufferedCallBuilder, EventsAndItem

PROGRAM = "program"
"""The kind of the tool, and its name for models."""

CODE = "code"

MAX_SHOWN_CHARS = 200_000
"""In the descriptions and schemas of the tools that programs may call, as the model reads them."""


class Program(Item, frozen=True, kw_only=True, tag="program"):
    """`fingerprint` is what a repeat of the program depends on besides its code: its random numbers
    and its clock."""

    call_id: CallId
    code: Text
    fingerprint: Text


class ProgramOutput(Item, frozen=True, kw_only=True, tag="program_output"):
    status: Text | None = None
    call_id: CallId
    result: Text


class ProgrammaticToolCalling(Tool, frozen=True, kw_only=True, tag="programmatic_tool_calling"):
    pass


ABOUT = """\
Runs JavaScript that calls tools, and returns only what it writes. Use it for many calls, for \
calls that need the results of others, and to filter or compute what tools return.
- `await tools.NAME(input)` calls a tool; `await Promise.all([...])` makes several calls at once. \
A call that fails throws an Error.
- `text(value)` and `console.log(value)` write; so does `return value` at the end. Nothing else \
is returned, so write what you need, and no more.
- The code is the body of an async function. There are no imports, no timers, no files and no \
network; the time does not pass while it runs."""

SPEC = ToolSpec(
    name=PROGRAM,
    kind=PROGRAM,
    description=ABOUT,
    parameters={
        "type": "object",
        "properties": {CODE: {"type": "string", "description": "The JavaScript code to run."}},
        "required": [CODE],
        "additionalProperties": False,
    },
)


def with_tools(spec: ToolSpec, tools: Sequence[ToolSpec], kinds: Iterable[CallKind]) -> ToolSpec:
    """Return the spec of the tool with the description of what its programs may call."""
    inputs = {
        kind.name: kind.arguments.property
        for kind in kinds
        if isinstance(kind.arguments, TextArguments)
    }
    lines = [_declaration(tool, inputs.get(tool.kind)) for tool in tools]
    listing = "\n".join(lines) or "There are none."
    shown = listing[:MAX_SHOWN_CHARS]
    if len(listing) > MAX_SHOWN_CHARS:
        shown += "\n[The rest of the list is left out.]"
    return replace(spec, description=f"{spec.description}\nThe tools:\n{shown}")


_NOT_IN_IDENTIFIERS = re.compile(r"[^A-Za-z0-9_$]")


def _declaration(tool: ToolSpec, text_input: str | None) -> str:
    """Return the line that declares a tool.

    >>> print(_declaration(ToolSpec(name="get-x", description="Gets x."), None))
    - tools.get_x(input): Gets x. Input: {}
    """
    name = _NOT_IN_IDENTIFIERS.sub("_", tool.name)
    parameters: Json = tool.parameters or {}
    if text_input is not None:
        parameters = {"type": "string"}
        if tool.grammar is not None:
            syntax, definition = tool.grammar
            parameters["description"] = f"It follows this {syntax} grammar: {definition}"
    about = f" {tool.description}" if tool.description else ""
    line = f"- tools.{name}(input):{about} Input: {to_json_text(parameters)}"
    if tool.output_schema is not None:
        line += f" Returns: {to_json_text(tool.output_schema)}"
    return line


_FINGERPRINT = re.compile(r"prgf_[0-9a-z]+([0-9a-f]{8})")


def clock_of(fingerprint: str) -> int:
    """Return the time that a program reads, in seconds since the epoch; 0 if another server made
    the fingerprint.

    >>> clock_of("prgf_7b2f6553f100"), clock_of("of another server")
    (1700000000, 0)
    """
    made_here = _FINGERPRINT.fullmatch(fingerprint)
    return int(made_here[1], 16) if made_here is not None else 0


def _make(
    start: d.CallStart, arguments: str, status: str, context: BuilderContext
) -> EventsAndItem:
    if status != "completed":  # half a program must not run
        return make_function_call(start, arguments, status, context)
    program = Program(
        id=context.new_id("prg"),
        call_id=start.call_id or context.new_id("call"),
        code=arguments,
        fingerprint=f"{context.new_id('prgf')}{context.created_at:08x}",
    )
    return (context.added(program), context.done(program)), program


def _open(start: d.CallStart, context: BuilderContext) -> BufferedCallBuilder:
    return BufferedCallBuilder(start, context, _make)


def _shown_call(item: Program, view: View) -> Call:
    return Call(kind=PROGRAM, name=name_of_kind(PROGRAM, view.tools), text=item.code)


def _shown_result(item: ProgramOutput, _: View) -> Result:
    return Result(body=item.result, name=PROGRAM)


CALL = ItemKind(
    item=Program,
    prefix="prg",
    events=NO_EVENTS,
    next=ProgramOutput,
    shown=Shown(call=_shown_call),
    include={},
)

OUTPUT = ItemKind(
    item=ProgramOutput,
    prefix="prgo",
    events=NO_EVENTS,
    next="model",
    shown=Shown(result=_shown_result),
    include={},
)

TOOL = ToolKind(
    tool=ProgrammaticToolCalling,
    client_specs=None,
    server_specs=lambda *_: (SPEC,),
    chosen=(PROGRAM,),
    stand_in=None,
    echo=AS_SENT,
)
CODE_CALL = CallKind(
    name=PROGRAM,
    tool_type="programmatic_tool_calling",
    item=Program,
    open=_open,
    arguments=TextArguments(CODE),
)

KIND = Kind(name="program", items=(CALL, OUTPUT), tools=(TOOL,), calls=(CODE_CALL,))
