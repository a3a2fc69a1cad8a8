"""The engine port over vLLM's AsyncLLM, which runs its model in child processes of this one."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from antiphon.adapters.extras import install_command
from antiphon.application.ports import Engine, EngineRequest, Prompt, Steps
from antiphon.domain.errors import EngineDead, SettingsError

if TYPE_CHECKING:
    from vllm.v1.engine.async_llm import AsyncLLM

    from antiphon.adapters.engines.vllm_engine.runs import VllmRuns

SHUTDOWN_S = 20
"""vLLM's workers take about four seconds to leave; its own limit of five kills some of them."""


class VllmEngine(Engine):
    """Serves `model` under `served_names`, and each LoRA adapter under its own name.

    `engine_args` are vLLM's engine options as on its command line, and `--lora-modules name=path`.
    """

    def __init__(
        self, model: str, *, served_names: Sequence[str] = (), engine_args: Sequence[str] = ()
    ) -> None:
        self._model = model
        self._names: tuple[str, ...] = tuple(served_names) or (model,)
        self._engine_args = tuple(engine_args)
        self._llm: AsyncLLM | None = None
        self._runs: VllmRuns | None = None

    async def start(self) -> None:
        self._look_for_model()
        options, runs = _import_vllm()
        # Checked first: a mistyped option should not cost the half minute of loading a model.
        parsed = options.parse(self._engine_args, model=self._model, names=self._names)
        try:
            # Within the running loop, because AsyncLLM binds its sockets and its reader to it.
            self._llm = options.build(parsed.arguments)
        except Exception as error:
            # Whatever vLLM raises here (OSError, pydantic's errors, RuntimeError of a dead child),
            # it means that this model cannot be served with these settings.
            raise SettingsError(f"vLLM cannot serve {self._model!r}: {_sentence(error)}") from error
        try:
            for adapter in parsed.adapters:
                await self._llm.add_lora(adapter)
        except Exception as error:
            await self.aclose()
            raise SettingsError(
                f"vLLM cannot load the LoRA adapter {adapter.lora_name!r}: {_sentence(error)}"
            ) from error
        self._runs = runs.VllmRuns(self._llm, adapters=parsed.adapters)
        self._names += tuple(self._runs.adapters)

    def _look_for_model(self) -> None:
        looks_like_a_path = self._model.startswith(("/", "./", "../", "~"))
        if looks_like_a_path and not Path(self._model).is_dir():
            raise SettingsError(f"There is no model folder {self._model!r}.")

    async def aclose(self) -> None:
        llm, self._llm = self._llm, None
        runs, self._runs = self._runs, None
        if llm is None:
            return
        if runs is not None:
            runs.end(EngineDead("The engine was stopped."))
        # In a thread: it waits for the child processes. `llm` must be gone before the interpreter
        # ends, for its destructor calls what is no longer there by then.
        await asyncio.to_thread(llm.shutdown, timeout=SHUTDOWN_S)

    @property
    def models(self) -> Sequence[str]:
        return self._names

    @property
    def context_length(self) -> int:
        return self._started().context_length

    @property
    def reads_images(self) -> bool:
        return self._started().reads_images

    @property
    def sampling_defaults(self) -> Mapping[str, Any]:
        return self._started().sampling_defaults

    @property
    def tokenizer(self) -> Any:
        """The model's tokenizer (of transformers), with its chat template."""
        return self._started().tokenizer

    async def check(self) -> None:
        await self._started().check()

    async def prepare(self, prompt: Prompt) -> Prompt:
        return await self._started().prepare(prompt)

    async def generate(self, request: EngineRequest) -> Steps:
        return await self._started().admit(request)

    def _started(self) -> VllmRuns:
        if self._runs is None:
            raise EngineDead("The engine is not running.")
        return self._runs


def _import_vllm() -> tuple[Any, Any]:
    if find_spec("vllm") is None:
        raise SettingsError(f"vLLM is not installed. Install it with: {install_command('vllm')}")
    # A server that people run for themselves tells nobody about it, unless they say so.
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    try:
        from antiphon.adapters.engines.vllm_engine import options, runs
    except Exception as error:
        # A torch that does not fit its vLLM fails in many ways, not only with ImportError.
        raise SettingsError(f"vLLM is installed, but does not load: {_sentence(error)}") from error
    return options, runs


def _sentence(error: Exception) -> str:
    """Return what the error says, without the heading and the trailer that pydantic adds.

    >>> _sentence(ValueError("1 validation error for A\\n  Value error, Too long. See: [type=x]"))
    'Too long.'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and re.match(r"\d+ validation errors? for ", lines[0]):
        del lines[0]
    line = lines[0].removeprefix("Value error, ") if lines else type(error).__name__
    line = re.sub(r" \[type=.*", "", line)
    return re.sub(r"(?<=\.) [^.]*:$", "", line)  # a last sentence that announces further lines
