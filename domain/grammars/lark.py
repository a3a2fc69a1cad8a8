"""Parse grammars in Lark's notation, as far as Lark and LLGuidance agree.

Grammars work without a lexer: a text matches if the rules can produce it in any way (Lark's
`earley` with `dynamic_complete`). Priorities therefore mean nothing, and ignored text may stand
before every terminal in a rule and at the end. Features of only one dialect raise
UnsupportedGrammar.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from antiphon.domain.errors import InvalidGrammar, UnsupportedGrammar
from antiphon.domain.grammars import characters
from antiphon.domain.grammars import nodes as n
from antiphon.domain.grammars.expressions import (
    MAX_DEPTH,
    RangeBudget,
    apply_quantifier,
    parse_expression,
)

START = "start"
IGNORED, WHOLE = "-ignored", "-whole"
"""Added rules: the text that `%ignore` allows, and `start` followed by such text. A hyphen cannot
occur in the names of a client's rules."""

COMMON: Mapping[str, str] = {
    "DIGIT": r"[0-9]",
    "HEXDIGIT": r"[0-9A-Fa-f]",
    "INT": r"[0-9]+",
    "SIGNED_INT": r"[+-]?[0-9]+",
    "DECIMAL": r"[0-9]+\.[0-9]*|\.[0-9]+",
    "FLOAT": r"[0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?",
    "SIGNED_FLOAT": r"[+-]?([0-9]+[eE][+-]?[0-9]+|([0-9]+\.[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?)",
    "NUMBER": r"([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]+)?",
    "ESCAPED_STRING": r'"([^"\\\n]|\\[^\n])*"',
    "LCASE_LETTER": r"[a-z]",
    "UCASE_LETTER": r"[A-Z]",
    "LETTER": r"[A-Za-z]",
    "WORD": r"[A-Za-z]+",
    "CNAME": r"[A-Za-z_][A-Za-z0-9_]*",
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(\r?\n)+",
    "SH_COMMENT": r"#[^\n]*",
    "CPP_COMMENT": r"//[^\n]*",
    "C_COMMENT": r"/\*([^*]|\*+[^*/])*\*+/",
    "SQL_COMMENT": r"--[^\n]*",
}
"""The terminals that `%import common.X` defines."""

_TOKEN = re.compile(
    r"""(?P<blank>[ \t\f]+|//[^\n]*|\#[^\n]*|\\[ \t]*\r?\n)|(?P<line>\r?\n|\r)"""
    r"""|(?P<string>"(?:\\.|[^"\\\n])*"i?)|(?P<regex>/(?:\\.|[^/\\\n])+/[a-z]*)"""
    r"""|(?P<directive>%[a-z]+)|(?P<name>[A-Za-z_]\w*)|(?P<count>\{(?:\d+(?:,\d*)?|,\d+)\})"""
    r"""|(?P<number>[+-]?\d+)|(?P<unsupported><[^<>\n]*>|[<>&@$=;^{}])|(?P<mark>->|\.\.|[:|()\[\]?!*+~,.])""",
    re.ASCII,
)
_ESCAPE = re.compile(
    r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(?P<letter>[^xuU]))"
)
_ESCAPES: Mapping[str, str] = {
    "n": "\n", "t": "\t", "r": "\r", "f": "\f", '"': '"', "\\": "\\",
}  # fmt: skip

_END = ""
"""The kind of the token after the last one."""


class Token(Struct, frozen=True, gc=False):
    """A token of the definition: `kind` is a group of `_TOKEN`; a mark is its own kind."""

    kind: str
    text: str
    at: int


def parse_lark(definition: str) -> n.Grammar:
    """Return the parsed grammar. Raises: InvalidGrammar, UnsupportedGrammar."""
    return _Parser(_tokenize(definition)).parse()


