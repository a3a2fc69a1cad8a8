"""Your own engine: it writes tokens that say what the user said. Yours calls an inference library.

    $ antiphon serve --config examples/custom_models.toml

Its prompts and its output are tokens: formats render conversations and read answers. It heeds no
more than the limits of a request; `EngineContract` tests what an engine owes besides.
"""

import asyncio

from msgspec import Struct
from openai_harmony import HarmonyEncodingName, load_harmony_encoding

from antiphon.application.ports import Engine, EngineRequest, Prompt, Step
from antiphon.domain.errors import input_too_long


class Options(Struct):  # what its table has besides the fields that all models have
    prefix: str = "You said: "


class Parrot(Engine):
    models, sampling_defaults = (), {}
    context_length, reads_images = 8000, False

    def __init__(self, names: tuple[str, ...], options: Options) -> None:
        self.models, self._options = names, options

    async def start(self) -> None:
        kind = HarmonyEncodingName.HARMONY_GPT_OSS
        self._encoding = await asyncio.to_thread(load_harmony_encoding, kind)

    async def prepare(self, prompt: Prompt) -> Prompt:
        return prompt

    async def generate(self, request: EngineRequest):
        prompt, sampling = request.prompt.token_ids, request.sampling
        room = self.context_length - len(prompt)
        if room <= 0:
            raise input_too_long(len(prompt), self.context_length - 1)
        tokens = self._continue(list(prompt))
        limit = min(room, sampling.max_tokens or room)
        return self._steps(tokens, limit, sampling.step_tokens)

    def _continue(self, prompt: list[int]) -> list[int]:
        said = self._encoding.decode(prompt).rpartition("<|start|>user<|message|>")[2]
        text = self._options.prefix + said.partition("<|end|>")[0]
        written = f"<|channel|>final<|message|>{text}<|return|>"
        return self._encoding.encode(written, allowed_special="all")

    async def _steps(self, tokens: list[int], limit: int, size: int):
        for start in range(0, min(len(tokens), limit), size):
            yield Step(token_ids=tokens[start : min(start + size, limit)])
        yield Step(finish="stop" if len(tokens) <= limit else "length")
