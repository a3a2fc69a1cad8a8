"""Sandboxes for the code of models."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Protocol

from msgspec import Struct

from antiphon.domain.requests.skills import SkillInfo


class CodeResult(Struct, frozen=True, kw_only=True):
    """The output of code, and the images (PNG) that it showed; `is_error`: the code failed."""

    logs: str = ""
    images: tuple[bytes, ...] = ()
    is_error: bool = False


class CommandOutput(Struct, frozen=True, kw_only=True):
    """A piece of a command's output."""

    stdout: str = ""
    stderr: str = ""


class CommandExit(Struct, frozen=True, kw_only=True):
    """The end of a command: its exit code, or None if it ran out of time and was stopped."""

    code: int | None


class SandboxFile(Struct, frozen=True, kw_only=True):
    """A file in a sandbox's folder, with its relative path; `is_uploaded`: not written by code."""

    path: str
    bytes: int
    changed_at: int
    is_uploaded: bool = False


class MountedSkill(Struct, frozen=True, kw_only=True):
    """A folder that code can read at `info.path`, and that it cannot change.

    `read` returns its files as a zip archive: see `unpack` in
    `application/resources/skills/archive.py`. It raises SandboxError if they are gone. Skills of
    the same `version` have the same files.
    """

    info: SkillInfo
    version: str
    unpacked_bytes: int
    read: Callable[[], Awaitable[bytes]]


class SandboxSpec(Struct, frozen=True, kw_only=True):
    """The limits of a new sandbox; None means the operator's limit, which is also the maximum.

    `skills` are read when it starts, and stay as they are until it is closed.
    """

    name: str = ""
    memory_bytes: int | None = None
    idle_s: float | None = None
    skills: tuple[MountedSkill, ...] = ()


class Sandbox(Protocol):
    """Runs untrusted code, one call after another; variables and files stay between calls.

    The code cannot leave the sandbox, reach a network or use more of this machine than the operator
    allows. Each call ends within a time that the operator sets. Raises: SandboxError, from any
    method.
    """

    id: str
    name: str
    created_at: int
    memory_bytes: int
    idle_s: float
    """It is closed after this many seconds without use."""

    @property
    @abstractmethod
    def last_active_at(self) -> int: ...

    @property
    def skills(self) -> Sequence[MountedSkill]:
        """The skills that it has, in the order of its SandboxSpec."""
        return ()

    @abstractmethod
    async def start(self) -> None:
        """Allocate its resources now. Raises: SandboxesBusy."""

    @abstractmethod
    async def run(self, code: str) -> CodeResult:
        """Run Python. An error in the code is a result. If the sandbox lost its state, the logs say
        so."""

    @abstractmethod
    def command(
        self, command: str, *, timeout_s: float | None = None
    ) -> AsyncGenerator[CommandOutput | CommandExit]:
        """Run a shell command: yield its output soon after it is printed, and its exit last.

        The command is stopped after `timeout_s`, or after the operator's limit if that is shorter,
        and leaves no process behind. If the sandbox lost its state, `stderr` says so.
        """

    @abstractmethod
    async def put(self, name: str, content: bytes) -> None:
        """Write a file into its folder. Raises: SandboxError for an invalid name."""

    @abstractmethod
    async def files(self) -> list[SandboxFile]:
        """Return its files, 1000 at most; an unused sandbox has none."""

    @abstractmethod
    def pieces(self, path: str, *, max_bytes: int | None = None) -> AsyncGenerator[bytes]:
        """Yield a file's content in pieces, up to `max_bytes`, or up to what its disk can hold.

        Raises: SandboxError, with the first piece.
        """

    @abstractmethod
    async def remove(self, path: str) -> None: ...

    @abstractmethod
    async def aclose(self) -> None:
        """Delete the sandbox and stop everything that runs in it."""


class Sandboxes(Protocol):
    """The sandboxes of all tenants. Idle sandboxes are closed after some time."""

    mounts_skills: bool = False
    """Whether they have the skills of their SandboxSpec; if not, requests with skills are
    refused."""

    @abstractmethod
    async def start(self) -> None:
        """Check that code cannot leave a sandbox. Raises: SettingsError, which says what to do."""

    @abstractmethod
    async def aclose(self) -> None: ...

    @abstractmethod
    def open(self, tenant: str, kind: SandboxSpec = ...) -> Sandbox:
        """Return a new sandbox. It allocates its resources on its first use.

        If that exceeds the maximum number of sandboxes, the one that has been idle longest is
        closed.
        """

    @abstractmethod
    def find(self, tenant: str, sandbox_id: str) -> Sandbox | None:
        """Return the tenant's sandbox with this id, or None."""

    @abstractmethod
    def list_all(self, tenant: str) -> list[Sandbox]:
        """Return a tenant's sandboxes, oldest first."""
