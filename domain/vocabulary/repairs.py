"""The names of what a parser may have to repair in what a model wrote; a turn's record has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Repair = Literal[
    "argument_name",
    "argument_tag",
    "call_in_reasoning",
    "call_marker",
    "dropped_call",
    "encoded_arguments",
    "header",
    "name_before_marker",
    "open_call",
    "open_value",
    "quotes",
    "surplus_bracket",
    "tool_name",
    "unread_call",
    "wrapped_arguments",
]

REPAIRS: Mapping[Repair, str] = {
    "argument_name": "an argument's name was damaged, and it was plain which one was meant",
    "argument_tag": "the tag of an argument was missing, or something stood before it or for it",
    "call_in_reasoning": "a call stood in reasoning that was not closed",
    "call_marker": "a call's marker was spelled otherwise, or not whole",
    "dropped_call": "a call was left out: it repeats another, or the request allows only one",
    "encoded_arguments": "the arguments were JSON inside a string",
    "header": "the header of a message was damaged, or there was none",
    "name_before_marker": "the tool's name stood before the marker of the call",
    "open_call": "a call had no end",
    "open_value": "an argument had no end",
    "quotes": "a quote around an argument was missing, surplus or not escaped",
    "surplus_bracket": "a bracket too many stood after a call",
    "tool_name": "a tool's name was spelled otherwise, or missing and plain from the arguments",
    "unread_call": "between the markers of a call was none that can be made: it stayed text",
    "wrapped_arguments": "all arguments stood in one",
}
"""By name, what was wrong."""
