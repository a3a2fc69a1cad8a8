"""The examples of the contracts run as they stand, with pytest and pytest-asyncio alone."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping
from itertools import takewhile
from pathlib import Path
from textwrap import dedent
from typing import NamedTuple

import pytest
from tests.testing.runs import LIMIT_S, ONLY_FOR_OUR_TESTS, STRICT, run_pytest, write

from antiphon.testing.store import StoreContract

pytestmark = pytest.mark.docs

STRANGERS = f"""
import sys

sys.modules.update(dict.fromkeys({ONLY_FOR_OUR_TESTS!r}))  # importing one of them fails
"""


class Example(NamedTuple):
    """A contract, and what the reader of its example has written."""

    module: str
    contract: str
    setup: str


EXAMPLES = (
    Example(
        "store",
        "StoreContract",
        """
        from antiphon.adapters.stores.memory.store import MemoryStore

        class MyStore(MemoryStore):
            def __init__(self, folder):
                super().__init__()
        """,
    ),
    Example(
        "event_log",
        "EventLogContract",
        "from antiphon.adapters.stores.memory.event_log import MemoryEventLog as MyLog",
    ),
    Example(
        "file_store",
        "FileStoreContract",
        "from antiphon.adapters.stores.files.store import FolderFileStore as MyFiles",
    ),
    Example(
        "vector_stores",
        "VectorStoresContract",
        "from antiphon.adapters.stores.vectors.store import SqliteVectorStores as MyVectorStores",
    ),
    Example(
        "batches",
        "BatchesContract",
        "from antiphon.adapters.stores.batches.store import SqliteBatches as MyBatches",
    ),
    Example(
        "tool_server",
        "ToolServerContract",
        """
        from antiphon.application.ports import ToolResult, ToolServer, ToolSession

        class MySession(ToolSession):
            async def tools(self):
                schema = {"type": "object", "properties": {"word": {"type": "string"}}}
                return ({"name": "look_up", "input_schema": schema},)

            async def call(self, name, arguments):
                if name != "look_up" or "word" not in arguments:
                    return ToolResult(error={"type": "wrong_call"})
                return ToolResult(output=f"{arguments['word']}: a word")

            async def aclose(self):
                pass

        class MyTools(ToolServer):
            label = "words"

            def session(self):
                return MySession()

            async def aclose(self):
                pass
        """,
    ),
    Example(
        "web",
        "WebContract",
        """
        from pathlib import Path
        from antiphon.adapters.pdf import PdfReader
        from antiphon.adapters.web.corpus import CorpusWeb
        from antiphon.adapters.web.page_reader import PageReader

        class MyWeb(CorpusWeb):
            def __init__(self):
                super().__init__(
                    Path("pages"),
                    PageReader(PdfReader()),
                    base_url="https://example.org/",
                    limit=10,
                    max_bytes=10_000,
                    timeout_s=10.0,
                )
        """,
    ),
    Example(
        "engine",
        "EngineContract",
        """
        import itertools
        from antiphon.adapters.engines.scripted.engine import ScriptedEngine
        from antiphon.application.ports import EngineRequest, Prompt, Sampling, Turn
        from antiphon.testing.scripts import script
        from tests.adapters.engines.conftest import WordMarkup

        class CountingMarkup(WordMarkup):
            def read(self, token_ids):
                return [("user", script({"say": " ".join(map(str, range(40)))}))]

        class MyEngine(ScriptedEngine):
            def __init__(self):
                super().__init__(CountingMarkup(), context_length=2000)

            async def kill(self):
                self._die("it was killed")

            async def is_idle(self):
                return self.running == 0
        """,
    ),
    Example(
        "model",
        "ModelContract",
        """
        from antiphon.adapters.engines.scripted.engine import ScriptedEngine
        from antiphon.adapters.formats.chat_template import ScriptedMarkup, scripted_chat
        from antiphon.application.model.token_model import TokenModel
        from antiphon.application.ports import Turn
        from antiphon.domain.items import Message

        class CountingMarkup(ScriptedMarkup):
            def read(self, token_ids):
                count = '@@script [{"say": "%s"}]' % " ".join(map(str, range(40)))
                return [
                    (role, count if text == "Count to forty." else text)
                    for role, text in super().read(token_ids)
                ]

        class MyModel(TokenModel):
            def __init__(self):
                engine = ScriptedEngine(CountingMarkup(), models=["mine"], context_length=4000)
                super().__init__(scripted_chat, engine)
        """,
    ),
    Example(
        "sandboxes",
        "SandboxesContract",
        "from tests.support.toy_sandboxes import ToySandboxes as MySandboxes",
    ),
    Example(
        "programs",
        "ProgramsContract",
        """
        from antiphon.adapters.sandboxes.quickjs import ProgramLimits, QuickjsPrograms

        class MyPrograms(QuickjsPrograms):
            def __init__(self):
                super().__init__(ProgramLimits(cpu_s=1))
        """,
    ),
    Example(
        "embeddings",
        "EmbeddingsContract",
        """
        from array import array
        from hashlib import sha256
        from math import hypot
        from antiphon.application.ports import Embeddings, Vectors

        def vector_of(text):
            numbers = [byte + 1 for byte in sha256(text.encode()).digest()]
            return array("f", (number / hypot(*numbers) for number in numbers)).tobytes()

        class MyEmbeddings(Embeddings):
            async def embed(self, texts):
                return Vectors(model="hashes", each=[vector_of(text) for text in texts])
        """,
    ),
    Example(
        "guards",
        "GuardContract",
        """
        from antiphon.application.ports import Guard
        from antiphon.domain.responses.guards import Pass, Refuse

        class MyGuard(Guard):
            async def check(self, asked):
                return Refuse() if "Abracadabra" in asked.text else Pass()
        """,
    ),
    Example(
        "images",
        "ImageGeneratorContract",
        "from antiphon.adapters.engines.scripted.images import ScriptedImageGenerator as MyImages",
    ),
    Example(
        "prompt_templates",
        "PromptTemplatesContract",
        """
        from antiphon.application.ports import PromptTemplates
        from antiphon.domain.requests.prompt_templates import template_of

        class MyPrompts(PromptTemplates):
            async def start(self):
                self._versions = {
                    version: template_of({"instructions": f"Greet {version} times."}, version)
                    for version in ("1", "2")
                }

            async def get(self, prompt_id, version):
                known = self._versions if prompt_id == "greeting" else {}
                return known.get("2" if version is None else version)
        """,
    ),
    Example(
        "audit_log",
        "AuditLogContract",
        """
        import pickle
        from antiphon.application.ports import AuditLog

        class MyAuditLog(AuditLog):
            def __init__(self, path):
                self._path, self._calls = path, []

            def record(self, call):
                self._calls.append(call)

            async def aclose(self):
                self._path.write_bytes(pickle.dumps(self._calls))

        def my_records_in(path):
            return pickle.loads(path.read_bytes())
        """,
    ),
    Example(
        "family",
        "FamilyContract",
        """
        from antiphon.adapters.formats.chat_template.families import FAMILIES

        MINE = FAMILIES["glm"]
        """,
    ),
)

PAGES: Mapping[str, str] = {
    "pages/choirs.md": "# Choirs\n\nAn antiphon is sung. See [psalms](psalms.md).",
    "pages/psalms.md": "# Psalms\n\nEach has an antiphon.",
}


def example_of(contract: type) -> str:
    """Return the class that a contract's docstring shows."""
    lines = (inspect.getdoc(contract) or "").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("class Test"))
    after = lines[start + 1 :]
    return "\n".join([lines[start], *takewhile(lambda line: line[:1] in ("", " "), after)])


