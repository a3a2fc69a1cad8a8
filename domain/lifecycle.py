"""The order of events: which event may follow which (docs/reference/events.md#order).

The order is a table, from which docs/explanation/lifecycle.md is drawn. There are three rules:
1. Every stream begins in `START`; nothing follows `OVER`.
2. An event moves the stream along TRANSITIONS; a pair that is not in the table is illegal.
3. `ItemAdded` moves the stream to the state that OPENS names for the item's type, so at most one
item is open.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum, auto

from antiphon.domain import events as e
from antiphon.domain import items as i
from antiphon.domain.errors import EventOutOfOrder


class State(IntEnum):
    """The state of a stream. From MESSAGE on, an item is open.

    States are integers because those hash in C: every event looks its state up.
    """

    START = auto()
    CREATED = auto()
    RUNNING = auto()
    ERROR = auto()
    OVER = auto()
    MESSAGE = auto()
    PART = auto()
    TEXT = auto()
    REFUSAL = auto()
    PART_FULL = auto()
    REASONING = auto()
    THOUGHT = auto()
    THOUGHT_FULL = auto()
    SUMMARY = auto()
    SUMMARY_FULL = auto()
    FUNCTION_CALL = auto()
    CUSTOM_CALL = auto()
    MCP_LIST = auto()
    MCP_LIST_RUNNING = auto()
    MCP_CALL = auto()
    MCP_ARGUMENTS = auto()
    MCP_RUNNING = auto()
    WEB_SEARCH = auto()
    WEB_SEARCH_STARTED = auto()
    WEB_SEARCHING = auto()
    FILE_SEARCH = auto()
    FILE_SEARCH_STARTED = auto()
    FILE_SEARCHING = auto()
    CODE = auto()
    CODE_WRITING = auto()
    CODE_WRITTEN = auto()
    CODE_RUNNING = auto()
    IMAGE = auto()
    IMAGE_STARTED = auto()
    IMAGE_GENERATING = auto()
    SHELL_CALL = auto()
    COMMAND = auto()
    SHELL_OUTPUT = auto()
    COMPACTION = auto()
    ITEM_FULL = auto()


_ENDS: Mapping[type[e.Event], State] = {
    e.Completed: State.OVER,
    e.Incomplete: State.OVER,
    e.Failed: State.OVER,
    e.Error: State.ERROR,
}
_CLOSE: Mapping[type[e.Event], State] = {e.ItemDone: State.RUNNING}

TRANSITIONS: Mapping[State, Mapping[type[e.Event], State]] = {
    State.START: {e.Created: State.CREATED},
    State.CREATED: {e.Queued: State.CREATED, e.InProgress: State.RUNNING, **_ENDS},
    State.RUNNING: {**_ENDS},
    State.ERROR: {e.Failed: State.OVER},
    State.OVER: {},
    # message
    State.MESSAGE: {e.PartAdded: State.PART, **_CLOSE},
    State.PART: {
        e.TextDelta: State.TEXT,
        e.TextDone: State.PART_FULL,
        e.RefusalDelta: State.REFUSAL,
        e.RefusalDone: State.PART_FULL,
    },
    State.TEXT: {
        e.TextDelta: State.TEXT,
        e.AnnotationAdded: State.TEXT,
        e.TextDone: State.PART_FULL,
    },
    State.REFUSAL: {e.RefusalDelta: State.REFUSAL, e.RefusalDone: State.PART_FULL},
    State.PART_FULL: {e.PartDone: State.MESSAGE},
    # reasoning
    State.REASONING: {
        e.PartAdded: State.THOUGHT,
        e.SummaryPartAdded: State.SUMMARY,
        **_CLOSE,
    },
    State.THOUGHT: {e.ReasoningDelta: State.THOUGHT, e.ReasoningDone: State.THOUGHT_FULL},
    State.THOUGHT_FULL: {e.PartDone: State.REASONING},
    State.SUMMARY: {e.SummaryDelta: State.SUMMARY, e.SummaryDone: State.SUMMARY_FULL},
    State.SUMMARY_FULL: {e.SummaryPartDone: State.REASONING},
    # calls that the client runs
    State.FUNCTION_CALL: {
        e.ArgumentsDelta: State.FUNCTION_CALL,
        e.ArgumentsDone: State.ITEM_FULL,
    },
    State.CUSTOM_CALL: {
        e.CustomInputDelta: State.CUSTOM_CALL,
        e.CustomInputDone: State.ITEM_FULL,
    },
    # calls that the server runs; a failure that has no event goes straight to ItemDone
    State.MCP_LIST: {e.McpListToolsInProgress: State.MCP_LIST_RUNNING},
    State.MCP_LIST_RUNNING: {
        e.McpListToolsCompleted: State.ITEM_FULL,
        e.McpListToolsFailed: State.ITEM_FULL,
        **_CLOSE,
    },
    State.MCP_CALL: {e.McpCallInProgress: State.MCP_ARGUMENTS},
    State.MCP_ARGUMENTS: {
        e.McpArgumentsDelta: State.MCP_ARGUMENTS,
        e.McpArgumentsDone: State.MCP_RUNNING,
    },
    State.MCP_RUNNING: {
        e.McpCallCompleted: State.ITEM_FULL,
        e.McpCallFailed: State.ITEM_FULL,
        **_CLOSE,
    },
    State.WEB_SEARCH: {e.WebSearchInProgress: State.WEB_SEARCH_STARTED},
    State.WEB_SEARCH_STARTED: {e.WebSearchSearching: State.WEB_SEARCHING, **_CLOSE},
    State.WEB_SEARCHING: {e.WebSearchCompleted: State.ITEM_FULL, **_CLOSE},
    State.FILE_SEARCH: {e.FileSearchInProgress: State.FILE_SEARCH_STARTED},
    State.FILE_SEARCH_STARTED: {e.FileSearchSearching: State.FILE_SEARCHING, **_CLOSE},
    State.FILE_SEARCHING: {e.FileSearchCompleted: State.ITEM_FULL, **_CLOSE},
    State.CODE: {e.CodeInProgress: State.CODE_WRITING},
    State.CODE_WRITING: {e.CodeDelta: State.CODE_WRITING, e.CodeDone: State.CODE_WRITTEN},
    State.CODE_WRITTEN: {e.CodeInterpreting: State.CODE_RUNNING, **_CLOSE},
    State.CODE_RUNNING: {e.CodeCompleted: State.ITEM_FULL, **_CLOSE},
    State.IMAGE: {e.ImageInProgress: State.IMAGE_STARTED},
    State.IMAGE_STARTED: {e.ImageGenerating: State.IMAGE_GENERATING, **_CLOSE},
    State.IMAGE_GENERATING: {
        e.PartialImage: State.IMAGE_GENERATING,
        e.ImageCompleted: State.ITEM_FULL,
        **_CLOSE,
    },
    State.SHELL_CALL: {e.CommandAdded: State.COMMAND, **_CLOSE},
    State.COMMAND: {e.CommandDelta: State.COMMAND, e.CommandDone: State.SHELL_CALL},
    State.SHELL_OUTPUT: {
        e.ShellOutputDelta: State.SHELL_OUTPUT,
        e.ShellOutputDone: State.SHELL_OUTPUT,
        **_CLOSE,
    },
    State.COMPACTION: {e.Compacting: State.COMPACTION, **_CLOSE},
    State.ITEM_FULL: {**_CLOSE},
}

OPENS: Mapping[type[i.Item], State] = {
    i.Message: State.MESSAGE,
    i.Reasoning: State.REASONING,
    i.FunctionCall: State.FUNCTION_CALL,
    i.CustomToolCall: State.CUSTOM_CALL,
    i.McpListTools: State.MCP_LIST,
    i.McpCall: State.MCP_CALL,
    i.WebSearchCall: State.WEB_SEARCH,
    i.FileSearchCall: State.FILE_SEARCH,
    i.CodeInterpreterCall: State.CODE,
    i.ImageGenerationCall: State.IMAGE,
    i.ShellCall: State.SHELL_CALL,
    i.ShellCallOutput: State.SHELL_OUTPUT,
    i.Compaction: State.COMPACTION,
    # these have no events between ItemAdded and ItemDone
    i.McpApprovalRequest: State.ITEM_FULL,
    i.ComputerCall: State.ITEM_FULL,
    i.LocalShellCall: State.ITEM_FULL,
    i.ApplyPatchCall: State.ITEM_FULL,
    i.ToolSearchCall: State.ITEM_FULL,
    i.ToolSearchOutput: State.ITEM_FULL,
    i.Program: State.ITEM_FULL,
    i.ProgramOutput: State.ITEM_FULL,
}


def advance(state: State, event: e.Event) -> State:
    """Return the state after `event`. Raises: EventOutOfOrder."""
    kind = type(event)
    try:
        return TRANSITIONS[state][kind]
    except KeyError:
        pass
    if state is State.RUNNING and isinstance(event, e.ItemAdded) and type(event.item) in OPENS:
        return OPENS[type(event.item)]
    raise EventOutOfOrder(f"{kind.__name__} cannot follow {state.name}")
