"""Read calls whose arguments are tags, each a key and a value, as a family's `Tags` describe them.

A text is passed on as it arrives; any other value is read as a whole, and the tool's schema says
what it is. If a closing tag is missing, the next argument or the end of the call ends the value.

All of this markup may also be part of a text. So a closing tag only ends a value if the call goes
on or ends after it, or if no other closing tag follows; the end of the call only if no closing tag
follows; and the tag of an argument only if the tool has such an argument and it is still missing.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache

from msgspec import Struct

from antiphon.adapters.formats.chat_template.families.family import Region, Tags
from antiphon.adapters.formats.chat_template.parsing.text_buffer import (
    MarkerFinder,
    Resumable,
    TextBuffer,
    Write,
)
from antiphon.adapters.formats.chat_template.payloads.calls import (
    MAX_NAME_LENGTH,
    Calls,
    read_more_calls,
    text_in_name,
)
from antiphon.adapters.formats.chat_template.payloads.json_calls import read_json_calls
from antiphon.adapters.formats.chat_template.payloads.json_values import (
    parse_json,
    quote_json,
    read_arguments,
)
from antiphon.adapters.formats.chat_template.payloads.nested_tags import (
    nested_to_json,
    read_nested_text,
)
from antiphon.adapters.formats.chat_template.payloads.schema_types import (
    NULL,
    STRING,
    TEXT_TYPES,
    types_of,
)
from antiphon.adapters.formats.chat_template.payloads.tag_types import (
    TextWriter,
    literal_to_json,
    value_to_json,
)
from antiphon.adapters.formats.tools import text_property
from antiphon.domain.json import Json
from antiphon.domain.tools import ToolSpec

LOOKAHEAD = 4000
"""How far a stray closing tag is followed by the one that tells whether it was part of a text."""

ATTRIBUTE = re.compile(
    r"""\s*(?:(?:name\s*)?=)?\s*(?:"(?P<quoted>[^"]*)"|'(?P<single>[^']*)'|(?P<bare>.+?))\s*"""
    r"""(?:string\s*=\s*["']?(?P<string>true|false)["']?\s*)?/?""",
    re.DOTALL,
)

WRAPPERS = ("arguments", "parameters", "properties")

MISSPELLED_END = re.compile(r"</[a-z_:]*>?\s*\Z")
CUT_NAME = re.compile(
    r"""\s*(?:(?:name\s*)?=)?\s*["']?[\w.$-]*["']?\s*(?:string\s*=?\s*["']?[a-z]*["']?\s*)?/?"""
)
NO_NAME = re.compile(r"[<>\n]")

CDATA, CDATA_END = "<![CDATA[", MarkerFinder(["]]>"])
ENTITIES = {"&lt;": "<", "&gt;": ">", "&amp;": "&", "&quot;": '"', "&apos;": "'"}


class _Key(Struct, frozen=True):
    """An argument's name; `is_text` is what the tag says of its value, None if nothing."""

    name: str
    is_text: bool | None = None


def read_tag_calls(buffer: TextBuffer, calls: Calls, region: Region) -> Resumable[bool]:
    """Read the text after a region's marker, with or without the tag that opens a call."""
    tags = region.tags
    assert tags
    for part in (*tags.prelude, tags.call):
        yield from buffer.skip_space()
        yield from buffer.read_literal(part)
    yield from buffer.skip_space()
    if (yield from buffer.peek()) == "{":
        return (yield from read_json_calls(buffer, calls, region))
    if not (yield from _read_call(buffer, calls, tags, region.end)):
        return False

    def read_call() -> Resumable[bool]:
        has_tag = yield from buffer.read_literal(tags.call)
        return has_tag and (yield from _read_call(buffer, calls, tags, region.end))

    yield from read_more_calls(buffer, read_call)
    return True


