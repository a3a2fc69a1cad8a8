"""The grammar of what may follow a text: a run that has begun goes on within its constraint.

llama.cpp matches a grammar from the first token that it writes itself. So a run that another server
has begun gets the grammar of the rest: the text is read by the grammar, as llama.cpp would read it,
and what is left on each of its stacks becomes an option of the new root. It is the derivative of
Brzozowski, "Derivatives of Regular Expressions" (1964), with stacks for rules.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

from antiphon.adapters.engines.llama.grammar.rules import MAX_GRAMMAR_BYTES, NOTHING, ROOT

PREFIX = "after"
"""Of the names of the new rules."""

MAX_STACKS = 200_000
"""That are looked at for one text, in all: a third of a second. A long text takes some thousands,
nested repetitions with bounds take millions."""

Token = tuple[int, str]
"""A token's id and its text."""

_RULE = re.compile(r"^([\w.-]+) ::= ", re.MULTILINE)
_PARTS = re.compile(
    r"""(?P<token><\[(?P<id>\d+)\]>) | "(?P<string>(?:\\.|[^"\\])*)"
    | \[(?P<bracket>(?:\\.|[^\]\\])*)\] | (?P<name>[A-Za-z_][\w.-]*)
    | \{\s*(?P<least>\d+)\s*(?P<range>,)?\s*(?P<most>\d*)\s*\} | (?P<mark>[()|*+?.])""",
    re.VERBOSE | re.DOTALL,
)
_CHAR = re.compile(
    r"\\x([0-9a-fA-F]{2})|\\u([0-9a-fA-F]{4})|\\U([0-9a-fA-F]{8})|\\(.)|(.)", re.DOTALL
)
_NAMED = {"n": "\n", "r": "\r", "t": "\t"}
_REPEATS: dict[str, tuple[int, int | None]] = {"*": (0, None), "+": (1, None), "?": (0, 1)}


class DoesNotMatch(ValueError):
    """The text is none that the grammar allows."""


class TooComplex(ValueError):
    """There are too many ways to read the text, or to go on after it."""


class _Node:
    """A part of a rule. Each is one object, so that stacks can be compared by their identity."""

    def __str__(self) -> str:
        raise NotImplementedError


class _Chars(_Node):
    """One character of a class, or any but those."""

    def __init__(self, ranges: Sequence[tuple[str, str]], source: str, *, excludes: bool) -> None:
        self._ranges, self._source, self._excludes = ranges, source, excludes

    def __str__(self) -> str:
        return self._source

    def matches(self, char: str) -> bool:
        return any(low <= char <= high for low, high in self._ranges) != self._excludes


class _OneToken(_Node):
    def __init__(self, token_id: int) -> None:
        self.id = token_id

    def __str__(self) -> str:
        return f"<[{self.id}]>"


class _Rule(_Node):
    def __init__(self, name: str) -> None:
        self.name = name

    def __str__(self) -> str:
        return self.name


class _Choice(_Node):
    def __init__(self, options: Sequence[Sequence[_Node]]) -> None:
        self.options = options

    def __str__(self) -> str:
        return f"({' | '.join(map(_joined, self.options))})"


class _Repeat(_Node):
    """A node so many times; `most` is None if there is no limit."""

    def __init__(self, node: _Node, least: int, most: int | None) -> None:
        self.node, self.least, self.most = node, least, most

    def __str__(self) -> str:
        return f"{self.node}{{{self.least},{'' if self.most is None else self.most}}}"

    @cached_property
    def after_one(self) -> _Node | None:
        """The rest after the node was there once; None for nothing."""
        if self.most == 1:
            return None
        if self.most is None and self.least == 0:
            return self
        most = None if self.most is None else self.most - 1
        return _Repeat(self.node, max(0, self.least - 1), most)


class _Stack:
    """A node that must follow, and the stack below it. There is one object for each."""

    __slots__ = ("below", "node")

    def __init__(self, node: _Node, below: _Stack | None) -> None:
        self.node, self.below = node, below


Stacks = frozenset["_Stack | None"]
"""Each is a way to go on; None where the grammar may end."""


