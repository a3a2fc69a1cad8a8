"""A server under a mixed load for a long time: it ends with what it had after the first minutes.

ANTIPHON_TEST_SOAK_S says for how many seconds. `-s` prints the figures.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import shutil
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from msgspec import Struct
from tests.faults.support import loop_tasks, signing_guard
from tests.faults.support.replicas import Replica
from tests.faults.support.signing_guard import WORD
from tests.security.support.other_tenant import make_keys
from websockets.asyncio.client import connect

SOAK_S = float(os.environ.get("ANTIPHON_TEST_SOAK_S", "24"))
WARM_UP_S = min(120.0, SOAK_S / 3)

pytestmark = [
    pytest.mark.faults,
    pytest.mark.timeout(SOAK_S + 240),
    pytest.mark.skipif(sys.platform != "linux", reason="memory is measured by Linux"),
]

TENANTS = ("one", "two")
MODELS = ("scripted-chat", "scripted-harmony")
PAUSE_S = 0.05
"""Between two requests of a client: the machine runs the clients, too."""
SETTLE_S = 60.0
MAX_GROWTH_BYTES = 24 * 1024 * 1024
MAX_MORE = 4
"""Descriptors, threads or tasks that may come and go by themselves."""

HAS_PROGRAMS = shutil.which("bwrap") is not None

Json = dict[str, Any]
OPTIONS = (
    *("--keep-events", "0", "--keepalive-s", "5", "--log-level", "warning"),
    *("--tool", "loop_tasks:LoopTasks", "--guard", "signing_guard:SigningGuard"),
    *(("--programs", "--code-cgroup", "off") if HAS_PROGRAMS else ()),
)
BETA = {"openai-beta": "responses_multi_agent=v1"}
PROGRAM = """
const counts = await Promise.all([1, 2, 3].map(() => tools.loop__tasks({})));
text(counts, "z".repeat(20000));
"""


class Figures(Struct, frozen=True):
    """What a server holds when nobody asks it for anything."""

    memory: int
    descriptors: int
    threads: int
    tasks: int

    def __str__(self) -> str:
        return (
            f"{self.memory / 2**20:.1f} MB, {self.descriptors} descriptors, "
            f"{self.threads} threads, {self.tasks} tasks"
        )


class Client:
    """One tenant's client of one model, which does all that a client may do."""

    def __init__(self, server: Replica, key: str, model: str, seed: int) -> None:
        self._url = server.url
        self._key = key
        self._model = model
        self._chance = random.Random(seed)
        self.done: Counter[str] = Counter()
        headers = {"authorization": f"Bearer {key}"}
        self._http = httpx.AsyncClient(base_url=server.api, headers=headers, timeout=60)

    async def run(self, until: float) -> None:
        kinds = [
            *(self.continue_a_chain, self.stream_and_leave, self.call_a_function, self.call_a_tool),
            *(self.ask_in_the_background, self.hold_a_conversation, self.use_a_socket),
            *(self.send_files, self.send_nonsense, self.leave_an_upload),
            *(self.have_agents, self.say_what_is_guarded),
            *([self.run_a_program] if HAS_PROGRAMS else []),
        ]
        async with self._http:
            while time.monotonic() < until:
                kind = self._chance.choice(kinds)
                await kind()
                self.done[kind.__name__] += 1
                await asyncio.sleep(PAUSE_S)

    async def _post(self, path: str, status: int = 200, **body: Any) -> Json:
        answer = await self._http.post(path, json=body)
        assert answer.status_code == status, answer.text[:500]
        found: Json = answer.json()
        return found

    async def _create(self, prompt: Any, **fields: Any) -> Json:
        return await self._post("/responses", model=self._model, input=prompt, **fields)

    async def _delete(self, path: str) -> None:
        assert (await self._http.delete(path)).status_code == 200

    async def continue_a_chain(self) -> None:
        previous = None
        made = []
        for number in range(self._chance.randrange(1, 8)):
            answer = await self._create(f"Say {number}", previous_response_id=previous)
            previous = answer["id"]
            made.append(previous)
        for response_id in made:
            await self._delete(f"/responses/{response_id}")

    async def stream_and_leave(self) -> None:
        body = {
            "model": self._model,
            "stream": True,
            "store": self._chance.random() < 0.5,
            "input": script({"say": "word ", "repeat": 2000, "tick": 0.0002}),
        }
        leaves_after = self._chance.choice([1, 5, 50, 1_000_000])
        async with self._http.stream("POST", "/responses", json=body) as answer:
            assert answer.status_code == 200
            chunks = 0
            async for _ in answer.aiter_raw():
                chunks += 1
                if chunks == leaves_after:
                    return

    async def call_a_function(self) -> None:
        tool = {
            "type": "function",
            "name": "look",
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {"at": {"type": "string"}},
                "required": ["at"],
                "additionalProperties": False,
            },
        }
        prompt = script({"call": "look", "args": {"at": "x" * 50}}, then={"say": "seen"})
        first = await self._create(prompt, tools=[tool])
        call = next(item for item in first["output"] if item["type"] == "function_call")
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "y" * 5000}
        last = await self._create([output], previous_response_id=first["id"], tools=[tool])
        for answer in (first, last):
            await self._delete(f"/responses/{answer['id']}")

    async def call_a_tool(self) -> None:
        await tasks_of(self._http, self._model)

    async def ask_in_the_background(self) -> None:
        words = self._chance.choice([1, 400])
        prompt = script({"say": "word ", "repeat": words, "tick": 0.001})
        answer = await self._create(prompt, background=True)
        path = f"/responses/{answer['id']}"
        if self._chance.random() < 0.5:
            await self._http.post(f"{path}/cancel")
        while answer["status"] in ("queued", "in_progress"):
            await asyncio.sleep(PAUSE_S)
            answer = (await self._http.get(path)).json()
        await self._delete(path)

    async def hold_a_conversation(self) -> None:
        items = [{"role": "user", "content": "z" * self._chance.choice([10, 100_000])}]
        conversation = await self._post("/conversations", items=items)
        for _ in range(3):
            await self._create("Go on", conversation=conversation["id"])
        await self._delete(f"/conversations/{conversation['id']}")

    async def use_a_socket(self) -> None:
        headers = {"authorization": f"Bearer {self._key}"}
        url = f"ws{self._url.removeprefix('http')}/v1/responses"
        async with connect(url, additional_headers=headers) as socket:
            for lane in ("a", "b", "c"):
                body = {"model": self._model, "input": "Hello", "store": False, "stream_id": lane}
                await socket.send(json.dumps({"type": "response.create", **body}))
            if self._chance.random() < 0.5:
                return  # with three responses under way
            ended = 0
            while ended < 3:
                event = json.loads(await socket.recv())
                ended += event["type"] == "response.completed"

    async def send_files(self) -> None:
        content = os.urandom(self._chance.choice([100, 500_000]))
        answer = await self._http.post(
            "/files", files={"file": ("a.bin", content)}, data={"purpose": "user_data"}
        )
        assert answer.status_code == 200, answer.text
        path = f"/files/{answer.json()['id']}"
        assert (await self._http.get(f"{path}/content")).content == content
        await self._delete(path)

    async def run_a_program(self) -> None:
        tools = [
            {"type": "programmatic_tool_calling"},
            {"type": "mcp", "server_label": "loop", "allowed_callers": ["programmatic"]},
        ]
        prompt = script({"call": "program", "args": {"code": PROGRAM}}, then={"say": "ran"})
        answer = await self._create(prompt, tools=tools)
        assert [item["type"] for item in answer["output"]].count("mcp_call") == 3
        await self._delete(f"/responses/{answer['id']}")

    async def have_agents(self) -> None:
        def spawn(name: str, *turns: Any) -> Json:
            message = f"@@script {json.dumps([list(turns)])}"
            return {"call": "spawn_agent", "args": {"task_name": name, "message": message}}

        some = [spawn(name, {"say": "word ", "repeat": 50, "tick": 0.001}) for name in "abc"]
        turns = [some, [{"call": "wait_agent"}], [{"say": "all done"}]]
        body: Json = {"model": self._model, "input": f"@@script {json.dumps(turns)}"}
        body["multi_agent"] = {"enabled": True}
        if self._chance.random() < 0.3:
            chunks = 0
            async with self._http.stream(
                "POST", "/responses", json={**body, "stream": True}, headers=BETA
            ) as left:
                async for _ in left.aiter_raw():
                    chunks += 1
                    if chunks == 20:
                        return
            return
        answer = await self._http.post("/responses", json=body, headers=BETA)
        assert answer.status_code == 200, answer.text[:500]
        await self._delete(f"/responses/{answer.json()['id']}")

    async def say_what_is_guarded(self) -> None:
        prompt = script({"say": f"one {WORD} ", "repeat": 100})
        answer = await self._create(prompt, store=False)
        assert WORD not in json.dumps(answer["output"])

    async def send_nonsense(self) -> None:
        await self._post("/responses", 400, model=self._model, input=7)
        assert (await self._http.get("/responses/resp_unknown")).status_code == 404

    async def leave_an_upload(self) -> None:
        host, _, port = self._url.removeprefix("http://").rpartition(":")
        _, writer = await asyncio.open_connection(host, int(port))
        head = (
            f"POST /v1/responses HTTP/1.1\r\nhost: {host}\r\nauthorization: Bearer {self._key}\r\n"
            "content-type: application/json\r\ncontent-length: 1000000\r\n\r\n"
        )
        writer.write(head.encode() + b'{"input": "' + b"x" * 200_000)
        await writer.drain()
        writer.transport.abort()