def _tokenize(definition: str) -> list[Token]:
    """Return the tokens without blanks, and with line ends only where a statement may end."""
    tokens: list[Token] = []
    at = depth = 0
    while at < len(definition):
        token = _TOKEN.match(definition, at)
        if token is None:
            raise InvalidGrammar(f"unexpected {definition[at]!r}", at)
        kind, text = str(token.lastgroup), token[0]
        depth += (text in ("(", "[")) - (text in (")", "]"))
        if text == "|" and tokens and tokens[-1].kind == "line":
            tokens.pop()
        if kind != "blank" and not (kind == "line" and (depth > 0 or _is_at_line_start(tokens))):
            tokens.append(Token(text if kind == "mark" else kind, text, at))
        at = token.end()
    return [*tokens, Token("line", "", at), Token(_END, "", at)]


def _is_at_line_start(tokens: list[Token]) -> bool:
    return not tokens or tokens[-1].kind == "line"


class _Parser:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0
        self._in_terminal = False
        self._budget = RangeBudget()
        self._has_ignore = any(token.text == "%ignore" for token in tokens)
        self._ignored: list[n.Node] = []
        self._rules: dict[str, n.Node] = {}
        self._references: dict[str, Token] = {}

    def parse(self) -> n.Grammar:
        while self._current.kind != _END:
            self._parse_statement()
        for name, token in self._references.items():
            if name not in self._rules:
                raise InvalidGrammar(f"the rule {name!r} is used but not defined", token.at)
        if START not in self._rules:
            raise InvalidGrammar(f"there is no rule {START!r}", self._current.at)
        if not self._has_ignore:
            return n.Grammar(START, self._rules)
        ignored = n.repeat(n.any_of(self._ignored), 0, None)
        whole = n.chain([n.Rule(START), n.Rule(IGNORED)])
        return n.Grammar(WHOLE, {WHOLE: whole, **self._rules, IGNORED: ignored})

    # --- statements

    def _parse_statement(self) -> None:
        if self._current.kind == "line":
            self._at += 1
        elif self._current.kind == "directive":
            self._parse_directive(self._take())
        else:
            self._parse_definition()

    def _parse_definition(self) -> None:
        while self._current.kind in ("?", "!"):
            self._at += 1
        name = self._take("name", "the name of a rule")
        if self._current.kind in ("unsupported", "["):
            raise UnsupportedGrammar(f"a template or attributes of {name.text!r}")
        if self._current.kind == ".":
            self._at += 1
            self._take("number", "a priority")
        self._take(":", "':'")
        if name.text in self._rules:
            raise InvalidGrammar(f"the rule {name.text!r} is defined twice", name.at)
        self._in_terminal = _is_terminal(name.text)
        self._rules[name.text] = self._parse_options()
        self._take("line", "the end of the rule")

    def _parse_directive(self, token: Token) -> None:
        match token.text:
            case "%ignore":
                self._in_terminal = True
                self._ignored.append(self._parse_options())
                self._take("line", "the end of the line")
            case "%import":
                self._parse_import()
            case _:
                raise UnsupportedGrammar(f"the directive {token.text}")

    def _parse_import(self) -> None:
        source = self._take("name", "the name of a grammar")
        if source.text != "common":
            raise UnsupportedGrammar(f"the grammar {source.text!r}")
        if self._current.kind == "(":
            self._at += 1
            while self._current.kind != ")":
                name = self._take("name", "the name of a terminal")
                self._import_terminal(name, name.text)
                if self._current.kind == ",":
                    self._at += 1
            self._at += 1
        else:
            self._take(".", "'.'")
            name = self._take("name", "the name of a terminal")
            self._import_terminal(name, self._parse_alias() or name.text)
        self._take("line", "the end of the line")

    def _import_terminal(self, name: Token, alias: str) -> None:
        if name.text not in COMMON:
            raise InvalidGrammar(f"'common' has no {name.text!r}", name.at)
        self._rules[alias] = parse_expression(COMMON[name.text], self._budget)

    # --- the right-hand side of a rule

    def _parse_options(self) -> n.Node:
        options = [self._parse_sequence()]
        while self._current.kind == "|":
            self._at += 1
            options.append(self._parse_sequence())
        return n.any_of(options)

    def _parse_sequence(self) -> n.Node:
        parts: list[n.Node] = []
        while self._current.kind not in ("|", ")", "]", "line"):
            if self._parse_alias():
                break
            parts.append(self._parse_quantifier(self._parse_item()))
        return n.chain(parts)

    def _parse_alias(self) -> str:
        if self._current.kind != "->":
            return ""
        self._at += 1
        return self._take("name", "a name").text

    def _parse_item(self) -> n.Node:
        token = self._take()
        match token.kind:
            case "(" | "[":
                return self._parse_group(token)
            case "name":
                return self._parse_name(token)
            case "string":
                return self._with_ignored_before(self._parse_string(token))
            case "regex":
                source, _, flags = token.text[1:].rpartition("/")
                expression = parse_expression(
                    source, self._budget, flags=flags, offset=token.at + 1
                )
                return self._with_ignored_before(expression)
            case "unsupported" | "directive" | "~" | "!":
                raise UnsupportedGrammar(f"{token.text!r} in a rule")
        raise InvalidGrammar(f"unexpected {token.text!r}", token.at)

    def _parse_group(self, opening: Token) -> n.Node:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise InvalidGrammar(f"more than {MAX_DEPTH} nested groups", opening.at)
        inner = self._parse_options()
        closing = ")" if opening.kind == "(" else "]"
        self._take(closing, f"{closing!r} for the {opening.kind!r} before it")
        self._depth -= 1
        return inner if opening.kind == "(" else n.Repeat(inner, 0, 1)

    def _parse_name(self, token: Token) -> n.Node:
        if self._in_terminal and not _is_terminal(token.text):
            raise InvalidGrammar(f"the rule {token.text!r} inside a terminal", token.at)
        self._references.setdefault(token.text, token)
        rule = n.Rule(token.text)
        return self._with_ignored_before(rule) if _is_terminal(token.text) else rule

    def _with_ignored_before(self, node: n.Node) -> n.Node:
        if self._in_terminal or not self._has_ignore:
            return node
        return n.chain([n.Rule(IGNORED), node])

    def _parse_string(self, token: Token) -> n.Node:
        text = _unescape(token)
        if self._current.kind == "..":
            self._at += 1
            last = _unescape(self._take("string", "the last character of a range"))
            if len(text) != 1 or len(last) != 1 or text > last:
                raise InvalidGrammar(
                    "a range that does not go from one character to another", token.at
                )
            return characters.from_ranges((ord(text), ord(last)))
        if not token.text.endswith("i"):
            return n.Text(text)
        return n.chain([characters.without_case(characters.one(char)) for char in text])

    def _parse_quantifier(self, node: n.Node) -> n.Node:
        token = self._current
        if token.kind in ("?", "*", "+", "count"):
            self._at += 1
            return apply_quantifier(node, token.text, token.at)
        if token.kind == "~":
            self._at += 1
            bounds = self._take("number", "how often to repeat").text
            if self._current.kind == "..":
                self._at += 1
                bounds += "," + self._take("number", "how often to repeat at most").text
            return apply_quantifier(node, "{" + bounds + "}", token.at)
        return node

    # --- tokens

    @property
    def _current(self) -> Token:
        return self._tokens[self._at]

    def _take(self, kind: str | None = None, expected: str = "") -> Token:
        token = self._current
        if kind is not None and token.kind != kind:
            actual = repr(token.text) if token.text.strip() else "the end of the line"
            if token.kind in ("unsupported", "count"):
                raise UnsupportedGrammar(f"{actual} where {expected} was expected")
            raise InvalidGrammar(f"{actual} where {expected} was expected", token.at)
        self._at += 1
        return token


def _is_terminal(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


def _unescape(token: Token) -> str:
    """Return the text of a string token; as in Lark, an unknown escape stays as it is."""

    def unescape(escape: re.Match[str]) -> str:
        letter = escape["letter"]
        if letter is None:
            char = characters.from_hex(escape[1] or escape[2] or escape[3])
            if char is not None:
                return char
            raise InvalidGrammar("an invalid code point", token.at + escape.start() + 1)
        if letter in "b/":
            raise UnsupportedGrammar("an escape that the dialects read differently")
        return _ESCAPES.get(letter, escape[0])

    body = token.text[1:].rpartition('"')[0]
    return _ESCAPE.sub(unescape, body)
