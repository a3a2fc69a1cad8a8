"""Programs in JavaScript, which QuickJS runs in a confined process (quickjs_process.py).

The process has the least rights of all sandboxes: no network, no files but Python's own, and no
other processes. It lives from one step to the next, as long as there is room: a program can always
be repeated from its start, so a process is only a way to save time. The server trusts nothing that
comes out of it.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Sequence
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from antiphon.adapters.extras import install_command
from antiphon.adapters.sandboxes.confined_python import ConfinedProcess, ConfinedPython, OutOfTime
from antiphon.application.ports import (
    CallOutcome,
    ProgramCall,
    Programs,
    ProgramSource,
    ProgramStep,
    RunningProgram,
)
from antiphon.application.support.fair_queue import FairQueue
from antiphon.domain.errors import SandboxError, SettingsError

MODULE = "quickjs"
SELF_TEST, SELF_TEST_RESULT = "return 6 * 7", "42"
MAX_PARALLEL = 32
MAX_ARGUMENT_CHARS = 1024 * 1024
MAX_OUTPUT_CHARS = 256 * 1024
MAX_ERROR_CHARS = 4096
STACK_BYTES = 512 * 1024
PROCESS_BYTES = 256 * 1024 * 1024
"""What Python and the engine take besides the memory of the program itself."""

MAX_LINE_BYTES = 16 * MAX_ARGUMENT_CHARS
"""All that a step may say: its calls have `MAX_ARGUMENT_CHARS` together, and a character takes up
to twelve bytes, since the arguments are JSON in JSON."""

TIMED_OUT = "Error: the program computed for more than {} seconds."

FIRST_LINE = 2
"""The line of the function around a program on which the program begins, less one."""


class ProgramLimits(Struct, frozen=True, kw_only=True):
    """The limits of one program, and of all.

    `cpu_s` is for the whole program, `step_s` for each of its steps by the clock. At most `steps`
    run at the same time, and at most `processes` wait for the outcomes of their calls in memory.
    `calls` is how many one program may make.
    """

    memory_bytes: int = 64 * 1024 * 1024
    calls: int = 1000
    cpu_s: int = 10
    step_s: float = 30.0
    steps: int = 8
    processes: int = 32


class _Answer(Struct, frozen=True):
    """A line of the process, which may be anything."""

    calls: Annotated[
        tuple[tuple[Annotated[str, Meta(max_length=256)], str], ...],
        Meta(max_length=MAX_PARALLEL),
    ] = ()
    result: Annotated[str, Meta(max_length=MAX_OUTPUT_CHARS + 2 * MAX_ERROR_CHARS)] = ""
    is_error: bool = False


_decode = msgspec.json.Decoder(_Answer).decode
_encode = msgspec.json.Encoder().encode


@cache
def _process_source() -> str:
    folder = Path(__file__).parent
    harness = folder.joinpath("quickjs_harness.js").read_text("utf-8")
    process = folder.joinpath("quickjs_process.py").read_text("utf-8")
    return process.replace('"HARNESS"', repr(harness))


class QuickjsPrograms(Programs):
    """Runs programs within the operator's limits."""

    def __init__(self, limits: ProgramLimits = ProgramLimits()) -> None:  # noqa: B008
        self._limits = limits
        self._python = ConfinedPython(
            [MODULE],
            memory_bytes=limits.memory_bytes + PROCESS_BYTES,
            cpu_s=limits.cpu_s + 1,
        )
        self._timed_out = TIMED_OUT.format(limits.cpu_s)
        self._slots = FairQueue(limits.steps)
        self._idle: OrderedDict[QuickjsProgram, None] = OrderedDict()

    async def start(self) -> None:
        if find_spec(MODULE) is None:
            raise SettingsError(
                f"Programs need a package. Install it with: {install_command('programs')}"
            )
        program = self.open("", ProgramSource(code=SELF_TEST))
        try:
            step = await program.advance(())
        except SandboxError as error:
            raise SettingsError(
                f"Programs do not run here. {error} Install bubblewrap (apt-get install "
                "bubblewrap), or leave --programs out."
            ) from None
        finally:
            await program.aclose()
        if step.result != SELF_TEST_RESULT:
            raise SettingsError(f"Programs do not run here: {step.result}")

    async def aclose(self) -> None:
        for program in list(self._idle):
            await program.aclose()

    def open(self, tenant: str, source: ProgramSource) -> RunningProgram:
        return QuickjsProgram(self, tenant, source)

    async def take_step(
        self, program: QuickjsProgram, outcomes: Sequence[CallOutcome]
    ) -> ProgramStep:
        """Take a program's next step once it is its turn. Raises: SandboxError."""
        try:
            async with self._slots.slot(program.tenant):
                self._idle.pop(program, None)
                async with asyncio.timeout(self._limits.step_s):
                    step = await program.take_step(outcomes)
        except TimeoutError:
            await program.aclose()
            took = f"the program took more than {self._limits.step_s:g} seconds"
            return ProgramStep(result=f"Error: {took}.", is_error=True)
        except OutOfTime:  # in a function of the engine that nothing can interrupt
            await program.aclose()
            return ProgramStep(result=self._timed_out, is_error=True)
        except BaseException:
            await program.aclose()
            raise
        if step.calls:
            self._idle[program] = None
            while len(self._idle) > self._limits.processes:
                oldest, _ = self._idle.popitem(last=False)
                await oldest.aclose()
        else:
            await program.aclose()
        if program.made > self._limits.calls:
            raise SandboxError("The program made more calls than it may.")
        return step

    async def start_process(self, source: ProgramSource) -> tuple[ConfinedProcess, bytes]:
        """Return a process, and what the program does first."""
        process = await self._python.open(_process_source())
        try:
            return process, await process.ask(self._request(source), max_bytes=MAX_LINE_BYTES)
        except BaseException:
            await process.aclose()
            raise

    def forget(self, program: QuickjsProgram) -> None:
        self._idle.pop(program, None)

    def _request(self, source: ProgramSource) -> bytes:
        seed = int.from_bytes(sha256(source.seed.encode()).digest()[:4], "big")
        limits = {
            "memory_bytes": self._limits.memory_bytes,
            "stack_bytes": STACK_BYTES,
            "cpu_s": self._limits.cpu_s,
            "calls": self._limits.calls,
            "parallel": MAX_PARALLEL,
            "arguments": MAX_ARGUMENT_CHARS,
            "output": MAX_OUTPUT_CHARS,
            "error": MAX_ERROR_CHARS,
            "lines": FIRST_LINE,
            "timed_out": self._timed_out,
        }
        program = {"code": source.code, "tools": source.tools, "seed": seed, "now": source.now}
        return _encode({"source": program, "limits": limits})


