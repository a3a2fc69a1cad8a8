"""A server is killed while it runs a program: another one repeats it, and no call runs twice."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.faults.kills.test_killed_calls import SLEEP, is_asleep, over
from tests.faults.support import noting_tools
from tests.faults.support.replicas import LEASE_S, background, frames_of, replicas, stream, wait_for
from tests.golden.test_golden_flows import check_order

from antiphon.application.tools.calls import LOST

ROOT = Path(__file__).parents[3]

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="there is no bwrap on this machine"),
]

Json = dict[str, Any]
PROGRAMMATIC = {"allowed_callers": ["programmatic"]}
TOOLS = [
    {"type": "programmatic_tool_calling"},
    {"type": "mcp", "server_label": "notes", **PROGRAMMATIC},
    {"type": "shell", "environment": {"type": "container_auto"}, **PROGRAMMATIC},
    {"type": "function", "name": "mine", "parameters": {"type": "object"}, **PROGRAMMATIC},
]
OPTIONS = (
    *("--programs", "--shell", "--code-cgroup", "off"),
    *("--tool", "tests.faults.support.noting_tools:Notes"),
)
CODE = f"""
const before = await tools.notes__note({{ text: `one ${{Math.random()}} ${{Date.now()}}` }});
let lost;
try {{
  await tools.shell({{ commands: ["sleep {SLEEP}"] }});
}} catch (error) {{
  lost = error.message;
}}
const [after, mine] = await Promise.all([tools.notes__note({{ text: "two" }}), tools.mine({{}})]);
text(before, lost, after, mine);
"""


def asked() -> Json:
    turns = [{"call": "program", "args": {"code": CODE}}, {"say": "Done."}]
    return background(f"@@script {json.dumps(turns)}", tools=TOOLS)


def test_a_program_of_a_killed_server_goes_on_with_the_results_that_it_had(
    tmp_path: Path, shared_store: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    notes = tmp_path / "notes"
    notes.touch()
    monkeypatch.setenv(noting_tools.NOTES, str(notes))
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    with replicas(tmp_path, *shared_store, *OPTIONS) as (victim, other):
        first: Json = httpx.post(f"{victim.api}/responses", json=asked()).json()
        wait_for(lambda: is_asleep() or None)
        victim.kill()
        path = f"{other.api}/responses/{first['id']}"
        parked = wait_for(lambda: over(path), limit_s=LEASE_S + 15)
        assert parked["status"] == "completed"
        kinds = [item["type"] for item in parked["output"]]
        assert kinds[1:] == [
            "program",
            "mcp_call",
            "shell_call",
            "shell_call_output",
            "mcp_call",
            "function_call",
        ]
        told = [
            json.loads(frame.partition(b"data: ")[2])
            for frame in frames_of(stream(other.api, first["id"])).values()
        ]
        check_order(told)
        # The client answers the other server's call at the one that was killed, in its next life.
        victim.start()
        output = {
            "type": "function_call_output",
            "call_id": parked["output"][-1]["call_id"],
            "output": "ours",
        }
        body = {"model": parked["model"], "tools": TOOLS, "previous_response_id": first["id"]}
        other.kill()
        answer = httpx.post(f"{victim.api}/responses", json={**body, "input": [output]}, timeout=30)
        written, message = answer.json()["output"]
        before, lost, after, mine = written["result"].split("\n")
        assert written["status"] == "completed"
        assert before.startswith("note: one 0.")
        assert LOST in lost
        assert (after, mine) == ("note: two", "ours")
        assert message["content"][0]["text"] == "Done."
    lines = notes.read_text(encoding="utf-8").splitlines()
    assert lines == [before.replace("note: ", "note "), "note two"]
