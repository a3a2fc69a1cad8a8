"""Whatever a small model wants to say: what it writes is valid, and tokens are the server's."""

from __future__ import annotations

import itertools
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import pytest_asyncio

from antiphon.adapters.engines.llama import LlamaEngine, LlamaOptions
from antiphon.adapters.engines.llama.profile import tokenize
from antiphon.application.ports import Constraint, EngineRequest, Prompt, Sampling, Turn

pytestmark = [pytest.mark.real, pytest.mark.asyncio(loop_scope="module")]
Ask = Callable[..., Awaitable[str]]
TREE = {
    "$defs": {
        "node": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 6},
                "children": {"type": "array", "items": {"$ref": "#/$defs/node"}, "maxItems": 2},
            },
            "required": ["name", "children"],
            "additionalProperties": False,
        }
    },
    "$ref": "#/$defs/node",
}
VALUES: list[Any] = [
    {"type": "string", "maxLength": 12},
    {"type": "string", "minLength": 3, "maxLength": 5},
    {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{2}$"},
    {"type": "string", "pattern": "^(yes|no) 漢$"},
    *({"type": "string", "format": each} for each in ("date", "date-time", "email", "uuid")),
    {"type": "integer", "minimum": 3, "maximum": 12},
    {"type": "integer", "minimum": -105, "exclusiveMaximum": -7},
    {"type": "integer", "multipleOf": 5, "minimum": 0, "maximum": 100},
    {"type": "number", "minimum": 0, "maximum": 1},
    {"type": "number", "exclusiveMinimum": -2.5, "maximum": 2.5},
    {"type": "boolean"},
    {"type": "null"},
    {"enum": ["red", "green", 3, None]},
    {"const": {"a": [1, "b"]}},
    {"type": ["integer", "null"], "maximum": 9},
    {"anyOf": [{"type": "integer", "maximum": 5}, {"type": "string", "maxLength": 4}]},
    {"oneOf": [{"const": "a"}, {"type": "array", "items": {"type": "boolean"}, "maxItems": 2}]},
    {"allOf": [{"type": "integer", "minimum": 2}, {"maximum": 4}]},
    {"type": "array", "items": {"enum": [1, 2]}, "minItems": 2, "maxItems": 3},
    {"type": "array", "prefixItems": [{"const": 1}, {"type": "boolean"}], "items": False},
    {"type": "array", "prefixItems": [{"const": 1}], "items": {"const": 2}, "maxItems": 3},
    {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}},
    {"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 2}}, "required": ["b"]},
    {
        "type": "object",
        "properties": {"a": {"const": 1}},
        "additionalProperties": {"type": "integer", "maximum": 9},
        "maxProperties": 3,
        "required": ["a"],
    },
    {
        "type": "object",
        "additionalProperties": {"type": "boolean"},
        "propertyNames": {"enum": ["x", "y"]},
        "minProperties": 1,
        "maxProperties": 1,
    },
    {"type": "object", "patternProperties": {"^k[0-9]$": {"const": 0}}, "maxProperties": 1},
    {"$defs": {"n": {"type": "integer", "maximum": 9}}, "type": "array", "maxItems": 1},
    TREE,
]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def engine(weights: Path) -> AsyncIterator[LlamaEngine]:
    options = LlamaOptions(model=str(weights), context_length=1024, slots=2, threads=1)
    engine = LlamaEngine(["smollm2"], options)
    await engine.start()
    yield engine
    await engine.aclose()


@pytest.fixture(scope="module")
def ask(engine: LlamaEngine) -> Ask:
    numbers = itertools.count()
    assert engine._vocabulary is not None
    encode = engine._vocabulary.tokenizer.encode

    async def text_of(constraint: Constraint, **sampling: Any) -> str:
        asked = f"<|im_start|>user\nJSON: {constraint.value}<|im_end|>\n<|im_start|>assistant\n"
        request = EngineRequest(
            request_id=f"run_{next(numbers)}",
            model="smollm2",
            prompt=Prompt(token_ids=encode(asked, add_special_tokens=False).ids),
            sampling=Sampling(temperature=0, max_tokens=400, constraint=constraint, **sampling),
            turn=Turn(model="smollm2", items=()),
        )
        async with aclosing(await engine.generate(request)) as steps:
            taken = [step async for step in steps]
        assert taken[-1].finish == "stop"
        return "".join(step.text for step in taken)

    return text_of


@pytest.mark.parametrize("schema", VALUES, ids=range(len(VALUES)))
async def test_the_answer_satisfies_the_schema(ask: Ask, schema: Any) -> None:
    wrapped = {
        "type": "object",
        "properties": {"value": schema},
        "required": ["value"],
        "additionalProperties": False,
    }
    if "$defs" in schema:
        wrapped = {**wrapped, "$defs": schema["$defs"]}
    answer = json.loads(await ask(Constraint(kind="json_schema", value=wrapped)))
    checker = jsonschema.FormatChecker()
    jsonschema.validate(answer, wrapped, format_checker=checker)


async def test_no_token_of_a_character_in_parts_is_lost(ask: Ask) -> None:
    text = "a😀é漢字x"
    assert await ask(Constraint(kind="grammar", value=f'root ::= "{text}"')) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "\n\n\t  x",
        "1234567 3.14e-10 a1b2",
        "don't I'LL we've 'x' ''s''",
        "Zürich naïve — “quoted” … ½ ² №",
        "漢字かな 한국어 ไทย עברית العربية हिन्दी",
        "😀👍🏽 e\u0301 \u200b\u00a0",
        "<|im_start|>user\nhi<|im_end|>",
        "def f(x):\n    return {'a': [x**2, \"b\"]}  # c\r\n",
        "".join(map(chr, range(1, 128))),
        "".join(map(chr, range(0xA1, 0x250))),
    ],
)
async def test_our_tokens_are_the_servers(engine: LlamaEngine, text: str) -> None:
    assert engine._vocabulary is not None
    member = engine._pool.idlest(tried=())
    assert member is not None
    theirs = await tokenize(member.client, text, timeout_s=5)
    assert engine._vocabulary.tokenizer.encode(text, add_special_tokens=False).ids == theirs
