"""Separates a call's arguments in JSON from what a model writes after them."""

from __future__ import annotations

import re

_MARKS = re.compile(r'["\\{}\[\]]')
_STRING_MARKS = re.compile(r'["\\]')
SURPLUS = " \t\r\n}])"
"""What models write after arguments as if these stood in a list, or had another bracket."""


class ArgumentsReader:
    """Passes the first object on as it arrives; the pieces it comes in make no difference.

    Arguments that start as anything else are passed on to their end, as the model wrote them.
    """

    def __init__(self) -> None:
        self._depth = 0
        self._is_in_string = False
        self._is_escape_cut = False
        self._has_started = False
        self._is_object = False
        self._is_whole = False
        self._rest: list[str] = []

    def feed(self, text: str) -> str:
        if self._is_whole:
            self._rest.append(text)
            return ""
        if not self._has_started and (start := text.lstrip()[:1]):
            self._has_started = True
            self._is_object = start == "{"
        if not self._has_started or not self._is_object:
            return text
        end = self._find_end(text)
        if end is None:
            return text
        self._is_whole = True
        self._rest.append(text[end:])
        return text[:end]

    def end(self) -> tuple[str, str]:
        """Return nothing, and the words after the arguments."""
        rest = "".join(self._rest).lstrip(SURPLUS)
        return "", rest

    def _find_end(self, text: str) -> int | None:
        position = int(self._is_escape_cut and bool(text))
        self._is_escape_cut = self._is_escape_cut and not text
        while match := (_STRING_MARKS if self._is_in_string else _MARKS).search(text, position):
            mark, position = match[0], match.end()
            if mark == '"':
                self._is_in_string = not self._is_in_string
            elif mark == "\\":
                if self._is_in_string:
                    self._is_escape_cut = position == len(text)
                    position += 1
            else:
                self._depth += 1 if mark in "{[" else -1
                if self._depth <= 0:
                    return position
        return None
