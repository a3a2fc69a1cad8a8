"""Rounds of tools: each prompt is the one before it, what the model wrote, and what came back."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from typing import Any

import httpx
import pytest
from tests.http.conftest import create, script, text_of
from tests.http.test_mcp import FakeMcpServer, server_tool

from antiphon.adapters.engines.scripted.engine import BLOCK
from antiphon.adapters.formats.chat_template import ScriptedMarkup
from antiphon.adapters.formats.harmony import HarmonyMarkup
from antiphon.domain.tools import ToolSpec

pytestmark = pytest.mark.slow

Json = dict[str, Any]
Parts = Sequence[Json]

MARKUPS = {"scripted-chat": ScriptedMarkup(), "scripted-harmony": HarmonyMarkup()}
PYTHON = {"type": "code_interpreter", "container": {"type": "auto"}}
LOOK = {"type": "function", "name": "look_around", "parameters": {"type": "object"}}
SPECS = [
    ToolSpec(name="calc__add", kind="mcp", namespace="calc", original_name="add"),
    ToolSpec(name="calc__boom", kind="mcp", namespace="calc", original_name="boom"),
    ToolSpec(name="python", kind="python"),
    ToolSpec(name="look_around"),
]
ADD: Json = {"mcp": "add", "args": '{ "a":2, "b" : 40}'}
RUN: Json = {"python": 'x = "a"\nprint(x)'}

HAS_SANDBOX = shutil.which("bwrap") is not None


@pytest.fixture(scope="module")
def rounds_server(serve_from: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    allowed = {"fetch.urls": True, "fetch.hosts": ["127.0.0.1:*"], "fetch.private": ["127.0.0.1"]}
    code = {"code_interpreter": True} if HAS_SANDBOX else {}
    with serve_from(tmp_path_factory.mktemp("rounds"), **allowed, **code) as served:
        yield served


@pytest.fixture
def client(rounds_server: Any) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=rounds_server.api, timeout=10) as client:
        yield client


@pytest.fixture
def site() -> Iterator[FakeMcpServer]:
    site = FakeMcpServer()
    yield site
    site.close()


@pytest.fixture
def tools(site: FakeMcpServer) -> list[Json]:
    return [server_tool(site), LOOK, *([PYTHON] if HAS_SANDBOX else [])]


class Rounds:
    """What the turns of a conversation were given and wrote, as far as it is told."""

    def __init__(self, model: str) -> None:
        self.markup: Any = MARKUPS[model]
        self.sizes: list[tuple[int, int]] = []  # of each prompt and output
        self.cached: list[int] = []

    def read(self, response: Json) -> list[int]:
        """Note the response's turns, and return the prompt of the last one."""
        given, made = (response["usage"][f"{side}_tokens_details"] for side in ("input", "output"))
        sizes = zip(given["input_tokens_per_turn"], made["output_tokens_per_turn"], strict=True)
        turns = [(*size, n) for n, size in enumerate(sizes) if size[0]]  # one was no model's
        self.sizes += [(prompt, output) for prompt, output, _ in turns]
        self.cached += [given["cached_tokens_per_turn"][n] for _, _, n in turns]
        return [token for each in response["input_messages"] for token in each["tokens"]]

    def wrote(self, prompt: Sequence[int], turn: int) -> list[int]:
        """Return what the prompt has where that turn's output should be."""
        begin, size = self.sizes[turn]
        return list(prompt[begin : begin + size])

    def tokens(self, parts: Parts) -> list[int]:
        written = self.markup.write(parts, tools=SPECS, thinking=True)
        return [token for part in written for token, _ in part]


