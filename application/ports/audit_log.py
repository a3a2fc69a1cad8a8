"""The audit log: which tools were called, for whom, and how that ended."""

from __future__ import annotations

from abc import abstractmethod
from typing import Protocol

from msgspec import Struct

from antiphon.domain.responses.guards import GuardPlace, VerdictName
from antiphon.domain.responses.metrics import CallResult


class ToolCallRecord(Struct, frozen=True, kw_only=True):
    """A call of a tool that this server runs; it holds no arguments, results or credentials.

    `tool` is the type of the tool and `name` what of it was called; `server` is the label of an MCP
    server, or of a tool of the operator's own. `key_id` is "" if no key, or an unknown one, was
    used. `output_bytes` counts the output as JSON.
    """

    tenant: str
    key_id: str
    response_id: str
    tool: str
    server: str
    name: str
    arguments_sha256: str
    result: CallResult
    seconds: float = 0.0
    output_bytes: int = 0


class GuardRecord(Struct, frozen=True, kw_only=True):
    """A text that a guard has not let pass as it was, or on which it has failed.

    It does not hold the text, only its digest. `tool` is "" if the text is of no tool.
    """

    tenant: str
    key_id: str
    response_id: str
    guard: str
    place: GuardPlace
    verdict: VerdictName
    tool: str = ""
    text_sha256: str


class AuditLog(Protocol):
    """Keeps the records of calls, outside of the store."""

    async def start(self) -> None:
        """Open the log. Does nothing by default.

        Raises: SettingsError if nothing can be written to it.
        """
        return

    @abstractmethod
    def record(self, call: ToolCallRecord) -> None:
        """Add a record, with the time. It is written soon; this neither waits nor raises."""

    def record_guard(self, guard: GuardRecord) -> None:  # noqa: ARG002 - it is a default
        """Add a record of a guard's verdict, as `record` does. Keeps none by default."""
        return

    async def aclose(self) -> None:
        """Write all records that can be written. Does nothing by default."""
        return
