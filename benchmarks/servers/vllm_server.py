"""vLLM's own server over an engine that computes nothing, so that only its serving layer costs.

    .venv-vllm/bin/python benchmarks/servers/vllm_server.py --model FOLDER --port 8001 …

It takes the options of `vllm serve`. Every answer is the same token, `max_tokens` times: one a step
with one turn of the event loop before each, or all in one step for a request without a stream.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.engine.protocol import EngineClient
from vllm.entrypoints.launchers.api_server import entry
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.renderers import renderer_from_config
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.input_processor import InputProcessor

WORD = "word "


class _RepeatedWord:
    """Everything that the server asks of an engine client."""

    is_running, is_stopped, errored, dead_error = True, False, False, None

    def __init__(self, config: Any) -> None:
        self.vllm_config, self.model_config = config, config.model_config
        self.renderer = renderer_from_config(config)
        self.input_processor = InputProcessor(config, self.renderer)
        self.tokenizer = self.renderer.get_tokenizer()
        self._token = self.tokenizer.encode(WORD, add_special_tokens=False)[0]

    async def generate(
        self, prompt: Any, sampling_params: Any, request_id: str, **_: Any
    ) -> AsyncIterator[RequestOutput]:
        prompt_ids = prompt.get("prompt_token_ids") or []
        at_once = sampling_params.output_kind == RequestOutputKind.FINAL_ONLY
        for count, is_last in _steps(sampling_params.max_tokens, at_once=at_once):
            await asyncio.sleep(0)
            finish = "length" if is_last else None
            ids = [self._token] * count
            output = CompletionOutput(0, WORD * count, ids, None, None, finish_reason=finish)
            yield RequestOutput(request_id, None, prompt_ids, None, [output], is_last)

    async def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",)

    def get_tokenizer(self) -> Any:
        return self.tokenizer

    def check_admission(self, *_: Any, **__: Any) -> None: ...

    def shutdown(self, *_: Any, **__: Any) -> None: ...


def _steps(tokens: int, *, at_once: bool) -> Iterator[tuple[int, bool]]:
    if at_once:
        yield tokens, True
        return
    for number in range(1, tokens + 1):
        yield 1, number == tokens


async def _do_nothing(*_: Any, **__: Any) -> None: ...


_missing = EngineClient.__abstractmethods__ - vars(_RepeatedWord).keys()
Client: Any = type(
    "Client", (_RepeatedWord, EngineClient), dict.fromkeys(sorted(_missing), _do_nothing)
)


@asynccontextmanager
async def _build_client(args: Any, **_: Any) -> AsyncIterator[Any]:
    yield Client(AsyncEngineArgs.from_cli_args(args).create_engine_config())


if __name__ == "__main__":
    entry.build_async_engine_client = _build_client
    sys.argv += ["--max-model-len", "4096", "--enforce-eager"]
    sys.argv += ["--disable-uvicorn-access-log", "--uvicorn-log-level", "warning"]
    entry.main()
