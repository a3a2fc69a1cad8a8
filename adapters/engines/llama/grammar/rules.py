"""The rules of a GBNF grammar while it is written.

GBNF: https://github.com/ggml-org/llama.cpp/blob/master/grammars/README.md.
"""

from __future__ import annotations

import re
from collections.abc import Collection

ROOT = "root"
NOTHING = '""'
MAX_REPEATS = 1000
"""llama.cpp refuses grammars with much larger repetitions."""

MAX_GRAMMAR_BYTES = 1_000_000

_RULE = re.compile(r"^[ \t]*([\w.-]+)[ \t]*::=", re.MULTILINE)
_PARTS = re.compile(
    r"""(?P<string>"(?:\\.|[^"\\])*") | (?P<bracket>\[(?:\\.|[^\]\\])*\])
    | (?P<comment>\#[^\n]*) | (?P<name>[A-Za-z_][\w.-]*) | (?P<bounds>\{[\d,\s]*\})
    | (?P<rest>.)""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\(x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|.)", re.DOTALL)
_KNOWN_ESCAPES = frozenset('trn\\"[]')


class Rules:
    """Rules by name. A name is added before its body is written, so that rules can be recursive."""

    def __init__(self) -> None:
        self._bodies: dict[str, str] = {}
        self._count = 0

    def reserve(self, hint: str) -> str:
        """Return a new name, whose body follows with `define`."""
        self._count += 1
        return f"{hint}-{self._count}"

    def define(self, name: str, body: str) -> None:
        self._bodies[name] = body

    def add(self, hint: str, body: str) -> str:
        """Return the name of a new rule with this body."""
        name = self.reserve(hint)
        self.define(name, body)
        return name

    def shared(self, name: str, body: str) -> str:
        """Return the name of a rule that is written once, whoever needs it."""
        self._bodies.setdefault(name, body)
        return name

    def text(self, root: str) -> str:
        """Return the grammar, which starts with the expression `root`."""
        return "\n".join(
            f"{name} ::= {body}" for name, body in [(ROOT, root), *self._bodies.items()]
        )

    def add_ebnf(self, ebnf: str) -> str:
        """Add the rules of an EBNF text under names of their own; return that of its root.

        Raises: ValueError if it has no rule `root`.
        """
        starts = list(_RULE.finditer(ebnf))
        names = {each[1]: self.reserve("g") for each in starts}
        if ROOT not in names:
            raise ValueError("the grammar has no rule `root`")
        ends = [*(each.start() for each in starts[1:]), len(ebnf)]
        for start, end in zip(starts, ends, strict=True):
            self.define(names[start[1]], _translate(ebnf[start.end() : end], names))
        return names[ROOT]


def _translate(body: str, names: dict[str, str]) -> str:
    written: list[str] = []
    for part in _PARTS.finditer(body):
        text = part[0]
        match part.lastgroup:
            case "string" | "bracket":
                text = _ESCAPE.sub(_to_gbnf_escape, text)
            case "comment":
                text = " "
            case "name":
                if text not in names:
                    raise ValueError(f"there is no rule {text!r}")
                text = names[text]
            case "rest" if text.isspace():
                text = " "  # a rule that goes on in the next line
        written.append(text)
    return "".join(written).strip()


def _to_gbnf_escape(escape: re.Match[str]) -> str:
    if len(escape[1]) > 1 or escape[1] in _KNOWN_ESCAPES:
        return escape[0]
    return hex_escape(escape[1])


def hex_escape(char: str) -> str:
    code = ord(char)
    if code <= 0xFF:
        return f"\\x{code:02X}"
    return f"\\u{code:04X}" if code <= 0xFFFF else f"\\U{code:08X}"


def quote(text: str) -> str:
    """Return the literal of a text.

    >>> print(quote('a"b' + chr(10)))
    "a\\x22b\\x0A"
    """
    return '"' + "".join(_in_literal(char) for char in text) + '"'


def _in_literal(char: str) -> str:
    return char if char.isprintable() and char not in '"\\' else hex_escape(char)


def none_of(chars: Collection[str]) -> str:
    """Return the class of all characters but these; there is at least one character."""
    if not chars:
        return "[^\\x00]"
    return "[^" + "".join(hex_escape(char) for char in sorted(chars)) + "]"


def any_of(options: Collection[str]) -> str:
    """Return the alternatives in parentheses."""
    unique = list(dict.fromkeys(options))
    return unique[0] if len(unique) == 1 else f"({' | '.join(unique)})"
