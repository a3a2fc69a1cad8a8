"""Two servers on one store: what one began can be read, ended and repeated at the other."""

from __future__ import annotations

import json
import signal
import statistics
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.faults.support.replicas import (
    LEASE_S,
    MODEL,
    Replica,
    background,
    frames_of,
    replicas,
    stream,
    wait_for,
)

pytestmark = pytest.mark.faults

ENDS = {
    "completed": '@@script [[{"think": "so"}, {"say": "word ", "repeat": 20}]]',
    "incomplete": '@@script [[{"say": "word ", "repeat": 200}]]',
    "failed": '@@script [[{"say": "word ", "repeat": 5}, {"fail": "server_error"}]]',
    "cancelled": '@@script [[{"say": "word ", "repeat": 5}, {"hang": 60}]]',
}
LONG = '@@script [[{"say": "word ", "repeat": 5000, "tick": 0.02}]]'
HANG = '@@script [[{"say": "word ", "repeat": 3}, {"hang": 600}]]'


@pytest.fixture
def pair(tmp_path: Path, shared_store: list[str]) -> Iterator[list[Replica]]:
    with replicas(tmp_path, *shared_store) as started:
        yield started


def create(server: Replica, prompt: str, **fields: Any) -> str:
    answer = httpx.post(f"{server.api}/responses", json=background(prompt, **fields))
    assert answer.status_code == 200, answer.text
    return str(answer.json()["id"])


def status(server: Replica, response_id: str) -> str:
    return str(httpx.get(f"{server.api}/responses/{response_id}").json()["status"])


def ended(server: Replica, response_id: str) -> str | None:
    found = status(server, response_id)
    return found if found not in ("queued", "in_progress") else None


@pytest.mark.timeout(60)
def test_a_stream_resumed_anywhere_at_the_other_server_is_byte_for_byte_the_same(
    pair: list[Replica],
) -> None:
    first, second = pair
    for wanted, prompt in ENDS.items():
        limits = {"max_output_tokens": 20} if wanted == "incomplete" else {}
        response_id = create(first, prompt, **limits)
        whole: list[bytes] = []
        undisturbed = threading.Thread(
            target=lambda r=response_id, w=whole: w.append(stream(first.api, r))
        )
        undisturbed.start()
        if wanted == "cancelled":
            written = f"{second.api}/responses/{response_id}"
            with httpx.stream("GET", written, params={"stream": "true"}) as answer:
                next(line for line in answer.iter_lines() if "output_text.delta" in line)
            assert httpx.post(f"{written}/cancel").json()["status"] == "cancelled"
        undisturbed.join(timeout=30)
        frames = frames_of(whole[0])
        assert status(second, response_id) == wanted
        for number in range(-1, len(frames)):
            rest = stream(second.api, response_id, after=number)
            left = b"".join(frames[n] + b"\n\n" for n in range(number + 1, len(frames)))
            assert rest == left, f"{wanted}, after {number}"


def test_cancelling_at_the_other_server_stops_the_run_within_a_second(pair: list[Replica]) -> None:
    first, second = pair
    response_id = create(first, LONG)
    with httpx.stream(
        "GET", f"{first.api}/responses/{response_id}", params={"stream": "true"}, timeout=10
    ) as answer:
        lines = answer.iter_lines()
        next(line for line in lines if "output_text.delta" in line)
        cancelled = httpx.post(f"{second.api}/responses/{response_id}/cancel").json()
        at = time.monotonic()
        rest = list(lines)
        assert time.monotonic() - at < 1.0, "its reader at the owner is told"
    assert cancelled["status"] == "cancelled"
    assert json.loads(rest[-2].removeprefix("data: "))["response"] == cancelled
    again = httpx.post(f"{first.api}/responses/{response_id}/cancel")
    assert (again.status_code, again.json()) == (200, cancelled), "cancelling twice is one cancel"
    assert httpx.get(f"{first.api}/responses/{response_id}").json() == cancelled