def _read_call(buffer: TextBuffer, calls: Calls, tags: Tags, end: str) -> Resumable[bool]:
    yield from buffer.skip_space()
    head = yield from buffer.read_up_to(_finder(*tags.name_ends), MAX_NAME_LENGTH)
    if head is None:
        return False
    text, marker = head
    label = _read_label(text, is_attribute=tags.name_ends == (">",))
    tool = calls.find_tool(label.name)
    if tool is None:
        return False
    if marker in (tags.key, tags.call_end, "{"):
        buffer.unread(marker)
    calls.start(tool)
    yield from _Arguments(buffer, calls, tags, tool, end).read()
    return True


class _Arguments:
    """Reads the arguments of one call, and writes them: JSON or, for a custom tool, its text."""

    def __init__(
        self, buffer: TextBuffer, calls: Calls, tags: Tags, tool: ToolSpec, end: str
    ) -> None:
        self._buffer = buffer
        self._calls = calls
        self._tags = tags
        self._tool = tool
        self._is_text = text_property(tool) is not None
        self._schema: Json = tool.parameters or {}
        properties = self._schema.get("properties")
        self._properties = properties if isinstance(properties, dict) else {}
        # Where tags nest, the tag of any key could also be a part of the value.
        names = map(str, self._properties) if tags.nests else [""]
        self._openers = tuple(f"{tags.key}{name}{tags.key_end if name else ''}" for name in names)
        # What follows a value; after the end of a call, its text may go on.
        self._stops = tuple(filter(None, (*self._openers, end, tags.call)))
        self._followers = (*self._stops, tags.call_end)
        self._written: set[str] = set()
        self._has_started = False
        self._is_object_open = False

    def read(self) -> Resumable[None]:
        """Read up to the end of the call; if the text is cut before it, the call stays open."""
        buffer, tags = self._buffer, self._tags
        while True:
            yield from buffer.skip_space()
            is_closed = yield from buffer.read_literal(tags.call_end)
            key = None if is_closed else (yield from self._read_key())
            if key is not None:
                if not (yield from self._read_argument(key)):
                    return
            elif is_closed or self._has_started or not (yield from self._read_without_key()):
                break
        is_cut = not is_closed and self._skip_cut_tag()
        if not self._is_text:
            self._close_object()
        if not is_cut:
            self._calls.end()

    def _skip_cut_tag(self) -> bool:
        """Skip a tag that the end of the text cut off; return whether the text ends here."""
        buffer, tags = self._buffer, self._tags
        rest = buffer.text[buffer.pos :]
        is_cut = buffer.closed and (
            tags.call_end.startswith(rest)
            or tags.key.startswith(rest)
            or (rest.startswith(tags.key) and self._is_cut_key(rest.removeprefix(tags.key)))
        )
        if is_cut:
            buffer.pos += len(rest)
        return is_cut

    def _is_cut_key(self, text: str) -> bool:
        name, bracket, tag = text.partition("<")
        expected = f"{self._tags.key_end}{self._tags.value}"
        return (
            len(name) <= MAX_NAME_LENGTH
            and CUT_NAME.fullmatch(name) is not None
            and expected.startswith(bracket + "".join(tag.split()))
        )

    def _open_argument(self, name: str) -> None:
        self._written.add(name)
        if self._is_text:
            # A model may write more than the text, which is lost nowhere else.
            self._calls.write(("\n" if self._has_started else "") + text_in_name(name))
        else:
            self._calls.write(f"{', ' if self._is_object_open else '{'}{quote_json(name)}: ")
            self._is_object_open = True
        self._has_started = True

    def _close_object(self) -> None:
        if self._is_object_open:
            self._calls.write("}")
        elif not self._has_started:
            self._calls.write("{}")

    # --- one argument -----------------------------------------------------------------------------

    def _read_key(self) -> Resumable[_Key | None]:
        """Read the tag of a key and what opens its value; if there is none, read nothing."""
        buffer, tags = self._buffer, self._tags
        start = buffer.pos
        if not (yield from buffer.read_literal(tags.key)):
            return None
        ends = (tags.key_end, tags.value) if tags.value else (tags.key_end,)
        head = yield from buffer.read_up_to(_finder(*ends), MAX_NAME_LENGTH)
        key = self._key_of(*head) if head else None
        if key and tags.value and head and head[1] != tags.value:
            key = yield from self._read_value_start(key)
        if key is None:
            buffer.pos = start
        return key

    def _read_value_start(self, key: _Key) -> Resumable[_Key | None]:
        """Read the tag that opens a value, and what may say its type before it."""
        buffer, tags = self._buffer, self._tags
        yield from buffer.skip_space()
        if tags.value_type and (yield from buffer.read_literal(tags.value_type[0])):
            named = yield from buffer.read_up_to(_finder(tags.value_type[1]), MAX_NAME_LENGTH)
            if named is None:
                return None
            key = _Key(key.name, named[0].strip() == STRING)
            yield from buffer.skip_space()
        return key if (yield from buffer.read_literal(tags.value)) else None

    def _key_of(self, text: str, end: str) -> _Key | None:
        if end == self._tags.value:
            text = MISSPELLED_END.sub("", text)
        key = _read_label(text, is_attribute=self._tags.key_end == ">")
        is_name = key.name and not key.name.startswith("/") and not NO_NAME.search(key.name)
        return key if is_name else None

    def _read_argument(self, key: _Key) -> Resumable[bool]:
        """Read a value and write it; return whether the text goes on after it."""
        if self._is_text:
            self._open_argument(key.name)
            return (yield from self._read_text(key.name, self._calls.write))
        if self._wraps_all(key):
            return (yield from self._read_all_arguments(key))
        self._open_argument(key.name)
        if self._is_string(key):
            return (yield from self._read_string(key))
        text, is_whole = yield from self._collect(key)
        self._calls.write(self._to_json(key, text) if is_whole else text)
        return is_whole

    def _wraps_all(self, key: _Key) -> bool:
        """Whether a key holds all arguments, as some models write them, and is none itself."""
        is_only = not self._has_started and bool(self._properties)
        return is_only and key.name in WRAPPERS and key.name not in self._properties

    def _read_all_arguments(self, key: _Key) -> Resumable[bool]:
        text, is_whole = yield from self._collect(key)
        value = parse_json(text)
        if isinstance(value, dict):
            for name, each in value.items():
                self._open_argument(name)
                self._calls.write(json.dumps(each, ensure_ascii=False))
        else:
            self._open_argument(key.name)
            self._calls.write(quote_json(text))
        return is_whole

    def _is_string(self, key: _Key) -> bool:
        """Whether a value can be passed on as a string as it arrives."""
        types = self._types_of(key)
        if key.is_text is not None:
            return key.is_text and (not types or STRING in types)
        return types <= TEXT_TYPES and not (self._tags.nests and key.name not in self._properties)

    def _types_of(self, key: _Key) -> frozenset[str]:
        return types_of(self._properties.get(key.name), self._schema)

    def _read_string(self, key: _Key) -> Resumable[bool]:
        """Write a text as it arrives, or null where the text may be null."""
        may_be_null = key.is_text is None and NULL in self._types_of(key)
        text = TextWriter(self._calls.write, may_be_null=may_be_null)
        is_whole = yield from self._read_text(key.name, text.write)
        text.end(is_whole=is_whole)
        return is_whole

    def _collect(self, key: _Key) -> Resumable[tuple[str, bool]]:
        """Return the text of a value, and whether it has an end."""
        pieces: list[str] = []
        if self._tags.nests:
            is_whole = yield from read_nested_text(
                self._buffer, self._tags, key.name, pieces.append
            )
        else:
            is_whole = yield from self._read_text(key.name, pieces.append)
        return "".join(pieces), is_whole

    def _to_json(self, key: _Key, text: str) -> str:
        if self._tags.nests:
            return nested_to_json(text, self._tags, self._schema, key.name)
        if key.name not in self._properties:
            return literal_to_json(text)
        if key.is_text is False and isinstance(parse_json(text), str):
            return text.strip()
        return value_to_json(text, self._types_of(key))

    def _read_without_key(self) -> Resumable[bool]:
        """Read arguments that are one JSON object, or a custom tool's text without its tags."""
        buffer, end = self._buffer, self._tags.call_end
        if buffer.at_end:
            return False
        if (yield from buffer.peek()) == "{":
            self._has_started = True
            yield from read_arguments(buffer, self._calls, self._tool, end)
            return True
        if not self._is_text:
            return False
        self._has_started = True
        buffer.unread((yield from buffer.read_until(_finder(end), self._calls.write)))
        return True

    # --- the text of a value ----------------------------------------------------------------------

    def _read_text(self, key: str, write: Write) -> Resumable[bool]:
        """Write the text of a value; return whether it has an end."""
        buffer, tags = self._buffer, self._tags
        end = tags.value_end.replace("{key}", key)
        is_padded = tags.has_padding and (yield from buffer.read_literal("\n"))
        finder = _value_finder(tags, end, self._openers, is_padded or tags.needs_padding)
        while marker := (yield from buffer.read_until(finder, write)):
            tag = marker.removeprefix("\n")
            if tag == end:
                if (yield from self._is_last_end(end)):
                    return True
                write(marker)
            elif tag in ENTITIES:
                write(ENTITIES[tag])
            elif tag == CDATA:
                yield from buffer.read_until(CDATA_END, write)
            elif (yield from self._ends_value(tag, end)):
                return True
            else:
                write(marker)
        return False

    def _ends_value(self, tag: str, end: str) -> Resumable[bool]:
        """Whether a tag that was read in a value ends it; if so, unread the tag.

        A key does if the tool has it and it was not written yet. The end of the call does unless
        the value goes on and is closed after it.
        """
        buffer = self._buffer
        after = buffer.pos
        if tag == self._tags.call_end:
            ends = yield from self._is_value_left_open(end)
        else:
            buffer.unread(tag)
            key = yield from self._read_key()
            ends = key is not None and self._is_missing(key.name)
        buffer.pos = after - len(tag) if ends else after
        return ends

    def _is_missing(self, name: str) -> bool:
        is_possible = not self._properties or name in self._properties
        return is_possible and not self._is_text and name not in self._written

    def _is_last_end(self, end: str) -> Resumable[bool]:
        """Whether the closing tag just read is not followed by another one of the same value."""
        buffer = self._buffer
        after = buffer.pos
        yield from buffer.skip_space()
        is_last = buffer.at_end
        for marker in () if is_last else self._followers:
            if (yield from buffer.read_literal(marker)):
                is_last = True
                break
        if not is_last:
            found = yield from buffer.read_up_to(_finder(end, *self._stops), LOOKAHEAD)
            is_last = found is None or found[1] != end
        buffer.pos = after
        return is_last

    def _is_value_left_open(self, end: str) -> Resumable[bool]:
        buffer = self._buffer
        found = yield from buffer.read_up_to(_finder(end, *self._openers), LOOKAHEAD)
        if found is None:
            return len(buffer.text) - buffer.pos <= LOOKAHEAD
        return found[1] != end


def _read_label(text: str, *, is_attribute: bool) -> _Key:
    """Return the name in a tag, as its text or as an attribute of it."""
    match = ATTRIBUTE.fullmatch(text) if is_attribute else None
    if match is None:
        return _Key(text.strip())
    name = match["quoted"] or match["single"] or (match["bare"] or "").strip("\"' ")
    return _Key(name, None if match["string"] is None else match["string"] == "true")


@lru_cache
def _finder(*markers: str) -> MarkerFinder:
    return MarkerFinder(markers)


@lru_cache
def _value_finder(tags: Tags, end: str, openers: tuple[str, ...], pads: bool) -> MarkerFinder:
    """Return a finder of what may end a value; a newline before it may belong to it."""
    surprises = (*openers, tags.call_end)
    return MarkerFinder(
        [
            end,
            *([f"\n{end}"] if pads else []),
            *surprises,
            *(f"\n{tag}" for tag in surprises),
            *((*ENTITIES, CDATA) if tags.is_xml else ()),
        ]
    )
