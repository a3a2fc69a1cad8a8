"""Contract tests for the port `PromptTemplates`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from antiphon.application.ports import PromptTemplates


@pytest.mark.asyncio
class PromptTemplatesContract:
    """Subclass it where pytest collects tests.

    `prompt_id` names a prompt that exists, and `versions` all of its versions, the newest last.

    class TestMyPrompts(PromptTemplatesContract):
        prompt_id = "greeting"
        versions = ("1", "2")

        @pytest_asyncio.fixture
        async def templates(self):
            templates = MyPrompts()
            await templates.start()
            return templates
    """

    prompt_id: str
    versions: Sequence[str]

    @pytest.fixture
    def templates(self) -> PromptTemplates:
        raise NotImplementedError("override this fixture: return your templates, started")

    async def test_each_version_is_found(self, templates: PromptTemplates) -> None:
        for version in self.versions:
            template = await templates.get(self.prompt_id, version)
            assert template is not None
            assert template.version == version

    async def test_the_newest_version_is_found_without_its_number(
        self, templates: PromptTemplates
    ) -> None:
        newest = await templates.get(self.prompt_id, None)
        assert newest is not None
        assert newest.version == self.versions[-1]
        assert newest == await templates.get(self.prompt_id, self.versions[-1])

    @pytest.mark.parametrize("text", ["", "no-such", "../greeting", "/", "\x00", "*", "x" * 5000])
    async def test_an_unknown_prompt_or_version_is_none(
        self, templates: PromptTemplates, text: str
    ) -> None:
        assert await templates.get(text, None) is None
        assert await templates.get(text, self.versions[0]) is None
        assert await templates.get(self.prompt_id, text) is None

    async def test_templates_may_be_read_side_by_side(self, templates: PromptTemplates) -> None:
        found = await asyncio.gather(*(templates.get(self.prompt_id, None) for _ in range(10)))
        assert all(template == found[0] for template in found)
