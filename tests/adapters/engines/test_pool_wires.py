"""What is sent on each wire, and what is made of the servers' refusals."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.adapters.engines.pool_fixtures import pool
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from antiphon.adapters.engines.pooled.refusals import read_details, to_request_error
from antiphon.adapters.engines.pooled.text import RunText, Vocabulary
from antiphon.adapters.engines.vllm_http.profile import Profile
from antiphon.adapters.engines.vllm_http.wires import to_wire
from antiphon.application.ports import Constraint, EngineRequest, Prompt, Sampling, Turn
from antiphon.domain.errors import EngineError, RequestError
from antiphon.testing.engine import steps_of, text_of

GENERATE = Profile(model_name="up", root="", context_length=4096, has_generate=True, has_text=True)
BARE = replace(GENERATE, has_text=False)
COMPLETIONS = replace(GENERATE, has_generate=False)
CHOICE = Constraint(kind="choice", value=["yes", "no"])


def sent(
    profile: Profile, *, model_type: str = "", request: dict[str, Any] | None = None, **fields: Any
) -> tuple[str, dict[str, Any]]:
    engine_request = EngineRequest(
        **{
            "request_id": "run_1",
            "model": "mine",
            "prompt": Prompt(token_ids=[1, 2, 3]),
            "sampling": Sampling(**fields),
            "turn": Turn(model="mine", items=()),
            **(request or {}),
        }
    )
    wire = to_wire(
        engine_request,
        profile,
        defaults={"temperature": 0.6, "top_k": 20},
        context_length=100,
        vocabulary=None,
        model_type=model_type,
    )
    return wire.path, json.loads(wire.body)


def test_the_wire_of_tokens_carries_all_parameters() -> None:
    path, body = sent(
        GENERATE,
        request={"cache_salt": "salt", "priority": 3},
        top_k=5,
        seed=7,
        stop_token_ids=(9,),
        logit_bias={"4": 1.5},
        step_tokens=8,
        constraint=CHOICE,
        extra={"vllm_xargs": {"a": 1}, "kv_transfer_params": {"b": 2}},
    )
    assert path == "/inference/v1/generate"
    assert body == {
        "model": "up",
        "request_id": "run_1",
        "stream": True,
        "stream_options": {"include_usage": True},
        "cache_salt": "salt",
        "priority": 3,
        "token_ids": [1, 2, 3],
        "output_mode": "text",
        "reasoning_ended": True,
        "sampling_params": {
            "temperature": 0.6,
            "top_k": 5,
            "seed": 7,
            "max_tokens": 97,
            "stop_token_ids": [9],
            "ignore_eos": False,
            "skip_special_tokens": False,
            "detokenize": True,
            "logit_bias": {"4": 1.5},
            "stream_interval": 8,
            "structured_outputs": {"choice": ["yes", "no"]},
            "extra_args": {"a": 1, "kv_transfer_params": {"b": 2}},
        },
    }


def test_completions_carry_all_parameters() -> None:
    path, body = sent(
        COMPLETIONS,
        max_tokens=10,
        step_tokens=1 << 30,
        constraint=CHOICE,
        extra={"kv_transfer_params": {"b": 2}},
    )
    assert path == "/v1/completions"
    assert body == {
        "model": "up",
        "request_id": "run_1",
        "stream": True,
        "stream_options": {"include_usage": True},
        "temperature": 0.6,
        "top_k": 20,
        "max_tokens": 10,
        "stop_token_ids": [],
        "ignore_eos": False,
        "skip_special_tokens": False,
        "stream_interval": 10,
        "structured_outputs": {"choice": ["yes", "no"]},
        "kv_transfer_params": {"b": 2},
        "prompt": [1, 2, 3],
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
    }


def test_a_format_that_reads_tokens_gets_no_text() -> None:
    _, body = sent(GENERATE, request={"detokenize": False})
    assert body["output_mode"] == "tokens"
    assert not body["sampling_params"]["detokenize"]


def test_a_bare_server_is_enough_for_a_format_that_reads_tokens() -> None:
    path, body = sent(BARE, request={"detokenize": False})
    assert path == "/inference/v1/generate"
    assert body["output_mode"] == "tokens"


def test_a_bare_server_needs_the_tokenizer_here_for_text() -> None:
    with pytest.raises(EngineError, match="tokenizer"):
        sent(BARE)


@pytest.mark.parametrize("profile", [GENERATE, COMPLETIONS])
def test_unknown_extra_fields_and_options_are_refused(profile: Profile) -> None:
    with pytest.raises(RequestError) as extra:
        sent(profile, extra={"nope": 1})
    assert extra.value.param == "nope"
    with pytest.raises(RequestError) as option:
        sent(profile, constraint=Constraint(kind="regex", value="a", options={"fast": True}))
    assert option.value.param == "structured_outputs.fast"


def test_constraints_of_gpt_oss_need_the_wire_of_tokens() -> None:
    sent(GENERATE, model_type="gpt_oss", constraint=CHOICE)
    with pytest.raises(RequestError, match="--enable-scale-out"):
        sent(COMPLETIONS, model_type="gpt_oss", constraint=CHOICE)


REFUSALS: dict[str, tuple[Any, str, str | None, str | None]] = {
    "a parameter": (
        {"message": "Too many. (parameter=logprobs, value=21)", "param": "logprobs"},
        "Too many.",
        "top_logprobs",
        None,
    ),
    "no parameter": ({"message": "Bad grammar", "param": None}, "Bad grammar", "tools", None),
    "a field of our own request": (
        {"message": "Missing", "param": "body.token_ids"},
        "Missing",
        "tools",
        None,
    ),
    "the context": (
        {"message": "The prompt is longer than the maximum model length of 9.", "param": None},
        "Your input exceeds the context window of this model. Please shorten your input.",
        "input",
        "context_length_exceeded",
    ),
}


@pytest.mark.parametrize("kind", REFUSALS)
def test_a_refusal_becomes_ours(kind: str) -> None:
    error, message, param, code = REFUSALS[kind]
    body = json.dumps({"error": {**error, "type": "BadRequestError", "code": 400}}).encode()
    refused = to_request_error(read_details(body), default_param="tools")
    assert (refused.message, refused.param, refused.code) == (message, param, code)


@pytest.mark.parametrize("body", [b"", b"<html>http://gpu1</html>", b'{"error": 5}', b"\xff"])
def test_a_refusal_that_cannot_be_read_is_still_one(body: bytes) -> None:
    assert to_request_error(read_details(body)).message == "The model server refused the request."


@pytest.fixture
def bytewise() -> Vocabulary:
    """A vocabulary in which most tokens are single bytes, with a special token."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=257, initial_alphabet=alphabet, special_tokens=["<end>"], show_progress=False
    )
    tokenizer.train_from_iterator([], trainer)
    return Vocabulary(tokenizer)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("skips", [False, True])
