"""Servers that are replaced in turn, under load: clients of the official library notice nothing.

ANTIPHON_TEST_ROLLING_S says how long each store is tested. `-s` prints the figures.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from openai import OpenAI
from tests.faults.support.balancer import balancing
from tests.faults.support.container_servers import KEYS, container_servers
from tests.faults.support.replicas import MODEL, Replica, replicas

from antiphon.application.tools.response_container import LOST

DURATION_S = float(os.environ.get("ANTIPHON_TEST_ROLLING_S", "20"))

pytestmark = [pytest.mark.faults, pytest.mark.timeout(DURATION_S + 180)]

Kind = Callable[["Load", OpenAI, int], str]
"""Sends a request, or some, and returns the text that is asked for: so many words."""

CLIENTS = 4
"""Of each kind."""

PAUSE_S = 1.0
"""Between a server that is ready and the next one that stops."""

ENDS_WITHIN_S = 60.0
"""A background run may wait for its turn, and for another server."""

OPTIONS = ("--drain-delay-s", "1", "--log-level", "warning")


def script_of(words: int, tick_s: float) -> str:
    return f"@@script {json.dumps([[{'say': 'word ', 'repeat': words, 'tick': tick_s}]])}"


class Load:
    """Clients of several kinds, each of which sends one request after another until it is told."""

    def __init__(self, port: int, *kinds: Kind, api_key: str = "none") -> None:
        self._url = f"http://127.0.0.1:{port}/v1"
        self._api_key = api_key
        self._stop = threading.Event()
        self._chance = random.Random(1)
        self.requests: Counter[str] = Counter()
        self.failures: list[str] = []
        self.background: list[str] = []
        self.containers: Counter[str] = Counter()
        self._threads = [
            threading.Thread(target=self._repeat, args=(kind,)) for kind in kinds * CLIENTS
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Let all clients finish their request."""
        self._stop.set()
        for thread in self._threads:
            thread.join(timeout=ENDS_WITHIN_S + 30)
            assert not thread.is_alive(), "a request does not end"

    def client(self) -> OpenAI:
        """Return a client with the retries that it makes unless it is told otherwise."""
        return OpenAI(base_url=self._url, api_key=self._api_key, timeout=60)

    def _repeat(self, kind: Kind) -> None:
        with self.client() as client:
            while not self._stop.is_set():
                words = self._chance.randint(5, 60)
                try:
                    text = kind(self, client, words)
                    assert text == "word " * words, text
                except Exception as error:
                    self.failures.append(f"{kind.__name__}: {error!r}")
                self.requests[kind.__name__] += 1

    def stream(self, client: OpenAI, words: int) -> str:
        deltas: list[str] = []
        numbers: list[int] = []
        with client.responses.create(
            model=MODEL, input=script_of(words, 0.02), stream=True
        ) as events:
            for event in events:
                numbers.append(event.sequence_number)
                if event.type == "response.output_text.delta":
                    deltas.append(event.delta)
        assert event.type == "response.completed", event
        assert numbers == list(range(len(numbers)))
        return "".join(deltas)

    def whole(self, client: OpenAI, words: int) -> str:
        response = client.responses.create(model=MODEL, input=script_of(words, 0.02))
        assert response.status == "completed", response
        return response.output_text

    def run_in_background(self, client: OpenAI, words: int) -> str:
        response: Any = client.responses.create(
            model=MODEL, input=script_of(words, 0.05), background=True
        )
        self.background.append(response.id)
        deadline = time.monotonic() + ENDS_WITHIN_S
        while response.status in ("queued", "in_progress"):
            assert time.monotonic() < deadline, f"{response.id} does not end"
            time.sleep(0.1)
            response = client.responses.retrieve(response.id)
        assert response.status == "completed", response
        return str(response.output_text)

    def talk_with_code(self, client: OpenAI, words: int) -> str:
        """Set a variable in one response and show it in the next, which any server may get."""
        tools: Any = [{"type": "code_interpreter", "container": {"type": "auto"}}]
        begun = client.responses.create(
            model=MODEL, input=code_script(f"words = {words}"), tools=tools
        )
        response = client.responses.create(
            model=MODEL,
            input=code_script("print('word ' * words, end='')"),
            tools=tools,
            previous_response_id=begun.id,
            include=["code_interpreter_call.outputs"],
        )
        assert response.status == "completed", response
        call = next(item for item in response.output if item.type == "code_interpreter_call")
        logs = "".join(output.logs for output in call.outputs or () if output.type == "logs")
        self.containers["lost" if LOST in logs else "kept"] += 1
        return "word " * words if LOST in logs else logs


def code_script(code: str) -> str:
    return f"@@script {json.dumps([[{'call': 'python', 'args': {'code': code}}], [{'say': 'ok'}]])}"


def replace_in_turn(servers: list[Replica], until: float) -> int:
    """Stop each server and start it anew, at least once; return how often."""
    restarts = 0
    while restarts < len(servers) or time.monotonic() < until:
        server = servers[restarts % len(servers)]
        assert server.stop(limit_s=40) == 0, server.log()[-3000:]
        server.start()
        restarts += 1
        time.sleep(PAUSE_S)
    return restarts


def restart_under(load: Load, servers: list[Replica]) -> int:
    """Replace servers while the clients send requests; return how often."""
    load.start()
    try:
        return replace_in_turn(servers, time.monotonic() + DURATION_S)
    finally:
        load.stop()


def ports_of(servers: list[Replica]) -> list[int]:
    return [int(server.url.rpartition(":")[2]) for server in servers]


def test_clients_notice_nothing_while_servers_are_replaced(
    tmp_path: Path, shared_store: list[str]
) -> None:
    with replicas(tmp_path, *shared_store, *OPTIONS) as servers:
        with balancing(*ports_of(servers)) as port:
            load = Load(port, Load.stream, Load.whole, Load.run_in_background)
            restarts = restart_under(load, servers)
            with load.client() as client:
                ends = Counter(client.responses.retrieve(each).status for each in load.background)
        lost = len(load.background) - ends["completed"]
        print(
            f"{sum(load.requests.values())} requests ({dict(load.requests)}), {restarts} restarts, "
            f"{len(load.failures)} failures, {lost} of {len(load.background)} runs lost"
        )
        assert load.failures == []
        assert dict(ends) == {"completed": len(load.background)}


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="bubblewrap is not installed")
def test_conversations_with_code_go_on_while_servers_are_replaced(tmp_path: Path) -> None:
    with (
        container_servers(tmp_path, *OPTIONS) as servers,
        balancing(*ports_of(servers)) as port,
    ):
        load = Load(port, Load.talk_with_code, api_key=KEYS["anna"])
        restarts = restart_under(load, servers)
    print(
        f"{sum(load.requests.values())} conversations, {restarts} restarts, "
        f"{len(load.failures)} failures, containers: {dict(load.containers)}"
    )
    assert load.failures == []
    assert load.containers["kept"] > load.containers["lost"], "lost with its server alone"