def script(*turn: Json, then: Json | None = None) -> str:
    turns = [list(turn), *([[then]] if then else [])]
    return f"@@script {json.dumps(turns)}"


async def tasks_of(client: httpx.AsyncClient, model: str) -> int:
    body = {
        "model": model,
        "store": False,
        "tools": [{"type": "mcp", "server_label": "loop"}],
        "input": script({"mcp": "tasks", "server": "loop"}, then={"say": "counted"}),
    }
    answer = (await client.post("/responses", json=body)).json()
    call = next(item for item in answer["output"] if item["type"] == "mcp_call")
    return int(call["output"])


async def measure(server: Replica, key: str) -> Figures:
    headers = {"authorization": f"Bearer {key}"}
    async with httpx.AsyncClient(base_url=server.api, headers=headers, timeout=60) as client:
        tasks = await tasks_of(client, MODELS[0])
    process = Path(f"/proc/{server.pid}")
    status = dict(
        line.split(":", 1) for line in (process / "status").read_text().splitlines() if ":" in line
    )
    return Figures(
        memory=int(status["VmRSS"].split()[0]) * 1024,
        descriptors=len(list((process / "fd").iterdir())),
        threads=int(status["Threads"]),
        tasks=tasks,
    )


async def settle(
    server: Replica, key: str, is_calm: Callable[[Figures], bool] = lambda _: False
) -> Figures:
    """Return the least of each figure once it is calm, or for as long as things may take to end."""
    deadline = time.monotonic() + min(SETTLE_S, max(10.0, SOAK_S / 4))
    figures = await measure(server, key)
    while time.monotonic() < deadline and not is_calm(figures):
        await asyncio.sleep(1)
        now = await measure(server, key)
        figures = Figures(
            memory=min(figures.memory, now.memory),
            descriptors=min(figures.descriptors, now.descriptors),
            threads=min(figures.threads, now.threads),
            tasks=min(figures.tasks, now.tasks),
        )
    return figures


