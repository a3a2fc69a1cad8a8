"""Sequencers, strategies for any deltas, and a client that merges a stream."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Any

import msgspec
from hypothesis import strategies as st

from antiphon.domain import deltas as d
from antiphon.domain import events as e
from antiphon.domain.content import UrlCitation
from antiphon.domain.offers.client_tools import CLIENT_TOOLS
from antiphon.domain.responses.response import Failure, Response
from antiphon.domain.responses.usage import TurnUsage
from antiphon.domain.sequencer import Sequencer

USAGE = TurnUsage(input=3, output=2)


def sequencer(**changes: Any) -> Sequencer:
    numbers = count(1)
    return Sequencer(
        Response(id="resp_1", created_at=100, model="m", **changes),
        new_id=lambda prefix: f"{prefix}_{next(numbers)}",
        now=lambda: 101.5,
    )


def running() -> Sequencer:
    seq = sequencer()
    seq.open()
    seq.start()
    return seq


def types(events: Sequence[e.Event]) -> list[type[e.Event]]:
    return [type(event) for event in events]


TEXTS = st.text(max_size=6)
TOOLS: dict[str, dict[str, Any]] = {
    "mcp_list_tools": {"server_label": "s", "tools": ()},
    "mcp_call": {"server_label": "s", "name": "t"},
    "mcp_approval_request": {"server_label": "s", "name": "t", "arguments": "{}"},
    "web_search_call": {"action": {"type": "search"}},
    "file_search_call": {},
    "code_interpreter_call": {"container_id": "cntr_1"},
    "image_generation_call": {},
    "shell_call": {},
    "shell_call_output": {"call_id": "call_1"},
    "compaction": {"encrypted_content": "x"},
    "computer_call": {"call_id": "call_1", "actions": ()},
    "local_shell_call": {"call_id": "call_1", "action": {}},
    "apply_patch_call": {"call_id": "call_1", "operation": {}},
    "tool_search_call": {"arguments": {}},
    "tool_search_output": {"tools": ()},
    "program": {"call_id": "call_1", "code": "", "fingerprint": ""},
    "program_output": {"call_id": "call_1", "result": "", "status": "completed"},
}
STEPS = {
    "calling": {},
    "searching": {},
    "interpreting": {},
    "generating": {},
    "compacting": {},
    "command": {},
    "partial_image": {"partial_image_index": 0, "partial_image_b64": ""},
    "output": {"command_index": 0, "delta": {"stdout": "x"}},
    "output_done": {"command_index": 0, "output": ({"stdout": "x"},)},
}
STEP_DELTAS = [d.ToolProgress(step, fields) for step, fields in STEPS.items()]
TOOL_STARTS = [
    d.ToolStart(kind, {k: v for k, v in fields.items() if k != "status"})
    for kind, fields in TOOLS.items()
]
CALL_ARGUMENTS = [
    d.ArgumentsDelta('{"commands": ["ls'),
    d.ArgumentsDelta('", "pwd"]}'),
    d.ArgumentsDelta('{"query": "x"}'),
    d.ArgumentsDelta('{"actions": [{"type": "wait"}]}'),
]
DELTAS: st.SearchStrategy[d.Delta] = st.one_of(
    st.builds(d.TextDelta, TEXTS, phase=st.sampled_from([None, "commentary", "final_answer"])),
    st.builds(d.RefusalDelta, TEXTS),
    st.builds(d.ReasoningDelta, TEXTS),
    st.builds(d.SummaryDelta, TEXTS),
    st.builds(d.CallStart, TEXTS),
    st.builds(d.CallStart, TEXTS, kind=st.sampled_from(["custom", *CLIENT_TOOLS])),
    st.sampled_from(CALL_ARGUMENTS),
    st.builds(d.ArgumentsDelta, TEXTS),
    st.sampled_from(TOOL_STARTS),
    st.sampled_from([delta for delta in STEP_DELTAS if delta.step not in ("output",)][:6]),
    st.builds(d.ToolEnd, st.sampled_from(["completed", "failed", "incomplete"])),
    st.just(d.ItemEnd()),
    st.builds(d.TurnEnd, st.sampled_from(["stop", "length"]), st.just(USAGE)),
    st.just(
        d.AnnotationDelta(UrlCitation(start_index=0, end_index=0, url="https://e.org", title=""))
    ),
)
ENDS = st.sampled_from(["complete", "cut", "fail", "cancel"])


def end(seq: Sequencer, how: str) -> list[e.Event]:
    match how:
        case "complete":
            return seq.complete()
        case "cut":
            return seq.end_incomplete("max_output_tokens")
        case "fail":
            return seq.fail(Failure(code="server_error", message="gone"))
    return seq.cancel()


def merge_deltas(events: Sequence[e.Event]) -> list[Any]:
    """Merge a stream as a client does: by index, from the deltas, not from the final Response."""
    texts: dict[tuple[int, str, int], str] = {}
    items: list[Any] = []
    for event in events:
        match event:
            case e.ItemAdded(output_index=index, item=item):
                assert index == len(items), "indices count up from 0"
                items.append(item)
            case e.TextDelta() | e.RefusalDelta() | e.ReasoningDelta():
                key = (event.output_index, "content", event.content_index)
                texts[key] = texts.get(key, "") + event.delta
                assert items[event.output_index].id == event.item_id
            case e.ArgumentsDelta() | e.CustomInputDelta() | e.McpArgumentsDelta() | e.CodeDelta():
                key = (event.output_index, "text", 0)
                texts[key] = texts.get(key, "") + event.delta
            case e.ItemDone(output_index=index, item=item):
                assert items[index].id == item.id
                items[index] = item
    for (index, where, part), text in texts.items():
        final = msgspec.json.decode(msgspec.json.encode(items[index]))
        if where == "content":
            final_part = final["content"][part]
            assert final_part.get("text", final_part.get("refusal")) == text
        else:
            assert text in (final.get("arguments"), final.get("input"), final.get("code"))
    return items
