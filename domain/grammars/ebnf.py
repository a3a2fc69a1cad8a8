"""Write a parsed grammar as EBNF, in the words that xgrammar and llama.cpp have in common.

A call holds its input inside a JSON or Python string, or verbatim. So the EBNF has the escape of a
character where the grammar has the character. Each character has exactly one escape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from msgspec import Struct

from antiphon.domain.errors import UnsupportedGrammar
from antiphon.domain.grammars import characters
from antiphon.domain.grammars import nodes as n

_ROOT = "root"
_CONTROLS = n.Characters(((0, 0x1F),))

JSON_ESCAPES = {"\b": "b", "\t": "t", "\n": "n", "\f": "f", "\r": "r", '"': '"', "\\": "\\"}
"""The short escapes of JSON."""

MIN_NAMED_CLASS_LENGTH = 100
"""A character class at least this long becomes a rule, so that it is written once."""


class InputStyle(Struct, frozen=True):
    """How calls write an input: `prefix` and `suffix`, in EBNF, enclose it.

    Inside, `escapes` maps characters to the letter after their backslash. If `hex_prefix` is set,
    other control characters are written as a backslash, `hex_prefix` and two hexadecimal digits.
    Classes leave out the characters of `excludes`, with which the text after an input may begin.
    """

    prefix: str
    suffix: str
    escapes: Mapping[str, str] = {}
    hex_prefix: str = ""
    excludes: str = ""

    def escaped_characters(self) -> n.Characters:
        """Return the characters that must be escaped."""
        letters = [characters.one(char) for char in self.escapes]
        return characters.union([*letters, _CONTROLS] if self.hex_prefix else letters)


IN_TAGS = InputStyle(prefix="", suffix="", excludes="<")
"""A value between tags, as it is: without what may begin the closing one."""


def write_ebnf(grammar: n.Grammar, style: InputStyle) -> str:
    """Return the rules of the grammar between the style's prefix and suffix, one a line."""
    return "\n".join(_Writer(style).write_rules(grammar)) + "\n"


class _Writer:
    def __init__(self, style: InputStyle) -> None:
        self._style = style
        self._escaped = style.escaped_characters()
        excluded = map(characters.one, style.excludes)
        self._unescaped = characters.complement(characters.union([self._escaped, *excluded]))
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
        if not options:  # nothing but what is left out
            return _bracket(chars)
        return options[0] if len(options) == 1 and plain.ranges else f"({' | '.join(options)})"


def write_expression(grammar: n.Grammar, style: InputStyle) -> str:
    """Return a grammar of one rule as an expression that matches whole texts, for xgrammar.

    It has no characters that the style escapes. Raises: UnsupportedGrammar if it needs one.
    """
    return _ExpressionWriter(style).write(grammar.rules[grammar.start])


class _ExpressionWriter:
    def __init__(self, style: InputStyle) -> None:
        self._escaped = style.escaped_characters()
        excluded = map(characters.one, style.excludes)
        self._plain = characters.complement(characters.union([self._escaped, *excluded]))

    def write(self, node: n.Node) -> str:
        match node:
            case n.Text(text):
                if any(characters.contains(self._escaped, char) for char in text):
                    raise UnsupportedGrammar("a character that must be escaped")
                return "".join(_in_expression(ord(char)) for char in text)
            case n.Characters():
                plain = characters.common(node, self._plain).ranges or self._needed(node)
                pairs = (f"{_in_expression(first)}-{_in_expression(last)}" for first, last in plain)
                return f"[{''.join(pairs)}]"
            case n.Chain(parts):
                return "".join(map(self.write, parts))
            case n.AnyOf(options):
                return f"(?:{'|'.join(map(self.write, options))})"
            case n.Repeat(part, minimum, maximum):
                return f"(?:{self.write(part)}){_write_quantifier(minimum, maximum)}"
        raise TypeError(f"{type(node).__name__} is not of an expression")

    def _needed(self, chars: n.Characters) -> tuple[n.Range, ...]:
        """Return a class of nothing but characters that are left out."""
        if characters.common(chars, self._escaped).ranges:
            raise UnsupportedGrammar("a character that must be escaped")
        return chars.ranges


def _in_expression(code: int) -> str:
    char = chr(code)
    if char.isascii() and char.isalnum():
        return char
    return f"\\u{code:04x}" if code <= 0xFFFF else f"\\u{{{code:x}}}"


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