def test_deleting_at_the_other_server_ends_its_readers_and_leaves_nothing(
    pair: list[Replica],
) -> None:
    first, second = pair
    response_id = create(first, HANG)
    url = f"{first.api}/responses/{response_id}"
    with httpx.stream("GET", url, params={"stream": "true"}, timeout=10) as answer:
        lines = answer.iter_lines()
        next(line for line in lines if "output_text.delta" in line)
        deleted = httpx.delete(f"{second.api}/responses/{response_id}")
        at = time.monotonic()
        rest = list(lines)
        assert time.monotonic() - at < 1.5
    assert deleted.json()["deleted"] is True
    assert rest, "readers are told that it is over"
    for server in pair:
        for answer in (
            httpx.get(f"{server.api}/responses/{response_id}"),
            httpx.get(f"{server.api}/responses/{response_id}", params={"stream": "true"}),
            httpx.post(f"{server.api}/responses/{response_id}/cancel"),
            httpx.delete(f"{server.api}/responses/{response_id}"),
            httpx.get(f"{server.api}/responses/{response_id}/input_items"),
        ):
            assert answer.status_code == 404, answer.text


@pytest.mark.timeout(40)
def test_an_owner_that_was_stopped_past_its_lease_writes_nothing_when_it_wakes_up(
    pair: list[Replica],
) -> None:
    owner, other = pair
    response_id = create(owner, '@@script [[{"say": "word ", "repeat": 100, "tick": 0.02}]]')
    seen = f"{other.api}/responses/{response_id}"
    with httpx.stream("GET", seen, params={"stream": "true"}, timeout=10) as answer:
        next(line for line in answer.iter_lines() if "output_text.delta" in line)
    owner.signal(signal.SIGSTOP)
    assert wait_for(lambda: ended(other, response_id), limit_s=LEASE_S + 10) == "completed"
    kept, log = httpx.get(seen).json(), stream(other.api, response_id)
    owner.signal(signal.SIGCONT)
    # It is awake once it answers; what it had ready to write, it has tried to write by then.
    assert wait_for(lambda: ended(owner, response_id)) == "completed"
    wait_for(lambda: "ended by another server" in owner.log() or None)
    assert (httpx.get(seen).json(), stream(other.api, response_id)) == (kept, log)
    assert stream(owner.api, response_id) == log
    # And it goes on to serve: what it runs now is its own.
    new = create(owner, ENDS["completed"])
    assert wait_for(lambda: ended(other, new)) == "completed"


@pytest.mark.timeout(40)
def test_a_hundred_posts_with_one_key_at_two_servers_are_one_run(pair: list[Replica]) -> None:
    body = {"model": MODEL, "input": '@@script [[{"say": "word ", "repeat": 30, "tick": 0.02}]]'}
    together = threading.Barrier(20)

    def post(number: int) -> tuple[str, dict[str, Any]]:
        server = pair[number % 2]
        if number < together.parties:
            together.wait(timeout=30)
        answer = httpx.post(
            f"{server.api}/responses", json=body, headers={"Idempotency-Key": "one"}, timeout=30
        )
        assert answer.status_code == 200, answer.text
        return answer.headers.get("idempotent-replayed", "false"), answer.json()

    with ThreadPoolExecutor(20) as posts:
        answers = list(posts.map(post, range(100)))
    assert len({json.dumps(response, sort_keys=True) for _, response in answers}) == 1
    assert sorted(replayed for replayed, _ in answers) == ["false"] + 99 * ["true"]
    other = httpx.post(
        f"{pair[0].api}/responses",
        json={**body, "input": "something else"},
        headers={"Idempotency-Key": "one"},
    )
    assert (other.status_code, other.json()["error"]["code"]) == (400, "idempotency_key_reused")


@pytest.mark.timeout(60)
def test_what_one_server_writes_is_read_at_the_other_within_a_quarter_second(
    pair: list[Replica],
) -> None:
    first, second = pair
    response_id = create(first, '@@script [[{"say": "word ", "repeat": 200, "tick": 0.01}]]')
    seen: dict[str, dict[int, float]] = {}

    def read(server: Replica) -> None:
        times = seen.setdefault(server.url, {})
        url = f"{server.api}/responses/{response_id}"
        with httpx.stream("GET", url, params={"stream": "true"}, timeout=20) as answer:
            for line in answer.iter_lines():
                if line.startswith("data: "):
                    times[json.loads(line[6:])["sequence_number"]] = time.monotonic()

    readers = [threading.Thread(target=read, args=(server,)) for server in pair]
    for reader in readers:
        reader.start()
    for reader in readers:
        reader.join(timeout=30)
    here, there = seen[first.url], seen[second.url]
    assert here.keys() == there.keys()
    lags = [there[number] - here[number] for number in here]
    assert statistics.quantiles(lags, n=100)[98] < 0.25
