"""Write a custom tool's grammar as xgrammar's EBNF, escaped as a call escapes its input.

A call holds the input inside a JSON or Python string, or verbatim. So the EBNF has the escape of a
character where the grammar has the character. Each character has exactly one escape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from sys import getsizeof

from msgspec import Struct

from antiphon.application.support.lru_cache import LruCache, digest_of
from antiphon.domain.grammars import characters, read
from antiphon.domain.grammars import nodes as n
from antiphon.domain.kinds.custom import INPUT
from antiphon.domain.tools import ToolSpec

_cache: LruCache[tuple[str | None]] = LruCache(2 * 1024 * 1024)
_ROOT = "root"
_SHORT_ESCAPES = {"\b": "b", "\t": "t", "\n": "n", "\f": "f", "\r": "r", '"': '"', "\\": "\\"}
_CONTROLS = n.Characters(((0, 0x1F),))

MIN_NAMED_CLASS_LENGTH = 100
"""A character class at least this long becomes a rule, so that it is written once."""


class InputStyle(Struct, frozen=True):
    """How calls write an input: `prefix` and `suffix`, in EBNF, enclose it.

    Inside, `escapes` maps characters to the letter after their backslash. If `hex_prefix` is set,
    other control characters are written as a backslash, `hex_prefix` and two hexadecimal digits.
    """

    prefix: str
    suffix: str
    escapes: Mapping[str, str] = {}
    hex_prefix: str = ""

    def escaped_characters(self) -> n.Characters:
        """Return the characters that must be escaped."""
        letters = [characters.one(char) for char in self.escapes]
        return characters.union([*letters, _CONTROLS] if self.hex_prefix else letters)


# Without a limit, a confused model would write blanks until it runs out of tokens.
_BLANKS = r"[ \t\n]{0,20}"
JSON_INPUT = InputStyle(
    prefix=rf'"{{" {_BLANKS} "\"{INPUT}\"" {_BLANKS} ":" {_BLANKS} "\""',
    suffix=rf'"\"" {_BLANKS} "}}"',
    escapes=_SHORT_ESCAPES,
    hex_prefix="u00",
)
PYTHON_INPUT = InputStyle(
    prefix=rf'"{INPUT}=\""',
    suffix=r'"\""',
    escapes={char: letter for char, letter in _SHORT_ESCAPES.items() if char not in "\b\f"},
    hex_prefix="x",
)


def constrains_arguments(tool: ToolSpec) -> bool:
    """Whether calls of the tool are constrained even where the model is free not to call it."""
    return tool.strict or input_grammar(tool) is not None


def input_grammar(tool: ToolSpec, style: InputStyle = JSON_INPUT) -> str | None:
    """Return the EBNF of a custom tool's arguments, if its grammar can be enforced."""
    if tool.grammar is None:
        return None
    key = digest_of(*(part.encode() for part in (*tool.grammar, style.prefix, style.suffix)))
    cached = _cache.get(key)
    if cached is None:
        cached = (_input_grammar(*tool.grammar, style),)
        _cache.put(key, cached, getsizeof(cached[0]))
    return cached[0]


def _input_grammar(syntax: str, definition: str, style: InputStyle) -> str | None:
    grammar = read(syntax, definition)
    if grammar is None:
        return None
    return "\n".join(_Writer(style).write_rules(grammar)) + "\n"


class _Writer:
    def __init__(self, style: InputStyle) -> None:
        self._style = style
        self._escaped = style.escaped_characters()
        self._unescaped = characters.complement(self._escaped)
        self._classes: dict[n.Characters, str] = {}
        self._named_classes: dict[str, str] = {}

    def write_rules(self, grammar: n.Grammar) -> Iterator[str]:
        start = _rule_name(grammar.start)
        yield f"{_ROOT} ::= {self._style.prefix} {start} {self._style.suffix}"
        for name, node in grammar.rules.items():
            yield f"{_rule_name(name)} ::= {self._write(node)}"
        for ebnf, name in self._named_classes.items():
            yield f"{name} ::= {ebnf}"

    def _write(self, node: n.Node) -> str:
        match node:
            case n.Text(text):
                return _quote("".join(map(self._escape, text)))
            case n.Characters():
                if node not in self._classes:
                    self._classes[node] = self._name_if_long(self._write_class(node))
                return self._classes[node]
            case n.Chain(parts):
                return " ".join(map(self._write_part, parts))
            case n.AnyOf(options):
                return " | ".join(map(self._write, options))
            case n.Repeat(part, minimum, maximum):
                is_one = isinstance(part, n.Rule | n.Text | n.Characters)
                ebnf = self._write(part)
                return (ebnf if is_one else f"({ebnf})") + _write_quantifier(minimum, maximum)
            case n.Rule(name):
                return _rule_name(name)

    def _write_part(self, node: n.Node) -> str:
        ebnf = self._write(node)
        return f"({ebnf})" if isinstance(node, n.AnyOf) else ebnf

    def _name_if_long(self, ebnf: str) -> str:
        """Replace a long class by the name of a rule: `\\w` alone has hundreds of ranges."""
        if len(ebnf) < MIN_NAMED_CLASS_LENGTH:
            return ebnf
        return self._named_classes.setdefault(ebnf, f"class-{len(self._named_classes)}")

    def _escape(self, char: str) -> str:
        if char in self._style.escapes:
            return "\\" + self._style.escapes[char]
        if self._style.hex_prefix and ord(char) < 0x20:
            return f"\\{self._style.hex_prefix}{ord(char):02x}"
        return char

    def _write_class(self, chars: n.Characters) -> str:
        """Write a class of plain characters, with the escapes of the others as alternatives."""
        options = []
        plain = characters.common(chars, self._unescaped)
        if plain.ranges:
            options.append(_bracket(plain))
        letters: list[str] = []
        numbers: list[str] = []
        escaped = characters.common(chars, self._escaped)
        for code in (code for first, last in escaped.ranges for code in range(first, last + 1)):
            letter = self._style.escapes.get(chr(code))
            (letters if letter else numbers).append(letter or f"{code:02x}")
        if letters:
            options.append(rf'"\\" {_bracket(_union_of(letters))}')
        for high in sorted({digits[0] for digits in numbers}):
            low = _union_of([digits[1] for digits in numbers if digits[0] == high])
            options.append(rf'"\\{self._style.hex_prefix}{high}" {_bracket(low)}')
        return options[0] if len(options) == 1 and plain.ranges else f"({' | '.join(options)})"


def _union_of(chars: list[str]) -> n.Characters:
    return characters.union(map(characters.one, chars))


def _bracket(chars: n.Characters) -> str:
    return "[" + "".join(_write_range(first, last) for first, last in chars.ranges) + "]"


def _write_range(first: int, last: int) -> str:
    return _write_char(first) if first == last else f"{_write_char(first)}-{_write_char(last)}"


def _write_char(code: int) -> str:
    char = chr(code)
    if char.isascii() and (char.isalnum() or char in " !#$%&()*+,./:;<=>?@_`{|}~"):
        return char
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\U{code:08x}"


def _quote(text: str) -> str:
    chars = (char if char in "[]^-'" else _write_char(ord(char)) for char in text)
    return f'"{"".join(chars)}"'


def _write_quantifier(minimum: int, maximum: int | None) -> str:
    match minimum, maximum:
        case 0, 1:
            return "?"
        case 0, None:
            return "*"
        case 1, None:
            return "+"
    return f"{{{minimum},{'' if maximum is None else maximum}}}"


def _rule_name(rule: str) -> str:
    return f"r_{rule}"
