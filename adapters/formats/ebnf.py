"""Writes a custom tool's grammar as xgrammar's EBNF, in the spelling that a call gives its input.

A call holds the input inside a string of JSON or Python, or verbatim: so what a grammar says of a
character is written of that character's escape. Each has one spelling only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import lru_cache

from msgspec import Struct

from antiphon.adapters.formats.tools import INPUT
from antiphon.domain.grammars import characters, read
from antiphon.domain.grammars import nodes as n
from antiphon.domain.tools import ToolSpec

_ROOT = "root"
_SHORT = {"\b": "b", "\t": "t", "\n": "n", "\f": "f", "\r": "r", '"': '"', "\\": "\\"}
_CONTROLS = n.Characters(((0, 0x1F),))

LONG_CLASS = 100
"""Characters of a class that is written once."""


class Spelling(Struct, frozen=True):
    """`before` and `after` stand around the input, in EBNF. Inside, a backslash and a letter stand
    for the characters of `escapes`; other controls have two digits after `number`, if it is set.
    """

    before: str
    after: str
    escapes: Mapping[str, str] = {}
    number: str = ""

    def special(self) -> n.Characters:
        """Return the characters that do not stand for themselves."""
        letters = [characters.one(char) for char in self.escapes]
        return characters.union([*letters, _CONTROLS] if self.number else letters)


# Without a bound, a model that has lost its way writes blanks to its last token.
_BLANK = r"[ \t\n]{0,20}"
SPELLINGS: Mapping[str, Spelling] = {
    "json": Spelling(
        before=rf'"{{" {_BLANK} "\"{INPUT}\"" {_BLANK} ":" {_BLANK} "\""',
        after=rf'"\"" {_BLANK} "}}"',
        escapes=_SHORT,
        number="u00",
    ),
    "pythonic": Spelling(
        before=rf'"{INPUT}=\""',
        after=r'"\""',
        escapes={char: letter for char, letter in _SHORT.items() if char not in "\b\f"},
        number="x",
    ),
    "qwen_xml": Spelling(before=rf'"<parameter={INPUT}>\n"', after=r'"\n</parameter>"'),
}
"""By how a family writes arguments (`CallForm.arguments`); Harmony writes JSON."""


def constrains_arguments(tool: ToolSpec) -> bool:
    """Say whether what the tool is called with is bound also where the model is free to call."""
    return tool.strict or input_grammar(tool) is not None


def input_grammar(tool: ToolSpec, spelled: str = "json") -> str | None:
    """Return the EBNF of a custom tool's arguments, if it has a grammar that can bind them."""
    return None if tool.grammar is None else _input_grammar(*tool.grammar, spelled)


@lru_cache(maxsize=64)
def _input_grammar(syntax: str, definition: str, spelled: str) -> str | None:
    grammar = read(syntax, definition)
    if grammar is None:
        return None
    return "\n".join(_Writer(SPELLINGS[spelled]).rules(grammar)) + "\n"


class _Writer:
    def __init__(self, spelling: Spelling) -> None:
        self._spelling = spelling
        self._special = spelling.special()
        self._plain = characters.complement(self._special)
        self._classes: dict[n.Characters, str] = {}
        self._long: dict[str, str] = {}

    def rules(self, grammar: n.Grammar) -> Iterator[str]:
        start = _name(grammar.start)
        yield f"{_ROOT} ::= {self._spelling.before} {start} {self._spelling.after}"
        for name, node in grammar.rules.items():
            yield f"{_name(name)} ::= {self._written(node)}"
        for written, name in self._long.items():
            yield f"{name} ::= {written}"

    def _written(self, node: n.Node) -> str:
        match node:
            case n.Text(text):
                return _quoted("".join(map(self._spelled, text)))
            case n.Characters():
                if node not in self._classes:
                    self._classes[node] = self._named(self._class(node))
                return self._classes[node]
            case n.Chain(parts):
                return " ".join(map(self._part, parts))
            case n.AnyOf(options):
                return " | ".join(map(self._written, options))
            case n.Repeat(part, least, most):
                is_one = isinstance(part, n.Rule | n.Text | n.Characters)
                written = self._written(part)
                return (written if is_one else f"({written})") + _quantifier(least, most)
            case n.Rule(name):
                return _name(name)

    def _part(self, node: n.Node) -> str:
        written = self._written(node)
        return f"({written})" if isinstance(node, n.AnyOf) else written

    def _named(self, written: str) -> str:
        """Return a long class by a name of its own: `\\w` alone has hundreds of ranges."""
        if len(written) < LONG_CLASS:
            return written
        return self._long.setdefault(written, f"class-{len(self._long)}")

    def _spelled(self, char: str) -> str:
        if char in self._spelling.escapes:
            return "\\" + self._spelling.escapes[char]
        if self._spelling.number and ord(char) < 0x20:
            return f"\\{self._spelling.number}{ord(char):02x}"
        return char

    def _class(self, chars: n.Characters) -> str:
        """Return the class of what stands for itself, and the escapes of the rest beside it."""
        options = []
        plain = characters.common(chars, self._plain)
        if plain.ranges:
            options.append(_bracketed(plain))
        letters: list[str] = []
        numbers: list[str] = []
        special = characters.common(chars, self._special)
        for code in (code for first, last in special.ranges for code in range(first, last + 1)):
            letter = self._spelling.escapes.get(chr(code))
            (letters if letter else numbers).append(letter or f"{code:02x}")
        if letters:
            options.append(rf'"\\" {_bracketed(_all_of(letters))}')
        for high in sorted({digits[0] for digits in numbers}):
            low = _all_of([digits[1] for digits in numbers if digits[0] == high])
            options.append(rf'"\\{self._spelling.number}{high}" {_bracketed(low)}')
        return options[0] if len(options) == 1 and plain.ranges else f"({' | '.join(options)})"


def _all_of(chars: list[str]) -> n.Characters:
    return characters.union(map(characters.one, chars))


def _bracketed(chars: n.Characters) -> str:
    return "[" + "".join(_range(first, last) for first, last in chars.ranges) + "]"


def _range(first: int, last: int) -> str:
    return _code(first) if first == last else f"{_code(first)}-{_code(last)}"


def _code(code: int) -> str:
    char = chr(code)
    if char.isascii() and (char.isalnum() or char in " !#$%&()*+,./:;<=>?@_`{|}~"):
        return char
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _quoted(text: str) -> str:
    return '"' + "".join(char if char in "[]^-'" else _code(ord(char)) for char in text) + '"'


def _quantifier(least: int, most: int | None) -> str:
    match least, most:
        case 0, 1:
            return "?"
        case 0, None:
            return "*"
        case 1, None:
            return "+"
    return f"{{{least},{'' if most is None else most}}}"


def _name(rule: str) -> str:
    return f"r_{rule}"
