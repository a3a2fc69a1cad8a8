"""Reads grammars in Lark's notation, in the dialect of LLGuidance as far as both agree.

A grammar is read without a lexer: a text matches if the rules give it in any way at all (Lark's
`earley` with `dynamic_complete`). So priorities mean nothing, and `%ignore` stands before every
terminal in a rule and at the end. What only one of the dialects knows is UnsupportedGrammar.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from msgspec import Struct

from antiphon.domain.errors import InvalidGrammar, UnsupportedGrammar
from antiphon.domain.grammars import characters
from antiphon.domain.grammars import nodes as n
from antiphon.domain.grammars.expressions import MOST_DEPTH, Allowance, read_expression, repeated

START = "start"
IGNORED, WHOLE = "-ignored", "-whole"
"""Rules for what `%ignore` names and for `start` before it; a client's have no such names."""

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
"""What `%import common.X` brings."""

_TOKEN = re.compile(
    r"""(?P<blank>[ \t\f]+|//[^\n]*|\#[^\n]*|\\[ \t]*\r?\n)|(?P<line>\r?\n|\r)"""
    r"""|(?P<string>"(?:\\.|[^"\\\n])*"i?)|(?P<regex>/(?:\\.|[^/\\\n])+/[a-z]*)"""
    r"""|(?P<directive>%[a-z]+)|(?P<name>[A-Za-z_]\w*)|(?P<count>\{(?:\d+(?:,\d*)?|,\d+)\})"""
    r"""|(?P<number>[+-]?\d+)|(?P<beyond><[^<>\n]*>|[<>&@$=;^{}])|(?P<mark>->|\.\.|[:|()\[\]?!*+~,.])""",
    re.ASCII,
)
_ESCAPE = re.compile(
    r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|(?P<letter>[^xuU]))"
)
_ESCAPED: Mapping[str, str] = {
    "n": "\n", "t": "\t", "r": "\r", "f": "\f", '"': '"', "\\": "\\",
}  # fmt: skip

_END = ""
"""The kind of the token after the last."""


class Token(Struct, frozen=True, gc=False):
    """A piece of the definition: `kind` is a group of `_TOKEN`, a mark is its own kind."""

    kind: str
    text: str
    at: int


def read_lark(definition: str) -> n.Grammar:
    """Return the grammar. Raises: InvalidGrammar, UnsupportedGrammar."""
    return _Reader(_tokens(definition)).grammar()


def _tokens(definition: str) -> list[Token]:
    """Return what counts: line ends only where a statement may end, not before a `|`."""
    found: list[Token] = []
    at = depth = 0
    while at < len(definition):
        token = _TOKEN.match(definition, at)
        if token is None:
            raise InvalidGrammar(f"unexpected {definition[at]!r}", at)
        kind, text = str(token.lastgroup), token[0]
        depth += (text in ("(", "[")) - (text in (")", "]"))
        if text == "|" and found and found[-1].kind == "line":
            found.pop()
        if kind != "blank" and not (kind == "line" and (depth > 0 or _is_line(found))):
            found.append(Token(text if kind == "mark" else kind, text, at))
        at = token.end()
    return [*found, Token("line", "", at), Token(_END, "", at)]


def _is_line(found: list[Token]) -> bool:
    return not found or found[-1].kind == "line"


