"""Detect what a template can write besides plain text, by rendering samples."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from itertools import product
from typing import Any

from msgspec import Struct

from antiphon.adapters.formats.chat_template.template import ChatTemplate
from antiphon.adapters.formats.role_rules import SAMPLE_TOOL
from antiphon.domain.errors import RequestError
from antiphon.domain.json import Json

PROBE, SECOND_PROBE = "c0ffee", "deca1f"
WORDS = "Hm, decaf."
SAMPLE_ARGUMENTS: Json = {"size": "large"}
IMAGE_PART: Json = {"type": "image"}
"""An image among the parts of a message, as templates expect it."""
MARKED_IMAGE: Json = {**IMAGE_PART, "note": SECOND_PROBE}
"""An image with a key that no template knows, and only those show that print all of a part."""
REASONING_KEYS = ("reasoning_content", "reasoning", "thinking")
"""Where templates look for a message's reasoning: each in one of these. It is given in all."""


class TemplateCapabilities(Struct, frozen=True, kw_only=True):
    """The input that a template accepts.

    `text_content`: content may be a text, not only a list of parts. `images`: users' content may
    have images. `tool_images`: tools' content may, too. `parallel_calls`: a message may have
    several calls. `calls_after_text`: a message may have text and, after it, calls.
    `object_arguments`: arguments may be objects, not only JSON texts. `null_content`: a message
    with calls and no text must have null as its content.
    """

    text_content: bool = True
    images: bool = False
    tool_images: bool = False
    parallel_calls: bool = True
    calls_after_text: bool = True
    object_arguments: bool = True
    null_content: bool = False

    @property
    def no_content(self) -> str | None:
        """The content of a message without text."""
        return None if self.null_content else ""


def detect_capabilities(template: ChatTemplate) -> TemplateCapabilities:
    """Return what the template accepts."""
    accepts_text = PROBE in _render(template, [{"role": "user", "content": PROBE}])
    accepts_parts = PROBE in _render(template, _question(text_part(PROBE)))
    return TemplateCapabilities(
        # A template that accepts neither is for texts and needs more than a single message.
        text_content=accepts_text or not accepts_parts,
        images=_shows_image(
            template, _question(MARKED_IMAGE, text_part(PROBE)), _question(text_part(PROBE))
        ),
        tool_images=_shows_image(
            template,
            _tool_result(MARKED_IMAGE, text_part(PROBE), text_content=accepts_text),
            _tool_result(text_part(PROBE), text_content=accepts_text),
        ),
        **_detect_calls(template, text_content=accepts_text),
    )


def _detect_calls(template: ChatTemplate, *, text_content: bool) -> dict[str, bool]:
    """Detect how calls can be passed. Some templates only see them where content is null."""
    variants: Sequence[tuple[Any, Any]] = list(
        product(
            (SAMPLE_ARGUMENTS, json.dumps(SAMPLE_ARGUMENTS)), ("" if text_content else [], None)
        )
    )
    question = {"role": "user", "content": "?" if text_content else [text_part("?")]}
    words = WORDS if text_content else [text_part(WORDS)]
    for arguments, content in variants:

        def write(*names: str, content: Any = content, arguments: Any = arguments) -> str:
            calls = [_call(name, arguments) for name in names]
            message = {"role": "assistant", "content": content, "tool_calls": calls}
            return _render(template, [question, message])

        text = write(PROBE)
        # A template for JSON texts may write an object as Python would.
        if PROBE in text and repr(SAMPLE_ARGUMENTS) not in text:
            two_calls = write(PROBE, SECOND_PROBE)
            return {
                "parallel_calls": PROBE in two_calls and SECOND_PROBE in two_calls,
                "calls_after_text": _shows_in_order(write(PROBE, content=words), WORDS, PROBE),
                "object_arguments": arguments is SAMPLE_ARGUMENTS,
                "null_content": content is None,
            }
    return {}  # it writes no calls at all


def _shows_in_order(prompt: str, one: str, other: str) -> bool:
    return one in prompt and other in prompt.partition(one)[2]


def text_part(text: str) -> Json:
    """Return a text as a part of a message."""
    return {"type": "text", "text": text}


def with_content_parts(message: Json) -> Json:
    """Return the message with its content as a list of parts."""
    content = message.get("content")
    return message | {"content": [text_part(content)]} if isinstance(content, str) else message


def with_fitting_call(message: Json, capabilities: TemplateCapabilities) -> Json:
    """Return the message with its calls, whose arguments are objects, as a template takes them."""
    calls = message.get("tool_calls")
    if not calls:
        return message
    if not capabilities.object_arguments:
        calls = [_with_text_arguments(call) for call in calls]
    return message | {"content": message["content"] or capabilities.no_content, "tool_calls": calls}


def _with_text_arguments(call: Json) -> Json:
    arguments = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return call | {"function": call["function"] | {"arguments": arguments}}


def _shows_image(
    template: ChatTemplate, with_image: Sequence[Json], without_image: Sequence[Json]
) -> bool:
    text, plain_text = _render(template, with_image), _render(template, without_image)
    # A template for texts may print the list, with all that is in it: that shows no image.
    return PROBE in text and SECOND_PROBE not in text and text != plain_text


def _render(template: ChatTemplate, messages: Sequence[Json]) -> str:
    for tools in ([], [SAMPLE_TOOL]):  # some templates are for conversations with tools
        with suppress(RequestError):
            return template.render(messages, tools, {})
    return ""


def _question(*parts: Json) -> list[Json]:
    return [{"role": "user", "content": list(parts)}]


def _call(name: str, arguments: Any) -> Json:
    function = {"name": name, "arguments": arguments}
    return {"id": "abcdefghi", "type": "function", "function": function}


def _tool_result(*parts: Json, text_content: bool) -> list[Json]:
    call = _call("f", {})
    return [
        {"role": "user", "content": "?" if text_content else [text_part("?")]},
        {"role": "assistant", "content": "" if text_content else [], "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "name": "f", "content": list(parts)},
    ]
