"""Where the code of models runs."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from msgspec import Struct


class CodeResult(Struct, frozen=True, kw_only=True):
    """What code printed, and the pictures (PNG) that it showed; `is_error`: it ended with one."""

    logs: str = ""
    images: tuple[bytes, ...] = ()
    is_error: bool = False


class CommandOutput(Struct, frozen=True, kw_only=True):
    """A piece of what a command prints."""

    stdout: str = ""
    stderr: str = ""


class CommandExit(Struct, frozen=True, kw_only=True):
    """The end of a command: its exit code, None for one that was stopped because of its time."""

    code: int | None


class SandboxFile(Struct, frozen=True, kw_only=True):
    """A file below a sandbox's folder, by its path there; `is_uploaded`: not written by code."""

    path: str
    bytes: int
    changed_at: int
    is_uploaded: bool = False


class SandboxSpec(Struct, frozen=True, kw_only=True):
    """What a sandbox is to have; None for what the operator set, which it cannot exceed."""

    name: str = ""
    memory_bytes: int | None = None
    idle_s: float | None = None


class Sandbox(Protocol):
    """A place where code runs that nobody trusts, one call after another: variables and files stay.

    No code gets out of it, at a network, or at more of this machine than the operator gave it. Each
    use ends within a time that the operator set. Raises: SandboxError, from any method.
    """

    id: str
    name: str
    created_at: int
    memory_bytes: int
    idle_s: float
    """After so many seconds without use it is closed."""

    @property
    def last_active_at(self) -> int: ...

    async def start(self) -> None:
        """Take now what it needs of this machine. Raises: SandboxesBusy."""

    async def run(self, code: str) -> CodeResult:
        """Run Python. What goes wrong in the code is a result; where it has cost the sandbox what
        it held, the logs say so."""

    def command(
        self, command: str, *, timeout_s: float | None = None
    ) -> AsyncGenerator[CommandOutput | CommandExit]:
        """Run a command of a shell: give what it prints, soon after it does, and last how it ended.

        It ends after `timeout_s`, where that is less than what the operator set, and leaves no
        process behind. Where it has cost the sandbox what it held, `stderr` says so.
        """

    async def put(self, name: str, content: bytes) -> None:
        """Write a file into its folder. Raises: SandboxError for a name that is none."""

    async def files(self) -> list[SandboxFile]:
        """Return its files, 1000 at most; none of a sandbox that was not used yet."""

    def pieces(self, path: str) -> AsyncGenerator[bytes]:
        """Return a file's content in pieces. Raises, with the first: SandboxError."""

    async def remove(self, path: str) -> None: ...

    async def aclose(self) -> None:
        """Forget all of it; whatever runs there is gone."""


class Sandboxes(Protocol):
    """The sandboxes of all tenants; those that are not used for long are closed."""

    async def start(self) -> None:
        """Prove that nothing gets out. Raises: SettingsError, with what to do about it."""

    async def aclose(self) -> None: ...

    def open(self, tenant: str, kind: SandboxSpec = ...) -> Sandbox:
        """Return a new sandbox; what it takes of this machine, its first use takes.

        For one more than there may be, another that is idle is closed then: the one that was not
        used for longest.
        """

    def find(self, tenant: str, sandbox_id: str) -> Sandbox | None:
        """Return the sandbox of this id, None if this tenant has none."""

    def list_all(self, tenant: str) -> list[Sandbox]:
        """Return a tenant's sandboxes, oldest first."""
