"""Numbers of other servers count as what they can be: no limit fails open, no metric runs away."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.security.support.hostile_upstream import USAGES, HostileUpstream, hostile_upstream

from antiphon.adapters.engines.vllm_http.wires import VllmStepReader
from antiphon.adapters.ids import new_id
from antiphon.adapters.keys.file import append
from antiphon.adapters.models.chat_completions.chunks import decode_chunk
from antiphon.adapters.models.chat_completions.usage import UsageMeter
from antiphon.application.ports import EngineRequest, Prompt, Sampling, Turn
from antiphon.application.resources.keys import create_key
from antiphon.domain.access.limits import KeyPolicy
from antiphon.domain.bounds import MAX_COUNT
from antiphon.domain.content import MIN_LOGPROB, Logprob, TopLogprob
from antiphon.domain.errors import EngineError
from antiphon.domain.responses.usage import TurnUsage

CONTEXT = 1000
PROMPT, PIECES = 7, 5

numbers = st.one_of(
    st.integers(),
    st.integers(min_value=-(2**70), max_value=2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.booleans(),
    st.none(),
    st.text(max_size=3),
)
usages = st.fixed_dictionaries(
    {},
    optional={
        "prompt_tokens": numbers,
        "completion_tokens": numbers,
        "prompt_tokens_details": st.fixed_dictionaries({}, optional={"cached_tokens": numbers}),
        "completion_tokens_details": st.fixed_dictionaries(
            {}, optional={"reasoning_tokens": numbers}
        ),
        "prompt_cache_hit_tokens": numbers,
        "cached_tokens": numbers,
        "reasoning_tokens": numbers,
    },
)


@given(usages)
def test_whatever_a_server_says_of_its_tokens_a_turn_counts(said: dict[str, Any]) -> None:
    meter = UsageMeter(PROMPT, None, max_tokens=CONTEXT)
    meter.pieces = PIECES
    chunk = decode_chunk(msgspec.json.encode({"choices": [], "usage": said}))
    assert chunk.usage is not None
    meter.report(chunk.usage)
    usage = meter.usage
    assert 1 <= usage.input <= CONTEXT
    assert 1 <= usage.output <= CONTEXT
    assert 0 <= usage.cached <= usage.input
    assert 0 <= usage.reasoning <= usage.output
    assert all(type(number) is int for number in msgspec.structs.astuple(usage))


@given(st.lists(st.integers(), min_size=5, max_size=5))
def test_no_engine_can_report_tokens_that_cannot_be(counts: list[int]) -> None:
    usage = TurnUsage(**dict(zip(TurnUsage.__struct_fields__, counts, strict=True)))
    assert 0 <= usage.cached <= usage.input <= MAX_COUNT
    assert 0 <= usage.reasoning <= usage.output <= MAX_COUNT
    assert 0 <= usage.tool_output <= usage.input


@given(st.floats())
def test_a_log_probability_is_a_number_below_0(value: float) -> None:
    for logprob in (Logprob(token="a", logprob=value), TopLogprob(token="a", logprob=value)):
        assert MIN_LOGPROB <= logprob.logprob <= 0
        assert math.isfinite(msgspec.json.decode(msgspec.json.encode(logprob))["logprob"])


@pytest.mark.parametrize("token", [-1, 2**63, 1e30])
def test_a_token_that_cannot_be_fails_the_turn(token: float) -> None:
    request = EngineRequest(
        request_id="r",
        model="m",
        prompt=Prompt(token_ids=[1]),
        sampling=Sampling(),
        turn=Turn(model="m", items=()),
    )
    event = msgspec.json.encode({"choices": [{"token_ids": [token]}]})
    with pytest.raises(EngineError):
        VllmStepReader(request, None, None).read(event)


@pytest.mark.parametrize(
    "cached", [-5, 2**63, 1e30, "x", None], ids=["negative", "2^63", "1e30", "text", "none"]
)
def test_what_a_pools_server_says_of_its_cache_fails_no_turn(cached: Any) -> None:
    request = EngineRequest(
        request_id="r",
        model="m",
        prompt=Prompt(token_ids=[1]),
        sampling=Sampling(),
        turn=Turn(model="m", items=()),
    )
    reader = VllmStepReader(request, None, None)
    usage = {"prompt_tokens": cached, "prompt_tokens_details": {"cached_tokens": cached}}
    reader.read(msgspec.json.encode({"choices": [], "usage": usage}))
    assert reader.cached_tokens is None
    assert reader.prompt_tokens is None


# --- over HTTP ------------------------------------------------------------------------------------

LIMIT = 10_000


@pytest.fixture(scope="module")
def upstream() -> Iterator[HostileUpstream]:
    with hostile_upstream() as server:
        yield server


@pytest.mark.parametrize("name", USAGES)
def test_a_limit_counts_an_answer_whatever_its_server_says(
    name: str,
    upstream: HostileUpstream,
    serve: Callable[..., AbstractContextManager[Any]],
    tmp_path: Path,
) -> None:
    file = tmp_path / "keys.toml"
    key, record = create_key("ci", "t", new_id=new_id, now=time.time)
    append(file, replace(record, policy=KeyPolicy(limits={"tokens/day": LIMIT})))
    settings = upstream.write_settings(tmp_path / "models.toml", USAGES)
    remaining = []
    with (
        serve(config=settings, auth="on", keys_file=file) as server,
        httpx.Client(headers={"authorization": f"Bearer {key}"}, timeout=20) as client,
    ):
        for _ in range(3):
            body = {"model": name, "input": "hi", "max_output_tokens": 50}
            answer = client.post(f"{server.api}/responses", json=body)
            assert answer.status_code == 200, answer.text
            usage = answer.json()["usage"]
            assert 1 <= usage["input_tokens"] <= 100
            assert 1 <= usage["output_tokens"] <= 100
            remaining.append(int(answer.headers["x-ratelimit-remaining-tokens"]))
    assert LIMIT > remaining[0] > remaining[1] > remaining[2] > 0
