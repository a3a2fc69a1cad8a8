"""Sub-agents that this server runs: a model starts them, sends them messages and waits for them.

A client that runs its own agents (Codex) offers functions of the same names. The model sees both
alike, and so are the messages between agents (agent_message.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta, Struct

from antiphon.domain import deltas as d
from antiphon.domain.bounds import Long, Text
from antiphon.domain.json import Json
from antiphon.domain.vocabulary.builder import Builder, BuilderContext
from antiphon.domain.vocabulary.item import CallId, Item
from antiphon.domain.vocabulary.kind import (
    AS_SENT,
    JSON_ARGUMENTS,
    CallKind,
    ItemKind,
    Kind,
    Shown,
    ToolKind,
)
from antiphon.domain.vocabulary.shown import Call, Result, View, json_arguments, name_of_kind
from antiphon.domain.vocabulary.steps import NO_EVENTS
from antiphon.domain.vocabulary.tool import Tool, ToolSpec
from antiphon.domain.vocabulary.typed_call import (
    Arguments,
    BufferedCallBuilder,
    EventsAndItem,
    parameters_of,
)

MULTI_AGENT = "multi_agent"
"""The field of a request that lets its model have sub-agents, and the name of their tools for the
rights of keys."""

MULTI_AGENT_BETA = "responses_multi_agent=v1"
"""The value of the header `OpenAI-Beta` with which a client says that it knows sub-agents."""

ROOT = "/root"
"""The name of the agent that gets the request. A sub-agent has its parent's name before its own:
`/root/reader`."""

MAX_NAME_CHARS = 64
MAX_TASK_CHARS = 1 << 20

Action = Literal[
    "spawn_agent",
    "send_message",
    "followup_task",
    "wait_agent",
    "interrupt_agent",
    "list_agents",
]


class MultiAgentCall(Item, frozen=True, kw_only=True, tag="multi_agent_call"):
    """A call that this server runs; `arguments` is JSON text as the model wrote it."""

    call_id: CallId
    action: Action
    arguments: Text


class AgentOutputText(Struct, frozen=True, kw_only=True, tag_field="type", tag="output_text"):
    text: Text
    annotations: Long[Json] = ()


class MultiAgentCallOutput(Item, frozen=True, kw_only=True, tag="multi_agent_call_output"):
    call_id: CallId
    action: Action
    output: Long[AgentOutputText]


class MultiAgent(Tool, frozen=True, kw_only=True, tag="multi_agent"):
    """The tools that the field `multi_agent` of a request offers; none may be in its `tools`."""


# --- what the model writes ------------------------------------------------------------------------

Task = Annotated[
    str, Meta(min_length=1, max_length=MAX_TASK_CHARS, description="What the agent should do.")
]
Message = Annotated[
    str, Meta(min_length=1, max_length=MAX_TASK_CHARS, description="The text of the message.")
]
Target = Annotated[
    str,
    Meta(
        min_length=1,
        max_length=1024,
        description="The agent: the name of one that you started, or a whole name (/root/reader).",
    ),
]


class SpawnAgent(Arguments, frozen=True, kw_only=True):
    task_name: Annotated[
        str,
        Meta(
            pattern=f"^[a-z0-9_]{{1,{MAX_NAME_CHARS}}}$",
            description="A new name for the agent: lowercase letters, digits and underscores.",
        ),
    ]
    message: Task
    fork_turns: Annotated[
        str,
        Meta(
            pattern="^(none|all|[1-9][0-9]{0,3})$",
            description="How much of your own conversation the agent starts with: `none` (the "
            "default), `all`, or the number of the latest turns.",
        ),
    ] = "none"


class SendMessage(Arguments, frozen=True, kw_only=True):
    target: Target
    message: Message


class FollowupTask(Arguments, frozen=True, kw_only=True):
    target: Target
    message: Task


class WaitAgent(Arguments, frozen=True, kw_only=True):
    timeout_ms: Annotated[
        int, Meta(ge=0, le=86_400_000, description="Longest time to wait; 30000 by default.")
    ] = 30_000


class InterruptAgent(Arguments, frozen=True, kw_only=True):
    target: Target


class ListAgents(Arguments, frozen=True, kw_only=True):
    pass


class _ActionTool(Struct, frozen=True):
    arguments: type[Any]
    description: str


ACTIONS: Mapping[str, _ActionTool] = {
    "spawn_agent": _ActionTool(
        SpawnAgent,
        "Start an agent that works on a task beside you, with the same tools and a context of its "
        "own: it sees the message, not your conversation. Returns its whole name at once. Its "
        "answer comes to you as a message; wait for it with wait_agent.",
    ),
    "send_message": _ActionTool(
        SendMessage,
        "Send a message to another agent. It reads it before its next step; one that has ended is "
        "not started again.",
    ),
    "followup_task": _ActionTool(
        FollowupTask,
        "Give an agent that you started another task. One that has ended goes on with all that it "
        "knows.",
    ),
    "wait_agent": _ActionTool(
        WaitAgent,
        "Wait until an agent has a message for you or has ended. The messages follow the result.",
    ),
    "interrupt_agent": _ActionTool(
        InterruptAgent, "Stop an agent that you started; followup_task can start it again."
    ),
    "list_agents": _ActionTool(
        ListAgents, "List the agents that you started, what they do, and their latest task."
    ),
}


def parse_action(action: str, arguments: str) -> Any:
    """Return the arguments of a call. Raises: ValueError, which says what is wrong with them."""
    try:
        return msgspec.json.decode(arguments or "{}", type=ACTIONS[action].arguments)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise ValueError(f"The arguments are not those of {action}: {error}.") from None


# --- the items ------------------------------------------------------------------------------------


def _make_call(
    start: d.CallStart,
    arguments: str,
    status: str,  # noqa: ARG001 - the item has none
    context: BuilderContext,
) -> EventsAndItem:
    # One that was cut off has no output, and so no model is shown it again.
    call: Any = MultiAgentCall(
        id=context.new_id("mac"),
        call_id=start.call_id or context.new_id("call"),
        action=start.kind,  # type: ignore[arg-type] # the kinds of calls are the actions
        arguments=arguments,
    )
    return (context.added(call), context.done(call)), call


def _open_call(start: d.CallStart, context: BuilderContext) -> Builder:
    return BufferedCallBuilder(start, context, _make_call)


def output_fields(call_id: str, action: str, text: str) -> Json:
    """Return the fields of a call's output."""
    return {"call_id": call_id, "action": action, "output": [{"type": "output_text", "text": text}]}


