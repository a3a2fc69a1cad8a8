"""VllmEngine implements the engine port with the real vLLM and a tiny model."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
import multiprocessing
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import pytest_asyncio

from antiphon.adapters.engines.vllm_engine import VllmEngine
from antiphon.application.ports import Constraint, EngineRequest, Prompt, Sampling, Step, Turn
from antiphon.domain.errors import EngineDead, RequestError, ServerOverloaded
from antiphon.domain.responses.response import TextConfig

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.asyncio(loop_scope="module"),
    pytest.mark.timeout(300),
    # vLLM and torch warn a lot, which we cannot fix. Our own warnings stay errors.
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::antiphon"),
]

OPTIONS = (
    *("--dtype", "float32"),
    *("--max-model-len", "8192"),
    *("--max-num-queued-reqs", "3"),
    *("--scheduling-policy", "priority"),
    "--enforce-eager",
)
GREEDY = 0.0
ENDLESS = Sampling(temperature=GREEDY, ignore_eos=True)
PROMPT = tuple(range(40, 80))  # letters and digits

_numbers = itertools.count()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(models_folder: Path) -> AsyncIterator[VllmEngine]:
    adapter = models_folder / "adapter"
    make_lora_adapter(adapter)
    engine = VllmEngine(
        str(models_folder / "chat"),
        served_names=["tiny", "tiny-alias"],
        engine_args=[*OPTIONS, "--lora-modules", f"tiny-tuned={adapter}"],
    )
    await engine.start()
    yield engine
    await engine.aclose()


def make_lora_adapter(folder: Path) -> None:
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    config = {"peft_type": "LORA", "r": 8, "lora_alpha": 64, "target_modules": ["o_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    name = "base_model.model.model.layers.{}.self_attn.o_proj.lora_{}.weight"
    weights = {}
    for layer in range(2):
        weights[name.format(layer, "A")] = torch.ones(8, 128)
        weights[name.format(layer, "B")] = torch.ones(64, 8)
    save_file(weights, folder / "adapter_model.safetensors")


def request(
    sampling: Sampling = ENDLESS,
    *,
    prompt: Sequence[int] = PROMPT,
    model: str = "tiny",
    turn: Turn | None = None,
    **fields: Any,
) -> EngineRequest:
    return EngineRequest(
        request_id=f"run_{next(_numbers)}",
        model=model,
        prompt=Prompt(token_ids=prompt),
        sampling=sampling,
        turn=turn or Turn(model=model, items=()),
        **fields,
    )


def greedy(**fields: Any) -> Sampling:
    return Sampling(temperature=GREEDY, **{"ignore_eos": True, **fields})


async def steps_of(engine: VllmEngine, engine_request: EngineRequest) -> list[Step]:
    return [step async for step in await engine.generate(engine_request)]


async def run(engine: VllmEngine, sampling: Sampling, **fields: Any) -> Step:
    """Return a whole run as one step."""
    steps = await steps_of(engine, request(sampling, **fields))
    return Step(
        text="".join(step.text for step in steps),
        token_ids=[token for step in steps for token in step.token_ids],
        logprobs=tuple(entry for step in steps for entry in step.logprobs or ()),
        finish=steps[-1].finish,
        cached_tokens=steps[-1].cached_tokens,
    )


async def is_idle(engine: VllmEngine) -> bool:
    """Ask vLLM's core process; there is no public API for this."""
    core = engine._llm.engine_core  # type: ignore[union-attr]
    return not await core.call_utility_async("has_work")


async def becomes_idle(engine: VllmEngine) -> None:
    async with asyncio.timeout(5):
        while not await is_idle(engine):
            pass


# --- properties -----------------------------------------------------------------------------------


async def test_it_serves_the_model_under_its_names_and_each_adapter(engine: VllmEngine) -> None:
    assert engine.models == ("tiny", "tiny-alias", "tiny-tuned")
    assert engine.context_length == 8192
    await engine.check()


async def test_sampling_defaults_come_from_the_models_generation_config(engine: VllmEngine) -> None:
    assert engine.sampling_defaults == {"temperature": 0.7, "top_k": 20}


async def test_the_tokenizer_has_the_chat_template(engine: VllmEngine) -> None:
    messages = [{"role": "user", "content": "Hi"}]
    text = engine.tokenizer.apply_chat_template(
        messages, tokenize=False, add_generation_prompt=True
    )
    assert text == "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"


# --- steps ----------------------------------------------------------------------------------------


