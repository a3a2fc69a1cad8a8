"""Implements the engine port with a pool of vLLM servers."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from antiphon.adapters.engines.continuation import continuation_of
from antiphon.adapters.engines.pooled.engine import PooledEngine
from antiphon.adapters.engines.pooled.pool import Pool
from antiphon.adapters.engines.pooled.profile import ServerProfile
from antiphon.adapters.engines.pooled.routing import Choose, choose_by_prefix
from antiphon.adapters.engines.pooled.runs import PoolRun, StepReader, WireRequest
from antiphon.adapters.engines.pooled.text import RunText, Vocabulary
from antiphon.adapters.engines.token_decoder import TokenDecoder
from antiphon.adapters.engines.vllm_http.hub_folder import fetch_model_folder
from antiphon.adapters.engines.vllm_http.image_tokens import TOKEN_FIELDS
from antiphon.adapters.engines.vllm_http.images import PoolImages
from antiphon.adapters.engines.vllm_http.options import VllmHttpOptions
from antiphon.adapters.engines.vllm_http.profile import Profile, read_profile
from antiphon.adapters.engines.vllm_http.wires import VllmStepReader, to_wire
from antiphon.adapters.engines.vllm_names import DEFAULTED_FIELDS, check_priority
from antiphon.adapters.upstreams.client import UpstreamClient
from antiphon.application.ports import EngineRequest, Prompt, Steps
from antiphon.domain.errors import CannotResume, RequestError, SettingsError


class VllmHttpEngine(PooledEngine):
    """Serves the model of a pool of vLLM servers under `names`.

    `choose` is the rule by which a run gets its server.
    """

    def __init__(
        self,
        names: Sequence[str],
        options: VllmHttpOptions,
        *,
        choose: Choose = choose_by_prefix,
    ) -> None:
        super().__init__(names, Pool(options, self._read_profile, choose=choose))
        self._options = options
        self._images = PoolImages(self._pool)
        self._model_type = ""
        self._sampling_defaults: Mapping[str, Any] = {}
        self._loading = asyncio.Lock()
        self._has_loaded = False
        self._vocabulary: Vocabulary | None = None
        self._decoder: TokenDecoder | None = None

    async def start(self) -> None:
        """Raises: EngineDead if no server answers; SettingsError."""
        await self._pool.start()
        try:
            self._folder = await self._find_folder()
            self._read_folder()
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        await self._pool.aclose()

    @property
    def sampling_defaults(self) -> Mapping[str, Any]:
        return self._sampling_defaults

    @property
    def reads_images(self) -> bool:
        return self._images.are_supported

    @property
    def weighs_at_once(self) -> int:
        return 8

    @property
    def model_type(self) -> str:
        return self._model_type

    @property
    def schedules_by_priority(self) -> bool:
        return self._options.priority

    async def check(self) -> None:
        self._pool.check()

    async def prepare(self, prompt: Prompt) -> Prompt:
        return await self._images.prepare(prompt)

    async def generate(self, request: EngineRequest) -> Steps:
        if request.written and request.sampling.constraint is not None:
            raise CannotResume("The model servers begin a constraint anew after a started answer.")
        check_priority(request.priority, is_scheduled=self._options.priority)
        await self._load_vocabulary_for(request)
        if request.sampling.logprobs is not None and self._vocabulary is None:
            raise RequestError(
                "'top_logprobs' needs the model's tokenizer.json, which this server has not.",
                param="top_logprobs",
                code="unsupported_parameter",
            )
        self._pool.check()
        run = PoolRun(self._pool, request, self._prepare, renew=self._images.renew)
        await run.admit()
        return run

    async def _read_profile(self, client: UpstreamClient) -> Profile:
        return await read_profile(
            client,
            model_name=self._options.model_name,
            timeout_s=self._options.probe_timeout_s,
        )

    @property
    def _profiles(self) -> Sequence[Profile]:
        return [each for each in self._pool.profiles if isinstance(each, Profile)]

    def _prepare(
        self, request: EngineRequest, profile: ServerProfile
    ) -> tuple[WireRequest, StepReader]:
        assert isinstance(profile, Profile)
        wire = to_wire(
            request,
            profile,
            defaults=self._sampling_defaults,
            context_length=self.context_length,
            vocabulary=self._vocabulary,
            model_type=self._model_type,
        )
        text = None
        if wire.decodes_text and self._vocabulary is not None:
            prompt = continuation_of(request).prompt
            text = RunText(self._vocabulary, request.sampling, prompt.token_ids)
        return wire, VllmStepReader(request, text, self._decoder)

    async def _load_vocabulary_for(self, request: EngineRequest) -> None:
        """Load the vocabulary for the first run that needs it: it is large, and few runs do."""
        is_needed = request.sampling.logprobs is not None or not all(
            each.has_text for each in self._profiles
        )
        if self._has_loaded or not is_needed or self._folder is None:
            return
        async with self._loading:
            if not self._has_loaded:
                self._vocabulary = await asyncio.to_thread(Vocabulary.load, self._folder)
                if self._vocabulary is not None:
                    self._decoder = TokenDecoder(self._vocabulary)
                self._has_loaded = True

    def _read_folder(self) -> None:
        """Read what the model's folder says. Raises: SettingsError."""
        if self._folder is None:
            return
        config = _read_json(self._folder / "config.json")
        self._model_type = str(config.get("model_type", ""))
        placeholders = [config[name] for name in TOKEN_FIELDS if isinstance(config.get(name), int)]
        self._images = PoolImages(self._pool, placeholders=placeholders)
        self._sampling_defaults = _defaults_of(_read_json(self._folder / "generation_config.json"))
        self._has_loaded = False

    async def _find_folder(self) -> Path | None:
        """Return the folder with the model's tokenizer, which may be fetched now.

        Raises: SettingsError.
        """
        named = self._options.model
        names = [each.root for each in self._profiles] if named is None else [named]
        folder = _folder_here(names) or await fetch_model_folder(next(iter(names), ""))
        if folder is None and named is not None:
            raise SettingsError(f"There is no model folder {named!r}.")
        return folder


def _folder_here(names: Sequence[str]) -> Path | None:
    folders = [Path(name).expanduser() for name in names if name]
    return next((folder for folder in folders if folder.is_dir()), None)


def _read_json(file: Path) -> Mapping[str, Any]:
    try:
        content = msgspec.json.decode(file.read_bytes())
    except (OSError, msgspec.DecodeError, UnicodeDecodeError):
        return {}
    return content if isinstance(content, dict) else {}


def _defaults_of(generation: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the sampling defaults of a generation config, as vLLM reads it."""
    named = {name: generation.get(name) for name in DEFAULTED_FIELDS}
    named["max_tokens"] = generation.get("max_new_tokens")
    return {name: value for name, value in named.items() if value is not None}
