"""The shell of one response: it runs commands in a container and streams their output."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing

from antiphon.application.ports import CommandExit, CommandOutput, NewId, Sandbox
from antiphon.application.tools.calls import ToolCaller
from antiphon.application.tools.citations import CitationSource
from antiphon.application.tools.response_container import ResponseContainer
from antiphon.application.tools.work import WorkOutput
from antiphon.domain import deltas as d
from antiphon.domain.content import Annotation
from antiphon.domain.errors import SandboxError
from antiphon.domain.items import CONTAINER_REFERENCE
from antiphon.domain.json import Json
from antiphon.domain.offers.client_tools import item_fields_of
from antiphon.domain.tools import CONTAINER

MAX_COMMANDS = 32
MAX_OUTPUT = 1024 * 1024
"""Characters that all commands of a call may print together."""

EXIT_CODE_NOT_RUN = 126
"""The exit code that shells give to a command that they could not run."""


class ShellCaller(ToolCaller, CitationSource):
    """Runs the commands of one response. Their output follows the call, as an item of its own."""

    step = "running"

    def __init__(self, container: ResponseContainer, new_id: NewId) -> None:
        self._container = container
        self._new_id = new_id
        self.note = container.skills_note

    @property
    def needs_this_server(self) -> bool:
        return self._container.is_only_here

    def cite(self, words: str, start: int, end: int, /) -> Annotation | None:
        return self._container.cite(words, start, end)

    def open_item(self, start: d.CallStart) -> d.Delta:
        environment = {"type": CONTAINER_REFERENCE, "container_id": self._container.id}
        call_id = start.call_id or self._new_id("call")
        return d.HostedCallStart(
            start.name,
            call_id,
            start.namespace,
            start.kind,
            fields={"environment": environment},
        )

    def reopen_item(self, start: d.CallStart, opening: d.Delta) -> d.Delta:  # noqa: ARG002
        assert isinstance(opening, d.HostedCallStart)
        self._container.restore(str(opening.fields["environment"]["container_id"]))
        return opening

    def refuse(self, start: d.CallStart, arguments: str, reason: str) -> Sequence[d.Delta]:  # noqa: ARG002
        return [_open_output(start), *_CommandRecord(0, 0).refuse(reason), d.ToolEnd()]

    def abort(self, reason: str) -> Sequence[d.Delta]:
        return [d.ToolEnd("incomplete", {"why": f"{reason}\n"})]

    async def call(self, start: d.CallStart, arguments: str) -> WorkOutput:
        fields = item_fields_of(CONTAINER, arguments)
        if fields is None:
            yield self.refuse(start, arguments, "The arguments are not those of this tool.")
            return
        action = fields["action"]
        yield [_open_output(start, action["max_output_length"])]
        try:
            async with (
                self._container.acquire() as sandbox,
                aclosing(_run_commands(sandbox, action, self._container.take_note())) as batches,
            ):
                async for batch in batches:
                    yield batch
        except SandboxError as error:
            # No container could be opened: `_run_commands` reports the errors of commands itself.
            yield _CommandRecord(0, 0).refuse(str(error))
        yield [d.ToolEnd()]


async def _run_commands(sandbox: Sandbox, action: Json, note: str) -> WorkOutput:
    requested_length, remaining_length = action["max_output_length"], MAX_OUTPUT
    timeout_s = max(0, action["timeout_ms"] or 0) / 1000 or None
    for index, command in enumerate(action["commands"]):
        max_length = remaining_length
        if requested_length is not None:
            max_length = max(0, min(requested_length, remaining_length))
        record = _CommandRecord(index, max_length)
        if index >= MAX_COMMANDS:
            yield record.refuse(f"Not run: a call may have {MAX_COMMANDS} commands.")
            continue
        if index == 0 and note and (delta := record.add(CommandOutput(stderr=f"{note}\n"))):
            yield [delta]
        try:
            async with aclosing(sandbox.command(command, timeout_s=timeout_s)) as outputs:
                async for output in outputs:
                    if isinstance(output, CommandExit):
                        yield record.end(output, notes_omission=requested_length is None)
                    elif delta := record.add(output):
                        yield [delta]
        except SandboxError as error:
            yield record.refuse(str(error))
        remaining_length -= record.length


class _CommandRecord:
    """The output of one command, up to `max_length` characters, as deltas of the output item."""

    def __init__(self, index: int, max_length: int) -> None:
        self._index = index
        self._max_length = max_length
        self._texts = {"stdout": "", "stderr": ""}
        self._omitted = 0

    @property
    def length(self) -> int:
        return sum(map(len, self._texts.values()))

    def add(self, output: CommandOutput) -> d.Delta | None:
        added: dict[str, str] = {}
        for name, text in (("stdout", output.stdout), ("stderr", output.stderr)):
            fitting = text[: max(0, self._max_length - self.length)]
            self._omitted += len(text) - len(fitting)
            if fitting:
                self._texts[name] += fitting
                added[name] = fitting
        if not added:
            return None
        return d.ToolProgress("output", {"command_index": self._index, "delta": added})

    def end(self, end: CommandExit, *, notes_omission: bool) -> list[d.Delta]:
        """Return the end of the command's output.

        `notes_omission`: a note tells the model how much was left out. It needs none of a limit
        that it set itself.
        """
        deltas: list[d.Delta] = []
        if self._omitted and notes_omission:
            deltas += self._add_note(f"\n[{self._omitted} more characters were left out.]\n")
        outcome = {"type": "exit", "exit_code": end.code}
        if end.code is None:
            outcome = {"type": "timeout"}
        entry = {**self._texts, "outcome": outcome}
        fields = {"command_index": self._index, "output": (entry,)}
        return [*deltas, d.ToolProgress("output_done", fields)]

    def refuse(self, reason: str) -> list[d.Delta]:
        end = CommandExit(code=EXIT_CODE_NOT_RUN)
        return [*self._add_note(f"{reason}\n"), *self.end(end, notes_omission=False)]

    def _add_note(self, note: str) -> list[d.Delta]:
        self._texts["stderr"] += note
        fields = {"command_index": self._index, "delta": {"stderr": note}}
        return [d.ToolProgress("output", fields)]


def _open_output(start: d.CallStart, max_output_length: int | None = None) -> d.Delta:
    fields = {"call_id": start.call_id, "max_output_length": max_output_length}
    return d.ToolStart("shell_call_output", fields)
