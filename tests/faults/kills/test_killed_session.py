"""A session of twelve turns through all APIs, one of whose servers is killed in mid-answer."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import OpenAI
from tests.faults.support.replicas import MODEL, Replica, replicas, stream
from tests.http.conftest import script
from tests.support.sessions import HEADER, answers_in

pytestmark = pytest.mark.faults

NAME = "one memory"
JOINED = {HEADER: f"{NAME}; join"}
WORDS = 300
BASH = {"name": "Bash", "description": "Runs.", "input_schema": {"type": "object"}}
COMMAND = {"call": "Bash", "args": {"command": "make test"}}
LONG = {"say": "five ", "repeat": WORDS, "tick": 0.01}


class ClaudeCode:
    """Sends the whole history with each request, and reads it from a stream."""

    def __init__(self, server: Replica) -> None:
        self.server = server
        self.history: list[dict[str, Any]] = []
        self.headers = {HEADER: NAME, "anthropic-version": "2023-06-01"}

    def ask(self, content: Any) -> tuple[str, str]:
        """Return the id of the response, and its relation to the session."""
        self.history.append({"role": "user", "content": content})
        body = {
            "model": MODEL,
            "max_tokens": 1000,
            "system": "You are an agent.",
            "tools": [BASH],
            "messages": self.history,
        }
        answer = httpx.post(
            f"{self.server.api}/messages", json=body, headers=self.headers, timeout=30
        )
        assert answer.status_code == 200, answer.text
        found = answer.json()
        self.history.append({"role": "assistant", "content": found["content"]})
        return found["id"].replace("msg_", "resp_"), answer.headers[HEADER]


@pytest.mark.timeout(150)
def test_a_session_goes_on_through_every_api_and_the_death_of_a_server(
    tmp_path: Path, shared_store: list[str]
) -> None:
    with replicas(tmp_path, *shared_store, "--keep-traces", "all") as (first, second):
        code = ClaudeCode(first)
        states = [code.ask(script(COMMAND, {"say": "two"}))[1]]
        result = {"type": "tool_result", "content": "1 passed"}
        call_id = code.history[-1]["content"][0]["id"]
        states.append(code.ask([{**result, "tool_use_id": call_id}])[1])
        states += [code.ask(script({"say": text}))[1] for text in ("three", "four")]
        assert states == ["begun", *["continued"] * 3]

        # Codex goes on in the background, and its server dies while it answers.
        with OpenAI(base_url=first.api, api_key="none", max_retries=0) as codex:
            long = codex.responses.create(
                model=MODEL,
                input=script([{"think": "Hm."}, LONG]),
                background=True,
                extra_headers={HEADER: NAME},
            )
        assert long.conversation is not None
        conversation = long.conversation.id
        written = f"{first.api}/responses/{long.id}"
        with httpx.stream("GET", written, params={"stream": "true"}) as answer:
            next(line for line in answer.iter_lines() if "output_text.delta" in line)
        first.kill()
        assert b"response.completed" in stream(second.api, long.id, limit_s=60)

        with OpenAI(base_url=second.api, api_key="none", max_retries=0) as client:
            for text in ("six", "seven"):
                client.responses.create(
                    model=MODEL, input=script({"say": text}), conversation=conversation
                )
            client.responses.create(
                model=MODEL, input=script({"say": "eight"}), extra_headers={HEADER: NAME}
            )
            # A chat client reads what there is, and goes on.
            messages: Any = [{"role": "system", "content": "You are an agent."}]
            for text in ("nine", "ten", "eleven"):
                messages.append({"role": "user", "content": script({"say": text})})
                completion = client.chat.completions.create(
                    model=MODEL, messages=messages, extra_headers=JOINED
                )
                messages.append(completion.choices[0].message.to_dict())

        # Claude Code is back, at the server that was killed.
        first.start()
        code.headers |= JOINED
        last, state = code.ask(script({"say": "twelve"}))
        assert state == "continued"

        for server in (first, second):
            page = httpx.get(
                f"{server.api}/conversations/{conversation}/items",
                params={"order": "asc", "limit": 100},
            ).json()
            answers = answers_in(page["data"])
            assert answers[4].split() == ["five"] * WORDS
            assert [*answers[:4], *answers[5:]] == [
                *("Bash", "two", "three", "four", "six", "seven", "eight", "nine", "ten"),
                *("eleven", "twelve"),
            ]
            listed = httpx.get(
                f"{server.api}/responses", params={"conversation": conversation}
            ).json()["data"]
            assert [each["status"] for each in listed] == ["completed"] * 12
            assert listed[0]["id"] == last
