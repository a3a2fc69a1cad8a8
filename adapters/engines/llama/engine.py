"""Implements the engine port with llama.cpp's servers: tokens in, tokens out."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from antiphon.adapters.engines.llama.model_folder import NAME_A_TOKENIZER, write_model_folder
from antiphon.adapters.engines.llama.options import LlamaOptions
from antiphon.adapters.engines.llama.process import LlamaProcess
from antiphon.adapters.engines.llama.profile import LlamaProfile, read_profile, tokenize
from antiphon.adapters.engines.llama.wires import LlamaStepReader, to_wire
from antiphon.adapters.engines.pooled.engine import PooledEngine
from antiphon.adapters.engines.pooled.options import PoolOptions
from antiphon.adapters.engines.pooled.pool import Member, Pool
from antiphon.adapters.engines.pooled.profile import ServerProfile
from antiphon.adapters.engines.pooled.runs import PoolRun, StepReader, WireRequest
from antiphon.adapters.engines.pooled.text import Vocabulary
from antiphon.adapters.engines.token_decoder import TokenDecoder
from antiphon.adapters.upstreams.client import UpstreamClient
from antiphon.application.ports import EngineRequest, Prompt, Steps
from antiphon.domain.errors import EngineDead, RequestError, SettingsError

TOKENIZER_PROBE = (
    "Hello, World!  It's 12345.67 in <b>Zürich</b>;\n\n\tnaïve café, don't I'LL we've\r\n"
    "def f(x): return x**2 # 漢字かな 한국어 ελληνικά Кириллица עברית 😀👍🏽 ½ ² é\n   end___\t"
    "CamelCaseHTTPServer snake_case ''s'' ...!!! \u200b\u00a0 99 100000 3.14e-10 a1b2 {\"k\": [1]}"
)
"""A text in which tokenizers of other kinds make other tokens."""

LOADING_PAUSE_S = 0.1


class LlamaEngine(PooledEngine):
    """Serves the model of a pool of llama-servers under `names`.

    `tokenizer` is a folder with the model's tokenizer, if its file is not to be read.
    """

    def __init__(
        self, names: Sequence[str], options: LlamaOptions, *, tokenizer: Path | None = None
    ) -> None:
        super().__init__(names, Pool(options, self._read_profile))
        self._options = options
        self._tokenizer_folder = tokenizer
        self._process: LlamaProcess | None = None
        self._resources = ExitStack()
        self._vocabulary: Vocabulary | None = None
        self._decoder: TokenDecoder | None = None
        self._sampling: Mapping[str, float] = {}
        self._salts: set[str | None] = set()

    async def start(self) -> None:
        """Raises: EngineDead if no server answers; SettingsError."""
        try:
            if self._options.names_servers:
                await self._pool.start()
            else:
                await self._start_process()
            await self._read_model()
        except BaseException:
            await self.aclose()
            raise

    async def aclose(self) -> None:
        await self._pool.aclose()
        process, self._process = self._process, None
        if process is not None:
            await process.aclose()
        self._folder = self._vocabulary = self._decoder = None
        self._resources.close()

    @property
    def sampling_defaults(self) -> Mapping[str, Any]:
        return self._sampling

    @property
    def reads_images(self) -> bool:
        return False

    @property
    def weighs_at_once(self) -> int:
        return 1  # each of its slots has a cache of its own

    @property
    def is_dead(self) -> bool:
        """A process of ours that has ended is started again; servers of others are waited for."""
        return self._process is not None and self._process.has_ended

    async def check(self) -> None:
        if self.is_dead:
            raise EngineDead("The model's process has ended.")
        self._pool.check()

    async def prepare(self, prompt: Prompt) -> Prompt:
        if prompt.image_urls:
            raise RequestError("This model does not read images.", param="input")
        return prompt

    async def generate(self, request: EngineRequest) -> Steps:
        for name, is_set in (("priority", request.priority), *request.sampling.extra.items()):
            if is_set:
                raise RequestError(
                    f"Unsupported parameter: {name!r} is not supported by this engine.",
                    param=name,
                    code="unsupported_parameter",
                )
        await self.check()
        run = PoolRun(self._pool, request, self._prepare, resumes_constraints=True)
        await run.admit()
        return run

    def _prepare(
        self, request: EngineRequest, profile: ServerProfile
    ) -> tuple[WireRequest, StepReader]:
        assert isinstance(profile, LlamaProfile)
        if self._vocabulary is None or self._decoder is None:
            raise EngineDead("The model is not loaded.")
        self._salts.add(request.cache_salt)
        wire = to_wire(
            request,
            self._vocabulary,
            self._decoder,
            defaults=self._options.sampling,
            context_length=self.context_length,
            keeps_cache=self._options.shares_cache or len(self._salts) == 1,
        )
        return wire, LlamaStepReader(request, profile, self._vocabulary, self._decoder)

    async def _start_process(self) -> None:
        """Raises: SettingsError, EngineError."""
        process = self._process = LlamaProcess(self._options)
        url = await process.start()
        given = self._options
        options = PoolOptions(
            url=url,
            headers=process.headers,
            connect_s=given.connect_s,
            response_s=given.response_s,
            probe_s=given.probe_s,
            probe_timeout_s=given.probe_timeout_s,
            index_mb=given.index_mb,
        )
        self._pool = Pool(options, self._read_profile)
        while True:
            try:
                await self._pool.start()
                return
            except EngineDead:  # it still loads the model
                if process.has_ended:
                    raise
                await asyncio.sleep(LOADING_PAUSE_S)

    # --- the model --------------------------------------------------------------------------------

    async def _read_profile(self, client: UpstreamClient) -> LlamaProfile:
        """Raises: SettingsError if the server makes other tokens of a text than we do."""
        profile = await read_profile(client, timeout_s=self._options.probe_timeout_s)
        if self._vocabulary is not None:
            await self._check_tokens(client)
        return profile

    async def _read_model(self) -> None:
        """Read the model's tokenizer. Raises: SettingsError, EngineError."""
        profile = next(each for each in self._pool.profiles if isinstance(each, LlamaProfile))
        folder = await asyncio.to_thread(self._find_folder, profile)
        vocabulary = await asyncio.to_thread(Vocabulary.load, folder)
        if vocabulary is None:
            raise SettingsError(f"{str(folder)!r} has no tokenizer.json that can be read here.")
        self._folder = folder
        self._sampling = {**profile.sampling, **self._options.sampling}
        self._vocabulary, self._decoder = vocabulary, TokenDecoder(vocabulary)
        checked: list[Member] = []
        while member := self._pool.idlest(tried=checked):
            await self._check_tokens(member.client)
            checked.append(member)

    def _find_folder(self, profile: LlamaProfile) -> Path:
        if self._tokenizer_folder is not None:
            return self._tokenizer_folder
        file = Path(self._options.model or profile.model_path).expanduser()
        if not file.is_file():
            raise SettingsError(
                f"The model file {str(file)!r} is not on this machine. {NAME_A_TOKENIZER}"
                if self._options.model is None
                else f"There is no model file {str(file)!r}."
            )
        folder = Path(self._resources.enter_context(TemporaryDirectory(prefix="antiphon-gguf-")))
        write_model_folder(file, folder)
        return folder

    async def _check_tokens(self, client: UpstreamClient) -> None:
        """Raises: SettingsError if the server makes other tokens of a text than we do."""
        assert self._vocabulary is not None
        theirs = await tokenize(client, TOKENIZER_PROBE, timeout_s=self._options.probe_timeout_s)
        ours = self._vocabulary.tokenizer.encode(TOKENIZER_PROBE, add_special_tokens=False).ids
        if ours != theirs:
            raise SettingsError(
                f"The tokenizer read here is not that of the model at {client.url!r}. "
                f"{NAME_A_TOKENIZER}"
            )
