"""The programs of one response: JavaScript that models write to call tools.

ProgramTools  offers the tool to requests, if this server runs programs
RunPrograms   all that a response needs to run its programs
ProgramTurn   runs all programs that can go on, up to their ends or to calls of the client's

A program has no state here. Each step is taken from the items of the conversation: which calls the
program has made, and what they came to. So any server goes on with it, in this response or in a
later one (docs/decisions/0152).
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from functools import partial
from typing import Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from antiphon.application.ports import (
    CallOutcome,
    Json,
    ModelTurn,
    ProgramCall,
    Programs,
    ProgramSource,
    ProgramStep,
    RunningProgram,
    TurnFacts,
)
from antiphon.application.tools.calls import APPROVAL, ToolCaller, ToolCalls
from antiphon.application.tools.hosted import ToolProvider
from antiphon.application.tools.work import Work
from antiphon.domain import deltas as d
from antiphon.domain.errors import SandboxError
from antiphon.domain.history.programs import (
    MatchedCalls,
    NestedCall,
    NewCall,
    ended_early,
    match_calls,
    open_programs,
    recorded_calls,
    was_stopped,
)
from antiphon.domain.items import AnyItem, Program
from antiphon.domain.kinds.multi_agent import ROOT
from antiphon.domain.kinds.program import PROGRAM, clock_of
from antiphon.domain.offers.offer import ToolDefinition
from antiphon.domain.responses.guards import Refuse
from antiphon.domain.responses.metrics import ProgramMetrics
from antiphon.domain.responses.usage import TurnUsage
from antiphon.domain.tools import ProgrammaticToolCalling, RequestTool, ToolSpec

NOT_RUN_HERE = "Error: the program could not go on: this server does not run programs."
REPLACED = "A guard of the server would have changed what it sends."
STOPPED = "Error: the program was stopped with its response. Some of its calls were made."


class ProgramTools(ToolProvider):
    """Offers programs. What runs their calls are the callers of the tools that they call."""

    @property
    def tool_types(self) -> Sequence[str]:
        return ["programmatic_tool_calling"]

    def handles(self, tool: RequestTool) -> bool:
        return isinstance(tool, ProgrammaticToolCalling)

    async def callers(
        self,
        tools: Sequence[ToolDefinition],  # noqa: ARG002
        conversation: Sequence[AnyItem],  # noqa: ARG002
        *,
        tenant: str,  # noqa: ARG002
    ) -> Mapping[str, ToolCaller]:
        return {}


class RunPrograms(Struct, frozen=True, kw_only=True):
    """All that a response needs to run its programs; `programs` is None if this server runs none.

    `earlier` are the items of programs in the conversation before the response, `agent` is the one
    whose programs they are.
    """

    programs: Programs | None
    calls: ToolCalls
    tenant: str
    earlier: Sequence[AnyItem]
    agent: str = ROOT

    def turn(
        self, output: Sequence[AnyItem], tools: Sequence[ToolSpec], first_item: int = 0
    ) -> ProgramTurn | None:
        """Return the turn that runs the programs, or None if none can go on.

        The response has the items `output` so far, and the run adds to them while the turn is
        read. Those from `first_item` on are the model's last turn. `tools` are those that programs
        may call.
        """
        first_new = len(self.earlier) + first_item
        programs = open_programs([*self.earlier, *output], first_new, self.agent)
        return ProgramTurn(self, programs, output, tools) if programs else None


class ProgramTurn(ModelTurn):
    """Runs programs, one after the other, in place of a turn of the model."""

    def __init__(
        self,
        run: RunPrograms,
        programs: Sequence[Program],
        output: Sequence[AnyItem],
        tools: Sequence[ToolSpec],
    ) -> None:
        self._run = run
        self._programs = programs
        self._output = output
        self._tools = tools

    async def __aiter__(self) -> AsyncGenerator[list[d.Delta]]:
        for program in self._programs:
            async with aclosing(self._run_program(program)) as batches:
                async for batch in batches:
                    yield batch
        yield [d.TurnEnd("stop", TurnUsage())]

    def with_output(self, output: Sequence[AnyItem]) -> ProgramTurn:
        """Return the same turn of a response that now has this output, which the run adds to."""
        return ProgramTurn(self._run, self._programs, output, self._tools)

    async def aclose(self) -> None:
        pass

    def facts(self) -> TurnFacts:
        return TurnFacts(kind="tools")

    def messages(self) -> tuple[list[Json], list[Json]]:
        return [], []

    async def _run_program(self, program: Program) -> AsyncGenerator[list[d.Delta]]:
        """Yield the calls of a program, and its output if it comes to its end."""
        why_not = NOT_RUN_HERE if self._run.programs is None else None
        if was_stopped(program, self._run.earlier):
            why_not = STOPPED
        if self._run.programs is None or why_not is not None:
            yield self._output_of(program, _failed(str(why_not)), len(self._recorded(program, 0)))
            return
        source = ProgramSource(
            code=program.code,
            tools=tuple(tool.name for tool in self._tools),
            seed=program.fingerprint,
            now=clock_of(program.fingerprint),
        )
        running = self._run.programs.open(self._run.tenant, source)
        outcomes: list[CallOutcome] = []
        matched_count = 0
        try:
            while (step := await self._take_step(running, outcomes)).calls:
                matched = self._match(program, step.calls, matched_count)
                if (refused := await self._find_refused(matched.new)) is not None:
                    yield await self._end(program, _failed(refused), matched_count)
                    return
                if matched.new:
                    async with aclosing(self._make_calls(program, matched.new)) as batches:
                        async for batch in batches:
                            yield batch
                    matched = self._match(program, step.calls, matched_count)
                if matched.mismatch is not None:
                    yield await self._end(program, _failed(matched.mismatch), matched_count)
                    return
                if matched.waits:
                    return
                outcomes += matched.outcomes
                matched_count += matched.recorded
            if left := self._recorded(program, matched_count):
                step = _failed(ended_early(left[0]))
            yield await self._end(program, step, matched_count)
        finally:
            await running.aclose()

    async def _take_step(
        self, running: RunningProgram, outcomes: Sequence[CallOutcome]
    ) -> ProgramStep:
        """Return the program's next step; a server that resumes the run gets the same one."""

        async def take() -> Json:
            try:
                step = await running.advance(outcomes)
            except SandboxError as error:
                step = _failed(f"Error: the program was stopped. {error}")
            taken: Json = msgspec.to_builtins(step)
            return taken

        return msgspec.convert(await self._run.calls.recall(take), ProgramStep)

    async def _find_refused(self, new: Sequence[NewCall]) -> str | None:
        """Return why one of the calls may not be made, None if guards let all of them pass.

        A program that is repeated makes the same calls, so none is made with other arguments.
        """
        for call in new:
            answer = await self._run.calls.check(_start_of(call.tool), call.input)
            if answer != call.input:
                why = answer.message if isinstance(answer, Refuse) else REPLACED
                return f"Error: the call of {call.tool.client_name} is not allowed. {why}"
        return None

    async def _end(self, program: Program, step: ProgramStep, call_count: int) -> list[d.Delta]:
        """Return the output of a program, as guards let it pass."""
        passed = await self._run.calls.check_output(PROGRAM, step.result)
        if isinstance(passed, Refuse):
            return self._output_of(program, _failed(f"Error: {passed.message}"), call_count)
        return self._output_of(program, replace(step, result=passed), call_count)

    def _output_of(self, program: Program, step: ProgramStep, call_count: int) -> list[d.Delta]:
        """Return the output of a program that ends, after so many calls, and record the end."""
        result: Literal["ok", "error"] = "error" if step.is_error else "ok"
        self._run.calls.note_program(ProgramMetrics(result=result, calls=call_count))
        status = "incomplete" if step.is_error else "completed"
        fields = {"status": status, "call_id": program.call_id, "result": step.result}
        return [d.ToolStart("program_output", fields), d.ToolEnd(status), d.ItemEnd()]

    def _recorded(self, program: Program, after: int) -> Sequence[NestedCall]:
        earlier, output = self._run.earlier, self._output
        return recorded_calls(program, earlier, output, self._tools, after=after)

    def _match(
        self, program: Program, calls: Sequence[ProgramCall], matched_count: int
    ) -> MatchedCalls:
        return match_calls(calls, self._recorded(program, matched_count), self._tools)

    async def _make_calls(
        self, program: Program, new: Sequence[NewCall]
    ) -> AsyncGenerator[list[d.Delta]]:
        """Yield the items of calls, in their order; those that this server runs run side by side.

        The item of each is complete when the next one begins.
        """
        add_caller = partial(_add_caller, {"type": "program", "caller_id": program.call_id})
        openings: list[list[d.Delta]] = []
        work_list: list[Work | None] = []
        for call in new:
            opening, work = self._open(call)
            openings.append(list(map(add_caller, opening)))
            work_list.append(work)
        # Shown before anything is called: a run that has shown nothing may start over.
        yield openings[0]
        async with self._run.calls.run_in_parallel(list(filter(None, work_list))) as running:
            outputs = iter(running)
            for number, work in enumerate(work_list):
                if number:
                    yield openings[number]
                if work is not None:
                    async for output in next(outputs):
                        yield list(map(add_caller, output))
                yield [d.ItemEnd()]

    def _open(self, call: NewCall) -> tuple[list[d.Delta], Work | None]:
        """Return the deltas that open the item of a call, and the work that ends it if this server
        runs it."""
        calls, tool = self._run.calls, call.tool
        start = _start_of(tool)
        opened = calls.open_item(start)
        if opened is None:
            if tool.kind == APPROVAL:
                calls.note_approval_request(start, call.input)
            return [start, d.ArgumentsDelta(call.input)], None
        start, opening = opened
        work = calls.run(start, call.input)
        return [opening, d.ArgumentsDelta(call.input), *calls.start(start)], work


def _start_of(tool: ToolSpec) -> d.CallStart:
    return d.CallStart(
        tool.client_name,
        namespace=tool.namespace,
        kind=tool.kind,
        approval_key=tool.approval_key,
    )


def _add_caller(caller: Mapping[str, str], delta: d.Delta) -> d.Delta:
    """Return the delta; if it opens an item, with the caller."""
    match delta:
        case d.CallStart():
            return replace(delta, caller=caller)
        case d.ToolStart(fields=fields):
            return replace(delta, fields={**fields, "caller": caller})
    return delta


def _failed(why: str) -> ProgramStep:
    return ProgramStep(result=why, is_error=True)
