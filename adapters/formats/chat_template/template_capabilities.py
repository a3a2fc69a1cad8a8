"""What a template writes besides plain texts: found out by trying, since no template says it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

from msgspec import Struct

from antiphon.adapters.formats.chat_template.template import ChatTemplate
from antiphon.domain.errors import RequestError
from antiphon.domain.json import Json

PROBE = "c0ffee"
IMAGE: Json = {"type": "image"}
"""An image among the parts of a message, as templates know it."""


class TemplateCapabilities(Struct, frozen=True, kw_only=True):
    """`texts`: contents may be texts, not only lists of parts; `images`: users' lists may hold
    images; `tool_images`: those of tools too; `many_calls`: a message may have several calls;
    `objects`: arguments may be objects, not only JSON texts.
    """

    texts: bool = True
    images: bool = False
    tool_images: bool = False
    many_calls: bool = True
    objects: bool = True


def template_capabilities(template: ChatTemplate) -> TemplateCapabilities:
    """Return what the template takes."""
    texts = PROBE in _written(template, [{"role": "user", "content": PROBE}])
    return TemplateCapabilities(
        # One that takes neither is one for texts that wants more than a single message.
        texts=texts or PROBE not in _written(template, _asked(text(PROBE))),
        images=_shows(template, _asked(IMAGE, text(PROBE)), _asked(text(PROBE))),
        tool_images=_shows(
            template,
            _returned(IMAGE, text(PROBE), texts=texts),
            _returned(text(PROBE), texts=texts),
        ),
        **_calls(template, texts=texts),
    )


def _calls(template: ChatTemplate, *, texts: bool) -> dict[str, bool]:
    """Return how calls may come. Some templates see them only where there is no content at all."""
    ways: Sequence[tuple[Any, Any]] = list(product(({}, "{}"), ("" if texts else [], None)))
    for arguments, content in ways:
        call = _call(PROBE, arguments)
        message = {"role": "assistant", "content": content}
        asked = [{"role": "user", "content": "?" if texts else [text("?")]}]
        if PROBE in _written(template, [*asked, message | {"tool_calls": [call]}]):
            many = PROBE in _written(template, [*asked, message | {"tool_calls": [call, call]}])
            return {"many_calls": many, "objects": arguments == {}}
    return {}  # it takes no calls at all


def text(said: str) -> Json:
    """Return a text as a part of a message."""
    return {"type": "text", "text": said}


def with_content_parts(message: Json) -> Json:
    """Return the message with a list of parts where it has a text."""
    content = message.get("content")
    return message | {"content": [text(content)]} if isinstance(content, str) else message


def _shows(template: ChatTemplate, with_image: Sequence[Json], without: Sequence[Json]) -> bool:
    shown, plain = _written(template, with_image), _written(template, without)
    # A template for texts may print the list as Python would: that is no way to show an image.
    return PROBE in shown and "'type'" not in shown and shown != plain


def _written(template: ChatTemplate, messages: Sequence[Json]) -> str:
    try:
        return template.render(messages, [], {})
    except RequestError:
        return ""


def _asked(*parts: Json) -> list[Json]:
    return [{"role": "user", "content": list(parts)}]


def _call(name: str, arguments: Any) -> Json:
    function = {"name": name, "arguments": arguments}
    return {"id": "abcdefghi", "type": "function", "function": function}


def _returned(*parts: Json, texts: bool) -> list[Json]:
    call = _call("f", {})
    return [
        {"role": "user", "content": "?" if texts else [text("?")]},
        {"role": "assistant", "content": "" if texts else [], "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call["id"], "name": "f", "content": list(parts)},
    ]