async def test_a_run_ends_with_length_after_its_tokens(engine: VllmEngine) -> None:
    steps = await steps_of(engine, request(greedy(max_tokens=12)))
    tokens = [token for step in steps for token in step.token_ids]
    assert [step.finish for step in steps[:-1]] == [None] * (len(steps) - 1)
    assert steps[-1].finish == "length"
    assert len(tokens) == 12
    assert len(steps) > 6
    assert "".join(step.text for step in steps) == engine.tokenizer.decode(tokens)
    assert all(step.logprobs is None for step in steps)


async def test_a_step_can_have_several_tokens(engine: VllmEngine) -> None:
    steps = await steps_of(engine, request(greedy(max_tokens=21, step_tokens=5)))
    assert sum(len(step.token_ids) for step in steps) == 21
    assert all(len(step.token_ids) >= 5 for step in steps[1:-1])


async def test_a_step_size_above_the_limit_makes_one_step(engine: VllmEngine) -> None:
    one_by_one = await run(engine, greedy(max_tokens=20))
    [step] = await steps_of(engine, request(greedy(max_tokens=20, step_tokens=21)))
    assert (step.text, list(step.token_ids)) == (one_by_one.text, one_by_one.token_ids)
    assert step.finish == "length"


async def test_a_whole_answer_says_how_long_its_tokens_took(engine: VllmEngine) -> None:
    took = []
    for max_tokens in (1, 40):
        started_at = time.monotonic()
        sampling = greedy(max_tokens=max_tokens, step_tokens=max_tokens + 1, ignore_eos=True)
        [step] = await steps_of(engine, request(sampling))
        assert step.generation_s is not None
        assert step.generation_s <= time.monotonic() - started_at
        took.append(step.generation_s)
    assert took[0] == 0 < took[1]


async def test_without_detokenizing_there_is_no_text(engine: VllmEngine) -> None:
    result = await run(engine, greedy(max_tokens=4), detokenize=False)
    assert result.text == ""
    assert len(result.token_ids) == 4


async def test_special_tokens_are_in_the_text_unless_they_are_skipped(
    engine: VllmEngine,
) -> None:
    marker = engine.tokenizer.convert_tokens_to_ids("<|endoftext|>")
    only_that = {"logit_bias": {str(marker): 100.0}, "max_tokens": 2}
    assert (await run(engine, greedy(**only_that))).text == "<|endoftext|>" * 2
    assert (await run(engine, greedy(**only_that, skip_special_tokens=True))).text == ""


# --- sampling -------------------------------------------------------------------------------------


async def test_a_request_without_a_limit_may_fill_the_context(engine: VllmEngine) -> None:
    prompt = [7] * (engine.context_length - 3)
    result = await run(engine, greedy(), prompt=prompt)
    assert (len(result.token_ids), result.finish) == (3, "length")


async def test_fields_that_a_request_omits_come_from_the_generation_config(
    engine: VllmEngine,
) -> None:
    neutral = Sampling(
        temperature=2.0, top_k=0, max_tokens=60, logprobs=20, seed=1, ignore_eos=True
    )
    left_open = Sampling(temperature=2.0, max_tokens=60, logprobs=20, seed=1, ignore_eos=True)

    def all_likely(result: Step) -> bool:
        return all(
            entry.logprob >= entry.top_logprobs[-1].logprob for entry in result.logprobs or ()
        )

    assert not all_likely(await run(engine, neutral))
    assert all_likely(await run(engine, left_open))


async def test_a_seed_makes_a_run_repeatable(engine: VllmEngine) -> None:
    first, again, other = [
        (await run(engine, Sampling(temperature=1.0, max_tokens=20, seed=seed))).token_ids
        for seed in (5, 5, 6)
    ]
    assert first == again
    assert first != other


async def test_an_adapter_answers_differently_from_its_base_model(engine: VllmEngine) -> None:
    base = await run(engine, greedy(max_tokens=10))
    assert (await run(engine, greedy(max_tokens=10), model="tiny-alias")).text == base.text
    assert (await run(engine, greedy(max_tokens=10), model="tiny-tuned")).text != base.text


async def test_extra_arguments_that_no_plugin_reads_have_no_effect(engine: VllmEngine) -> None:
    plain = await run(engine, greedy(max_tokens=5))
    extra = {"vllm_xargs": {"mine": 1}, "kv_transfer_params": {"do_remote_decode": False}}
    assert (await run(engine, greedy(max_tokens=5, extra=extra))).text == plain.text


