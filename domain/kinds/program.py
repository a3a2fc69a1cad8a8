"""Programs that call tools, which this server does not run: a client may have those of another."""

from __future__ import annotations

from antiphon.domain.bounds import Text
from antiphon.domain.kinds.function import open_unrun_call
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
from antiphon.domain.vocabulary.shown import Call, Result
from antiphon.domain.vocabulary.steps import NO_EVENTS
from antiphon.domain.vocabulary.tool import Tool


class Program(Item, frozen=True, kw_only=True, tag="program"):
    call_id: CallId
    code: Text
    fingerprint: Text


class ProgramOutput(Item, frozen=True, kw_only=True, tag="program_output"):
    status: Text | None = None
    call_id: CallId
    result: Text


class ProgrammaticToolCalling(Tool, frozen=True, kw_only=True, tag="programmatic_tool_calling"):
    pass


PROGRAM = ItemKind(
    item=Program,
    prefix="prg",
    events=NO_EVENTS,
    next="nobody",
    shown=Shown(call=lambda item, _: Call(kind="program", name="program", text=item.code)),
    include={},
)

OUTPUT = ItemKind(
    item=ProgramOutput,
    prefix="prgo",
    events=NO_EVENTS,
    next="nobody",
    shown=Shown(result=lambda item, _: Result(body=item.result, name="program")),
    include={},
)

TOOL = ToolKind(
    tool=ProgrammaticToolCalling,
    client_specs=None,
    server_specs=None,
    chosen=None,
    stand_in=None,
    echo=AS_SENT,
)
CODE = CallKind(
    name="program",
    tool_type="programmatic_tool_calling",
    item=Program,
    open=open_unrun_call,
    arguments=TextArguments("code"),
)

KIND = Kind(name="program", items=(PROGRAM, OUTPUT), tools=(TOOL,), calls=(CODE,))
