"""An engine that costs nothing: it writes the next call of the session, whatever the prompt.

It says how many tokens of each prompt an engine with a perfect prefix cache would have kept, and
how much CPU time of the process was the engine's own, so that the benchmark can leave it out.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec import Struct
from openai_harmony import (  # type: ignore[import-untyped]
    HarmonyEncodingName,
    load_harmony_encoding,
)

from antiphon.application.ports import Engine, EngineRequest, Prompt, Step, Steps
from antiphon.domain.items import FunctionCallOutput
from benchmarks.agents.sessions import TOOL, call_arguments

THOUGHT = "The last result shows the next place to look at, so I read the file around it. "
THOUGHTS = 5


class Options(Struct):
    """Which markup it writes, the folder of its tokenizer, and where it says what it did."""

    markup: str
    report: str
    model_folder: str = ""


class SessionEngine(Engine):
    models, sampling_defaults = (), {}
    context_length, reads_images = 262_144, False

    def __init__(self, names: Any, options: Options) -> None:
        self.models, self._options = names, options
        self._prompts: list[list[int]] = []
        self._encode: Callable[[str], list[int]]

    async def start(self) -> None:
        if self._options.markup == "harmony":
            encoding = load_harmony_encoding(HarmonyEncodingName.HARMONY_GPT_OSS)
            self._encode = lambda text: encoding.encode(text, allowed_special="all")
        else:
            from tokenizers import Tokenizer

            file = Path(self._options.model_folder) / "tokenizer.json"
            tokenizer = Tokenizer.from_file(str(file))
            self._encode = lambda text: tokenizer.encode(text, add_special_tokens=False).ids

    @property
    def model_folder(self) -> Path | None:
        return Path(self._options.model_folder) if self._options.model_folder else None

    async def prepare(self, prompt: Prompt) -> Prompt:
        return prompt

    async def generate(self, request: EngineRequest) -> Steps:
        return SessionSteps(self, request)

    def write(self, request: EngineRequest) -> tuple[str, list[int], int]:
        """Return the text and the tokens of the turn, and how many tokens its prompt repeats."""
        began = time.thread_time()
        turn = sum(isinstance(item, FunctionCallOutput) for item in request.turn.items)
        text = _written(self._options.markup, turn)
        tokens = self._encode(text)
        prompt = list(request.prompt.token_ids)
        known = max((_common_length(prompt, each) for each in self._prompts), default=0)
        self._prompts = [each for each in self._prompts if _common_length(each, prompt) < len(each)]
        self._prompts.append([*prompt, *tokens])
        with Path(self._options.report).open("a") as report:
            spent = time.thread_time() - began
            report.write(f"{turn} {len(prompt)} {known} {spent:.6f}\n")
        return text, tokens, min(known, len(prompt) - 1)


class SessionSteps(Steps):
    def __init__(self, engine: SessionEngine, request: EngineRequest) -> None:
        self._engine, self._request = engine, request

    async def __aiter__(self) -> AsyncIterator[Step]:
        text, tokens, known = self._engine.write(self._request)
        detokenized = text if self._request.detokenize else ""
        yield Step(text=detokenized, token_ids=tokens, finish="stop", cached_tokens=known)

    async def aclose(self) -> None: ...


def _written(markup: str, turn: int) -> str:
    thought, arguments = THOUGHT * THOUGHTS, call_arguments(turn)
    if markup == "harmony":
        return (
            f"<|channel|>analysis<|message|>{thought}<|end|><|start|>assistant<|channel|>commentary"
            f" to=functions.{TOOL} <|constrain|>json<|message|>{arguments}<|call|>"
        )
    call = f'{{"name": "{TOOL}", "arguments": {arguments}}}'
    return f"{thought}\n<tool_call>\n{call}\n</tool_call><|im_end|>"


def _common_length(one: Sequence[int], other: Sequence[int]) -> int:
    """Return how many tokens both begin with.

    >>> _common_length([1, 2, 3], [1, 2, 4, 5])
    2
    """
    low, high = 0, min(len(one), len(other))
    while low < high:  # slices are compared much faster than tokens
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