class Reader:
    """Reads a text token by token. `text` must be a grammar that rules.py wrote."""

    def __init__(self, text: str) -> None:
        starts = list(_RULE.finditer(text))
        ends = [*(each.start() for each in starts[1:]), len(text)]
        self._bodies = {
            start[1]: text[start.end() : end].strip()
            for start, end in zip(starts, ends, strict=True)
        }
        self._prefix = PREFIX
        self._looked_at = 0
        self._rules: dict[str, Sequence[Sequence[_Node]]] = {}
        self._interned: dict[tuple[_Node, _Stack | None], _Stack] = {}
        self._next: dict[tuple[Stacks, str], Stacks] = {}
        self._stacks = self._expanded(self._push(each, None) for each in self._options(ROOT))

    @property
    def may_end(self) -> bool:
        return None in self._stacks

    def read(self, tokens: Iterable[Token]) -> None:
        """Raises: DoesNotMatch, TooComplex."""
        for token_id, text in tokens:
            by_id = [
                stack.below
                for stack in self._stacks
                if stack is not None
                and isinstance(stack.node, _OneToken)
                and stack.node.id == token_id
            ]
            stacks = self._stacks
            for char in text:
                stacks = self._after(stacks, char)
            self._stacks = self._expanded(by_id) | stacks if by_id else stacks
            if not self._stacks:
                raise DoesNotMatch("What was written does not fit the constraint.")

    def remaining(self) -> str:
        """Return the grammar of what may follow."""
        names: dict[_Stack, str] = {}
        while any(name.startswith(f"{self._prefix}-") for name in self._bodies):
            self._prefix += f"-{PREFIX}"
        roots = [self._name(stack, names) if stack else NOTHING for stack in self._stacks]
        rests = [
            f"{name} ::= {stack.node} {names[stack.below] if stack.below else ''}".rstrip()
            for stack, name in names.items()
        ]
        rules = [f"{name} ::= {body}" for name, body in self._bodies.items() if name != ROOT]
        return "\n".join([f"{ROOT} ::= {' | '.join(roots)}", *rests, *rules])

    def _name(self, stack: _Stack, names: dict[_Stack, str]) -> str:
        below: _Stack | None = stack
        while below is not None and below not in names:
            names[below] = f"{self._prefix}-{len(names) + 1}"
            below = below.below
        return names[stack]

    def _options(self, name: str) -> Sequence[Sequence[_Node]]:
        if name not in self._rules:
            self._rules[name] = _parse(self._bodies[name])
        return self._rules[name]

    def _push(self, nodes: Sequence[_Node], below: _Stack | None) -> _Stack | None:
        for node in reversed(nodes):
            below = self._interned.setdefault((node, below), _Stack(node, below))
        return below

    def _expanded(self, stacks: Iterable[_Stack | None]) -> Stacks:
        """Return the stacks that begin with a character or a token, and None for the end."""
        todo, seen, ready = list(stacks), set[_Stack | None](), set[_Stack | None]()
        while todo:
            stack = todo.pop()
            if stack in seen:
                continue
            seen.add(stack)
            self._looked_at += 1
            if self._looked_at > MAX_STACKS:
                raise TooComplex("There are too many ways to read what was written.")
            match stack.node if stack is not None else None:
                case _Rule(name=name):
                    todo += [self._push(each, _below(stack)) for each in self._options(name)]
                case _Choice(options=options):
                    todo += [self._push(each, _below(stack)) for each in options]
                case _Repeat() as repeat:
                    if repeat.least == 0:
                        todo.append(_below(stack))
                    if repeat.most != 0:
                        again = repeat.after_one
                        nodes = [repeat.node] if again is None else [repeat.node, again]
                        todo.append(self._push(nodes, _below(stack)))
                case _:
                    ready.add(stack)
        return frozenset(ready)

    def _after(self, stacks: Stacks, char: str) -> Stacks:
        known = self._next.get((stacks, char))
        if known is None:
            known = self._next[stacks, char] = self._expanded(
                stack.below
                for stack in stacks
                if stack is not None and isinstance(stack.node, _Chars) and stack.node.matches(char)
            )
        return known


def remaining_of(grammar: str, tokens: Iterable[Token]) -> str:
    """Return the grammar of what may follow these tokens. Raises: DoesNotMatch, TooComplex."""
    reader = Reader(grammar)
    reader.read(tokens)
    rest = reader.remaining()
    if len(rest) > MAX_GRAMMAR_BYTES:
        raise TooComplex("The grammar of what may follow is too large.")
    return rest


def _below(stack: _Stack | None) -> _Stack | None:
    return None if stack is None else stack.below


def _joined(nodes: Sequence[_Node]) -> str:
    return " ".join(map(str, nodes)) or NOTHING


def _parse(body: str) -> Sequence[Sequence[_Node]]:
    return _options(_PARTS.finditer(body))


def _options(parts: Iterator[re.Match[str]]) -> Sequence[Sequence[_Node]]:
    """Return the alternatives up to the end or the closing parenthesis."""
    options: list[list[_Node]] = [[]]
    last = 0
    """How many nodes the last part has: a repetition after it is for all of them."""
    for part in parts:
        nodes = options[-1]
        match part.lastgroup, part["mark"]:
            case "mark", ")":
                return options
            case "mark", "|":
                options.append([])
                last = 0
            case "mark", "(":
                nodes.append(_Choice(_options(parts)))
                last = 1
            case "mark", ".":
                nodes.append(_Chars([], ".", excludes=True))
                last = 1
            case (("mark" | "least" | "most" | "range"), _):
                _repeat(nodes, last, *_bounds(part))
                last = 1
            case _:
                new = _atoms(part)
                nodes += new
                last = len(new)
    return options


def _bounds(part: re.Match[str]) -> tuple[int, int | None]:
    if part["mark"]:
        return _REPEATS[part["mark"]]
    least = int(part["least"])
    if not part["range"]:
        return least, least
    return least, int(part["most"]) if part["most"] else None


def _repeat(nodes: list[_Node], count: int, least: int, most: int | None) -> None:
    repeated = nodes[len(nodes) - count :]
    del nodes[len(nodes) - count :]
    node = repeated[0] if count == 1 else _Choice([repeated])
    nodes.append(_Repeat(node, least, most))


def _atoms(part: re.Match[str]) -> list[_Node]:
    if part["token"]:
        return [_OneToken(int(part["id"]))]
    if part["name"]:
        return [_Rule(part["name"])]
    if part["bracket"] is not None:
        return [_class(part["bracket"])]
    chars = _CHAR.finditer(part["string"])
    return [_Chars([(_value(each),) * 2], f'"{each[0]}"', excludes=False) for each in chars]


def _class(source: str) -> _Chars:
    excludes = source.startswith("^")
    chars = list(_CHAR.finditer(source, int(excludes)))
    ranges: list[tuple[str, str]] = []
    while chars:
        low = _value(chars.pop(0))
        high = low
        if len(chars) > 1 and chars[0][0] == "-":
            high = _value(chars[1])
            del chars[:2]
        ranges.append((low, high))
    return _Chars(ranges, f"[{source}]", excludes=excludes)


def _value(char: re.Match[Any]) -> str:
    code = char[1] or char[2] or char[3]
    if code:
        return chr(int(code, 16))
    return _NAMED.get(char[4], char[4]) if char[4] else str(char[5])
