"""Read calls whose arguments are tags, each a key and a value, as a family's `Tags` describe them.

A text is passed on as it arrives; any other value is read as a whole, and the tool's schema says
what it is. If a closing tag is missing, the next argument or the end of the call ends the value.

All of this markup may also be part of a text. So a closing tag only ends a value if the call goes
on or ends after it, or if no other closing tag follows; the end of the call only if no closing tag
follows; and the tag of an argument only if the tool has such an argument and it is still missing.
The tag of another call does if an offered tool is called, and no closing tag of this value follows.

Models also leave the other tags out, or write one in place of another. What is left says where a
key or a value stands: `limit</arg_key>` is a key if the tool has it.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache

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
    find_key,
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
    LOOKAHEAD,
    nested_to_json,
    read_nested_text,
)
from antiphon.adapters.formats.chat_template.payloads.schema_types import (
    NULL,
    STRING,
    TEXT_TYPES,
)
from antiphon.adapters.formats.chat_template.payloads.tag_labels import (
    TagLabel,
    is_cut_tag,
    read_label,
)
from antiphon.adapters.formats.chat_template.payloads.tag_types import (
    TextWriter,
    literal_to_json,
    value_to_json,
)
from antiphon.adapters.formats.tools import text_property
from antiphon.domain.tools import ToolSpec

MAX_OPENERS = 4
"""How many markers may come before the tag of a call: a section's, the call's and a prelude."""

WRAPPERS = ("arguments", "parameters", "properties", "input")

MISSPELLED_END = re.compile(r"</[a-z_:]*>?\s*\Z")
NO_NAME = re.compile(r"[<>\n]")
NOISE = re.compile(r"[^\w<]*")

CDATA, CDATA_END = "<![CDATA[", MarkerFinder(["]]>"])
ENTITIES = {"&lt;": "<", "&gt;": ">", "&amp;": "&", "&quot;": '"', "&apos;": "'"}


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
    if region.end:
        # Where the marker is ordinary text elsewhere, only this one belongs to the calls.
        buffer.pin()
        yield from buffer.skip_space()
        if (yield from buffer.read_literal(region.end)):
            buffer.unpin()
        else:
            buffer.rewind()
    return True


def _read_call(buffer: TextBuffer, calls: Calls, tags: Tags, end: str) -> Resumable[bool]:
    yield from buffer.skip_space()
    # Models leave out the bracket after the name: an argument follows, or the end.
    followers = (tags.key, tags.call_end, *((tags.call,) if tags.value else ()))
    head = yield from buffer.read_up_to(_finder(*tags.name_ends, *followers), MAX_NAME_LENGTH)
    if head is None:
        return False
    text, marker = head
    for stray in (tags.value_end, *((tags.value, tags.key_end) if tags.value else ())):
        text = text.rstrip().removesuffix(stray)
    label = read_label(text, is_attribute=tags.name_ends == (">",))
    tool = calls.find_tool(label.name)
    if tool is None:
        return False
    if marker in (*followers, "{"):
        buffer.unread(marker)
    is_read = yield from _Arguments(buffer, calls, tags, tool, end).read()
    if is_read and marker not in (*tags.name_ends, tags.call):
        calls.note("call_marker")
    return is_read


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
        self._schemas = calls.schemas_of(tool)
        self._properties = self._schemas.properties
        # Where tags nest, the tag of any key could also be a part of the value.
        names = map(str, self._properties) if tags.nests else [""]
        self._openers = tuple(f"{tags.key}{name}{tags.key_end if name else ''}" for name in names)
        # Where the tag of a key is the start of any other.
        others = (tags.call, tags.call_end, end, *calls.openers)
        self._others = tuple(each for each in others if each.startswith(tags.key))
        # Closing tags that models write in the wrong place.
        self._strays = (tags.value_end, tags.key_end) if tags.value else (tags.value_end,)
        # What follows a value; after the end of a call, its text may go on.
        self._stops = tuple(filter(None, (*self._openers, end, tags.call)))
        self._followers = (*self._stops, tags.call_end)
        self._ends = tuple({tags.value_end, tags.key, tags.call, tags.call_end})
        self._written: set[str] = set()
        self._end = end
        self._has_started = False
        self._is_object_open = False

    def read(self) -> Resumable[bool]:
        """Read up to the end of the call; if the text is cut before it, the call stays open.

        Return False for what is no call: nothing of it can be read.
        """
        buffer, tags = self._buffer, self._tags
        while True:
            yield from self._skip_strays()
            is_closed = yield from buffer.read_literal(tags.call_end)
            key = None if is_closed else (yield from self._read_key())
            if key is None and not is_closed and (yield from self._skip_noise()):
                continue
            if key is None and not is_closed:
                key = yield from self._read_unopened_key()
                if key is not None:
                    self._calls.note("argument_tag")
            if key is not None:
                if key.is_damaged:
                    self._calls.note("argument_name")
                if not (yield from self._read_argument(key)):
                    return True
            elif is_closed or self._has_started or not (yield from self._read_without_key()):
                break
        is_cut = not is_closed and self._skip_cut_tag()
        if not (is_cut or is_closed or self._has_started or (yield from self._is_over())):
            return False
        self._start()
        if not self._is_text:
            self._close_object()
        if not is_cut:
            if not is_closed:
                self._calls.note("open_call")
            self._calls.end()
        return True

    def _start(self) -> None:
        if not self._has_started:
            self._calls.start(self._tool)

    def _is_over(self) -> Resumable[bool]:
        """Whether no arguments follow: the text ends here, or something else begins."""
        start = self._buffer.pos
        others = (*self._calls.openers, self._end, self._tags.call)
        for other in filter(None, others):
            if (yield from self._buffer.read_literal(other)):
                self._buffer.pos = start
                return True
        return self._buffer.at_end

    def _skip_strays(self) -> Resumable[None]:
        """Skip closing tags that close nothing; if the text ends in one, leave it."""
        while True:
            yield from self._buffer.skip_space()
            for stray in self._strays:
                if (yield from self._buffer.read_literal(stray)):
                    break
            else:
                return

    def _skip_noise(self) -> Resumable[bool]:
        """Skip what stands before the tag of an argument that is still missing; else skip nothing.

        Words before the first argument are text before the call. After it there is no place for
        any, so only a comma or the like is noise.
        """
        buffer, tags, start = self._buffer, self._tags, self._buffer.pos
        finder = _finder(*self._ends, *filter(None, (self._end, *self._calls.openers)))
        found = yield from buffer.read_up_to(finder, MAX_NAME_LENGTH)
        if found and found[1] == tags.key and not self._is_text:
            after = buffer.pos - len(tags.key)
            buffer.pos = after
            key = yield from self._read_key(in_value=True)
            is_noise = NOISE.fullmatch(found[0]) or not (self._has_started or "<" in found[0])
            if is_noise and key and self._is_missing(key.name):
                if not NOISE.fullmatch(found[0]):
                    self._calls.write_prose(found[0].rstrip(), buffer.offset + start)
                buffer.pos = after
                self._calls.note("argument_tag")
                return True
        buffer.pos = start
        return False

    def _skip_cut_tag(self) -> bool:
        """Skip a tag that the end of the text cut off; return whether the text ends here."""
        buffer = self._buffer
        rest = buffer.text[buffer.pos :]
        is_cut = buffer.closed and is_cut_tag(rest, self._tags)
        if is_cut:
            buffer.pos += len(rest)
        return is_cut

    def _open_argument(self, name: str) -> None:
        self._start()
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

    def _read_key(self, *, in_value: bool = False) -> Resumable[TagLabel | None]:
        """Read the tag of a key and what opens its value; if there is none, read nothing."""
        buffer, tags = self._buffer, self._tags
        start = buffer.pos
        for other in self._others:
            if (yield from buffer.read_literal(other)):
                buffer.pos = start
                return None
        if not (yield from buffer.read_literal(tags.key)):
            return None
        ends = (tags.key_end, tags.value) if tags.value else (tags.key_end,)
        head = yield from buffer.read_up_to(_finder(*ends), MAX_NAME_LENGTH)
        key = self._key_of(*head) if head else None
        if key and tags.value and head and head[1] != tags.value:
            key = yield from self._read_value_start(key, may_be_missing=not in_value)
        if key is None:
            buffer.pos = start
        return key

    def _read_unopened_key(self) -> Resumable[TagLabel | None]:
        """Read a key of the tool without its tag, or with that of a call; else read nothing."""
        buffer, tags, start = self._buffer, self._tags, self._buffer.pos
        if not tags.value:
            return None
        yield from buffer.read_literal(tags.call)
        head = yield from buffer.read_up_to(_finder(tags.key_end, *self._ends), MAX_NAME_LENGTH)
        key = self._key_of(*head) if head and head[1] == tags.key_end else None
        if key and key.name in self._properties and key.name not in self._written:
            key = yield from self._read_value_start(key)
        else:
            key = None
        if key is None:
            buffer.pos = start
        return key

    def _read_value_start(
        self, key: TagLabel, *, may_be_missing: bool = True
    ) -> Resumable[TagLabel | None]:
        """Read the tag that opens a value, and what may say its type before it.

        Without the tag, the value is what stands before the next one.
        """
        buffer, tags = self._buffer, self._tags
        yield from buffer.skip_space()
        if tags.value_type and (yield from buffer.read_literal(tags.value_type[0])):
            named = yield from buffer.read_up_to(_finder(tags.value_type[1]), MAX_NAME_LENGTH)
            if named is None:
                return None
            key = TagLabel(key.name, named[0].strip() == STRING, is_damaged=key.is_damaged)
            yield from buffer.skip_space()
        if (yield from buffer.read_literal(tags.value)):
            return key
        is_cut = buffer.closed and tags.value.startswith(buffer.text[buffer.pos :])
        if is_cut or not may_be_missing:
            return None
        start = buffer.pos
        found = yield from buffer.read_up_to(_finder(*self._ends), LOOKAHEAD, or_end=True)
        buffer.pos = start
        return key if found and found[1] else None

    def _key_of(self, text: str, end: str) -> TagLabel | None:
        if end == self._tags.value:
            text = MISSPELLED_END.sub("", text)
        key = read_label(text, is_attribute=self._tags.key_end == ">")
        if self._is_text:
            is_name = key.name and not key.name.startswith("/") and not NO_NAME.search(key.name)
            return key if is_name else None
        name = find_key(key.name, self._properties)
        return (
            None
            if name is None
            else TagLabel(name, key.is_text, is_damaged=name != key.name.strip())
        )

    def _read_argument(self, key: TagLabel) -> Resumable[bool]:
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

    def _wraps_all(self, key: TagLabel) -> bool:
        """Whether a key holds all arguments, as some models write them, and is none itself."""
        is_only = not self._has_started and bool(self._properties)
        return is_only and key.name in WRAPPERS and key.name not in self._properties

    def _read_all_arguments(self, key: TagLabel) -> Resumable[bool]:
        text, is_whole = yield from self._collect(key)
        value = parse_json(literal_to_json(text))
        if value == {} or (
            isinstance(value, dict) and not value.keys().isdisjoint(self._properties)
        ):
            self._calls.note("wrapped_arguments")
            for name, each in value.items():
                self._open_argument(name)
                self._calls.write(json.dumps(each, ensure_ascii=False))
        else:
            self._open_argument(key.name)
            self._calls.write(
                literal_to_json(text) if isinstance(value, dict) else quote_json(text)
            )
        return is_whole

    def _is_string(self, key: TagLabel) -> bool:
        """Whether a value can be passed on as a string as it arrives."""
        types = self._schemas.types_of(key.name)
        if key.is_text is not None:
            return key.is_text and (not types or STRING in types)
        return types <= TEXT_TYPES and not (self._tags.nests and key.name not in self._properties)

    def _read_string(self, key: TagLabel) -> Resumable[bool]:
        """Write a text as it arrives, or null where the text may be null."""
        may_be_null = key.is_text is None and NULL in self._schemas.types_of(key.name)
        text = TextWriter(self._calls.write, may_be_null=may_be_null)
        is_whole = yield from self._read_text(key.name, text.write)
        text.end(is_whole=is_whole)
        return is_whole

    def _collect(self, key: TagLabel) -> Resumable[tuple[str, bool]]:
        """Return the text of a value, and whether it has an end."""
        pieces: list[str] = []
        if self._tags.nests:
            is_whole = yield from read_nested_text(
                self._buffer, self._tags, key.name, self._others, pieces.append
            )
            end = self._tags.value_end.replace("{key}", key.name)
            if is_whole and not self._buffer.text[: self._buffer.pos].endswith(end):
                self._calls.note("open_value")
        else:
            is_whole = yield from self._read_text(key.name, pieces.append)
        return "".join(pieces), is_whole

    def _to_json(self, key: TagLabel, text: str) -> str:
        if self._tags.nests:
            return nested_to_json(text, self._tags, self._schemas, key.name)
        if key.name not in self._properties:
            return literal_to_json(text)
        if key.is_text is False and isinstance(parse_json(text), str):
            return text.strip()
        return value_to_json(text, self._schemas.types_of(key.name))

    def _read_without_key(self) -> Resumable[bool]:
        """Read arguments that are one JSON object, or a custom tool's text without its tags."""
        buffer, end = self._buffer, self._tags.call_end
        if buffer.at_end:
            return False
        if (yield from buffer.peek()) == "{":
            self._start()
            self._has_started = True
            yield from read_arguments(buffer, self._calls, self._tool, end)
            return True
        if not self._is_text:
            return False
        self._start()
        self._has_started = True
        buffer.unread((yield from buffer.read_until(_finder(end), self._calls.write)))
        return True

    # --- the text of a value ----------------------------------------------------------------------

    def _read_text(self, key: str, write: Write) -> Resumable[bool]:
        """Write the text of a value; return whether it has an end."""
        buffer, tags = self._buffer, self._tags
        end = tags.value_end.replace("{key}", key)
        if tags.value:
            yield from self._skip_doubled_value()
        is_padded = tags.has_padding and (yield from buffer.read_literal("\n"))
        pads = is_padded or tags.needs_padding
        finder = _value_finder(tags, end, (*self._openers, tags.call, *self._calls.openers), pads)
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
                self._calls.note("open_value")
                return True
            else:
                write(marker)
        return False

    def _skip_doubled_value(self) -> Resumable[None]:
        """Skip the tag of a value that was written twice; before more text, it is a part of it."""
        buffer, tags, start = self._buffer, self._tags, self._buffer.pos
        if (yield from buffer.read_literal(tags.value)):
            after = buffer.pos
            found = yield from buffer.read_up_to(_finder(*self._ends), LOOKAHEAD)
            if found and found[1] == tags.value_end and (yield from self._reads_follower()):
                start = after
        buffer.pos = start

    def _ends_value(self, tag: str, end: str) -> Resumable[bool]:
        """Whether a tag that was read in a value ends it; if so, unread the tag.

        A key does if the tool has it and it was not written yet. The end of the call does unless
        the value goes on and is closed after it.
        """
        buffer = self._buffer
        after = buffer.pos
        if tag == self._tags.call_end:
            ends = yield from self._is_value_left_open(end)
        elif tag == self._tags.call or tag in self._calls.openers:
            ends = yield from self._is_next_call(tag, end)
        elif tag == end[:-1] or (tag == self._tags.key_end and self._tags.value):
            # A closing tag that is broken, or the wrong one.
            if (yield from self._reads_follower()):
                buffer.pos = after
                return True
            ends = False
        else:
            buffer.unread(tag)
            key = yield from self._read_key(in_value=True)
            ends = key is not None and self._is_missing(key.name)
        buffer.pos = after - len(tag) if ends else after
        return ends

    def _is_next_call(self, tag: str, end: str) -> Resumable[bool]:
        """Whether a call of an offered tool starts here, and this value has no end of its own."""
        buffer, tags = self._buffer, self._tags
        finder = _finder(tags.call, *self._calls.openers, *tags.prelude)
        for _ in range(MAX_OPENERS):
            if tag == tags.call:
                break
            yield from buffer.skip_space()
            tag = yield from buffer.read_marker(finder)
        if tag != tags.call:
            return False
        head = yield from buffer.read_up_to(_finder(*tags.name_ends, tags.call), MAX_NAME_LENGTH)
        label = read_label(head[0], is_attribute=tags.name_ends == (">",)) if head else None
        if label is None or not self._calls.is_name(label.name):
            return False
        buffer.unread(head[1] if head else "")
        limit, depth = buffer.pos + LOOKAHEAD, 0
        # A custom tool has no arguments whose tags could be known.
        openers = self._openers[:1] if tags.nests else (tags.key,)
        finder = _finder(end, *openers)
        while found := (
            yield from buffer.read_up_to(finder, max(limit - buffer.pos, 0), or_end=True)
        ):
            depth += {end: -1, "": 0}.get(found[1], 1)
            if depth < 0 or not found[1]:
                break
        return found is not None and depth >= 0

    def _reads_follower(self) -> Resumable[bool]:
        """Whether the call goes on here, or ends."""
        yield from self._buffer.skip_space()
        for follower in self._followers:
            if (yield from self._buffer.read_literal(follower)):
                return True
        return False

    def _is_missing(self, name: str) -> bool:
        is_possible = not self._properties or name in self._properties
        return is_possible and not self._is_text and name not in self._written

    def _is_last_end(self, end: str) -> Resumable[bool]:
        """Whether the closing tag just read is not followed by another one of the same value."""
        buffer = self._buffer
        after = buffer.pos
        is_last = yield from self._is_doubled_end(end)
        yield from buffer.skip_space()
        is_last = is_last or buffer.at_end or (yield from self._reads_follower())
        if not is_last and (yield from self._read_unopened_key()):
            is_last = True
        if not is_last:
            found = yield from buffer.read_up_to(_finder(end, *self._stops), LOOKAHEAD)
            is_last = found is None or found[1] != end
        buffer.pos = after
        return is_last

    def _is_doubled_end(self, end: str) -> Resumable[bool]:
        """Whether the same tag follows at once, and then what follows a value; read nothing."""
        buffer, start = self._buffer, self._buffer.pos
        is_doubled = yield from buffer.read_literal(end)
        is_doubled = is_doubled and (yield from self._reads_follower())
        buffer.pos = start
        return is_doubled

    def _is_value_left_open(self, end: str) -> Resumable[bool]:
        buffer = self._buffer
        found = yield from buffer.read_up_to(_finder(end, *self._openers), LOOKAHEAD)
        if found is None:
            return len(buffer.text) - buffer.pos <= LOOKAHEAD
        return found[1] != end


@lru_cache
def _finder(*markers: str) -> MarkerFinder:
    return MarkerFinder(markers)


@lru_cache
def _value_finder(tags: Tags, end: str, openers: tuple[str, ...], pads: bool) -> MarkerFinder:
    """Return a finder of what may end a value; a newline before it may belong to it."""
    wrong_ends = (end[:-1], *((tags.key_end,) if tags.value else ()))
    surprises = (*openers, tags.call_end)
    return MarkerFinder(
        [
            end,
            *([f"\n{end}"] if pads else []),
            *surprises,
            *(f"\n{tag}" for tag in surprises),
            *wrong_ends,
            *((f"\n{tag}" for tag in wrong_ends) if pads else ()),
            *((*ENTITIES, CDATA) if tags.is_xml else ()),
        ]
    )
