"""The metrics of a response: recorded once, shown everywhere.

Logs, metrics, traces, the console and `metrics` of the Response are all made from these records.
Times are seconds since the epoch, durations are seconds. None of it holds text of a request, a
model or a tool, except the names of tools.
"""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from antiphon.domain.responses.cache_diagnostics import PromptComparison
from antiphon.domain.responses.guards import GuardPlace, VerdictName
from antiphon.domain.vocabulary.repairs import Repair

CallResult = Literal["ok", "error", "refused", "canceled", "approval_requested"]
"""`refused`: this server did not run the call. `canceled`: the response ended before it did."""

TurnKind = Literal[
    "answer", "tools", "tool_search", "compaction", "warm_up", "budget", "agents", "guard"
]
"""The purpose of a turn. `tools`: MCP servers are asked before the model's first answer. `budget`:
the response ends because the turns before used a whole budget. `agents`: sub-agents still worked
when the model had ended. `guard`: a guard has refused what was asked, and no model runs."""

MODEL_TURNS: frozenset[TurnKind] = frozenset({"answer", "compaction", "warm_up"})
"""Kinds of turns in which a model runs."""

LISTING = "tools/list"
"""The name under which the listing of an MCP server is recorded: its method in the protocol."""

Phase = Literal["queued", "starting", "thinking", "writing", "tool"]
"""The phase of a run of this server; `starting`: the model has not written anything yet."""


class ToolCallMetrics(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A call of a tool that this server runs, or the listing of an MCP server's tools.

    `type` is the type of the tool as requests name it, `server` the label of an MCP server, `name`
    what was called. `result` is None while the call runs. `output_bytes` counts its output as JSON.
    """

    type: str
    server: str = ""
    name: str
    started_at: float
    seconds: float = 0.0
    result: CallResult | None = None
    output_bytes: int = 0


class GuardMetrics(Struct, frozen=True, kw_only=True):
    """How often a guard gave a verdict at a place, and how long that took in all."""

    guard: str
    place: GuardPlace
    verdict: VerdictName
    count: int
    seconds: float


class ProgramMetrics(Struct, frozen=True, kw_only=True):
    """A program that has ended in the response: how, and how many calls it has made, those of
    earlier responses included."""

    result: Literal["ok", "error"]
    calls: int


class TurnMetrics(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A turn, from `started_at` (its prompt is made) to `ended_at` (its tool calls have ended).

    `admitted_at`: the engine took it. `first_token_at` and `last_token_at` are of the model's
    output, `first_text_at` of the text that a client sees. Without output, they are None. Where
    nobody follows, an engine may hand over all tokens at once: then `first_text_at` is unknown, and
    `first_token_at` if the engine does not say. `model` is the one that ran it, `engine` the server
    that did, if there are several. `attempts` counts the models that were tried. `is_repaired`: the
    parser had to repair what the model wrote; `repairs` names what.
    `unmarked_calls` counts the calls that it wrote as JSON in its text, without its markers.
    `fittings` names what was changed in the conversation so that the model's template takes it.
    `resumed_tokens` of the output were written on a server that is gone; this one went on with it.
    `reason` says why it ended; "" if it failed or was cancelled.
    """

    kind: TurnKind = "answer"
    model: str = ""
    engine: str = ""
    started_at: float
    admitted_at: float | None = None
    first_token_at: float | None = None
    first_text_at: float | None = None
    last_token_at: float | None = None
    ended_at: float | None = None
    reason: str = ""
    input_tokens: int = 0
    cached_tokens: int = 0
    output_tokens: int = 0
    reasoning_tokens: int = 0
    tool_output_tokens: int = 0
    tokens_per_second: float | None = None
    attempts: int = 1
    is_repaired: bool = False
    repairs: tuple[Repair, ...] = ()
    unmarked_calls: int = 0
    fittings: tuple[str, ...] = ()
    resumed_tokens: int = 0
    tool_calls: tuple[ToolCallMetrics, ...] = ()


class AgentMetrics(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A response of a sub-agent that the response has started, as it knows it.

    `status` is `running`, `waiting` (for the client), or how it ended. The tokens are those of the
    sub-agent and all under it.
    """

    name: str
    response_id: str
    status: str
    input_tokens: int = 0
    output_tokens: int = 0


class ResponseMetrics(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The record of a response: who asked, and what happened.

    `key_id` and `key_name` are of the API key, and `request_id` of the request that created it.
    `door` is the API that its client speaks.
    `traceparent` is the client's (W3C Trace Context); `links_trace`: the response has a trace of
    its own, which only links to it. `server` is the one that ran it last, and `epoch` counts the
    servers that did. `received_at`: its request had arrived. `admitted_at`: it
    was its turn to run. `phase` says what it is doing; a response that waits, or that another
    server runs, is known by its status alone. `ignored` names the fields of the request without
    effect. `cache_salt` is a digest of the request's own salt, `prompt_extras` one of its fields
    that change the prompt and are not echoed, each "" if it has none. `prompt_comparison` compares
    its prompt with another response's. `store_seconds` is what its writes to the store took before
    the last one, and `store_failures` how many of them failed. `agent` is the name of the agent
    that the response is of, if there are several, and `parent_response_id` the response that
    started it. `agents` are the responses of the sub-agents that this one has started. `guards`
    counts the verdicts of guards. `programs` are those of this response's agent, in the order of
    their ends.
    """

    key_id: str = ""
    key_name: str = ""
    request_id: str = ""
    door: str = "responses"
    traceparent: str = ""
    links_trace: bool = False
    server: str = ""
    epoch: int = 1
    phase: Phase | None = None
    received_at: float
    admitted_at: float | None = None
    started_at: float | None = None
    ended_at: float | None = None
    turns: tuple[TurnMetrics, ...] = ()
    ignored: tuple[str, ...] = ()
    cache_salt: str = ""
    prompt_extras: str = ""
    prompt_comparison: PromptComparison | None = None
    store_seconds: float = 0.0
    store_failures: int = 0
    agent: str = ""
    parent_response_id: str = ""
    agents: tuple[AgentMetrics, ...] = ()
    guards: tuple[GuardMetrics, ...] = ()
    programs: tuple[ProgramMetrics, ...] = ()
