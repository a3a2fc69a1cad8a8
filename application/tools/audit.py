"""The audit records of the calls of one response."""

from __future__ import annotations

from hashlib import sha256

from msgspec import Struct

from antiphon.application.ports import AuditLog, ToolCallRecord
from antiphon.application.telemetry.recorder import RecordedCall, RunRecorder
from antiphon.application.telemetry.trace_context import PropagatedTrace
from antiphon.application.tools.work import WorkReport
from antiphon.domain import deltas as d
from antiphon.domain.kinds import CALL_KINDS
from antiphon.domain.responses.metrics import LISTING, CallResult


def _tool_type(kind: str) -> str:
    """Return the type of a tool, as requests name it, by the kind of its calls."""
    return CALL_KINDS[kind].tool_type


class CallRecords(Struct, frozen=True, kw_only=True):
    """Records the calls of one response: what they took, and who made them if there is a log."""

    recorder: RunRecorder
    trace: PropagatedTrace | None = None
    log: AuditLog | None = None
    tenant: str = ""
    key_id: str = ""
    response_id: str = ""

    def call(self, start: d.CallStart, arguments: str, *, is_known: bool = False) -> CallRecord:
        """Record a call. `is_known`: it is in the audit log already, by an earlier server."""
        tool_type = _tool_type(start.kind)
        recorded = self.recorder.start_call(
            type=tool_type, name=start.name, server=start.namespace or ""
        )
        is_logged = self.log is not None and not is_known
        return CallRecord(recorded, self._audited(start, arguments) if is_logged else None)

    def listing(self, label: str) -> CallRecord:
        """Record that the MCP server with this label lists its tools."""
        return CallRecord(self.recorder.start_call(type="mcp", name=LISTING, server=label))

    def approval_requested(self, start: d.CallStart, arguments: str) -> None:
        report = WorkReport(result="ok", seconds=0.0, output_bytes=0)
        self.call(start, arguments).record("approval_requested", report)

    def _audited(self, start: d.CallStart, arguments: str) -> AuditedCall:
        return AuditedCall(self, start, sha256(arguments.encode("utf-8", "replace")).hexdigest())


class AuditedCall(Struct, frozen=True):
    """A call for the audit log."""

    records: CallRecords
    start: d.CallStart
    arguments_sha256: str

    def log(self, result: CallResult, report: WorkReport) -> None:
        records, start = self.records, self.start
        assert records.log is not None
        records.log.record(
            ToolCallRecord(
                tenant=records.tenant,
                key_id=records.key_id,
                response_id=records.response_id,
                tool=_tool_type(start.kind),
                server=start.namespace or "",
                name=start.name,
                arguments_sha256=self.arguments_sha256,
                result=result,
                seconds=round(report.seconds, 6),
                output_bytes=report.output_bytes,
            )
        )


class CallRecord:
    """One call, until it has ended."""

    def __init__(self, recorded: RecordedCall, audited: AuditedCall | None = None) -> None:
        self._recorded = recorded
        self._audited = audited
        self._is_refused = False

    def refuse(self) -> None:
        """Note that the call does not run."""
        self._is_refused = True

    def end(self, report: WorkReport) -> None:
        self.record("refused" if self._is_refused else report.result, report)

    def record(self, result: CallResult, report: WorkReport) -> None:
        self._recorded.end(result, seconds=report.seconds, output_bytes=report.output_bytes)
        if self._audited is not None:
            self._audited.log(result, report)
