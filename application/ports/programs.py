"""Programs that models write to call tools."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol

from msgspec import Struct

from antiphon.domain.history.programs import CallOutcome, ProgramCall

__all__ = [
    "CallOutcome",
    "ProgramCall",
    "ProgramSource",
    "ProgramStep",
    "Programs",
    "RunningProgram",
]


class ProgramSource(Struct, frozen=True, kw_only=True):
    """A program in JavaScript, and all that its run depends on besides the outcomes of its calls.

    `tools` are the names that it may call. `seed` is what its random numbers follow from, and
    `now` is the time that it reads from every clock, in seconds since the epoch.
    """

    code: str
    tools: tuple[str, ...] = ()
    seed: str = ""
    now: int = 0


class ProgramStep(Struct, frozen=True, kw_only=True):
    """The next thing that a program does: it waits for `calls` or, without any, it has ended.

    `result` is the text that it wrote. If it failed, `is_error` is true and the text ends with why.
    """

    calls: tuple[ProgramCall, ...] = ()
    result: str = ""
    is_error: bool = False


class RunningProgram(Protocol):
    """A program between its first step and its last."""

    @abstractmethod
    async def advance(self, outcomes: Sequence[CallOutcome]) -> ProgramStep:
        """Run the program until it waits for calls, or has ended.

        `outcomes` are those of all calls that it has made so far, in their order. The same
        outcomes give the same step, whichever server takes it, and in one go or one by one. An
        error in the program is a step, and so is a limit that it reaches. Ends within a time that
        the operator sets. Raises: SandboxError if the program cannot run.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Stop the program. It may be called again."""


class Programs(Protocol):
    """Runs programs in JavaScript. They reach nothing but the tools that they call."""

    @abstractmethod
    async def start(self) -> None:
        """Check that programs can run, and cannot leave their sandbox. Raises: SettingsError."""

    @abstractmethod
    async def aclose(self) -> None: ...

    @abstractmethod
    def open(self, tenant: str, source: ProgramSource) -> RunningProgram:
        """Return a program that has not started. It allocates nothing before its first step."""
