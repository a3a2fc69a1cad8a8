"""Patches: the client creates, changes and deletes files."""

from __future__ import annotations

from typing import Annotated

from msgspec import UNSET, Meta, UnsetType

from antiphon.domain import deltas as d
from antiphon.domain.bounds import Many, Text
from antiphon.domain.json import Json
from antiphon.domain.kinds.function import make_function_call
from antiphon.domain.vocabulary.builder import BuilderContext
from antiphon.domain.vocabulary.item import CallId, Item
from antiphon.domain.vocabulary.kind import AS_SENT, CallKind, ItemKind, Kind, Shown, ToolKind
from antiphon.domain.vocabulary.shown import Result, View
from antiphon.domain.vocabulary.steps import INPUT_ONLY, NO_EVENTS
from antiphon.domain.vocabulary.tool import (
    Tool,
    ToolCallerName,
)
from antiphon.domain.vocabulary.typed_call import (
    Arguments,
    BufferedCallBuilder,
    ClientTool,
    make_typed_call,
    to_builtins,
)


class ApplyPatchCall(Item, frozen=True, kw_only=True, tag="apply_patch_call"):
    status: Text | None = None
    call_id: CallId
    operation: Json
    caller: Json | None | UnsetType = UNSET


class ApplyPatchCallOutput(Item, frozen=True, kw_only=True, tag="apply_patch_call_output"):
    status: Text | None = None
    call_id: CallId
    output: Text | None | UnsetType = UNSET
    caller: Json | None | UnsetType = UNSET


class ApplyPatch(Tool, frozen=True, kw_only=True, tag="apply_patch"):
    allowed_callers: Many[ToolCallerName] | None | UnsetType = UNSET


Path = Annotated[str, Meta(description="The file, relative to the workspace.")]


class CreateFile(Arguments, frozen=True, kw_only=True, tag_field="type", tag="create_file"):
    path: Path
    diff: Annotated[str, Meta(description="The new file, in the V4A format.")]


class UpdateFile(Arguments, frozen=True, kw_only=True, tag_field="type", tag="update_file"):
    path: Path
    diff: Annotated[str, Meta(description="The changes, in the V4A format.")]


class DeleteFile(Arguments, frozen=True, kw_only=True, tag_field="type", tag="delete_file"):
    path: Path


class ApplyPatchArguments(Arguments, frozen=True, kw_only=True):
    operation: CreateFile | UpdateFile | DeleteFile


V4A = """\
Create, change or delete one file. `diff` is written in the V4A format, which has no line numbers:
- create_file: every line of the new file, each after a "+".
- update_file: sections. A section begins with a line "@@", or "@@ " and the line of the file that
opens the class or function it is in. Then come the lines: after " " a line that stays, after "-" \
one that goes, after "+" one that is new. About three lines that stay, before and after each \
change, say where it is; they must be exactly as they are in the file.
- delete_file: no diff."""


CLIENT_TOOL = ClientTool(
    name="apply_patch",
    description=V4A,
    arguments=ApplyPatchArguments,
    to_fields=to_builtins,
    to_arguments=lambda fields: {"operation": fields["operation"]},
)

_make_call = make_typed_call(CLIENT_TOOL, ApplyPatchCall, "apc", make_function_call)


def _open(start: d.CallStart, context: BuilderContext) -> BufferedCallBuilder:
    return BufferedCallBuilder(start, context, _make_call)


def _result(item: ApplyPatchCallOutput, _: View) -> Result:
    status = item.status or "completed"
    fields = {"status": status, "output": item.output or ""}
    return Result(body=item.output or None, status=status, fields=fields)


CALL = ItemKind(
    item=ApplyPatchCall,
    prefix="apc",
    events=NO_EVENTS,
    next=ApplyPatchCallOutput,
    shown=Shown(call=lambda item, view: CLIENT_TOOL.call(item, view, "apply_patch")),
    include={},
)

OUTPUT = ItemKind(
    item=ApplyPatchCallOutput,
    prefix="apco",
    events=INPUT_ONLY,
    next="nobody",
    shown=Shown(result=_result),
    include={},
)

TOOL = ToolKind(
    tool=ApplyPatch,
    client_specs=lambda *_: (CLIENT_TOOL.spec("apply_patch"),),
    server_specs=None,
    chosen=("apply_patch",),
    stand_in=None,
    echo=AS_SENT,
)

APPLY_PATCH = CallKind(
    name="apply_patch",
    tool_type="apply_patch",
    item=ApplyPatchCall,
    open=_open,
    arguments=CLIENT_TOOL,
)

KIND = Kind(name="apply_patch", items=(CALL, OUTPUT), tools=(TOOL,), calls=(APPLY_PATCH,))
