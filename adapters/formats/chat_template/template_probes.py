"""Render samples with a template, and cut out what it writes for a call and for reasoning."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from typing import Any, TypeVar

from msgspec import Struct

from antiphon.adapters.formats.chat_template.template import ChatTemplate
from antiphon.adapters.formats.chat_template.template_capabilities import (
    REASONING_KEYS,
    with_content_parts,
)
from antiphon.domain.errors import RequestError
from antiphon.domain.json import Json
from antiphon.domain.tools import ToolSpec

NAME = "find_c0ffee"
ARGUMENTS: Json = {"days": 417, "place": "Bad Ems"}
"""In alphabetical order, since some templates sort them."""
PROBE_TOOL = ToolSpec(
    name=NAME,
    description="Finds a place.",
    parameters={
        "type": "object",
        "properties": {
            "days": {"type": "integer", "description": "For so many days."},
            "place": {"type": "string", "description": "Its name."},
        },
        "required": ["days", "place"],
    },
)
QUESTION = "Where is c0ffee?"
ANSWER = "§ c0ffee is here §"
"""It starts and ends as no markup does, so that what two samples have in common ends at it."""
THOUGHT = "§ c0ffee is a color §"
CALL_IDS = (f"functions.{NAME}:0", "abcdefghi")
"""Some templates write the id instead of the name, and some refuse all but nine letters."""
MAX_SAMPLES = 4
NO_TOKENS = {"bos_token": "", "eos_token": ""}
"""A template that needs tokens which are not known is rendered without them."""


class CallSample(Struct, frozen=True):
    """The text that a template writes for a call of NAME with ARGUMENTS.

    `written` is the call alone, as far as it can be cut out; `reply` is the whole message.
    """

    written: str
    reply: str


class Probes(Struct, frozen=True, kw_only=True):
    """The text that a template writes.

    `calls` is empty if it writes none; `refusal` then says why, if it refused to. `thoughts` are
    messages with THOUGHT as their reasoning, empty if it drops reasoning. `after_answer` follows an
    assistant's text. `with_tools` is a prompt that offers a tool, and `describes_tools` says
    whether the tool is in it.
    """

    calls: Sequence[CallSample] = ()
    refusal: str = ""
    thoughts: Sequence[str] = ()
    after_answer: str = ""
    with_tools: str = ""
    describes_tools: bool = False


def probe(template: ChatTemplate) -> Probes:
    """Return what the template writes. Never fails: a sample that it refuses is left out."""
    refusals: list[str] = []
    answer = _reply(template, {"content": ANSWER}, has_tools=False)
    with_tools = _render(template, _conversation(), [_function()])
    calls = list(_first(_written_calls(template, refusals), MAX_SAMPLES))
    return Probes(
        calls=calls,
        refusal="" if calls or not refusals else refusals[0],
        thoughts=list(_first(_written_thoughts(template), MAX_SAMPLES)),
        after_answer=answer.rpartition(ANSWER)[2] if ANSWER in answer else "",
        with_tools=with_tools,
        describes_tools=NAME in with_tools,
    )


def _written_calls(template: ChatTemplate, refusals: list[str]) -> Iterator[CallSample]:
    variants: Iterator[tuple[str, Any, Any, bool]] = product(
        CALL_IDS, (ARGUMENTS, json.dumps(ARGUMENTS)), ("", None), (True, False)
    )
    answers = {
        has_tools: _reply(template, {"content": ANSWER}, has_tools=has_tools)
        for has_tools in (True, False)
    }
    for call_id, arguments, content, has_tools in variants:
        message = {"content": content, "tool_calls": [_call(call_id, arguments)]}
        reply = _reply(
            template, message, has_tools=has_tools, refusals=refusals if content == "" else None
        )
        written = cut_out(reply, answers[has_tools])
        # A template for texts may print the messages as Python would, which is no call.
        is_call = NAME in written and str(ARGUMENTS["days"]) in written
        if is_call and "'tool_calls'" not in written:
            yield CallSample(written, reply)


def _written_thoughts(template: ChatTemplate) -> Iterator[str]:
    # Some templates only keep reasoning before a call.
    call: dict[str, Any] = {"content": "", "tool_calls": [_call(CALL_IDS[1], ARGUMENTS)]}
    answer: dict[str, Any] = {"content": ANSWER}
    for message, field in product((answer, call), REASONING_KEYS):
        reply = _reply(template, {**message, field: THOUGHT}, has_tools=True)
        if THOUGHT in reply:
            yield reply


def cut_out(reply: str, answer: str) -> str:
    """Return what `reply` has where `answer` has ANSWER: without what is around it in both.

    No marker is cut in two.

    >>> cut_out("<bot><call>f</call><end>", f"<bot>{ANSWER}<end>")
    '<call>f</call>'
    """
    header, _, after = answer.rpartition(ANSWER)
    start = _common_prefix(reply, header)
    if not _CLOSED.search(reply[:start]):
        start = max(reply.rfind(character, 0, start) for character in "<[")
    written = reply[start:]
    end = len(written) - _common_prefix(written[::-1], after[::-1])
    if rest := _MARKER_REST.match(written, end):
        end = rest.end()
    return _without_header(written[:end], header)


def _common_prefix(one: str, other: str) -> int:
    """Return how many characters the texts have in common at their beginning."""
    pairs = zip(one, other, strict=False)
    differences = (place for place, (a, b) in enumerate(pairs) if a != b)
    return next(differences, min(len(one), len(other)))


_CLOSED = re.compile(r"(^|[>\]])[^<\[]*\Z")
"""A text that does not end inside a marker."""

_MARKER_REST = re.compile(r"[^<\[\s]*[>\]]")
"""The rest of a marker, after a cut inside it."""


def _without_header(written: str, header: str) -> str:
    """Remove the message's header where the template ends a message before it writes a call."""
    for start in range(len(header)):
        end_of_header = header[start:].strip()
        if re.search(r"\w", end_of_header) and written.lstrip().startswith(end_of_header):
            return written.lstrip()[len(end_of_header) :]
    return written


