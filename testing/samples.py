"""Sample objects that the contracts of stores keep: responses, items, events, leases."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Raw

from antiphon.application.ports import EventChunk, Lease, NewRun, StoredItem, StoredResponse
from antiphon.domain import items as i
from antiphon.domain.content import (
    Logprob,
    OutputText,
    ReasoningText,
    Refusal,
    SummaryText,
    TopLogprob,
    UrlCitation,
)
from antiphon.domain.requests.request import PromptParam
from antiphon.domain.responses.response import (
    ConversationRef,
    Failure,
    IncompleteDetails,
    ReasoningConfig,
    Response,
    TextConfig,
)
from antiphon.domain.responses.usage import TurnUsage, per_turn, total

US, THEM = "us", "them"
RUNNING_STATUSES = ("queued", "in_progress")


FAR_FUTURE = 4e9
"""Seconds since the epoch, far from now."""


OWNER = "srv_a"
"""The server that runs the responses of the tests, unless they say otherwise."""


TURNS = (TurnUsage(input=3, output=2), TurnUsage(input=6, cached=5, output=1))


LOGPROB = Logprob(
    token="H",
    logprob=-0.25,
    bytes=(72,),
    top_logprobs=(TopLogprob(token="h", logprob=-1e-9),),
)


EVERY_FIELD: dict[str, Any] = {
    "created_at": 1_790_000_000,
    "completed_at": 1_790_000_001,
    "background": True,
    "error": Failure(code="server_error", message="Ünlucky \u2028 🍀"),
    "incomplete_details": IncompleteDetails(reason="max_output_tokens"),
    "instructions": 'Be "brief".\n',
    "max_output_tokens": 16,
    "max_tool_calls": 3,
    "model": "m",
    "reasoning": ReasoningConfig(effort="low"),
    "temperature": 0.1,
    "text": TextConfig(format={"type": "json_schema", "schema": {"b": 1e-7, "a": [None]}}),
    "tool_choice": {"type": "function", "name": "f"},
    "tools": (Raw(b'{"type":"function","name":"f","x":1.50}'), Raw(b'{"type":"new"}')),
    "top_p": 1.0,
    "usage": total(TURNS),
    "usage_per_turn": per_turn(TURNS),
    "metadata": {"z": "1", "a": ""},
    "prompt": PromptParam(id="p", version="1", variables={"v": Raw(b'{"type":"x","y":1.50}')}),
    "request_id": "req_1",
}


EVERY_KIND_OF_OUTPUT: tuple[i.AnyItem, ...] = (
    i.Reasoning(
        id="rs_1",
        summary=(SummaryText(text="s"),),
        content=(ReasoningText(text="hm"),),
        encrypted_content="gAAA",
    ),
    i.Message(
        id="msg_1",
        role="assistant",
        status="completed",
        phase="final_answer",
        content=(
            OutputText(
                text="Hé\u2028llo",
                annotations=(UrlCitation(start_index=0, end_index=1, url="u", title="t"),),
                logprobs=(Raw(msgspec.json.encode(LOGPROB)),),
            ),
            Refusal(refusal="no"),
        ),
    ),
    i.FunctionCall(id="fc_1", call_id="call_1", name="f", arguments='{"a": 1.0}'),
    i.CustomToolCall(id="ctc_1", call_id="call_2", name="c", input="free\ttext", namespace="n"),
    i.McpListTools(id="mcpl_1", server_label="s", tools=({"name": "x", "input_schema": {}},)),
    i.McpCall(id="mcp_1", server_label="s", name="x", arguments="{}", error={"code": 1}),
    i.McpApprovalRequest(id="mcpr_1", server_label="s", name="x", arguments="{}"),
    i.WebSearchCall(id="ws_1", status="completed", action={"type": "search", "queries": ["q"]}),
    i.CodeInterpreterCall(id="ci_1", container_id="cntr_1", code="1", outputs=({"logs": "1"},)),
    i.ShellCall(id="sh_1", call_id="call_3", action={"commands": ["ls"], "timeout_ms": None}),
    i.ToolSearchCall(id="tsc_1", arguments={"q": [1, 2.5]}),
    i.Compaction(id="cmp_1", encrypted_content="gBBB"),
)


NEXT_OWNER = "srv_b"
"""The server that takes over the runs of OWNER."""


EVERY_BYTE = bytes(range(256)) * 2


def item(name: str, *, raw: bytes | None = None) -> StoredItem:
    """Return the item `msg_…`."""
    text = raw or b'{"type":"message","id":"msg_%b","role":"user","content":"hi"}' % name.encode()
    return StoredItem(id=f"msg_{name}", raw=Raw(text))


def new_response(
    name: str,
    *input_items: StoredItem,
    after: str | None = None,
    within: str | None = None,
    run: NewRun = NewRun(owner=OWNER),  # noqa: B008 -- frozen
    expires_at: float | None = None,
    **fields: Any,
) -> StoredResponse:
    """Return a new response `resp_…`. Its input, unless given, is the item `msg_…_in`."""
    response = Response(
        **{
            "id": f"resp_{name}",
            "created_at": 0,
            "model": "m",
            "previous_response_id": None if after is None else f"resp_{after}",
            "conversation": None if within is None else ConversationRef(id=f"conv_{within}"),
            **fields,
        }
    )
    return StoredResponse(
        response=response,
        input=input_items or (item(f"{name}_in"),),
        expires_at=expires_at,
        run=run,
    )


def finished_response(
    name: str, *, after: str | None = None, within: str | None = None, **fields: Any
) -> Response:
    """Return the response `resp_…`, finished. Its output is the item `msg_…_out`."""
    answer = i.Message(id=f"msg_{name}_out", role="assistant", content="hello")
    fields = {"status": "completed", "output": (answer,), **fields}
    return new_response(name, after=after, within=within, **fields).response


def ids(items: Sequence[StoredItem]) -> list[str]:
    return [one.id.removeprefix("msg_") for one in items]


def turn_item_names(*names: str) -> list[str]:
    return [f"{name}_{way}" for name in names for way in ("in", "out")]


def as_json(response: Response) -> bytes:
    return msgspec.json.encode(response)


def chunk(first: int, count: int = 1, body: bytes | None = None) -> EventChunk:
    return EventChunk(first=first, count=count, body=body or b"events %d+%d\n" % (first, count))


def lease(name: str, epoch: int = 1, tenant: str = US) -> Lease:
    return Lease(tenant=tenant, response_id=f"resp_{name}", epoch=epoch)


def response_with_log(
    name: str, *, owner: str | None = OWNER, job: bytes | None = b"job"
) -> StoredResponse:
    """Return a new response whose log starts with two events."""
    return new_response(name, run=NewRun(owner=owner, job=job, events=chunk(0, 2)))


def waiting_response(name: str) -> StoredResponse:
    return response_with_log(name, owner=None)
