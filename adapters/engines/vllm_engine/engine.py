"""Implements the engine port with vLLM's AsyncLLM, which runs the model in child processes."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Coroutine, Mapping, Sequence
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
"""vLLM's workers take about four seconds to exit; its own limit of five kills some of them."""


class VllmEngine(Engine):
    """Serves `model` under `served_names`, and each LoRA adapter under its own name.

    `engine_args` are vLLM's engine options, as on its command line, and `--lora-modules name=path`.
    """

    def __init__(
        self, model: str, *, served_names: Sequence[str] = (), engine_args: Sequence[str] = ()
    ) -> None:
        self._model = model
        self._served_names = self._names = tuple(served_names) or (model,)
        self._engine_args = tuple(engine_args)
        self._llm: AsyncLLM | None = None
        self._runs: VllmRuns | None = None

    async def start(self) -> None:
        self._check_model_folder()
        # In threads: importing vLLM takes 15 seconds, and loading a model a minute or more. Other
        # models are served meanwhile.
        options, runs = await asyncio.to_thread(_import_vllm)
        # Parsed first, so that a typo does not cost the half minute that loading a model takes.
        parsed = options.parse(self._engine_args, model=self._model, names=self._names)
        try:
            # Its sockets and its reader bind themselves to the loop that uses them first.
            llm = await _finish(asyncio.to_thread(options.build, parsed.arguments))
        except Exception as error:
            # Whatever vLLM raises here (OSError, pydantic's errors, RuntimeError for a dead child),
            # it cannot serve this model with these settings.
            message = f"vLLM cannot serve {self._model!r}: {_message_of(error)}"
            raise SettingsError(message) from error
        self._llm = llm
        try:
            for adapter in parsed.adapters:
                await llm.add_lora(adapter)
        except Exception as error:
            await self.aclose()
            raise SettingsError(
                f"vLLM cannot load the LoRA adapter {adapter.lora_name!r}: {_message_of(error)}"
            ) from error
        self._runs = runs.VllmRuns(llm, adapters=parsed.adapters)
        self._names = (*self._served_names, *self._runs.adapters)

    def _check_model_folder(self) -> None:
        looks_like_a_path = self._model.startswith(("/", "./", "../", "~"))
        if looks_like_a_path and not Path(self._model).is_dir():
            raise SettingsError(f"There is no model folder {self._model!r}.")

    async def aclose(self) -> None:
        llm, self._llm = self._llm, None
        runs, self._runs = self._runs, None
        if llm is None:
            return
        if runs is not None:
            runs.fail_all(EngineDead("The engine was stopped."))
        # In a thread, because it waits for the child processes. `llm` must be deleted before the
        # interpreter ends: its destructor needs modules that are gone by then.
        await asyncio.to_thread(llm.shutdown, timeout=SHUTDOWN_S)

    @property
    def models(self) -> Sequence[str]:
        return self._names

    @property
    def context_length(self) -> int:
        return self._running().context_length

    @property
    def reads_images(self) -> bool:
        return self._running().reads_images

    @property
    def schedules_by_priority(self) -> bool:
        return self._running().schedules_by_priority

    @property
    def sampling_defaults(self) -> Mapping[str, Any]:
        return self._running().sampling_defaults

    @property
    def weighs_at_once(self) -> int:
        return self._running().weighs_at_once

    @property
    def tokenizer(self) -> Any:
        """The model's transformers tokenizer, with its chat template."""
        return self._running().tokenizer

    @property
    def model_type(self) -> str:
        """The kind of model, `model_type` in its config.json."""
        return self._running().model_type

    @property
    def is_dead(self) -> bool:
        return self._runs is not None and self._runs.is_dead

    async def check(self) -> None:
        await self._running().check()

    async def prepare(self, prompt: Prompt) -> Prompt:
        return await self._running().prepare(prompt)

    @property
    def resumes(self) -> bool:
        return True

    @property
    def scores_prompts(self) -> bool:
        return True

    async def generate(self, request: EngineRequest) -> Steps:
        return await self._running().admit(request)

    def _running(self) -> VllmRuns:
        if self._runs is None:
            raise EngineDead("The engine is not running.")
        return self._runs


async def _finish(building: Coroutine[Any, Any, AsyncLLM]) -> AsyncLLM:
    """Return the engine. If the caller is cancelled, wait for the engine and shut it down."""
    task = asyncio.create_task(building)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        await asyncio.wait([task])
        if task.exception() is None:
            await asyncio.to_thread(task.result().shutdown, timeout=SHUTDOWN_S)
        raise


def _import_vllm() -> tuple[Any, Any]:
    if find_spec("vllm") is None:
        raise SettingsError(f"vLLM is not installed. Install it with: {install_command('vllm')}")
    # A self-hosted server sends no usage statistics unless its operator wants it to.
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    try:
        from antiphon.adapters.engines.vllm_engine import options, runs
    except Exception as error:
        # A torch that does not match vLLM fails in many ways, not only with ImportError.
        message = f"vLLM is installed but does not load: {_message_of(error)}"
        raise SettingsError(message) from error
    return options, runs


def _message_of(error: Exception) -> str:
    """Return the error's message without the heading and the trailer that pydantic adds.

    >>> _message_of(ValueError("1 validation error for A\\n  Value error, Too long. See: [type=x]"))
    'Too long.'
    """
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if len(lines) > 1 and re.match(r"\d+ validation errors? for ", lines[0]):
        del lines[0]
    line = lines[0].removeprefix("Value error, ") if lines else type(error).__name__
    line = re.sub(r" \[type=.*", "", line)
    # Drop a last sentence that only introduces the lines after it.
    return re.sub(r"(?<=\.) [^.]*:$", "", line)
