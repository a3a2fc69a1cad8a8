"""The clock: this server says what time it is somewhere."""

from __future__ import annotations

from antiphon.domain.bounds import Text
from antiphon.domain.kinds.function import open_unrun_call
from antiphon.domain.vocabulary.event import ItemEvent
from antiphon.domain.vocabulary.item import Item
from antiphon.domain.vocabulary.kind import (
    AS_SENT,
    JSON_ARGUMENTS,
    CallKind,
    IncludableField,
    ItemKind,
    Kind,
    Shown,
    ToolKind,
)
from antiphon.domain.vocabulary.shown import Call, Result, View, name_of_kind, to_json_text
from antiphon.domain.vocabulary.steps import ItemSteps
from antiphon.domain.vocabulary.tool import Tool, ToolSpec


class ClockCall(Item, frozen=True, kw_only=True, tag="clock_call"):
    status: Text | None = None
    place: Text = ""
    time: Text | None = None
    source: Text | None = None


class ClockInProgress(
    ItemEvent, frozen=True, kw_only=True, gc=False, tag="response.clock_call.in_progress"
):
    pass


class ClockReading(
    ItemEvent, frozen=True, kw_only=True, gc=False, tag="response.clock_call.reading"
):
    pass


class ClockCompleted(
    ItemEvent, frozen=True, kw_only=True, gc=False, tag="response.clock_call.completed"
):
    pass


class Clock(Tool, frozen=True, kw_only=True, tag="clock"):
    source: Text = "sundial"


SPEC = ToolSpec(
    name="clock",
    kind="clock",
    description="Says what time it is somewhere.",
    parameters={
        "type": "object",
        "properties": {"place": {"type": "string"}},
        "required": ["place"],
        "additionalProperties": False,
    },
)


def _shown_call(item: ClockCall, view: View) -> Call:
    text = to_json_text({"place": item.place})
    return Call(kind="clock", name=name_of_kind("clock", view.tools), text=text)


CALL = ItemKind(
    item=ClockCall,
    prefix="clk",
    events=ItemSteps(
        opening_events=(ClockInProgress,),
        steps={"reading": ClockReading},
        end_events={"completed": ClockCompleted},
    ),
    next="model",
    shown=Shown(
        call=_shown_call,
        result=lambda item, _: Result(body=item.time, status=item.status or "completed"),
    ),
    include={"clock_call.source": IncludableField("source")},
)

TOOL = ToolKind(
    tool=Clock,
    client_specs=None,
    server_specs=lambda *_: (SPEC,),
    chosen=("clock",),
    stand_in=None,
    echo=AS_SENT,
)

CLOCK = CallKind(
    name="clock", tool_type="clock", item=ClockCall, open=open_unrun_call, arguments=JSON_ARGUMENTS
)

KIND = Kind(name="clock", items=(CALL,), tools=(TOOL,), calls=(CLOCK,))