def _open_output(start: d.ToolStart, context: BuilderContext) -> Builder:
    fields = msgspec.convert(start.fields["output"], tuple[AgentOutputText, ...])
    start = d.ToolStart(start.kind, {**start.fields, "output": fields})
    return _OUTPUT_EVENTS.open(start, context)


_OUTPUT_EVENTS = NO_EVENTS.table(MultiAgentCallOutput, "maco")


def _specs(_tool: MultiAgent, _path: str) -> tuple[ToolSpec, ...]:
    return tuple(
        ToolSpec(
            name=name,
            kind=name,
            description=action.description,
            parameters=parameters_of(action.arguments),
        )
        for name, action in ACTIONS.items()
    )


def _shown_call(item: MultiAgentCall, view: View) -> Call:
    return Call(
        kind=item.action,
        name=name_of_kind(item.action, view.tools),
        text=json_arguments(item.arguments),
    )


def text_of_output(item: MultiAgentCallOutput) -> str:
    return "\n".join(part.text for part in item.output)


def _shown_result(item: MultiAgentCallOutput, view: View) -> Result:
    return Result(body=text_of_output(item), name=name_of_kind(item.action, view.tools))


CALL = ItemKind(
    item=MultiAgentCall,
    prefix="mac",
    events=NO_EVENTS,
    next=MultiAgentCallOutput,
    shown=Shown(call=_shown_call),
    include={},
)

OUTPUT = ItemKind(
    item=MultiAgentCallOutput,
    prefix="maco",
    events=msgspec.structs.replace(_OUTPUT_EVENTS, open=_open_output),
    next="model",
    shown=Shown(result=_shown_result),
    include={},
)

TOOL = ToolKind(
    tool=MultiAgent,
    client_specs=None,
    server_specs=_specs,
    chosen=(),
    stand_in=None,
    echo=AS_SENT,
)

CALLS: Sequence[CallKind] = tuple(
    CallKind(
        name=name,
        tool_type=MULTI_AGENT,
        item=MultiAgentCall,
        open=_open_call,
        arguments=JSON_ARGUMENTS,
    )
    for name in ACTIONS
)

KIND = Kind(name="multi_agent", items=(CALL, OUTPUT), tools=(TOOL,), calls=tuple(CALLS))
