"""The shell of one response: commands in a container, and what they print while they run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

from antiphon.application.ports import CommandExit, CommandOutput, NewId, Sandbox
from antiphon.application.tools.calls import ToolCaller
from antiphon.application.tools.citations import CitationSource
from antiphon.application.tools.response_container import ResponseContainer
from antiphon.application.tools.work import Given
from antiphon.domain import deltas as d
from antiphon.domain.client_tools import item_fields_of
from antiphon.domain.content import Annotation
from antiphon.domain.errors import SandboxError
from antiphon.domain.items import REFERENCE
from antiphon.domain.json import Json
from antiphon.domain.tools import CONTAINER

MAX_COMMANDS = 32
MAX_OUTPUT = 1024 * 1024
"""Characters that all commands of a call may print together."""

NOT_RUN = 126
"""The exit code of a command that was not run, as shells have it."""


class ShellCaller(ToolCaller, CitationSource):
    """Runs the commands of one response. Their output is an item of its own, which follows."""

    step = "running"

    def __init__(self, workplace: ResponseContainer, new_id: NewId) -> None:
        self._workplace = workplace
        self._new_id = new_id

    def cite(self, words: str, start: int, end: int, /) -> Annotation | None:
        return self._workplace.cite(words, start, end)

    def open_item(self, start: d.CallStart) -> d.Delta:
        environment = {"type": REFERENCE, "container_id": self._workplace.id}
        call_id = start.call_id or self._new_id("call")
        return d.HostedCallStart(
            start.name, call_id, start.namespace, start.kind, {"environment": environment}
        )

    def refused(self, start: d.CallStart, arguments: str, why: str) -> Sequence[d.Delta]:  # noqa: ARG002
        return [_opened(start), *_Output(0, 0).refused(why), d.ToolEnd()]

    def cut(self, why: str) -> Sequence[d.Delta]:
        return [d.ToolEnd("incomplete", {"why": f"{why}\n"})]

    async def call(self, start: d.CallStart, arguments: str) -> Given:
        fields = item_fields_of(CONTAINER, arguments)
        if fields is None:
            yield self.refused(start, arguments, "The arguments are not those of this tool.")
            return
        action = fields["action"]
        yield [_opened(start, action["max_output_length"])]
        try:
            async with self._workplace.taken() as sandbox, aclosing(_run(sandbox, action)) as given:
                async for batch in given:
                    yield batch
        except SandboxError as error:
            # There was no container: one that ends with a command is told of by that.
            yield _Output(0, 0).refused(str(error))
        yield [d.ToolEnd()]


async def _run(sandbox: Sandbox, action: Json) -> Given:
    asked, room = action["max_output_length"], MAX_OUTPUT
    timeout_s = max(0, action["timeout_ms"] or 0) / 1000 or None
    for index, command in enumerate(action["commands"]):
        output = _Output(index, room if asked is None else max(0, min(asked, room)))
        if index >= MAX_COMMANDS:
            yield output.refused(f"Not run: a call may have {MAX_COMMANDS} commands.")
            continue
        try:
            async with aclosing(sandbox.command(command, timeout_s=timeout_s)) as printed:
                async for each in printed:
                    if isinstance(each, CommandExit):
                        yield output.ended(each, is_told=asked is None)
                    elif delta := output.printed(each):
                        yield [delta]
        except SandboxError as error:
            yield output.refused(str(error))
        room -= output.taken


class _Output:
    """What one command prints, up to `room` characters."""

    def __init__(self, index: int, room: int) -> None:
        self._index = index
        self._room = room
        self._kept = {"stdout": "", "stderr": ""}
        self._dropped = 0

    @property
    def taken(self) -> int:
        return sum(map(len, self._kept.values()))

    def printed(self, piece: CommandOutput) -> d.Delta | None:
        delta: dict[str, str] = {}
        for name, text in (("stdout", piece.stdout), ("stderr", piece.stderr)):
            kept = text[: max(0, self._room - self.taken)]
            self._dropped += len(text) - len(kept)
            if kept:
                self._kept[name] += kept
                delta[name] = kept
        if not delta:
            return None
        return d.ToolProgress("output", {"command_index": self._index, "delta": delta})

    def ended(self, end: CommandExit, *, is_told: bool) -> list[d.Delta]:
        """`is_told`: the model is told of what was left out, since it did not ask for that."""
        deltas: list[d.Delta] = []
        if self._dropped and is_told:
            deltas += self._noted(f"\n[{self._dropped} more characters were left out.]\n")
        outcome = {"type": "exit", "exit_code": end.code}
        if end.code is None:
            outcome = {"type": "timeout"}
        entry = {**self._kept, "outcome": outcome}
        fields = {"command_index": self._index, "output": (entry,)}
        return [*deltas, d.ToolProgress("output_done", fields)]

    def refused(self, why: str) -> list[d.Delta]:
        return [*self._noted(f"{why}\n"), *self.ended(CommandExit(code=NOT_RUN), is_told=False)]

    def _noted(self, note: str) -> list[d.Delta]:
        self._kept["stderr"] += note
        fields = {"command_index": self._index, "delta": {"stderr": note}}
        return [d.ToolProgress("output", fields)]


def _opened(start: d.CallStart, max_output_length: int | None = None) -> d.Delta:
    fields = {"call_id": start.call_id, "max_output_length": max_output_length}
    return d.ToolStart("shell_call_output", fields)