def has_not_grown(start: Figures, end: Figures) -> bool:
    return (
        end.memory <= start.memory + MAX_GROWTH_BYTES
        and end.descriptors <= start.descriptors + MAX_MORE
        and end.threads <= start.threads + MAX_MORE
        and end.tasks <= start.tasks + MAX_MORE
    )


@pytest.fixture
def keys_and_server(tmp_path: Path) -> Iterator[tuple[list[str], Replica]]:
    keys, options = make_keys(tmp_path, TENANTS)
    home = tmp_path / "server"
    home.mkdir()
    for module in (loop_tasks, signing_guard):
        shutil.copy(str(module.__file__), home)
    store = f"sqlite:///{tmp_path}/soak.db"
    server = Replica(home, "--store", store, *options, *OPTIONS)
    server.start()
    yield [*keys.values()], server
    server.kill()


async def test_a_long_load_leaves_nothing_behind(
    keys_and_server: tuple[list[str], Replica],
) -> None:
    keys, server = keys_and_server
    done: Counter[str] = Counter()

    async def load(seconds: float) -> None:
        until = time.monotonic() + seconds
        clients = [
            Client(server, key, model, seed)
            for seed, (key, model) in enumerate((key, model) for key in keys for model in MODELS)
        ]
        running: list[Awaitable[None]] = [client.run(until) for client in clients]
        await asyncio.gather(*running)
        for client in clients:
            done.update(client.done)

    await load(WARM_UP_S)
    start = await settle(server, keys[0])
    await load(SOAK_S - WARM_UP_S)
    end = await settle(server, keys[0], lambda figures: has_not_grown(start, figures))

    print(f"\n{dict(done)}\nafter {WARM_UP_S:.0f} s: {start}\nafter {SOAK_S:.0f} s: {end}")
    assert has_not_grown(start, end), f"{start} -> {end}"
    assert "Traceback" not in server.log(), server.log()[-3000:]
