"""`stop` ends a response in the text of its messages, and nowhere else."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest
from tests.http.conftest import create, script

Json = dict[str, Any]

LOOK = {"type": "function", "name": "look", "parameters": {"type": "object"}}
CALL = {"call": "look", "args": {"q": "a Question: b"}}

ELSEWHERE: dict[str, tuple[list[Json], str, str]] = {
    "in the reasoning": ([{"think": "A Question: hm"}, {"say": "Four."}], "Question:", "Four."),
    "a channel": ([{"think": "hm"}, {"say": "Four."}], "final", "Four."),
    "a role": ([{"say": "Four."}], "assistant", "Four."),
    "a line of the markup": ([{"think": "hm"}, {"say": "Four."}], "\n", "Four."),
    "a marker": ([{"think": "hm"}, {"say": "Four."}], "<", "Four."),
    "in the text": ([{"say": "Four. Question: why?"}], "Question:", "Four. "),
    "in the reasoning and the text": (
        [{"think": "STOP"}, {"say": "Four. STOP it"}],
        "STOP",
        "Four. ",
    ),
}


def ask(http: httpx.Client, stream: bool, **body: Any) -> Json:
    """Return the response, whole or as the last event of its stream has it."""
    if not stream:
        return create(http, **body)
    answer = http.post("/responses", json=body | {"stream": True})
    last = answer.text.strip().rpartition("data: ")[2]
    response: Json = json.loads(last)["response"]
    return response


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("place", ELSEWHERE)
def test_only_the_text_of_a_message_is_searched(
    http: httpx.Client, model: str, place: str, stream: bool
) -> None:
    parts, stop, text = ELSEWHERE[place]
    response = ask(http, stream, model=model, input=script(parts), stop=stop)
    message = response["output"][-1]
    assert (response["status"], message["content"][0]["text"]) == ("completed", text)


def test_the_arguments_of_a_call_are_whole(http: httpx.Client, model: str) -> None:
    response = create(http, model=model, input=script([CALL]), tools=[LOOK], stop="Question:")
    call = response["output"][-1]
    assert (call["type"], call["status"]) == ("function_call", "completed")
    assert "a Question: b" in call["arguments"]


@pytest.mark.parametrize("stream", [False, True])
def test_the_model_writes_no_more_once_it_has_stopped(
    http: httpx.Client, model: str, stream: bool
) -> None:
    parts = [{"say": "one STOP ", "repeat": 300}]
    response = ask(http, stream, model=model, input=script(parts), stop=["STOP"])
    assert response["output"][-1]["content"][0]["text"] == "one "
    assert response["usage"]["output_tokens"] < 50


@pytest.mark.parametrize(("stop", "param"), [("", "stop"), (["a", ""], "stop")])
def test_an_empty_string_is_refused(http: httpx.Client, model: str, stop: Any, param: str) -> None:
    refused = http.post("/responses", json={"model": model, "input": "hi", "stop": stop})
    assert refused.status_code == 400
    assert refused.json()["error"]["param"].startswith(param)
