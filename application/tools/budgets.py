"""Budgets: how much a response, and each tool call in it, may use of this server.

A request sets its own limits on tokens (`max_output_tokens`) and on the number of calls
(`max_tool_calls`). The limits here apply to every request.
"""

from __future__ import annotations

from msgspec import Struct

MAX_PARALLEL_CALLS = 16
"""Calls of one turn that run at the same time; the others wait."""


class Budgets(Struct, frozen=True, kw_only=True):
    """The limits of one response and of its tool calls.

    `turns` limits the model's turns in one response. A call of any tool may take `call_s` seconds
    and return `call_bytes` of JSON; the tools have tighter limits with more helpful messages. All
    calls of a response may return `response_bytes` together; those that follow do not run. A call
    that is stopped has `stopping_s` seconds to clean up before this server stops waiting for it.
    `RunResponse` limits the time of the whole response.
    """

    turns: int = 100
    call_s: float = 600.0
    call_bytes: int = 16 * 1024 * 1024
    response_bytes: int = 16 * 1024 * 1024
    stopping_s: float = 2.0


DEFAULT_BUDGETS = Budgets()