class QuickjsProgram(RunningProgram):
    """A program, and the process that has taken its steps so far, if there is one."""

    def __init__(self, programs: QuickjsPrograms, tenant: str, source: ProgramSource) -> None:
        self.tenant = tenant
        self._programs = programs
        self._source = source
        self._process: ConfinedProcess | None = None
        self._step = ProgramStep()
        self._settled = 0
        """The number of calls whose outcomes the process has."""

    @property
    def made(self) -> int:
        """The number of calls that the process has made."""
        return self._settled + len(self._step.calls)

    async def advance(self, outcomes: Sequence[CallOutcome]) -> ProgramStep:
        return await self._programs.take_step(self, outcomes)

    async def aclose(self) -> None:
        self._programs.forget(self)
        if self._process is not None:
            process, self._process = self._process, None
            await process.aclose()

    async def take_step(self, outcomes: Sequence[CallOutcome]) -> ProgramStep:
        """Give the process the outcomes that it does not have, in steps as they were.

        Raises: SandboxError.
        """
        if self._process is None or self._settled > len(outcomes):
            await self.aclose()
            self._settled = 0
            self._process, line = await self._programs.start_process(self._source)
            self._step = _read(line)
        while self._step.calls and self.made <= len(outcomes):
            known = outcomes[self._settled : self.made]
            self._settled += len(known)
            self._step = _read(await self._process.ask(_encode(known), max_bytes=MAX_LINE_BYTES))
        return self._step


def _read(line: bytes) -> ProgramStep:
    try:
        answer = _decode(line)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        raise SandboxError("The program gave an invalid answer.") from None
    calls = tuple(ProgramCall(*call) for call in answer.calls)
    if sum(len(call.arguments) for call in calls) > MAX_ARGUMENT_CHARS:
        raise SandboxError("The program gave an invalid answer.")
    return ProgramStep(calls=calls, result=answer.result, is_error=answer.is_error)