# --- logprobs -------------------------------------------------------------------------------------


async def test_each_token_has_its_logprob_and_alternatives_in_order(engine: VllmEngine) -> None:
    for step in await steps_of(engine, request(greedy(max_tokens=30, logprobs=3))):
        assert step.logprobs is not None
        assert len(step.logprobs) == len(step.token_ids)
        for entry in step.logprobs:
            ranked = [top.logprob for top in entry.top_logprobs]
            assert len(ranked) == 3
            assert ranked == sorted(ranked, reverse=True)
            assert (entry.token, entry.logprob) == (entry.top_logprobs[0].token, ranked[0])
            assert math.isfinite(entry.logprob)


@pytest.mark.parametrize("step_tokens", [1, 1000])
async def test_a_prompt_is_as_likely_as_when_the_model_writes_it(
    engine: VllmEngine, step_tokens: int
) -> None:
    written = await run(engine, greedy(max_tokens=8, logprobs=2))
    prompt = [*PROMPT, *written.token_ids]
    scored = greedy(max_tokens=2, prompt_logprobs=2, step_tokens=step_tokens)
    first, *others = await steps_of(engine, request(scored, prompt=prompt))
    assert all(step.prompt_logprobs is None for step in others)
    assert first.prompt_logprobs is not None
    assert len(first.prompt_logprobs) == len(prompt)
    for entry, known in zip(first.prompt_logprobs[-8:], written.logprobs or (), strict=True):
        assert entry.token == known.token
        assert entry.logprob == pytest.approx(known.logprob, abs=1e-3)
        assert len(entry.top_logprobs) == 2


async def test_an_unlikely_token_is_not_among_its_alternatives(engine: VllmEngine) -> None:
    unlikely = Sampling(temperature=2.0, top_k=0, max_tokens=60, seed=2, logprobs=1)
    entries = (await run(engine, unlikely)).logprobs or ()
    assert any(entry.logprob < entry.top_logprobs[0].logprob for entry in entries)
    assert all(len(entry.top_logprobs) == 1 for entry in entries)


async def test_without_top_logprobs_there_are_no_alternatives(engine: VllmEngine) -> None:
    entries = (await run(engine, greedy(max_tokens=3, logprobs=0))).logprobs or ()
    assert [entry.top_logprobs for entry in entries] == [(), (), ()]


async def test_the_bytes_of_the_logprobs_spell_the_text(engine: VllmEngine) -> None:
    sampling = Sampling(temperature=1.5, top_k=0, max_tokens=200, seed=4, logprobs=0)
    result = await run(engine, sampling)
    spelled = b"".join(bytes(entry.bytes) for entry in result.logprobs or ())
    assert b"\xff" not in spelled.decode("utf-8", errors="ignore").encode()
    assert spelled.decode("utf-8", errors="replace") == engine.tokenizer.decode(result.token_ids)


async def test_a_part_of_a_character_has_its_own_byte(engine: VllmEngine) -> None:
    [token] = engine.tokenizer.convert_tokens_to_ids(["\u00f0"])  # the byte F0, in that alphabet
    sampling = greedy(max_tokens=1, logprobs=0, logit_bias={str(token): 100.0})
    [entry] = (await run(engine, sampling)).logprobs or ()
    assert entry.bytes == (0xF0,)
    assert entry.token == "\N{REPLACEMENT CHARACTER}"


# --- constraints ----------------------------------------------------------------------------------

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"enum": ["Paris", "Tokyo"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "exact": {"type": "boolean"},
    },
    "required": ["city", "days", "exact"],
    "additionalProperties": False,
}


async def test_a_json_schema_holds_from_the_first_token_on(engine: VllmEngine) -> None:
    constraint = Constraint(kind="json_schema", value=SCHEMA)
    sampling = Sampling(temperature=1.0, seed=3, max_tokens=400, constraint=constraint)
    result = await run(engine, sampling)
    assert result.finish == "stop"
    jsonschema.validate(json.loads(result.text), SCHEMA)


