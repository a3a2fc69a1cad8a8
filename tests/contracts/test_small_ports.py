"""Embeddings, prompt templates and the audit log: ours pass the contracts."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import msgspec
import pytest
import pytest_asyncio
from tests.adapters.fake_embeddings import FakeEmbeddings, embedding

from antiphon.adapters.audit_file import AuditFile
from antiphon.adapters.embeddings import HttpEmbeddings
from antiphon.adapters.prompts.folder import FolderPromptTemplates
from antiphon.application.ports import AuditLog, Embeddings, PromptTemplates, ToolCallRecord
from antiphon.testing.audit_log import AuditLogContract, ReadRecords
from antiphon.testing.embeddings import EmbeddingsContract
from antiphon.testing.prompt_templates import PromptTemplatesContract


class TestHttpEmbeddings(EmbeddingsContract):
    @pytest.fixture
    def engine(self) -> Iterator[FakeEmbeddings]:
        with embedding() as fake:
            yield fake

    @pytest_asyncio.fixture
    async def embeddings(self, engine: FakeEmbeddings) -> AsyncIterator[Embeddings]:
        embeddings = HttpEmbeddings(engine.url, model="small", timeout_s=10)
        await embeddings.start()
        yield embeddings
        await embeddings.aclose()


class TestFolderPromptTemplates(PromptTemplatesContract):
    prompt_id = "greeting"
    versions = ("1", "9", "10")

    @pytest_asyncio.fixture
    async def templates(self, tmp_path: Path) -> PromptTemplates:
        for version in self.versions:
            file = tmp_path / self.prompt_id / f"{version}.toml"
            file.parent.mkdir(exist_ok=True)
            file.write_text(f'instructions = "Greet like version {version}."')
        templates = FolderPromptTemplates(tmp_path)
        await templates.start()
        return templates


class TestAuditFile(AuditLogContract):
    @pytest.fixture
    def new_log(self, tmp_path: Path) -> AuditLog:
        return AuditFile(tmp_path / "audit.jsonl", now=lambda: 1_790_000_000.25)

    @pytest.fixture
    def read(self, tmp_path: Path) -> ReadRecords:
        def read() -> list[ToolCallRecord]:
            lines = (tmp_path / "audit.jsonl").read_bytes().splitlines()
            return [msgspec.json.decode(line, type=ToolCallRecord) for line in lines]

        return read
