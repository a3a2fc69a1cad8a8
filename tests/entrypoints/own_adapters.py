"""Adapters of an operator, which the settings of tests name."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct
from tests.adapters.engines.conftest import WordMarkup
from tests.support.toy_sandboxes import ToySandboxes

from antiphon.adapters.engines.scripted.engine import ScriptedEngine
from antiphon.adapters.engines.scripted.images import ScriptedImageGenerator
from antiphon.adapters.prompts.folder import FolderPromptTemplates
from antiphon.adapters.sandboxes.quickjs import ProgramLimits, QuickjsPrograms
from antiphon.adapters.stores.files.store import FolderFileStore
from antiphon.adapters.stores.memory.event_log import MemoryEventLog
from antiphon.adapters.stores.memory.store import MemoryStore
from antiphon.adapters.stores.vectors.store import SqliteVectorStores
from antiphon.adapters.web.corpus import CorpusWeb
from antiphon.adapters.web.page_reader import PageReader
from antiphon.adapters.web.search_services import SearxngService
from antiphon.application.ports import (
    AuditLog,
    Embeddings,
    Engine,
    EngineRequest,
    EventBatches,
    Fetcher,
    Guard,
    Json,
    Prompt,
    Step,
    ToolCallRecord,
    ToolResult,
    ToolServer,
    ToolSession,
    Vectors,
)
from antiphon.domain.responses.guards import GuardQuestion, Pass, Verdict


class Options(Struct, kw_only=True):
    """It would ignore unknown fields, if nobody checked them."""

    size: Annotated[int, Meta(ge=1)] = 3
    mode: Literal["slow", "fast"] = "slow"
    folder: Path | None = None


class Store(MemoryStore):
    def __init__(self, options: Options) -> None:
        super().__init__(keep=options.size)
        self.options = options


class Files(FolderFileStore):
    def __init__(self, data_dir: Path, options: Options) -> None:
        super().__init__(data_dir / "own_files")
        self.options = options


class OwnVectorStores(SqliteVectorStores):
    def __init__(self, options: Options) -> None:
        super().__init__(None)
        self.options = options


class Log(MemoryEventLog):
    def __init__(self, keep_events: int, options: Options) -> None:
        super().__init__(keep_events=keep_events)
        self.keep_events, self.options = keep_events, options


class ShortLog(MemoryEventLog):
    """Its readers begin where they want."""

    def __init__(self) -> None:
        super().__init__(keep_events=1)

    async def open(self, response_id: str) -> EventBatches:  # type: ignore[override]
        return await super().open(response_id)


class Prompts(FolderPromptTemplates):
    def __init__(self, options: Options) -> None:
        super().__init__(options.folder or Path())
        self.options = options


class WordEmbeddings(Embeddings):
    """One dimension and one model: all texts mean the same."""

    def __init__(self, model: str, options: Options) -> None:
        self.model, self.options = model, options

    async def embed(self, texts: Sequence[str]) -> Vectors:
        return Vectors(model=self.model, each=[b"\x00\x00\x80\x3f" for _ in texts])


class Tiles(ScriptedImageGenerator):
    def __init__(self, model: str, options: Options) -> None:
        self.model, self.options = model, options


class Watch(Guard):
    def __init__(self, options: Options) -> None:
        self.options = options

    async def check(self, asked: GuardQuestion) -> Verdict:
        return Pass()


class Boxes(ToySandboxes):
    def __init__(self, memory_mb: int, shell: bool, options: Options) -> None:
        super().__init__()
        self.memory_mb, self.shell, self.options = memory_mb, shell, options


class Scripts(QuickjsPrograms):
    def __init__(self, program_cpu_s: int, options: Options) -> None:
        super().__init__(ProgramLimits(cpu_s=program_cpu_s))
        self.options = options

    async def start(self) -> None:
        pass  # nothing runs in it


class Search(SearxngService):
    def __init__(self, url: str, options: Options) -> None:
        super().__init__(url)
        self.options = options


class OwnWeb(CorpusWeb):
    """A folder of pages that could also fetch others."""

    def __init__(
        self, folder: Path, page_reader: PageReader, page_fetcher: Fetcher, results: int
    ) -> None:
        super().__init__(
            folder,
            page_reader,
            base_url="https://corpus.invalid/",
            limit=results,
            max_bytes=10_000,
            timeout_s=10.0,
        )
        self.page_fetcher = page_fetcher


class Audit(AuditLog):
    def __init__(self, options: Options) -> None:
        self.options = options
        self.calls: list[ToolCallRecord] = []

    def record(self, call: ToolCallRecord) -> None:
        self.calls.append(call)


class Kilometers(ToolSession):
    """The tool `convert`, which knows one length."""

    async def tools(self) -> tuple[Json, ...]:
        return ({"name": "convert", "input_schema": {"type": "object"}},)

    async def call(self, _name: str, _arguments: Json) -> ToolResult:
        return ToolResult(output="1000 m")

    async def aclose(self) -> None:
        pass


class Tools(ToolServer):
    label = "lengths"

    def __init__(self, options: Options) -> None:
        self.options = options

    def session(self) -> ToolSession:
        return Kilometers()


class LateLabel(Tools):
    def __init__(self, options: Options | None = None) -> None:
        if options is not None:
            super().__init__(options)

    @property
    def label(self) -> str:
        return "late"


class Plain(MemoryStore):
    """It takes no options."""

    def __init__(self) -> None:
        super().__init__()


class Failing(MemoryStore):
    def __init__(self, options: dict[str, Any]) -> None:
        raise ValueError(f"cannot reach {options['address']}")


class Forgiving(MemoryStore):
    """Its options may be left out."""

    def __init__(self, options: Options | None = None) -> None:
        super().__init__()
        self.options = options


class Nothing:
    """It is no adapter at all."""

    label = "nothing"


class EngineOptions(Struct, kw_only=True, forbid_unknown_fields=True):
    model: str
    context_length: int = 2000


class OwnEngine(ScriptedEngine):
    """An engine with tokens of its own."""

    def __init__(self, names: tuple[str, ...], options: EngineOptions) -> None:
        super().__init__(WordMarkup(), names, context_length=options.context_length)
        self.options = options


class NamelessEngine(ScriptedEngine):
    def __init__(self) -> None:
        super().__init__(WordMarkup())


class CountingEngine(Engine):
    """It continues every prompt with the number of its tokens, in a tokenizer of its own.

    That tokenizer has a token for each letter, and `tokenizer` in the table names its folder.
    """

    models: Sequence[str] = ()
    context_length = 4000
    sampling_defaults: Mapping[str, Any] = {}
    reads_images = False

    def __init__(self, names: tuple[str, ...]) -> None:
        self.models = names

    async def prepare(self, prompt: Prompt) -> Prompt:
        return prompt

    async def generate(self, request: EngineRequest) -> AsyncGenerator[Step]:
        return self._count(len(request.prompt.token_ids))

    async def _count(self, tokens: int) -> AsyncGenerator[Step]:
        for digit in str(tokens):
            yield Step(text=digit, token_ids=[int(digit)])
        yield Step(finish="stop")