class _Reader:
    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0
        self._in_terminal = False
        self._allowance = Allowance()
        self._ignores = any(token.text == "%ignore" for token in tokens)
        self._ignored: list[n.Node] = []
        self._rules: dict[str, n.Node] = {}
        self._used: dict[str, Token] = {}

    def grammar(self) -> n.Grammar:
        while self._ahead.kind != _END:
            self._statement()
        for name, token in self._used.items():
            if name not in self._rules:
                raise InvalidGrammar(f"the rule {name!r} is used but not defined", token.at)
        if START not in self._rules:
            raise InvalidGrammar(f"there is no rule {START!r}", self._ahead.at)
        if not self._ignores:
            return n.Grammar(START, self._rules)
        ignored = n.repeat(n.any_of(self._ignored), 0, None)
        whole = n.chain([n.Rule(START), n.Rule(IGNORED)])
        return n.Grammar(WHOLE, {WHOLE: whole, **self._rules, IGNORED: ignored})

    # --- statements

    def _statement(self) -> None:
        if self._ahead.kind == "line":
            self._at += 1
        elif self._ahead.kind == "directive":
            self._directive(self._take())
        else:
            self._definition()

    def _definition(self) -> None:
        while self._ahead.kind in ("?", "!"):
            self._at += 1
        name = self._take("name", "the name of a rule")
        if self._ahead.kind in ("beyond", "["):
            raise UnsupportedGrammar(f"a template or attributes of {name.text!r}")
        if self._ahead.kind == ".":
            self._at += 1
            self._take("number", "a priority")
        self._take(":", "':'")
        if name.text in self._rules:
            raise InvalidGrammar(f"the rule {name.text!r} is defined twice", name.at)
        self._in_terminal = _is_terminal(name.text)
        self._rules[name.text] = self._options()
        self._take("line", "the end of the rule")

    def _directive(self, token: Token) -> None:
        match token.text:
            case "%ignore":
                self._in_terminal = True
                self._ignored.append(self._options())
                self._take("line", "the end of the line")
            case "%import":
                self._import()
            case _:
                raise UnsupportedGrammar(f"the directive {token.text}")

    def _import(self) -> None:
        source = self._take("name", "the name of a grammar")
        if source.text != "common":
            raise UnsupportedGrammar(f"the grammar {source.text!r}")
        if self._ahead.kind == "(":
            self._at += 1
            while self._ahead.kind != ")":
                name = self._take("name", "the name of a terminal")
                self._bring(name, name.text)
                if self._ahead.kind == ",":
                    self._at += 1
            self._at += 1
        else:
            self._take(".", "'.'")
            name = self._take("name", "the name of a terminal")
            self._bring(name, self._alias() or name.text)
        self._take("line", "the end of the line")

    def _bring(self, name: Token, alias: str) -> None:
        if name.text not in COMMON:
            raise InvalidGrammar(f"'common' has no {name.text!r}", name.at)
        self._rules[alias] = read_expression(COMMON[name.text], self._allowance)

    # --- what a rule stands for

    def _options(self) -> n.Node:
        options = [self._row()]
        while self._ahead.kind == "|":
            self._at += 1
            options.append(self._row())
        return n.any_of(options)

    def _row(self) -> n.Node:
        parts: list[n.Node] = []
        while self._ahead.kind not in ("|", ")", "]", "line"):
            if self._alias():
                break
            parts.append(self._quantified(self._item()))
        return n.chain(parts)

    def _alias(self) -> str:
        if self._ahead.kind != "->":
            return ""
        self._at += 1
        return self._take("name", "a name").text

    def _item(self) -> n.Node:
        token = self._take()
        match token.kind:
            case "(" | "[":
                return self._group(token)
            case "name":
                return self._name(token)
            case "string":
                return self._terminal(self._string(token))
            case "regex":
                source, _, flags = token.text[1:].rpartition("/")
                expression = read_expression(
                    source, self._allowance, flags=flags, offset=token.at + 1
                )
                return self._terminal(expression)
            case "beyond" | "directive" | "~" | "!":
                raise UnsupportedGrammar(f"{token.text!r} in a rule")
        raise InvalidGrammar(f"unexpected {token.text!r}", token.at)

    def _group(self, opening: Token) -> n.Node:
        self._depth += 1
        if self._depth > MOST_DEPTH:
            raise InvalidGrammar(f"more than {MOST_DEPTH} groups inside each other", opening.at)
        inner = self._options()
        closing = ")" if opening.kind == "(" else "]"
        self._take(closing, f"{closing!r} for the {opening.kind!r} before it")
        self._depth -= 1
        return inner if opening.kind == "(" else n.Repeat(inner, 0, 1)

    def _name(self, token: Token) -> n.Node:
        if self._in_terminal and not _is_terminal(token.text):
            raise InvalidGrammar(f"the rule {token.text!r} inside a terminal", token.at)
        self._used.setdefault(token.text, token)
        rule = n.Rule(token.text)
        return self._terminal(rule) if _is_terminal(token.text) else rule

    def _terminal(self, node: n.Node) -> n.Node:
        if self._in_terminal or not self._ignores:
            return node
        return n.chain([n.Rule(IGNORED), node])

    def _string(self, token: Token) -> n.Node:
        text = _unescaped(token)
        if self._ahead.kind == "..":
            self._at += 1
            last = _unescaped(self._take("string", "the last character of a range"))
            if len(text) != 1 or len(last) != 1 or text > last:
                raise InvalidGrammar(
                    "a range that does not go from one character to another", token.at
                )
            return characters.of((ord(text), ord(last)))
        if not token.text.endswith("i"):
            return n.Text(text)
        return n.chain([characters.without_case(characters.one(char)) for char in text])

    def _quantified(self, node: n.Node) -> n.Node:
        token = self._ahead
        if token.kind in ("?", "*", "+", "count"):
            self._at += 1
            return repeated(node, token.text, token.at)
        if token.kind == "~":
            self._at += 1
            bounds = self._take("number", "how often to repeat").text
            if self._ahead.kind == "..":
                self._at += 1
                bounds += "," + self._take("number", "how often to repeat at most").text
            return repeated(node, "{" + bounds + "}", token.at)
        return node

    # --- tokens

    @property
    def _ahead(self) -> Token:
        return self._tokens[self._at]

    def _take(self, kind: str | None = None, wanted: str = "") -> Token:
        token = self._ahead
        if kind is not None and token.kind != kind:
            found = repr(token.text) if token.text.strip() else "the end of the line"
            if token.kind in ("beyond", "count"):
                raise UnsupportedGrammar(f"{found} where {wanted} was expected")
            raise InvalidGrammar(f"{found} where {wanted} was expected", token.at)
        self._at += 1
        return token


def _is_terminal(name: str) -> bool:
    return name.lstrip("_")[:1].isupper()


def _unescaped(token: Token) -> str:
    """Return what a string stands for; a backslash that escapes nothing stays, as in Lark."""

    def char(found: re.Match[str]) -> str:
        letter = found["letter"]
        if letter is None:
            known = characters.numbered(found[1] or found[2] or found[3])
            if known is not None:
                return known
            raise InvalidGrammar("the number of no character", token.at + found.start() + 1)
        if letter in "b/":
            raise UnsupportedGrammar("an escape that the dialects read differently")
        return _ESCAPED.get(letter, found[0])

    body = token.text[1:].rpartition('"')[0]
    return _ESCAPE.sub(char, body)