def test_characters_of_several_tokens_are_decoded_whole(
    bytewise: Vocabulary, size: int, skips: bool
) -> None:
    text = "na\u00efve \U0001f30d \u65e5\u672c"
    ids = bytewise.tokenizer.encode(f"{text}<end>").ids
    output = RunText(bytewise, Sampling(skip_special_tokens=skips), prompt=ids[-2:])
    pieces = [output.feed(ids[start : start + size]) for start in range(0, len(ids), size)]
    assert "".join(pieces) == (text if skips else f"{text}<end>")


def test_bytes_that_are_no_text_do_not_stop_the_decoding(bytewise: Vocabulary) -> None:
    lead = bytewise.tokenizer.token_to_id("\u00f0")  # stands for the byte F0, which begins an emoji
    ids = [lead, lead, lead, *bytewise.tokenizer.encode("hello").ids]
    text = RunText(bytewise, Sampling(), prompt=[]).feed(ids)
    assert text.endswith("hello")


async def test_logprobs_without_a_tokenizer_are_refused() -> None:
    async with pool() as running:
        with pytest.raises(RequestError) as refused:
            await running.engine.generate(running.request(logprobs=2))
        assert refused.value.param == "top_logprobs"


@pytest.mark.parametrize("wire", ["generate", "completions"])
async def test_more_answers_than_servers_tell_apart_are_refused(wire: str, tmp_path: Path) -> None:
    async with pool(wires=[wire], folder=tmp_path) as running:
        with pytest.raises(RequestError, match="21 possible answers") as refused:
            asked = running.request(max_tokens=1, logprobs=21, answer_tokens=tuple(range(21)))
            await running.engine.generate(asked)
        assert refused.value.param == "questions"


async def test_a_priority_that_servers_would_ignore_is_refused() -> None:
    async with pool() as running:
        with pytest.raises(RequestError, match="--scheduling-policy priority"):
            await running.engine.generate(replace(running.request(), priority=1))
    async with pool(priority=True) as running:
        assert running.engine.schedules_by_priority
        assert text_of(await steps_of(running.engine, replace(running.request(), priority=1)))


async def test_the_key_and_trace_reach_the_server_and_its_url_reaches_no_client(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("POOL_KEY", "sk-1")
    async with pool(key_env="POOL_KEY", folder=tmp_path) as running:
        request = replace(running.request(), trace_headers={"traceparent": "00-1"})
        await steps_of(running.engine, request)
        headers = running.servers[0].headers[-1]
        assert headers["authorization"] == "Bearer sk-1"
        assert headers["traceparent"] == "00-1"
