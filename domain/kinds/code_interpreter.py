"""The code interpreter: Python that this server runs in a container."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from antiphon.domain.bounds import Id, Long, Many, Text
from antiphon.domain.json import Json
from antiphon.domain.kinds.function import open_unrun_call
from antiphon.domain.requests.skills import without_data
from antiphon.domain.vocabulary.event import ItemEvent
from antiphon.domain.vocabulary.item import Item
from antiphon.domain.vocabulary.kind import (
    CallKind,
    Echo,
    IncludableField,
    ItemKind,
    Kind,
    Shown,
    TextArguments,
    ToolKind,
)
from antiphon.domain.vocabulary.shown import Call, Result, View, name_of_kind
from antiphon.domain.vocabulary.steps import ItemSteps
from antiphon.domain.vocabulary.tool import (
    Tool,
    ToolCallerName,
    ToolSpec,
)

PYTHON: Literal["python"] = "python"
"""The kind of the code interpreter, and its name for models."""


class CodeInterpreterCall(Item, frozen=True, kw_only=True, tag="code_interpreter_call"):
    status: Text | None = None
    code: Text | None = None
    container_id: Text
    outputs: Long[Json] | None = None
    caller: Json | None | UnsetType = UNSET


class CodeInProgress(
    ItemEvent,
    frozen=True,
    kw_only=True,
    gc=False,
    tag="response.code_interpreter_call.in_progress",
):
    pass


class CodeDelta(
    ItemEvent, frozen=True, kw_only=True, tag="response.code_interpreter_call_code.delta"
):
    delta: str


class CodeDone(
    ItemEvent, frozen=True, kw_only=True, tag="response.code_interpreter_call_code.done"
):
    code: str


class CodeInterpreting(
    ItemEvent,
    frozen=True,
    kw_only=True,
    gc=False,
    tag="response.code_interpreter_call.interpreting",
):
    pass


class CodeCompleted(ItemEvent, frozen=True, tag="response.code_interpreter_call.completed"):
    pass


class CodeInterpreter(Tool, frozen=True, kw_only=True, tag="code_interpreter"):
    container: Id | Json
    allowed_callers: Many[ToolCallerName] | None | UnsetType = UNSET


PYTHON_SPEC = ToolSpec(
    name=PYTHON,
    kind=PYTHON,
    description=(
        "Runs Python and returns what it prints, and the value of its last line. Variables last "
        "from call to call. Files are in /mnt/data. There is no network."
    ),
    parameters={
        "type": "object",
        "properties": {"code": {"type": "string", "description": "The Python code to run."}},
        "required": ["code"],
        "additionalProperties": False,
    },
)


def logs_of(outputs: Iterable[Json]) -> str:
    """Return the code's outputs as the model reads them."""
    return "\n".join(str(output.get("logs", "[image]")) for output in outputs)


def _result(item: CodeInterpreterCall, _: View) -> Result:
    return Result(body=None if item.outputs is None else logs_of(item.outputs))


def _echo(tool: CodeInterpreter) -> CodeInterpreter:
    container = tool.container
    return replace(tool, container=without_data(container)) if isinstance(container, dict) else tool


CALL = ItemKind(
    item=CodeInterpreterCall,
    prefix="ci",
    events=ItemSteps(
        opening_events=(CodeInProgress,),
        text_field="code",
        text_events=(CodeDelta, CodeDone),
        steps={"interpreting": CodeInterpreting},
        end_events={"completed": CodeCompleted},
    ),
    next="model",
    shown=Shown(
        call=lambda item, view: Call(
            kind=PYTHON, name=name_of_kind(PYTHON, view.tools), text=item.code or ""
        ),
        result=_result,
    ),
    include={"code_interpreter_call.outputs": IncludableField("outputs")},
)

TOOL = ToolKind(
    tool=CodeInterpreter,
    client_specs=None,
    server_specs=lambda *_: (PYTHON_SPEC,),
    chosen=(PYTHON,),
    stand_in="code_interpreter",
    echo=Echo(echo=_echo),
)
CODE = CallKind(
    name=PYTHON,
    tool_type="code_interpreter",
    item=CodeInterpreterCall,
    open=open_unrun_call,
    arguments=TextArguments("code"),
)

KIND = Kind(name="code_interpreter", items=(CALL,), tools=(TOOL,), calls=(CODE,))