@pytest.mark.parametrize(
    ("constraint", "expected"),
    [
        (Constraint(kind="regex", value="ab{3}c"), "abbbc"),
        (Constraint(kind="choice", value=("maybe",)), "maybe"),
        (Constraint(kind="grammar", value='root ::= "yes" "no"'), "yesno"),
        (
            Constraint(
                kind="structural_tag",
                value={
                    "type": "structural_tag",
                    "format": {"type": "const_string", "value": "<think>x</think>"},
                },
            ),
            "<think>x</think>",
        ),
    ],
    ids=lambda value: getattr(value, "kind", ""),
)
async def test_each_kind_of_constraint_holds(
    engine: VllmEngine, constraint: Constraint, expected: str
) -> None:
    result = await run(engine, Sampling(max_tokens=60, constraint=constraint))
    assert (result.text, result.finish) == (expected, "stop")


async def test_any_json_object_can_be_requested(engine: VllmEngine) -> None:
    constraint = Constraint(kind="json_object")
    result = await run(engine, greedy(max_tokens=5, constraint=constraint, ignore_eos=False))
    assert result.text.startswith("{")


# --- going on after what was written --------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 2, 9, 20, 31])
async def test_a_greedy_run_goes_on_as_if_it_had_never_stopped(
    engine: VllmEngine, count: int
) -> None:
    sampling = greedy(max_tokens=32, step_tokens=1)
    whole = await steps_of(engine, request(sampling))
    tokens = [token for step in whole for token in step.token_ids]
    rest = await steps_of(engine, request(sampling, written=tokens[:count]))
    assert [token for step in rest for token in step.token_ids] == tokens[count:]
    assert rest[-1].finish == "length"


async def test_a_constrained_run_goes_on_within_its_constraint(engine: VllmEngine) -> None:
    constraint = Constraint(kind="json_schema", value=SCHEMA)
    sampling = Sampling(temperature=GREEDY, max_tokens=40, constraint=constraint)
    whole = await run(engine, sampling)
    for count in range(1, len(whole.token_ids), 3):
        rest = await run(engine, sampling, written=whole.token_ids[:count])
        assert [*whole.token_ids[:count], *rest.token_ids] == whole.token_ids
        assert rest.finish == whole.finish


# --- refusals, all before the first step ----------------------------------------------------------