def test_every_contract_has_an_example_here() -> None:
    testing = Path(inspect.getfile(importlib.import_module("antiphon.testing"))).parent
    contracts = {
        file.stem
        for file in testing.glob("*.py")
        if re.search(r"^class \w+Contract\b", file.read_text(), re.MULTILINE)
    }
    parts_of_a_store = {base.__module__.rpartition(".")[2] for base in StoreContract.__mro__[1:-1]}
    assert contracts - parts_of_a_store == {example.module for example in EXAMPLES}


@pytest.mark.timeout(LIMIT_S)
@pytest.mark.parametrize("example", EXAMPLES, ids=[example.module for example in EXAMPLES])
def test_an_example_runs_in_strict_mode(tmp_path: Path, example: Example) -> None:
    module = importlib.import_module(f"antiphon.testing.{example.module}")
    contract = getattr(module, example.contract)
    write(
        tmp_path,
        {
            **PAGES,
            "conftest.py": STRANGERS,
            "test_mine.py": "\n".join(
                (
                    "import pytest",
                    "import pytest_asyncio",
                    dedent(example.setup),
                    f"from antiphon.testing.{example.module} import {example.contract}",
                    example_of(contract),
                )
            ),
        },
    )
    outcome = run_pytest(tmp_path, *STRICT, plugins=("pytest_asyncio.plugin",))
    tests = [name for name in dir(contract) if name.startswith("test_")]
    assert outcome.passed >= len(tests)