def _function() -> Json:
    function = {
        "name": NAME,
        "description": PROBE_TOOL.description,
        "parameters": PROBE_TOOL.parameters,
    }
    return {"type": "function", "function": function}


def _call(call_id: str, arguments: Any) -> Json:
    function = {"name": NAME, "arguments": arguments}
    return {"id": call_id, "type": "function", "function": function}


def _conversation(reply: Mapping[str, Any] | None = None) -> list[Json]:
    question = {"role": "user", "content": QUESTION}
    return [question] if reply is None else [question, {"role": "assistant", **reply}]


def _reply(
    template: ChatTemplate,
    message: Mapping[str, Any],
    *,
    has_tools: bool,
    refusals: list[str] | None = None,
) -> str:
    """Return what the template writes after the question: the header, and the message."""
    tools = [_function()] if has_tools else []
    return _render(template, _conversation(message), tools, refusals).rpartition(QUESTION)[2]


def _render(
    template: ChatTemplate,
    messages: Sequence[Json],
    tools: Sequence[Json],
    refusals: list[str] | None = None,
) -> str:
    """Return the prompt, "" if the template refuses the conversation or drops its question."""
    options = {"add_generation_prompt": messages[-1]["role"] == "user"}
    contents = (messages, [with_content_parts(message) for message in messages])
    for tokens, content in product(({}, NO_TOKENS), contents):
        try:
            text = template.render(content, tools, options | tokens)
        except (RequestError, RecursionError) as error:
            if refusals is not None:
                refusals.append(str(error))
            continue
        if QUESTION in text:
            return text
    return ""


T = TypeVar("T")


def _first(values: Iterator[T], count: int) -> Iterator[T]:
    """Yield the first values, each once."""
    seen: list[T] = []
    for value in values:
        if value not in seen:
            seen.append(value)
            yield value
            if len(seen) == count:
                return
