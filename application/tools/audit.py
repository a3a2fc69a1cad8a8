"""What is recorded of the calls of one response."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256

from msgspec import Struct

from antiphon.application.ports import AuditLog, CallResult, ToolCallRecord
from antiphon.application.tools.work import WorkReport
from antiphon.domain import deltas as d
from antiphon.domain.tools import CONTAINER, MCP_KINDS, PYTHON, WEB_KINDS

TOOL_TYPES: Mapping[str, str] = {
    **dict.fromkeys(MCP_KINDS, "mcp"),
    **dict.fromkeys(WEB_KINDS, "web_search"),
    PYTHON: "code_interpreter",
    CONTAINER: "shell",
}
"""The type of a tool, as requests name it, by the kind of its calls; others are the same."""


class CallAudit(Struct, frozen=True, kw_only=True):
    """Records the calls of one response."""

    log: AuditLog
    tenant: str
    key_id: str
    response_id: str

    def call(self, start: d.CallStart, arguments: str) -> AuditedCall:
        return AuditedCall(self, start, sha256(arguments.encode("utf-8", "replace")).hexdigest())

    def approval_requested(self, start: d.CallStart, arguments: str) -> None:
        report = WorkReport(result="ok", seconds=0.0, output_bytes=0)
        self.call(start, arguments).record("approval_requested", report)


class AuditedCall:
    """One call, until it has ended."""

    def __init__(self, audit: CallAudit, start: d.CallStart, arguments_sha256: str) -> None:
        self._audit = audit
        self._start = start
        self._arguments_sha256 = arguments_sha256
        self._is_refused = False

    def refuse(self) -> None:
        """Note that the call does not run."""
        self._is_refused = True

    def end(self, report: WorkReport) -> None:
        self.record("refused" if self._is_refused else report.result, report)

    def record(self, result: CallResult, report: WorkReport) -> None:
        audit, start = self._audit, self._start
        audit.log.record(
            ToolCallRecord(
                tenant=audit.tenant,
                key_id=audit.key_id,
                response_id=audit.response_id,
                tool=TOOL_TYPES.get(start.kind, start.kind),
                server=start.namespace or "",
                name=start.name,
                arguments_sha256=self._arguments_sha256,
                result=result,
                seconds=round(report.seconds, 6),
                output_bytes=report.output_bytes,
            )
        )
