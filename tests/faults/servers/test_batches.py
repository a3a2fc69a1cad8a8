"""A batch goes on after its server was killed, and answers each line exactly once."""

from __future__ import annotations

import json
import os
import random
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.faults.support.replicas import Replica, replicas, wait_for

pytestmark = pytest.mark.faults

Json = dict[str, Any]

LINES = int(os.environ.get("ANTIPHON_TEST_BATCH_LINES", "120"))
"""Lines of the batch; the project's own check sets a higher number."""

KILLS = int(os.environ.get("ANTIPHON_TEST_BATCH_KILLS", "3"))

ENDED_WITHIN_S = 120 + LINES / 5

LINE_S = 90 * (KILLS + 2) / LINES
"""How long a line takes: servers start in between, 15 lines run at a time."""

FAILING = 7
"""Each line whose number this divides names a model that there is not."""


def line(number: int) -> Json:
    script = json.dumps([{"say": f"answer {number}", "tick": LINE_S / 4}])
    body = {
        "model": "nobody" if number % FAILING == 0 else "scripted-chat",
        "messages": [{"role": "user", "content": f"@@script {script}"}],
    }
    request = {"custom_id": f"line-{number}", "method": "POST", "url": "/v1/chat/completions"}
    return {**request, "body": body}


def start_batch(api: str) -> Json:
    content = "\n".join(json.dumps(line(number)) for number in range(LINES))
    uploaded = httpx.post(
        f"{api}/files", files={"file": ("in.jsonl", content)}, data={"purpose": "batch"}
    )
    asked = {"endpoint": "/v1/chat/completions", "completion_window": "24h"}
    created = httpx.post(f"{api}/batches", json={**asked, "input_file_id": uploaded.json()["id"]})
    assert created.status_code == 200, created.text
    batch: Json = created.json()
    return batch


def done(batch: Json) -> int:
    counts = batch["request_counts"]
    return int(counts["completed"]) + int(counts["failed"])


def lines_of(api: str, file_id: str) -> list[Json]:
    answer = httpx.get(f"{api}/files/{file_id}/content")
    return [json.loads(each) for each in answer.text.splitlines()]


@pytest.mark.timeout(60 + int(ENDED_WITHIN_S) + 30 * KILLS)
def test_each_line_is_answered_exactly_once_however_often_servers_are_killed(
    tmp_path: Path, shared_store: list[str]
) -> None:
    chance = random.Random(KILLS)
    with replicas(tmp_path, *shared_store) as living:

        def read(batch_id: str, replica: Replica | None = None) -> Json:
            url = f"{(replica or living[0]).api}/batches/{batch_id}"
            found: Json = httpx.get(url, timeout=20).json()
            return found

        batch_id = start_batch(living[0].api)["id"]
        progress = []
        for kill in range(1, KILLS + 1):
            least = LINES * kill // (KILLS + 2)

            def has_come_far(least: int = least) -> Json | None:
                batch = read(batch_id)
                return batch if done(batch) >= least else None

            batch = wait_for(has_come_far, limit_s=ENDED_WITHIN_S)
            assert batch["status"] == "in_progress"
            progress.append(done(batch))
            # Nobody knows which of them runs it: all are killed, at about the same moment.
            for replica in living:
                time.sleep(chance.uniform(0, 0.05))
                replica.kill()
            with ThreadPoolExecutor() as threads:
                list(threads.map(Replica.start, living))

        def has_ended() -> Json | None:
            batch = read(batch_id, chance.choice(living))
            return batch if batch["status"] == "completed" else None

        batch = wait_for(has_ended, limit_s=ENDED_WITHIN_S)
        outputs = lines_of(living[0].api, batch["output_file_id"])
        errors = lines_of(living[1].api, batch["error_file_id"])
    print(f"{KILLS} kills of all servers, at {progress} of {LINES} lines")
    failing = {f"line-{number}" for number in range(0, LINES, FAILING)}
    assert sorted(each["custom_id"] for each in errors) == sorted(failing)
    answered = {each["custom_id"]: text_of(each) for each in outputs}
    assert len(outputs) == len(answered)
    assert answered == {
        f"line-{number}": f"answer {number}" for number in range(LINES) if number % FAILING
    }
    assert batch["request_counts"] == {
        "total": LINES,
        "completed": len(outputs),
        "failed": len(errors),
    }


def text_of(answered: Json) -> str:
    return str(answered["response"]["body"]["choices"][0]["message"]["content"])
