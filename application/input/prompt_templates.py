"""Expand a request that names a prompt template into an ordinary request."""

from __future__ import annotations

from antiphon.application.ports import PromptTemplates
from antiphon.domain.errors import NotFound, RequestError
from antiphon.domain.requests.prompt_templates import expand
from antiphon.domain.requests.request import CreateResponse


class ExpandPrompt:
    """Applies prompt templates; `templates` is None where the server has none."""

    def __init__(self, templates: PromptTemplates | None) -> None:
        self._templates = templates

    async def __call__(self, request: CreateResponse) -> CreateResponse:
        """Return the request with its template applied. Raises: RequestError, NotFound."""
        prompt = request.prompt
        if prompt is None:
            return request
        if self._templates is None:
            raise RequestError(
                "Unsupported parameter: 'prompt'. This server has no prompt templates; "
                "the setting --prompts-dir names their folder.",
                param="prompt",
                code="unsupported_parameter",
            )
        template = await self._templates.get(prompt.id, prompt.version)
        if template is None:
            raise _not_found(prompt.id, prompt.version)
        return expand(request, prompt, template)


def _not_found(prompt_id: str, version: str | None) -> NotFound:
    which = "" if version is None else f" in version {version[:100]!r}"
    return NotFound(f"Prompt with id {prompt_id[:100]!r} not found{which}.", param="prompt.id")
