"""What a response, and a call of a tool in it, may take of this server.

Tokens are the request's own affair (`max_output_tokens`), and so is the number of calls
(`max_tool_calls`). What is here holds for every request.
"""

from __future__ import annotations

from msgspec import Struct

MAX_PARALLEL_CALLS = 16
"""Calls of one turn that run at a time; more wait for them."""

MAX_FAILURES = 3
"""Calls in a row that found a tool's server gone, after which the response asks it no more."""


class Budgets(Struct, frozen=True, kw_only=True):
    """`turns` are the model's in one response. A call may take `call_s` seconds and give
    `call_bytes` of JSON, whatever runs it: tools have tighter limits of their own, which know
    better what to say. One that is stopped has `stopping_s` to leave what it holds; then nobody
    waits for it. The seconds of a whole response are RunResponse's.
    """

    turns: int = 100
    call_s: float = 600.0
    call_bytes: int = 16 * 1024 * 1024
    stopping_s: float = 2.0


DEFAULT_BUDGETS = Budgets()
