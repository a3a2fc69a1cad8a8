"""Text for a terminal: what models, tools and files contain must not control it."""

from __future__ import annotations

import json


def printable(text: str) -> str:
    """Return the text with its control characters written out, but for ends of lines.

    >>> printable("a\\x1b[1m\\n\\x9b")
    'a\\\\x1b[1m\\n\\\\x9b'
    """
    return "".join(each if _is_harmless(each) else ascii(each)[1:-1] for each in text)


def printable_json(text: str) -> str:
    """Return JSON with the control characters of its texts written as JSON writes them.

    >>> printable_json('{"a": "\\x9b1m"}')
    '{"a": "\\\\u009b1m"}'
    """
    return "".join(each if _is_harmless(each) else json.dumps(each)[1:-1] for each in text)


def _is_harmless(letter: str) -> bool:
    return letter.isprintable() or letter == "\n"
