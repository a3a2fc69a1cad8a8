"""The code interpreter of one response: its calls, one after another in one container."""

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

    def __init__(self, workplace: ResponseContainer) -> None:
        self._workplace = workplace

    def cite(self, words: str, start: int, end: int, /) -> Annotation | None:
        return self._workplace.cite(words, start, end)

    def open_item(self, start: d.CallStart) -> d.Delta:  # noqa: ARG002
        return d.ToolStart("code_interpreter_call", {"container_id": self._workplace.id})

    def is_unreachable(self, end: d.ToolEnd) -> bool:
        return end.status == "failed"  # it could not be run: what its code does is output

    def refusal(self, why: str) -> d.ToolEnd:
        return d.ToolEnd("failed", {"outputs": (_logs(why),)})

    async def end(self, start: d.CallStart, arguments: str) -> d.ToolEnd:  # noqa: ARG002
        try:
            async with self._workplace.taken() as sandbox:
                ran = await sandbox.run(arguments)
        except SandboxError as error:
            return self.refusal(str(error))
        return d.ToolEnd("completed", {"outputs": _outputs(ran)})


def _outputs(ran: CodeResult) -> tuple[Json, ...]:
    # Code that prints nothing has an output too: the model sees that it ran.
    logs = (_logs(ran.logs),) if ran.logs or not ran.images else ()
    return (*logs, *map(_image, ran.images))


def _logs(text: str) -> Json:
    return {"type": "logs", "logs": text}


def _image(content: bytes) -> Json:
    url = "data:image/png;base64," + base64.b64encode(content).decode("ascii")
    return {"type": "image", "url": url}
