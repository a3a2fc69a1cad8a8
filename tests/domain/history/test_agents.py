"""What the items of a response tell about its agents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest

from antiphon.domain import items as i
from antiphon.domain.history.agents import is_starting

ROOT, A = ({"agent": {"agent_name": name}} for name in ("/root", "/root/a"))
TASK = {"type": "agent_message", **ROOT, "author": "/root", "recipient": "/root/a", "content": []}
SAID = {"type": "message", "role": "assistant", "content": "Hm."}


def call(action: str) -> dict[str, Any]:
    return {"type": "multi_agent_call", **ROOT, "call_id": "c", "action": action, "arguments": ""}


def output(action: str) -> dict[str, Any]:
    fields = {"type": "multi_agent_call_output", "call_id": "c", "output": []}
    return {**fields, **ROOT, "action": action}


@pytest.mark.parametrize(
    ("items", "expected"),
    [
        ([], True),
        ([call("spawn_agent")], True),
        ([call("spawn_agent"), output("spawn_agent"), TASK], True),
        ([call("spawn_agent"), output("spawn_agent"), TASK, {**SAID, **A}], True),
        ([call("spawn_agent"), output("spawn_agent"), TASK, call("wait_agent")], False),
        ([call("spawn_agent"), output("spawn_agent"), TASK, {**SAID, **ROOT}], False),
    ],
    ids=lambda value: str(len(value)) if isinstance(value, list) else "",
)
def test_an_agent_may_start_others_until_it_does_something_else(
    items: Sequence[Any], expected: bool
) -> None:
    read = [msgspec.convert(each, i.AnyItem) for each in items]
    assert is_starting(read, "/root/a") == expected
