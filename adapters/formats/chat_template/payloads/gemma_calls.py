"""Read calls as Gemma writes them: `call:name{key:<|"|>text<|"|>,other:[1,true]}`.

Models leave delimiters out, double them, and write them for the quotes of a text. So one only ends
a text where the call goes on after it or ends, and a comma only ends a value without delimiters
where another argument follows. The tool's schema says which arguments there are.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cache, lru_cache

from antiphon.adapters.formats.chat_template.families.family import Region
from antiphon.adapters.formats.chat_template.parsing.text_buffer import (
    MarkerFinder,
    Resumable,
    TextBuffer,
    Write,
)
from antiphon.adapters.formats.chat_template.payloads.calls import (
    MAX_NAME_LENGTH,
    Calls,
    empty_arguments,
    find_key,
    read_more_calls,
)
from antiphon.adapters.formats.chat_template.payloads.json_values import (
    parse_json,
    quote_json,
    read_json_value,
)
from antiphon.adapters.formats.chat_template.payloads.pythonic_calls import python_value_to_json
from antiphon.adapters.formats.chat_template.payloads.schema_types import (
    NULLS,
    STRING,
    TEXT_TYPES,
    UNKNOWN,
    ArgumentSchemas,
    text_to_json,
)
from antiphon.adapters.formats.chat_template.payloads.tag_types import value_to_json
from antiphon.adapters.formats.tools import text_property
from antiphon.domain.tools import ToolSpec

QUOTES = ('<|"|>', "<escape>")
"""What stands before and after a text: of Gemma 4, and of FunctionGemma."""

CLOSERS: Mapping[str, str] = {"{": "}", "(": "}", "[": "]"}
NO_VALUES = (*NULLS, "")
NO_SCHEMAS = ArgumentSchemas({})
LOOKAHEAD = 4000
"""How far the text after a doubtful delimiter is read before it is passed on."""

KEY = re.compile(r"[\w.$-]+").fullmatch
STARTS = (":", "[", ",", "{")
"""What stands before the delimiter that opens a text."""


@cache
def _name_ends(end: str) -> MarkerFinder:
    return MarkerFinder(["{", "(", end])


@cache
def _key_ends(end: str) -> MarkerFinder:
    return MarkerFinder([":", "=", ",", "{", "}", "[", "]", end])


@cache
def _value_ends(end: str, opening: str) -> MarkerFinder:
    return MarkerFinder([",", "}", "]", *QUOTES, end, *([")"] if opening == "(" else [])])


@cache
def _text_ends(quote: str, end: str) -> MarkerFinder:
    # A text whose closing quote is missing ends where its call ends.
    return MarkerFinder([quote, f"}}{end}", f"}}]{end}"] if quote else [f"}}{end}", end])


@lru_cache
def _member_text_ends(quote: str, end: str, keys: tuple[str, ...]) -> MarkerFinder:
    # Without the bracket, too; and perhaps where one of the other arguments starts.
    starts = (f",{space}{key}:" for key in keys for space in ("", " "))
    return MarkerFinder([*_text_ends(quote, end).markers, end, *starts])


@cache
def _quotes_and(end: str) -> MarkerFinder:
    return MarkerFinder([*QUOTES, end])


def read_gemma_calls(buffer: TextBuffer, calls: Calls, region: Region) -> Resumable[bool]:
    """Read `call:name{key:value,…}`; the first `call` is optional."""
    yield from buffer.skip_space()
    if not (yield from buffer.read_literal("call:")):
        yield from buffer.read_literal(":")
    if not (yield from _read_call(buffer, calls, region.end)):
        return False

    def read_call() -> Resumable[bool]:
        yield from buffer.read_literal(",")
        has_call = yield from buffer.read_literal("call:")
        return has_call and (yield from _read_call(buffer, calls, region.end))

    yield from read_more_calls(buffer, read_call)
    return True


def _read_call(buffer: TextBuffer, calls: Calls, end: str) -> Resumable[bool]:
    head = yield from buffer.read_up_to(_name_ends(end), MAX_NAME_LENGTH)
    tool = calls.find_tool(head[0].strip()) if head else None
    if head is None or tool is None:
        return False
    if (
        head[1] != end
        and text_property(tool) is None
        and not (yield from _starts_members(buffer, end))
    ):
        return False
    calls.start(tool)
    if head[1] == end:
        buffer.unread(end)
        calls.write(empty_arguments(tool))
        closed = True
    else:
        opening = head[1]
        yield from buffer.skip_space()
        if (yield from buffer.read_literal("{")):
            opening = "{"
        closed = yield from _read_arguments(buffer, calls, tool, end, opening)
        yield from _skip_surplus_brackets(buffer)
    if closed or not buffer.at_end:
        calls.end()
    return True


def _starts_members(buffer: TextBuffer, end: str) -> Resumable[bool]:
    """Whether a key follows, or the end of the arguments; read nothing."""
    start = buffer.pos
    while (char := (yield from buffer.peek())) and (char.isspace() or char in "{,"):
        buffer.pos += 1
    is_over = not char or char in "})" or (yield from buffer.read_literal(end))
    starts = is_over or (yield from _read_next_key(buffer, end)) is not None
    buffer.pos = start
    return starts


def _read_next_key(buffer: TextBuffer, end: str) -> Resumable[str | None]:
    """Read a key and what follows it; return the key, "" if the text is cut, None if none is."""
    yield from buffer.skip_space()
    quote = yield from _read_quote(buffer)
    if quote:
        quoted = yield from buffer.read_up_to(_text_ends(quote, end), MAX_NAME_LENGTH, or_end=True)
        yield from buffer.skip_space()
        follows = (yield from buffer.peek()) in ("", ":", "=")
        return quoted[0] if quoted and quoted[1] in (quote, "") and follows else None
    head = yield from buffer.read_up_to(_key_ends(end), MAX_NAME_LENGTH, or_end=True)
    if head is None or head[1] not in (":", "=", "{", "[", ""):
        return None
    key = head[0].strip().strip("\"'")
    if not KEY(key):
        return None
    return key if head[1] else ""


def _skip_surplus_brackets(buffer: TextBuffer) -> Resumable[None]:
    buffer.pin()
    yield from buffer.skip_space()
    while (yield from buffer.peek()) in (")", "}"):
        yield from buffer.read_char()
        buffer.pin()
        yield from buffer.skip_space()
    buffer.rewind()


def _read_arguments(
    buffer: TextBuffer, calls: Calls, tool: ToolSpec, end: str, opening: str
) -> Resumable[bool]:
    key = text_property(tool)
    if key is None:
        members = _Members(buffer, calls, calls.schemas_of(tool), end)
        return (yield from members.read(opening))
    buffer.pin()
    yield from buffer.skip_space()
    has_key = yield from buffer.read_literal(key)
    yield from buffer.skip_space()
    if has_key and (yield from buffer.read_literal(":")):
        buffer.unpin()
        return (yield from _read_text(buffer, calls, end))
    buffer.rewind()
    return (yield from _Members(buffer, calls, NO_SCHEMAS, end).read())


def _read_text(buffer: TextBuffer, calls: Calls, end: str) -> Resumable[bool]:
    """Write the text of a custom tool, and on a line of its own what a model writes after it."""
    yield from buffer.skip_space()
    quote = yield from _read_quote(buffer)
    marker = yield from buffer.read_until(_text_ends(quote, end), calls.write)
    if marker != quote or not quote:
        buffer.unread(marker)
        return bool(marker)
    while (yield from buffer.peek()).isspace() or (yield from buffer.peek()) == ",":
        yield from buffer.read_char()
    char = yield from buffer.peek()
    if char in ("}", ")"):
        yield from buffer.read_char()
        return True
    if not char or (yield from buffer.read_literal(end)):
        buffer.unread(end if char else "")
        return bool(char)
    calls.write("\n")
    return (yield from _Members(buffer, calls, NO_SCHEMAS, end).read())


def _read_quote(buffer: TextBuffer) -> Resumable[str]:
    for quote in QUOTES:
        if (yield from buffer.read_literal(quote)):
            return quote
    return ""


class _Members:
    """Copies the members of an object as JSON, up to its closing bracket.

    It keeps a stack of brackets, so that no depth of nesting is too deep.
    """

    def __init__(self, buffer: TextBuffer, calls: Calls, schemas: ArgumentSchemas, end: str):
        self._buffer = buffer
        self._calls = calls
        self._write = calls.write
        self._schemas = schemas
        self._names = schemas.properties
        self._end = end
        self._value_ends = _value_ends(end, "")
        self._written: set[str] = set()
        self._has_parenthesis = False
        self._open: list[str] = []
        self._separator = ""

    def read(self, opening: str = "{") -> Resumable[bool]:
        """Read what follows the bracket; return whether the object ended before the text."""
        self._value_ends = _value_ends(self._end, opening)
        self._has_parenthesis = opening == "("
        self._enter(opening)
        while self._open:
            yield from self._buffer.skip_space()
            char = yield from self._buffer.peek()
            if not char:
                return False
            if (yield from self._buffer.read_literal(self._end)):
                self._buffer.unread(self._end)
                self._leave(self._open[0], all_levels=True)
            elif char in ",}])":
                yield from self._buffer.read_char()
                self._leave("}" if char == ")" else char)
            elif not (yield from self._read_member()):
                # What follows is no argument: it stays text.
                self._leave(self._open[0], all_levels=True)
        return True

    def _enter(self, bracket: str) -> None:
        self._write("{" if bracket == "(" else bracket)
        self._open.append(CLOSERS[bracket])
        self._separator = ""

    def _leave(self, closer: str, *, all_levels: bool = False) -> None:
        """Close the innermost bracket of this kind; a comma or a surplus bracket closes none."""
        if closer not in self._open:
            return
        while self._open:
            innermost = self._open.pop()
            self._write(innermost)
            self._separator = ", "
            if innermost == closer and not all_levels:
                return

    def _read_member(self) -> Resumable[bool]:
        """Read a member or an item; return False, and read nothing, where no key can be read."""
        buffer = self._buffer
        if self._open == ["}"] and self._names and not (yield from self._has_key()):
            return False
        self._write(self._separator)
        key: str | None = None
        if self._open[-1] == "}":
            key, has_value = yield from self._read_key()
            if buffer.at_end and not has_value:
                self._write(quote_json(key)[:-1])
                return True
            self._write(f"{quote_json(key)}: ")
            if not has_value:
                self._write('""')
                self._separator = ", "
                return True
            yield from buffer.skip_space()
            if len(self._open) == 1:
                self._written.add(key)
        char = yield from buffer.peek()
        if char and char in "{[":
            yield from buffer.read_char()
            self._enter(char)
            return True
        yield from self._read_leaf(key if len(self._open) == 1 else None, char)
        self._separator = ", "
        return True

    def _has_key(self) -> Resumable[bool]:
        """Whether the name of an argument follows; read nothing."""
        start = self._buffer.pos
        quote = yield from _read_quote(self._buffer)
        self._buffer.pos = start
        key = yield from _read_next_key(self._buffer, self._end)
        self._buffer.pos = start
        return key is not None and (
            bool(quote) or key == "" or find_key(key, self._names) is not None
        )

    def _read_key(self) -> Resumable[tuple[str, bool]]:
        """Return the key, and whether a value follows it."""
        buffer = self._buffer
        pieces: list[str] = []
        quote = yield from _read_quote(buffer)
        if quote:
            yield from buffer.read_until(_text_ends(quote, self._end), pieces.append)
            yield from buffer.skip_space()
        marker = yield from buffer.read_until(_key_ends(self._end), pieces.append)
        if marker not in (":", "="):
            buffer.unread(marker)
        key = "".join(pieces).strip()
        key = key if quote else key.strip("\"'")
        if len(self._open) == 1:
            written, key = key, find_key(key, self._names) or key
            if key != written:
                self._calls.note("argument_name")
        return key, marker in (":", "=", "{", "[")

    def _read_leaf(self, key: str | None, char: str) -> Resumable[None]:
        quote = yield from _read_quote(self._buffer)
        if quote:
            yield from self._read_quoted(key, quote)
            return
        pieces: list[str] = []
        if char == '"':
            yield from read_json_value(self._buffer, pieces.append, self._end)
            if (yield from self._goes_on()):
                text = "".join(pieces)
                is_whole = not self._buffer.at_end or parse_json(text) is not None
                self._write(self._bare_to_json(key, text) if is_whole else text)
                return
        has_end = yield from self._read_bare(key, pieces)
        text = "".join(pieces)
        self._write(self._bare_to_json(key, text.strip()) if has_end else text)

    # --- values without delimiters ----------------------------------------------------------------

    def _read_bare(self, key: str | None, pieces: list[str]) -> Resumable[bool]:
        """Read a value, or a text without its first delimiter; return whether it has an end."""
        buffer = self._buffer
        while marker := (yield from buffer.read_until(self._value_ends, pieces.append)):
            if marker in QUOTES:
                if (yield from self._goes_on()):
                    return True
                marker = '"'
            elif not (
                (marker == "," and not (yield from self._is_separator(key, pieces)))
                or (marker == "]" and "]" not in self._open)
            ):
                buffer.unread(marker)
                return True
            pieces.append(marker)
        return False

    def _is_separator(self, key: str | None, pieces: list[str]) -> Resumable[bool]:
        """Whether the comma that was read stands after a value, and not in it; read nothing."""
        if self._open[-1] == "]":
            text = "".join(pieces).strip() if pieces and pieces[0].lstrip()[:1] == "'" else ""
            return not text or (len(text) > 1 and text.endswith("'"))
        start = self._buffer.pos
        following = yield from self._read_start_of_member()
        self._buffer.pos = start
        if following is None or not (following and key is not None and self._names):
            return following is not None
        # A text may have a word and a colon in it, too.
        return following in self._names or not self._schemas.types_of(key) <= TEXT_TYPES

    def _read_start_of_member(self) -> Resumable[str | None]:
        """Read the key after a comma; return it, "" for the end of an object, None for text."""
        yield from self._buffer.skip_space()
        char = yield from self._buffer.peek()
        is_over = not char or char in ",}])" or (yield from self._buffer.read_literal(self._end))
        if is_over or self._open[-1] == "]":
            return ""
        return (yield from _read_next_key(self._buffer, self._end))

    def _goes_on(self) -> Resumable[bool]:
        """Whether the delimiter that was read ends a value, by what follows it; read nothing."""
        buffer, start = self._buffer, self._buffer.pos
        yield from buffer.skip_space()
        char = yield from buffer.peek()
        if char == ",":
            buffer.pos += 1
            goes_on = (yield from self._read_start_of_member()) is not None
        elif char == "}" or (char and char in "])" and char in self._closers):
            while (yield from buffer.peek()) == char:
                buffer.pos += 1
            goes_on = not (yield from _read_quote(buffer))
        else:
            goes_on = not char or (yield from buffer.read_literal(self._end))
        buffer.pos = start
        return goes_on

    @property
    def _closers(self) -> str:
        return "".join([*self._open, ")" if self._has_parenthesis else ""])

    # --- texts between delimiters -----------------------------------------------------------------

    def _read_quoted(self, key: str | None, quote: str) -> Resumable[None]:
        types = UNKNOWN if key is None else self._schemas.types_of(key)
        if types and STRING not in types:
            pieces: list[str] = []
            is_whole = yield from self._copy_text(key, quote, pieces.append)
            text = "".join(pieces)
            self._write(python_value_to_json(text) or text_to_json(text) if is_whole else text)
            return
        self._write('"')
        is_whole = yield from self._copy_text(key, quote, self._write_text)
        self._write('"' if is_whole else "")

    def _copy_text(self, key: str | None, quote: str, write: Write) -> Resumable[bool]:
        """Write a text up to the delimiter that ends it; return whether it has an end."""
        buffer = self._buffer
        missing = () if key is None else tuple(x for x in self._names if x not in self._written)
        finder = _member_text_ends(quote, self._end, missing)
        yield from self._skip_doubled(quote)
        inner = 0
        while marker := (yield from buffer.read_until(finder, write)):
            if marker == quote:
                count = 1 + (yield from self._count(quote))
                is_end = yield from self._goes_on()
                kept = count - is_end
                if is_end and kept == 1 and inner % 2 == 0:
                    kept = 0  # doubled, as it closes no quote of the text
                inner += kept
                write('"' * kept)
                if is_end:
                    return True
            elif marker[0] == "}" or (yield from self._is_unclosed(marker)):
                self._calls.note("quotes")
                buffer.unread(marker)
                return True
            else:
                write(marker)
        return False

    def _count(self, quote: str) -> Resumable[int]:
        count = 0
        while (yield from self._buffer.read_literal(quote)):
            count += 1
        return count

    def _skip_doubled(self, quote: str) -> Resumable[None]:
        """Skip a second delimiter at the start of a text, if it opens no quote of the text."""
        buffer, start = self._buffer, self._buffer.pos
        is_doubled = False
        if (yield from self._count(quote)) == 1 and not (yield from self._goes_on()):
            after = buffer.pos
            found = yield from buffer.read_up_to(_text_ends(quote, self._end), LOOKAHEAD)
            is_doubled = bool(found and found[1] == quote)
            is_doubled = is_doubled and (yield from self._count(quote)) < 2
            is_doubled = is_doubled and (yield from self._goes_on())
            start = after if is_doubled else start
        buffer.pos = start

    def _is_unclosed(self, marker: str) -> Resumable[bool]:
        """Whether the end of a call, or the start of an argument, shows that a text has no end."""
        buffer, start = self._buffer, self._buffer.pos
        found = yield from buffer.read_up_to(_quotes_and(self._end), LOOKAHEAD, or_end=True)
        goes_on = found is not None and found[1] in QUOTES and (yield from self._goes_on())
        buffer.pos = start
        if found is None:
            return False
        text, following = found
        if marker == self._end:
            return not following or "call:" in text
        if following in QUOTES:
            # The delimiter opens the text of this argument or of a later one, or ends this text.
            return not goes_on and (marker + text).rstrip().endswith(STARTS)
        return following == self._end

    def _write_text(self, text: str) -> None:
        self._write(quote_json(text)[1:-1])

    def _bare_to_json(self, key: str | None, text: str) -> str:
        if key is None or key not in self._names or text in NO_VALUES:
            return text_to_json(_unquoted(text))
        types = self._schemas.types_of(key)
        if types <= TEXT_TYPES:
            if isinstance(parse_json(text), str):
                return text
            self._calls.note("quotes")
            return quote_json(_unquoted(text))
        return value_to_json(text, types)


def _unquoted(text: str) -> str:
    """Return a text without single quotes around it, if they are a pair."""
    is_quoted = len(text) > 1 and text[0] == text[-1] == "'" and text[1:-1].count("'") < 2
    return text[1:-1] if is_quoted else text
