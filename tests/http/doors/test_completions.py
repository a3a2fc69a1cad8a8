"""Completions of a prompt as it is: texts, tokens, echoes, log probabilities, several answers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from openai import OpenAI
from openai.types import Completion
from tests.http.conftest import script
from tests.http.doors.test_chat import data_of

Json = dict[str, Any]
PATH = "/completions"
MODELS = ("scripted-chat", "scripted-harmony")


@pytest.fixture
def http(server: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=server.api, timeout=30) as client:
        yield client


def complete(http: httpx.Client, **body: Any) -> Json:
    answer = http.post(PATH, json={"model": "scripted-chat", "max_tokens": 100, **body})
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    Completion.model_validate(without_nulls(found))
    return found


def without_nulls(completion: Json) -> Json:
    """Return the completion as the SDK's types want it: they do not know that nothing comes before
    the first token of an echo, which OpenAI and vLLM say with null."""
    choices = []
    for choice in completion["choices"]:
        if (told := choice["logprobs"]) is not None:
            told = {
                **told,
                "token_logprobs": [each or 0.0 for each in told["token_logprobs"]],
                "top_logprobs": [each or {} for each in told["top_logprobs"]],
            }
        choices.append({**choice, "logprobs": told})
    return {**completion, "choices": choices}


def chunks_of(http: httpx.Client, **body: Any) -> list[Json]:
    body = {"model": "scripted-chat", "max_tokens": 100, "stream": True, **body}
    answer = http.post(PATH, json=body)
    assert answer.status_code == 200, answer.text
    *chunks, end = data_of(answer.text)
    assert end == "[DONE]"
    for chunk in chunks:
        Completion.model_validate({**chunk, "choices": []})
    return chunks


def joined(chunks: list[Json]) -> list[Json]:
    """Return the choices that a stream tells, as they are in one object."""
    choices: dict[int, Json] = {}
    for chunk in chunks:
        for told in chunk["choices"]:
            choice = choices.setdefault(
                told["index"],
                {"index": told["index"], "text": "", "logprobs": None, "finish_reason": None},
            )
            choice["text"] += told["text"]
            choice["finish_reason"] = told["finish_reason"] or choice["finish_reason"]
            if told["logprobs"] is not None:
                known = choice["logprobs"] or {name: [] for name in told["logprobs"]}
                choice["logprobs"] = {
                    name: [*known[name], *values] for name, values in told["logprobs"].items()
                }
    return [choices[index] for index in sorted(choices)]


@pytest.mark.parametrize("model", MODELS)
def test_the_model_goes_on_from_the_text_without_markup(http: httpx.Client, model: str) -> None:
    found = complete(http, model=model, prompt=script([{"say": "and so on"}]))
    assert found["object"] == "text_completion"
    assert found["id"].startswith("cmpl-")
    [choice] = found["choices"]
    assert choice["text"] == "and so on"
    assert choice["finish_reason"] == "stop"
    assert choice["logprobs"] is None
    usage = found["usage"]
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"] > 0


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("echo", [True, False])
@pytest.mark.parametrize("logprobs", [None, 0, 3])
def test_a_stream_tells_what_the_object_has(
    http: httpx.Client, model: str, echo: bool, logprobs: int | None
) -> None:
    body = {"model": model, "prompt": "Once upon a time", "echo": echo, "logprobs": logprobs}
    whole = complete(http, **body)
    chunks = chunks_of(http, **body, stream_options={"include_usage": True})
    assert joined(chunks) == whole["choices"]
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] == whole["usage"]["total_tokens"]
    assert len({chunk["id"] for chunk in chunks}) == 1


@pytest.mark.parametrize("model", MODELS)
def test_an_echo_has_the_log_probability_of_each_token_but_the_first(
    http: httpx.Client, model: str
) -> None:
    found = complete(http, model=model, prompt="Two and two? four", echo=True, logprobs=2)
    [choice] = found["choices"]
    assert choice["text"].startswith("Two and two? four")
    told = choice["logprobs"]
    assert "".join(told["tokens"]) == choice["text"]
    assert told["token_logprobs"][0] is told["top_logprobs"][0] is None
    assert all(each <= 0 for each in told["token_logprobs"][1:])
    for token, offset in zip(told["tokens"], told["text_offset"], strict=True):
        assert choice["text"][offset:].startswith(token)
    for token, logprob, tops in zip(
        told["tokens"][1:], told["token_logprobs"][1:], told["top_logprobs"][1:], strict=True
    ):
        assert tops[token] == logprob


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("streams", [True, False])
def test_no_tokens_and_an_echo_give_the_prompt_alone(
    http: httpx.Client, model: str, streams: bool
) -> None:
    body = {"model": model, "prompt": "Two and two", "echo": True, "logprobs": 1, "max_tokens": 0}
    [choice] = joined(chunks_of(http, **body)) if streams else complete(http, **body)["choices"]
    assert choice["text"] == "Two and two"
    assert choice["finish_reason"] == "length"
    assert "".join(choice["logprobs"]["tokens"]) == "Two and two"
    if not streams:
        assert complete(http, **body)["usage"]["completion_tokens"] == 0


def test_no_tokens_without_an_echo_give_nothing(http: httpx.Client) -> None:
    found = complete(http, prompt="Two and two", max_tokens=0)
    assert found["choices"][0]["text"] == ""
    assert found["usage"]["completion_tokens"] == 0
    assert found["usage"]["prompt_tokens"] > 0


@pytest.mark.parametrize("model", MODELS)
def test_tokens_are_a_prompt_too(http: httpx.Client, model: str) -> None:
    echoed = complete(http, model=model, prompt=[68, 69, 70], echo=True)
    assert echoed["usage"]["prompt_tokens"] == 3
    many = complete(http, model=model, prompt=[[68, 69, 70], [71, 72]], echo=True)
    assert [each["index"] for each in many["choices"]] == [0, 1]
    assert many["choices"][0]["text"] == echoed["choices"][0]["text"]
    assert many["usage"]["prompt_tokens"] == 5


def test_several_prompts_have_several_answers_each(http: httpx.Client) -> None:
    body = {"prompt": ["one", "two"], "n": 2, "best_of": 2, "echo": True, "seed": 7}
    whole = complete(http, **body)
    texts = [choice["text"][:3] for choice in whole["choices"]]
    assert texts == ["one", "one", "two", "two"]
    once = complete(http, prompt=["one", "two"])["usage"]
    assert whole["usage"]["prompt_tokens"] == once["prompt_tokens"]
    assert joined(chunks_of(http, **body)) == whole["choices"]


@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(
    prompts=st.lists(st.text(min_size=1, max_size=20), min_size=1, max_size=4),
    said=st.text(max_size=20),
    echo=st.booleans(),
    logprobs=st.none() | st.integers(0, 20),
    n=st.integers(1, 3),
)
def test_any_request_gives_the_same_as_a_stream_and_as_an_object(
    http: httpx.Client, prompts: list[str], said: str, echo: bool, logprobs: int | None, n: int
) -> None:
    texts = [f"{prompt}{script([{'say': said}])}" for prompt in prompts]
    body = {"prompt": texts, "echo": echo, "logprobs": logprobs, "n": n}
    whole = complete(http, **body)
    assert len(whole["choices"]) == len(prompts) * n
    assert joined(chunks_of(http, **body)) == whole["choices"]
    for number, choice in enumerate(whole["choices"]):
        start = texts[number // n] if echo else ""
        assert choice["text"] == start + said


def test_a_stop_string_is_sought_in_what_the_model_writes(http: httpx.Client) -> None:
    prompt = script([{"say": "first STOP second"}])
    found = complete(http, prompt=prompt, echo=True, stop="STOP")
    assert found["choices"][0]["text"] == prompt + "first "
    assert found["choices"][0]["finish_reason"] == "stop"


def test_sixteen_tokens_are_the_default(http: httpx.Client) -> None:
    body = {"model": "scripted-chat", "prompt": script([{"say": "a ", "repeat": 100}])}
    found = http.post(PATH, json=body).json()
    assert found["usage"]["completion_tokens"] == 16
    assert found["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({}, "prompt", "missing_required_parameter"),
        ({"prompt": None}, "prompt", None),
        ({"prompt": ""}, "prompt", "invalid_value"),
        ({"prompt": []}, "prompt", "invalid_value"),
        ({"prompt": [[]]}, "prompt", "invalid_value"),
        ({"prompt": ["a", 1]}, "prompt[1]", "invalid_type"),
        ({"prompt": [1, "a"]}, "prompt[0]", "invalid_type"),
        ({"prompt": [-1]}, "prompt[0]", None),
        ({"prompt": "a", "n": 0}, "n", None),
        ({"prompt": ["a", "b"], "n": 65}, "prompt", "invalid_value"),
        ({"prompt": "a", "suffix": "z"}, "suffix", "unsupported_value"),
        ({"prompt": "a", "best_of": 3}, "best_of", "unsupported_value"),
        ({"prompt": "a", "logprobs": 21}, "logprobs", None),
        ({"prompt": "a", "max_tokens": -1}, "max_tokens", None),
        ({"prompt": "word " * 200_000}, "prompt", "context_length_exceeded"),
    ],
)
def test_what_cannot_be_is_refused_by_the_name_that_was_sent(
    http: httpx.Client, body: Json, param: str, code: str | None
) -> None:
    refused = http.post(PATH, json={"model": "scripted-chat", **body})
    assert refused.status_code == 400, refused.text
    error = refused.json()["error"]
    assert error["param"] == param
    assert code in (None, error["code"])
    assert "raw_prompt" not in error["message"]


def test_what_has_no_effect_is_named(http: httpx.Client) -> None:
    without_effect = {"store": True, "chat_template_kwargs": {"a": 1}, "unknown": 1}
    answer = http.post(PATH, json={"model": "scripted-chat", "prompt": "a", **without_effect})
    named = answer.headers["x-antiphon-ignored"].split(", ")
    assert sorted(named) == ["chat_template_kwargs", "store", "unknown"]


def test_a_failure_is_an_error_in_the_stream_and_a_status_without_one(http: httpx.Client) -> None:
    body = {"model": "scripted-chat", "prompt": script([{"say": "a"}, {"fail": "gone"}])}
    assert http.post(PATH, json=body).status_code == 500
    chunks = data_of(http.post(PATH, json={**body, "stream": True}).text)
    assert "error" in chunks[-2]
    assert chunks[-1] == "[DONE]"


def test_responses_take_a_raw_prompt_that_nothing_else_writes(http: httpx.Client) -> None:
    raw = {"text": script([{"say": "plain"}]), "echo": True}
    body: Json = {"model": "scripted-chat", "raw_prompt": raw, "store": False}
    answer = http.post("/responses", json=body).json()
    assert answer["output"][0]["content"][0]["text"] == raw["text"] + "plain"
    for name, value in (("input", "hi"), ("instructions", "be brief"), ("tools", [])):
        refused = http.post("/responses", json={**body, name: value})
        assert refused.json()["error"]["param"] == name
    for changes in (
        {"store": True},
        {"raw_prompt": {}},
        {"raw_prompt": {"text": "a", "tokens": [1]}},
    ):
        refused = http.post("/responses", json={**body, **changes})
        assert refused.json()["error"]["param"] == "raw_prompt"
    alone = http.post("/responses", json={**body, "raw_prompt": {"text": "a", "echo_only": True}})
    assert alone.json()["error"]["param"] == "raw_prompt.echo_only"
    nulls = {"text": script([{"say": "plain"}]), "echo": None, "echo_only": None}
    answer = http.post("/responses", json={**body, "raw_prompt": nulls}).json()
    assert answer["output"][0]["content"][0]["text"] == "plain"


def test_more_log_probabilities_than_a_response_may_have_are_refused(http: httpx.Client) -> None:
    body = {"model": "scripted-chat", "prompt": "a " * 20_000, "echo": True, "logprobs": 20}
    refused = http.post(PATH, json=body)
    assert refused.status_code == 400
    assert refused.json()["error"]["param"] == "logprobs"


def test_the_official_client_completes(server: Any) -> None:
    client = OpenAI(base_url=server.api, api_key="none")
    prompt = script([{"say": "Hello."}])
    whole = client.completions.create(model="scripted-chat", prompt=prompt, logprobs=1)
    assert whole.choices[0].text == "Hello."
    assert whole.choices[0].logprobs is not None
    stream = client.completions.create(model="scripted-chat", prompt=prompt, stream=True)
    assert "".join(chunk.choices[0].text for chunk in stream) == "Hello."
