"""The tools of Responses that clients of other APIs can offer: those that the server runs, whose
calls nobody else has to answer."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, Raw

from antiphon.domain.errors import RequestError, missing_parameter
from antiphon.domain.kinds.mcp import McpApprovalRequest
from antiphon.domain.requests.decoding import decode_tool
from antiphon.domain.tools import TOOL_TYPES, WEB_SEARCHES, McpTool

SERVER_RUN = frozenset(
    {"mcp", "code_interpreter", "file_search", "image_generation", *WEB_SEARCHES}
)
"""The types of these tools."""

_ABSENT = (UNSET, None)


def check_server_tool(raw: Raw, kind: str | None, path: str, *, api: str) -> None:
    """Raises: RequestError for a tool whose calls, or approvals, have no form in this `api`."""
    if kind is None:
        raise missing_parameter(f"{path}.type")
    if kind in TOOL_TYPES and kind not in SERVER_RUN:
        raise RequestError(
            f"Invalid '{path}.type': {api} cannot show the calls of tools of the type {kind!r}. "
            "Offer it with POST /v1/responses.",
            param=f"{path}.type",
            code="invalid_value",
        )
    if kind == "mcp":
        _check_approval(decode_tool(raw, path), f"{path}.require_approval", api)


def _check_approval(tool: Any, path: str, api: str) -> None:
    # Without an address, it is a server of the operator: there, "never" is the default.
    is_ours = isinstance(tool, McpTool) and tool.server_url in _ABSENT
    allowed = ("never", *_ABSENT) if is_ours else ("never",)
    if isinstance(tool, McpTool) and tool.require_approval not in allowed:
        raise RequestError(
            f"'{path}' must be 'never': {api} cannot ask for an approval. Use POST /v1/responses "
            "for tools that need one.",
            param=path,
            code="invalid_value",
        )


def unapproved(item: McpApprovalRequest, *, api: str) -> str:
    """Return what is said in place of a question that has no form in this `api`."""
    return (
        f"The call of {item.name!r} of {item.server_label!r} needs an approval, for which {api} "
        "cannot ask."
    )
