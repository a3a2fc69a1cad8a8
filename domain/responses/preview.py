"""The preview of a response: what people recognize it by in a list, and what it waits for.

Stores keep it with the response. It has text of users and models, so it is no part of the metrics,
which logs and telemetry show.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from antiphon.domain import items as i
from antiphon.domain.offers.mcp import has_approval_key

MAX_CHARS = 160
"""In a line: about what fits into a row."""


class Approval(Struct, frozen=True, kw_only=True):
    """An `mcp_approval_request` of the output, and the response that has answered it, if any."""

    id: str
    response_id: str | None = None


class ResponsePreview(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The first lines of what the request asked and of what the model answered, "" without text.

    `approvals` are the requests of its output; stores do not know what answers them.
    """

    input: str = ""
    output: str = ""
    approvals: tuple[Approval, ...] = ()

    @property
    def awaits_approval(self) -> bool:
        return any(approval.response_id is None for approval in self.approvals)


def preview_of_input(items: Sequence[i.Item]) -> ResponsePreview:
    """Return the preview of a response that begins, whose request has these items."""
    return ResponsePreview(input=_line_of(items, "user"))


def with_output(preview: ResponsePreview, output: Sequence[i.Item]) -> ResponsePreview:
    """Return the preview of a response with this output."""
    return ResponsePreview(
        input=preview.input,
        output=_line_of(output, "assistant"),
        approvals=tuple(
            Approval(id=item.id)
            for item in output
            if isinstance(item, i.McpApprovalRequest)
            and isinstance(item.id, str)
            and has_approval_key(item.id)
        ),
    )


def with_answers(preview: ResponsePreview, answers: Mapping[str, str]) -> ResponsePreview:
    """Return the preview with the ids of the responses that have answered its requests."""
    approvals = (
        Approval(id=approval.id, response_id=answers.get(approval.id))
        for approval in preview.approvals
    )
    return replace(preview, approvals=tuple(approvals))


def first_line(text: str) -> str:
    r"""Return the first line that has text, shortened.

    >>> first_line("\n  Hello.\nHow are you?")
    'Hello.'
    """
    start = text.lstrip()[: MAX_CHARS * 4]
    line = start.partition("\n")[0].strip()
    return line if len(line) <= MAX_CHARS else f"{line[: MAX_CHARS - 1]}…"


def _line_of(items: Sequence[i.Item], role: str) -> str:
    """Return the first line of the last message with text from this role."""
    for item in reversed(items):
        if isinstance(item, i.Message) and item.role == role:
            for text in _texts_of(item.content):
                if line := first_line(text):
                    return line
    return ""


def _texts_of(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    texts = (getattr(part, "text", None) for part in content)
    return [text for text in texts if isinstance(text, str)]
