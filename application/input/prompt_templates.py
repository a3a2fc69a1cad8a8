"""A request that names a prompt template becomes an ordinary one, before everything else."""

from __future__ import annotations

from antiphon.application.ports import PromptTemplates
from antiphon.domain.errors import NotFound, RequestError
from antiphon.domain.prompt_templates import expand
from antiphon.domain.request import CreateResponse


class ExpandPrompt:
    """`templates` is None where the server was given none."""

    def __init__(self, templates: PromptTemplates | None) -> None:
        self._templates = templates

    async def __call__(self, request: CreateResponse) -> CreateResponse:
        """Return the request with its template applied. Raises: RequestError, NotFound."""
        asked = request.prompt
        if asked is None:
            return request
        if self._templates is None:
            raise RequestError(
                "Unsupported parameter: 'prompt'. This server has no prompt templates; "
                "the setting --prompts-dir names their folder.",
                param="prompt",
                code="unsupported_parameter",
            )
        template = await self._templates.get(asked.id, asked.version)
        if template is None:
            raise _not_found(asked.id, asked.version)
        return expand(request, asked, template)


def _not_found(prompt_id: str, version: str | None) -> NotFound:
    which = "" if version is None else f" in version {version[:100]!r}"
    return NotFound(f"Prompt with id {prompt_id[:100]!r} not found{which}.", param="prompt.id")
