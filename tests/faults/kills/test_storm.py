"""All that a kill may interrupt, at once: agents that run programs, whose calls the client answers
or the server makes. Two servers are killed at random; each run has the result of one that was not.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.faults.support.counting_mcp import CountingMcpServer, answer_to, counting
from tests.faults.support.observed_response import ObservedResponse, Reader, client
from tests.faults.support.replicas import Replica, replicas
from tests.golden.test_golden_flows import check_order
from tests.support.machine_speed import slowness

from antiphon.application.tools.calls import LOST

pytestmark = [
    pytest.mark.faults,
    pytest.mark.skipif(shutil.which("bwrap") is None, reason="there is no bwrap on this machine"),
]

Json = dict[str, Any]

RUNS = int(os.environ.get("ANTIPHON_TEST_STORM_RUNS", "4"))
"""How many runs are played on each store while servers are killed."""

AT_A_TIME = int(os.environ.get("ANTIPHON_TEST_STORM_AT_A_TIME", "4"))
PAUSE_S = float(os.environ.get("ANTIPHON_TEST_STORM_PAUSE_S", "3"))
"""The longest time between the start of a server and the next kill."""

AGENTS = 6
MODELS = ("scripted-chat", "scripted-harmony")
TOKENS = ("input_tokens", "output_tokens")
BETA = {"OpenAI-Beta": "responses_multi_agent=v1"}
OPTIONS = (
    *("--fetch-urls", "--fetch-hosts", "127.0.0.1:*", "--fetch-private", "127.0.0.1"),
    *("--programs", "--code-cgroup", "off", "--run-attempts", "1000"),
)
RUN_S = 120 * slowness()
"""The longest time of one run, however often its servers are killed."""

ROUNDS = ("nnll", "n", "l", "nnnlllccc", "nnnlllnl", "nnlcccc", "nllnl", "nn", "lnlllnnlnllnl")
"""The fifty calls of a program, side by side in each round: `n` must not run twice, `l` may, the
client answers `c`."""

PROGRAM = f"""
const make = {{ n: tools.site__note, l: tools.site__look, c: tools.ask }};
const told = [];
let number = 0;
for (const round of {json.dumps(ROUNDS)}) {{
  const calls = [...round].map((kind) => make[kind]({{ text: `KEY/${{number++}}` }}));
  for (const {{ value, reason }} of await Promise.allSettled(calls))
    told.push(reason ? reason.message : value);
}}
text(told.join("|"));
"""


def told_in(key: str) -> list[str]:
    """Return what the calls of a program come to."""
    names = {"n": "note", "l": "look", "c": "ask"}
    kinds = "".join(ROUNDS)
    return [answer_to(names[kind], f"{key}/{number}") for number, kind in enumerate(kinds)]


def program(key: str) -> Json:
    return {"call": "program", "args": {"code": PROGRAM.replace("KEY", key)}}


def act(action: str, **arguments: Any) -> Json:
    return {"call": action, "args": arguments}


def scripted(*turns: Any) -> str:
    return f"@@script {json.dumps(turns)}"


def agent(number: int, work: Json) -> Json:
    """Return the call that starts an agent, which writes to another one and then works."""
    target = "/root" if number % 2 else f"/root/a{number + 1}"
    message = act("send_message", target=target, message=f"From {number}.")
    done = {"say": f"Done {number}.", "tick": 0.01}
    task = scripted([{"think": "Hm."}, message], work, done)
    return act("spawn_agent", task_name=f"a{number}", message=task)


def script(run: str) -> str:
    """Return what the model of a run does: it and two of its agents write programs, two call a
    function, two only write."""
    works = [
        *(program(f"{run}/a{number}") for number in (0, 1)),
        *(act("ask", text=f"{run}/a{number}") for number in (2, 3)),
        *({"say": "word ", "repeat": 20, "tick": 0.02} for _ in (4, 5)),
    ]
    spawns = list(map(agent, range(AGENTS), works))
    return scripted(
        [{"think": "Many."}, *spawns, act("send_message", target="a0", message="Go on.")],
        program(f"{run}/root"),
        act("wait_agent"),
        [{"say": "Halfway."}, act("wait_agent")],
        {"say": "All done.", "tick": 0.01},
    )


class StormRun(threading.Thread):
    """One run: requests to any server, each of which answers the calls of the one before.

    `expected` is the summary of a run that no kill has disturbed.
    """

    def __init__(
        self,
        number: int,
        site: CountingMcpServer,
        living: Sequence[Replica],
        chance: random.Random,
        expected: Counter[str] | None = None,
    ) -> None:
        self.key = f"run{number:05}"
        super().__init__(name=self.key, daemon=True)
        self._number = number
        self._site = site
        self._living = living
        self._chance = random.Random(chance.random())
        self.responses: list[Json] = []
        self.children: list[Json] = []
        self._expected = expected
        self.lost_calls = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self._play()
            self._check_agents()
            self.lost_calls = self._check_calls()
            if self._expected is not None:
                found, expected = self.summary(), self._expected
                assert found == expected, (found - expected, expected - found)
        except BaseException as error:
            error.add_note(f"{self.key}: {[each['id'] for each in self.responses]}")
            self.error = error

    def _play(self) -> None:
        body = {
            "model": MODELS[self._number % len(MODELS)],
            "input": script(self.key),
            "background": True,
            "multi_agent": {"enabled": True, "max_concurrent_subagents": AGENTS},
            "tools": [
                {"type": "programmatic_tool_calling"},
                {
                    "type": "mcp",
                    "server_label": "site",
                    "server_url": self._site.url,
                    "require_approval": "never",
                    "allowed_callers": ["programmatic"],
                },
                {
                    "type": "function",
                    "name": "ask",
                    "parameters": {"type": "object"},
                    "allowed_callers": ["direct", "programmatic"],
                },
            ],
        }
        while True:
            response = self._read(body)
            assert response["status"] == "completed", response
            self.responses.append(response)
            outputs = [*map(_output_of, _open_calls(response["output"]))]
            if not outputs:
                return
            body |= {"input": outputs, "previous_response_id": response["id"]}

    def _read(self, body: Json) -> Json:
        """Return the response, as its stream and what is stored say alike."""
        key = f"{self.key}-{len(self.responses)}"
        reader = Reader(body, self._servers, key=key, limit_s=RUN_S, headers=BETA)
        reader.run()
        if reader.error is not None:
            raise reader.error
        watched = reader.watched
        assert watched is not None
        check_order([watched.event(number) for number in sorted(watched.frames)])
        return self._check(watched)

    def _check(self, watched: ObservedResponse) -> Json:
        self._ask(watched.check)
        response: Json = watched.event(watched.last)["response"]
        return response

    def _check_agents(self) -> None:
        """Check that each agent ran once in each response, and that its tokens count once."""
        for response in self.responses:
            path = f"responses/{response['id']}?include[]=metrics"
            metrics = self._get(path)["metrics"]
            agents = metrics["agents"]
            for agent in agents:
                child = self._check(ObservedResponse(agent["response_id"]))
                self.children.append(child)
                assert child["status"] == "completed"
                for name in TOKENS:
                    assert agent.get(name, 0) == child["usage"][name]
            for name in TOKENS:
                used = [each.get(name, 0) for each in (*metrics["turns"], *agents)]
                assert response["usage"][name] == sum(used)

    def _servers(self) -> list[str]:
        found = [replica.api for replica in self._living]
        return sorted(found, key=lambda _: self._chance.random())

    def _get(self, path: str) -> Json:
        with client() as http:
            answer = self._ask(lambda api: http.get(f"{api}/{path}"))
        assert answer.status_code == 200, answer.text
        found: Json = answer.json()
        return found

    def _ask(self, ask: Callable[[str], Any]) -> Any:
        """Ask any server that lives."""
        deadline = time.monotonic() + RUN_S
        while True:
            for api in self._servers():
                try:
                    return ask(api)
                except httpx.TransportError:
                    assert time.monotonic() < deadline
                    time.sleep(0.05)

    @property
    def all_responses(self) -> Sequence[Json]:
        return [*self.responses, *self.children]

    # --- what it came to --------------------------------------------------------------------------

    def summary(self) -> Counter[str]:
        """Return all that it came to and that has no chance in it, its own name left out."""
        found: Counter[str] = Counter()
        items = [item for response in self.responses for item in response["output"]]
        for item in items:
            found[self._show(item).replace(self.key, "RUN")] += 1
        found["requests"] = len(self.responses)
        found["agents' responses"] = len(self.children)
        found["output tokens"] = sum(each["usage"]["output_tokens"] for each in self.responses)
        return found

    def _show(self, item: Json) -> str:
        shown = {name: item[name] for name in _SHOWN[item["type"]]}
        if item["type"] == "program_output":
            shown["result"] = self._without_lost(item)
        if item["type"] == "mcp_call" and _is_lost(item):
            shown["output"] = answer_to(item["name"], json.loads(item["arguments"])["text"])
        name = item["agent"]["agent_name"]
        return json.dumps([name, item["type"], shown], sort_keys=True)

    def _without_lost(self, item: Json) -> str:
        """Return the result of a program, as if no call had been lost."""
        name = item["agent"]["agent_name"].rpartition("/")[2]
        expected = told_in(f"{self.key}/{name}")
        told = item["result"].strip().split("|")
        assert len(told) == len(expected)
        for one, usual in zip(told, expected, strict=True):
            assert one == usual or (LOST in one and usual.startswith("note: ")), (one, usual)
        return "|".join(expected)

    def _check_calls(self) -> int:
        """Check how often each call was made. Return how many were lost."""
        items = [item for response in self.responses for item in response["output"]]
        calls = [item for item in items if item["type"] == "mcp_call"]
        lost = 0
        for item in calls:
            made = self._site.calls[item["name"], json.loads(item["arguments"])["text"]]
            if _is_lost(item):
                lost += 1
                assert made <= 1, item
            else:
                assert item["error"] is None, item
                assert made == 1 or (made > 1 and item["name"] == "look"), (made, item)
        return lost


_SHOWN = {
    "reasoning": ("content",),
    "message": ("content", "status"),
    "mcp_list_tools": ("server_label",),
    "mcp_call": ("name", "arguments", "output"),
    "function_call": ("name", "arguments"),
    "program": ("code",),
    "program_output": ("status", "result"),
    "multi_agent_call": ("action", "arguments"),
    "multi_agent_call_output": ("action",),
    "agent_message": ("author", "recipient", "content"),
}
"""What no chance decides, of items of each type."""


def _open_calls(items: Sequence[Json]) -> list[Json]:
    return [item for item in items if item["type"] == "function_call"]


def _output_of(call: Json) -> Json:
    text = json.loads(call["arguments"])["text"]
    return {
        "type": "function_call_output",
        "call_id": call["call_id"],
        "output": answer_to("ask", text),
        **({"caller": call["caller"]} if "caller" in call else {}),
    }


def _is_lost(item: Json) -> bool:
    """Whether a call may have run, and was not repeated: never one that may be."""
    if not item["error"] or item["error"]["content"] != LOST:
        return False
    assert item["name"] == "note"
    return True


@pytest.mark.timeout(120 + 60 * RUNS)
def test_runs_of_agents_and_programs_have_the_results_of_servers_that_live(
    tmp_path: Path, shared_store: list[str]
) -> None:
    chance = random.Random(RUNS)
    with counting() as site, replicas(tmp_path, *shared_store, *OPTIONS) as living:
        undisturbed = [StormRun(number, site, living, chance) for number in range(len(MODELS))]
        for run in undisturbed:
            run.run()
            assert run.error is None, run.error
            assert run.lost_calls == 0
        expected = [run.summary() for run in undisturbed]
        first = len(undisturbed)
        runs = [
            StormRun(number, site, living, chance, expected[number % first])
            for number in range(first, first + RUNS)
        ]
        kills = _storm(runs, living, chance)
        stored = _stored_ids(living[0].api)
    of_runs = [each["id"] for run in [*undisturbed, *runs] for each in run.all_responses]
    assert Counter(stored) == Counter(of_runs), "an agent was started twice"
    lost = sum(run.lost_calls for run in runs)
    print(f"{kills} kills, {len(runs)} runs, {len(stored)} responses, {lost} calls lost")


def _storm(runs: Sequence[StormRun], living: Sequence[Replica], chance: random.Random) -> int:
    """Play the runs, so many at a time, and kill servers meanwhile. Return how many were.

    Each time passes in which a server can do something: as long as the last one took to start.
    """
    kills, start_s = 0, 0.0
    waiting, now = [*reversed(runs)], list[StormRun]()
    while waiting or now:
        now = [run for run in now if run.is_alive()]
        while waiting and len(now) < AT_A_TIME:
            now.append(waiting.pop())
            now[-1].start()
        failed = [run.error for run in runs if run.error is not None]
        if failed:
            raise failed[0]
        time.sleep(start_s + chance.uniform(0.0, PAUSE_S))  # anywhere in the life of the runs
        if now:
            victim = chance.choice(living)
            victim.kill()
            killed_at = time.monotonic()
            victim.start()
            start_s = time.monotonic() - killed_at
            kills += 1
    return kills


def _stored_ids(api: str) -> list[str]:
    found: list[str] = []
    after: Json = {}
    while True:
        page = httpx.get(f"{api}/responses", params={"limit": 100, **after}, timeout=30).json()
        found += [each["id"] for each in page["data"]]
        if not page["has_more"]:
            return found
        after = {"after": page["last_id"]}
