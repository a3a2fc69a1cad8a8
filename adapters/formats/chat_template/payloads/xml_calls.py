"""Read calls as Qwen3-Coder writes them: tags, or the JSON of the models before it."""

from __future__ import annotations

from msgspec.structs import replace

from antiphon.adapters.formats.chat_template.families.family import Region, Tags
from antiphon.adapters.formats.chat_template.parsing.text_buffer import Resumable, TextBuffer
from antiphon.adapters.formats.chat_template.payloads.calls import Calls
from antiphon.adapters.formats.chat_template.payloads.json_calls import read_json_calls
from antiphon.adapters.formats.chat_template.payloads.tag_calls import read_tag_calls

FUNCTION_TAGS = Tags(
    call="<function=",
    key="<parameter",
    value_end="</parameter>",
    call_end="</function>",
    has_padding=True,
    needs_padding=True,
)


def read_tool_call(buffer: TextBuffer, calls: Calls, region: Region) -> Resumable[bool]:
    """Read the text after `<tool_call>`: JSON or, if it starts with `<function=`, tags."""
    yield from buffer.skip_space()
    if (yield from buffer.read_literal("<function=")):
        return (yield from read_xml_calls(buffer, calls, region))
    return (yield from read_json_calls(buffer, calls, region))


def read_xml_calls(buffer: TextBuffer, calls: Calls, region: Region) -> Resumable[bool]:
    """Read the text after `<function=`: `name>`, then `<parameter=key>` value `</parameter>`, …"""
    if region.tags is None:
        region = replace(region, tags=FUNCTION_TAGS)
    return (yield from read_tag_calls(buffer, calls, region))
