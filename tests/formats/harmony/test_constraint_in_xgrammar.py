"""The same turns in xgrammar itself, as vLLM runs it: one compiler for all requests."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import pytest

from antiphon.adapters.formats.harmony import HarmonyFormat, HarmonyParser
from antiphon.adapters.formats.harmony import encoding as h
from antiphon.adapters.formats.harmony.encoding import Encoding
from antiphon.application.ports import Step
from antiphon.domain import deltas as d

from .conftest import NO_PROMPT, a_turn
from .constraint_cases import CASES, GRAMMAR_CASES

pytestmark = [
    pytest.mark.vllm,
    pytest.mark.timeout(120),
    # torch warns a lot, which we cannot fix. Our own warnings stay errors.
    pytest.mark.filterwarnings("default"),
    pytest.mark.filterwarnings("error:::antiphon"),
]

ALL = {**CASES, **GRAMMAR_CASES}


@pytest.fixture(scope="module")
def compiler(encoding: Encoding) -> Any:
    import xgrammar  # comes with vLLM, which is not installed everywhere

    token_bytes = [encoding.decode_bytes((token,)) for token in range(h.VOCABULARY_SIZE)]
    raw = xgrammar.VocabType.RAW
    vocabulary = xgrammar.TokenizerInfo(token_bytes, raw, stop_token_ids=[h.RETURN])
    return xgrammar.GrammarCompiler(vocabulary, max_threads=2)


def matcher(compiler: Any, case: dict[str, Any]) -> Any:
    import xgrammar

    constraint = HarmonyFormat().constraint(a_turn(**case["turn"]), NO_PROMPT)
    assert constraint is not None
    compiled = compiler.compile_structural_tag(json.dumps(constraint.value))
    return xgrammar.GrammarMatcher(compiled, override_stop_tokens=list(h.STOPS))


def allowed_next(matcher: Any) -> Iterator[int]:
    import xgrammar

    mask = xgrammar.allocate_token_bitmask(1, h.VOCABULARY_SIZE)
    matcher.fill_next_token_bitmask(mask, 0)
    for word, bits in enumerate(mask[0].tolist()):
        for bit in range(32) if bits else ():
            if bits >> bit & 1:
                yield word * 32 + bit


@pytest.mark.parametrize("case", ALL.values(), ids=ALL)
def test_a_constraint_allows_and_refuses_these_outputs(
    compiler: Any, encoding: Encoding, case: dict[str, Any]
) -> None:
    for markup in case["allowed"]:
        matching = matcher(compiler, case)
        for token in [*encoding.encode_markup(markup), h.RETURN]:
            assert token in set(allowed_next(matching)), (markup, token)
            assert matching.accept_token(token)
        assert matching.is_terminated()
    for markup in case["refused"]:
        matching = matcher(compiler, case)
        ids = [*encoding.encode_markup(markup), h.RETURN]
        assert not all(matching.accept_token(token) for token in ids), markup


@pytest.mark.parametrize("seed", range(5))
def test_a_random_model_still_makes_the_required_call(
    compiler: Any, encoding: Encoding, seed: int
) -> None:
    chance = random.Random(seed)
    case = CASES["a required call without reasoning"]
    matching = matcher(compiler, case)
    ids: list[int] = []
    while not matching.is_terminated():
        ids.append(chance.choice(list(allowed_next(matching))))
        assert matching.accept_token(ids[-1])
    deltas = HarmonyParser(encoding, a_turn(**case["turn"])).feed(Step(token_ids=ids))
    assert [delta.name for delta in deltas if isinstance(delta, d.CallStart)] == ["get_weather"]
    arguments = "".join(delta.text for delta in deltas if isinstance(delta, d.ArgumentsDelta))
    assert json.loads(arguments)["city"] in ("Paris", "Berlin")
