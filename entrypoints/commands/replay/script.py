"""Write a bundle as a script for the scripted engine (docs/reference/scripts.md)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from antiphon.adapters.formats.chat_template.families import FAMILIES
from antiphon.domain.errors import RequestError
from antiphon.domain.responses.traces import Bundle, TurnTrace

HARMONY_ENDS = ("<|return|>", "<|call|>")
NO_SCRIPT = "The bundle has no output of a model that the scripted engine can play."


def script_of(bundle: Bundle) -> str:
    """Return the message that makes a scripted model write what the models of the bundle wrote.

    Raises: RequestError if there is nothing to play.
    """
    turns = list(_turns(bundle))
    if not turns:
        raise RequestError(NO_SCRIPT)
    return f"@@script {json.dumps(turns, ensure_ascii=False)}"


def _turns(bundle: Bundle) -> Iterator[dict[str, Any]]:
    for trace in bundle.turns:
        is_known = trace.format == "harmony" or trace.format.startswith("chat:")
        if is_known and trace.output is not None and trace.kind == "answer":
            part: dict[str, Any] = {"raw": _without_end(trace)}
            if trace.reason == "length":
                part["finish"] = "length"
            yield part


def _without_end(trace: TurnTrace) -> str:
    """Return the output without the marker that ends the turn, which the engine adds itself."""
    ends: Sequence[str] = HARMONY_ENDS[:1]
    if trace.format != "harmony":
        family = FAMILIES.get(trace.format.removeprefix("chat:"))
        ends = () if family is None else family.end_markers
    text = trace.output or ""
    return next((text.removesuffix(end) for end in ends if text.endswith(end)), text)