def test_five_rounds_of_tools_extend_the_prompt_exactly(
    client: httpx.Client, model: str, tools: list[Json]
) -> None:
    run = [RUN] if HAS_SANDBOX else []
    turns: list[Parts] = [
        [{"think": "Both.\n\nAt once."}, ADD, *run, ADD],
        [{"say": "Once more."}, ADD, *run],
        [ADD],
        [{"mcp": "boom", "args": "{}"}, {"think": "Hm."}, ADD],
        [ADD, {"call": "look_around", "args": '{"at":  "it"}'}],
        [{"think": "So."}, *run, {"call": "look_around", "args": "{ }"}, ADD],
        [{"say": "Done."}],
    ]
    rounds = Rounds(model)
    body: Json = {"model": model, "tools": tools, "enable_response_messages": True}
    response = create(client, input=script(*turns), **body)
    prompt = rounds.read(response)
    assert len(rounds.sizes) == 5
    for turn in range(4):
        assert rounds.wrote(prompt, turn) == rounds.tokens(turns[turn])
    for turn in (4, 5):
        call = next(item for item in response["output"] if item["type"] == "function_call")
        answer = {"type": "function_call_output", "call_id": call["call_id"], "output": "a tree"}
        before = prompt
        response = create(client, input=[answer], previous_response_id=response["id"], **body)
        prompt = rounds.read(response)
        assert prompt[: len(before)] == before
        assert rounds.wrote(prompt, turn) == rounds.tokens(turns[turn])
    assert text_of(response) == "Done."
    # Each prompt begins with the one before it, as far as its blocks are known to the engine.
    known = [prompt // BLOCK * BLOCK for prompt, _ in rounds.sizes[:-1]]
    assert rounds.cached[1:] == known
    assert min(known) > 0


def test_an_answer_is_continued_by_the_next_question(
    client: httpx.Client, model: str, tools: list[Json]
) -> None:
    turns: list[Parts] = [[ADD, ADD], [{"say": "That was it."}], [{"say": "Hello."}]]
    rounds = Rounds(model)
    body: Json = {"model": model, "tools": tools, "enable_response_messages": True}
    conversation = client.post("/conversations", json={}).json()["id"]
    before = rounds.read(create(client, input=script(*turns), conversation=conversation, **body))
    prompt = rounds.read(create(client, input="And now?", conversation=conversation, **body))
    assert prompt[: len(before)] == before
    # An answer's end is written in another way once something follows it.
    assert rounds.wrote(prompt, 1)[:-1] == rounds.tokens(turns[1])[:-1]


def test_the_same_history_sent_again_as_items_is_continued_too(
    client: httpx.Client, model: str, tools: list[Json]
) -> None:
    turns: list[Parts] = [
        [ADD, ADD],
        [{"call": "look_around", "args": "{ }"}, ADD],
        [{"say": "Ok"}],
    ]
    rounds = Rounds(model)
    body: Json = {"model": model, "tools": tools, "enable_response_messages": True}
    asked = [{"role": "user", "content": script(*turns)}]
    response = create(client, input=asked, store=False, **body)
    before = rounds.read(response)
    call = next(item for item in response["output"] if item["type"] == "function_call")
    answer = {"type": "function_call_output", "call_id": call["call_id"], "output": "a tree"}
    again = [{k: v for k, v in each.items() if k != "id"} for each in response["output"]]
    response = create(client, input=[*asked, *again, answer], store=False, **body)
    prompt = rounds.read(response)
    assert prompt[: len(before)] == before
    assert rounds.wrote(prompt, 1) == rounds.tokens(turns[1])


def test_calls_beyond_the_limit_fail_and_the_model_continues(
    client: httpx.Client, site: FakeMcpServer, model: str, tools: list[Json]
) -> None:
    turns: list[Parts] = [[ADD, ADD, ADD], [{"say": "One will do."}]]
    rounds = Rounds(model)
    response = create(
        client,
        model=model,
        tools=tools,
        input=script(*turns),
        max_tool_calls=1,
        enable_response_messages=True,
    )
    first, *others = (item for item in response["output"] if item["type"] == "mcp_call")
    assert first["output"] == "42"
    assert ["max_tool_calls" in str(item["error"]) for item in others] == [True, True]
    assert len(site.methods("tools/call")) == 1
    assert text_of(response) == "One will do."
    prompt = rounds.read(response)
    assert rounds.wrote(prompt, 0) == rounds.tokens(turns[0])
    assert rounds.markup.text(prompt).count("max_tool_calls") == 2
