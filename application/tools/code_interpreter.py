"""The code interpreter of one response: its calls run one after another in one container."""

from __future__ import annotations

import base64

from antiphon.application.ports import CodeResult
from antiphon.application.tools.calls import SingleItemCaller
from antiphon.application.tools.citations import CitationSource
from antiphon.application.tools.response_container import ResponseContainer
from antiphon.domain import deltas as d
from antiphon.domain.content import Annotation
from antiphon.domain.errors import SandboxError
from antiphon.domain.json import Json


class CodeInterpreterCaller(SingleItemCaller, CitationSource):
    """Runs the code of one response."""

    step = "interpreting"

    def __init__(self, container: ResponseContainer, *, note: str = "") -> None:
        self._container = container
        self.note = note

    @property
    def needs_this_server(self) -> bool:
        return self._container.is_only_here

    def cite(self, words: str, start: int, end: int, /) -> Annotation | None:
        return self._container.cite(words, start, end)

    def open_item(self, start: d.CallStart) -> d.Delta:  # noqa: ARG002
        return d.ToolStart("code_interpreter_call", {"container_id": self._container.id})

    def reopen_item(self, start: d.CallStart, opening: d.Delta) -> d.Delta:  # noqa: ARG002
        assert isinstance(opening, d.ToolStart)
        self._container.restore(str(opening.fields["container_id"]))
        return opening

    def is_unreachable(self, end: d.ToolEnd) -> bool:
        return end.status == "failed"  # the code could not run: its own errors are output

    def refusal_of(self, reason: str) -> d.ToolEnd:
        return d.ToolEnd("failed", {"outputs": (_to_logs(reason),)})

    async def run(self, start: d.CallStart, arguments: str) -> d.ToolEnd:  # noqa: ARG002
        try:
            async with self._container.acquire() as sandbox:
                result = await sandbox.run(arguments)
                note = self._container.take_note()
        except SandboxError as error:
            return self.refusal_of(str(error))
        return d.ToolEnd("completed", {"outputs": _outputs_of(result, note)})


def _outputs_of(result: CodeResult, note: str) -> tuple[Json, ...]:
    text = f"{note}\n{result.logs}" if note else result.logs
    # Code that prints nothing has an output too: the model sees that it ran.
    logs = (_to_logs(text),) if text or not result.images else ()
    return (*logs, *map(_to_image, result.images))


def _to_logs(text: str) -> Json:
    return {"type": "logs", "logs": text}


def _to_image(content: bytes) -> Json:
    url = "data:image/png;base64," + base64.b64encode(content).decode("ascii")
    return {"type": "image", "url": url}