JSON_FORMAT = TextConfig(format={"type": "json_schema", "name": "n", "schema": {}})


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        (
            Sampling(constraint=Constraint(kind="grammar", value="root ::= (")),
            "text.format.schema",
        ),
        (
            Sampling(constraint=Constraint(kind="json_schema", value={"type": 7})),
            "text.format.schema",
        ),
        (
            Sampling(constraint=Constraint(kind="structural_tag", value={"type": "?"})),
            "text.format.schema",
        ),
        (
            Sampling(constraint=Constraint(kind="regex", value="a", options={"backend": "other"})),
            "structured_outputs.backend",
        ),
        (Sampling(temperature=3.0), "temperature"),
        (Sampling(top_p=2.0), "top_p"),
        (Sampling(logprobs=21), "top_logprobs"),
        (Sampling(logit_bias={"nine": 1.0}), "logit_bias"),
        (Sampling(stop_token_ids=(10**6,)), "stop_token_ids"),
        (Sampling(extra={"logits_processors": "os.system"}), "logits_processors"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_a_bad_field_is_refused_by_its_name(
    engine: VllmEngine, sampling: Sampling, param: str
) -> None:
    turn = Turn(model="tiny", items=(), text=JSON_FORMAT)
    with pytest.raises(RequestError) as caught:
        await engine.generate(request(sampling, turn=turn))
    assert caught.value.param == param
    assert "value=" not in caught.value.message
    assert await is_idle(engine)


async def test_a_constraint_that_is_slow_to_check_does_not_hold_up_other_runs(
    engine: VllmEngine,
) -> None:
    slow = {
        "type": "object",
        "properties": {
            f"{letter}{copy}": {"pattern": f"^{letter}{{1,800}}$"}
            for letter in "abcdefghijklmnopqrstuvwxyz"
            for copy in range(16)
        },
    }
    constrained = Sampling(max_tokens=2, constraint=Constraint(kind="json_schema", value=slow))
    beside = await engine.generate(request(greedy(max_tokens=1000)))
    admission, tokens = None, 0
    async with aclosing(beside):
        async for _ in beside:
            if admission is None:  # the run has begun: each step is now one token
                admission = asyncio.ensure_future(engine.generate(request(constrained)))
            elif admission.done():
                break
            else:
                tokens += 1
    assert admission is not None
    assert [step.finish async for step in await admission][-1] == "length"
    assert tokens >= 2


async def test_a_prompt_that_leaves_no_room_is_refused(engine: VllmEngine) -> None:
    with pytest.raises(RequestError) as caught:
        await engine.generate(request(prompt=[7] * engine.context_length))
    assert (caught.value.param, caught.value.code) == ("input", "context_length_exceeded")


async def test_a_prompt_of_unknown_tokens_is_refused(engine: VllmEngine) -> None:
    with pytest.raises(RequestError):
        await engine.generate(request(prompt=[10**6]))


async def test_a_run_beyond_the_queue_limit_is_refused_until_another_ends(
    engine: VllmEngine,
) -> None:
    admitted = [await engine.generate(request()) for _ in range(3)]
    with pytest.raises(ServerOverloaded):
        await engine.generate(request())
    await admitted[0].aclose()
    last = await engine.generate(request())
    for open_steps in (*admitted[1:], last):
        await open_steps.aclose()
    await becomes_idle(engine)


# --- leaving --------------------------------------------------------------------------------------


async def test_closing_a_run_aborts_it_in_the_engine(engine: VllmEngine) -> None:
    steps = await engine.generate(request())
    first = await anext(steps)
    assert first.finish is None
    assert not await is_idle(engine)
    await steps.aclose()
    await becomes_idle(engine)
    assert [step async for step in steps] == []


async def test_closing_a_run_that_was_never_read_aborts_it(engine: VllmEngine) -> None:
    steps = await engine.generate(request())
    await steps.aclose()
    await becomes_idle(engine)


async def test_cancelling_the_reader_aborts_the_run(
    engine: VllmEngine, caplog: pytest.LogCaptureFixture
) -> None:
    engine_request = request()
    started = asyncio.Event()

    async def read() -> None:
        async for _ in await engine.generate(engine_request):
            started.set()

    reader = asyncio.create_task(read())
    await started.wait()
    with caplog.at_level("DEBUG", logger="antiphon.engine"):
        reader.cancel()
        with pytest.raises(asyncio.CancelledError):
            await reader
    await becomes_idle(engine)
    assert f"run {engine_request.request_id} aborted" in caplog.messages


async def test_cancelling_the_admission_leaves_nothing_behind(engine: VllmEngine) -> None:
    for turns_of_the_loop in range(6):
        admission = asyncio.ensure_future(engine.generate(request()))
        for _ in range(turns_of_the_loop):
            await asyncio.sleep(0)
        admission.cancel()
        try:
            steps = await admission
        except asyncio.CancelledError:
            continue
        await steps.aclose()
    await becomes_idle(engine)


async def test_a_run_that_ended_by_itself_is_not_aborted(
    engine: VllmEngine, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("DEBUG", logger="antiphon.engine"):
        steps = await engine.generate(request(greedy(max_tokens=2)))
        assert [step.finish async for step in steps][-1] == "length"
        await steps.aclose()
    assert caplog.messages == []


# --- prefix cache and priority --------------------------------------------------------------------


async def test_a_prefix_is_reused_within_a_salt_and_never_across(engine: VllmEngine) -> None:
    prompt = [n % 500 for n in range(640)]

    async def cached(salt: str | None) -> int:
        return (
            await run(engine, greedy(max_tokens=2), prompt=prompt, cache_salt=salt)
        ).cached_tokens

    assert await cached("mine") == 0
    assert await cached("mine") > 0
    assert await cached("theirs") == 0
    assert await cached(None) == 0


async def test_a_priority_is_accepted_if_the_engine_schedules_by_priority(
    engine: VllmEngine,
) -> None:
    result = await run(engine, greedy(max_tokens=2), priority=-5)
    assert result.finish == "length"


# --- its end --------------------------------------------------------------------------------------


async def test_closing_the_engine_ends_its_runs_and_leaves_no_process(models_folder: Path) -> None:
    engine = VllmEngine(
        str(models_folder / "chat"),
        engine_args=["--dtype", "float32", "--max-model-len", "4096", "--enforce-eager"],
    )
    before = set(multiprocessing.active_children())
    await engine.start()
    assert engine.models == (str(models_folder / "chat"),)
    [core] = set(multiprocessing.active_children()) - before

    with pytest.raises(RequestError, match="scheduling-policy") as caught:
        await engine.generate(request(priority=1, model=engine.models[0]))
    assert caught.value.param == "priority"

    steps = await engine.generate(request(model=engine.models[0]))
    await anext(steps)
    await engine.aclose()
    with pytest.raises(EngineDead):
        async for _ in steps:
            pass
    with pytest.raises(EngineDead):
        await engine.check()
    assert not core.is_alive()
    await engine.aclose()
