"""Python's matcher runs our own patterns only, and each in a time that grows with the text.

What a client, a model or a tool server writes could be a pattern that never ends, or a text at
which one of ours does. The source is walked: each pattern is a literal, made of constants, or named
here with the reason why no stranger writes it. Then each literal is tried on texts made of its own
characters, which find repetitions that share them.
"""

from __future__ import annotations

import ast
import importlib
import itertools
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from antiphon.adapters.engines.scripted.grammar_inputs import small_matches
from antiphon.adapters.engines.scripted.step_budget import OutOfSteps, StepBudget

ROOT = Path(__file__).parents[3]
FOLDERS = ("domain", "application", "adapters", "entrypoints", "testing")
MATCHERS = frozenset(
    {"search", "match", "fullmatch", "sub", "subn", "split", "finditer", "findall"}
)
OTHERS = frozenset(
    {"compile", "escape", "error", "Pattern", "Match"}
    | {"ASCII", "DOTALL", "IGNORECASE", "MULTILINE", "VERBOSE"}
)
REFUSED_MODULES = frozenset({"fnmatch", "glob", "jsonschema", "regex", "sre_parse", "string"})
"""Each would run a pattern or a format that a client could write."""

CHARS = 6000
MAX_S = 0.05
"""For that many characters; a linear pattern takes far less than a millisecond."""

TEMPLATE = "markers of a chat template, which the operator chooses, each escaped"
NAMED: Mapping[str, str] = {
    r"domain/grammars/characters.py: f'\\{letter}+'": "`letter` is d, s or w",
    "domain/requests/decoding.py: pattern": "of the list below it",
    "domain/retrieval/citations.py: f'(?:{LINK}[^{_LINK_END}]": "lengths of a constant",
    r"domain/retrieval/text_chunks.py: f'(?:\\s*+(?:{token}": "one of two constants",
    r"adapters/formats/chat_template/detection.py: re.sub('\\\\\\{\\w+": TEMPLATE,
    "adapters/formats/chat_template/marker_cutter.py: '|'.join(starts)": TEMPLATE,
    "adapters/formats/chat_template/marker_cutter.py: _alternatives(": TEMPLATE,
    "adapters/formats/chat_template/mistral_common.py: f'({pattern})'": TEMPLATE,
    "adapters/formats/chat_template/parsing/family_markers.py: '|'.join([*starts": TEMPLATE,
    "adapters/formats/chat_template/parsing/text_buffer.py: pattern or": TEMPLATE,
    r"adapters/formats/harmony/header.py: '\\s*(?:' + '|'.join(": "beginnings of constants",
    r"adapters/formats/input_unwrapper.py: '\\s*' + ''.join(steps)": "an escaped key of ours",
    r"adapters/formats/input_unwrapper.py: f'\\s*{partial}\\Z'": "an escaped key of ours",
    r"adapters/models/chat_completions/errors.py: f'\\b{name}\\b'": "a name of REQUEST_FIELDS",
    "adapters/web/html.py: f'{opening}([0-9]+)": "three characters of ours",
    "adapters/web/html.py: f'[{opening}{middle}": "three characters of ours",
}

BOUNDED: Mapping[str, int] = {
    "adapters/formats/chat_template/payloads/marked_calls.py: HEAD": 3 * 128,
    "adapters/formats/chat_template/payloads/named_calls.py: FENCE_OPENING": 2 * 128,
    "adapters/formats/chat_template/payloads/tag_labels.py: ATTRIBUTE": 128,
}
"""Patterns of which the text has a bound, in characters (`MAX_NAME_LENGTH`)."""


class OwnPattern(NamedTuple):
    file: str
    name: str
    call: ast.Call
    pattern: ast.expr
    methods: frozenset[str]


def is_fixed(node: ast.AST) -> bool:
    """Whether an expression is made of literals, constants of modules and escaped texts."""
    match node:
        case ast.Constant():
            return True
        case ast.Name(id=name):
            return name.strip("_").isupper()
        case ast.Attribute(value=value, attr=attr):
            return attr.isupper() or is_fixed(value)
        case (
            ast.Subscript(value=value)
            | ast.FormattedValue(value=value)
            | ast.Starred(value=value)
            | ast.Call(func=ast.Attribute(value=value, attr="encode"))
        ):
            return is_fixed(value)
        case ast.JoinedStr(values=parts) | ast.Tuple(elts=parts) | ast.BoolOp(values=parts):
            return all(map(is_fixed, parts))
        case ast.BinOp(left=left, right=right):
            return is_fixed(left) and is_fixed(right)
        case ast.Call(func=ast.Name(id="map"), args=[function, texts]):
            return ast.unparse(function) == "re.escape" or is_fixed(texts)
        case ast.Call(func=ast.Name(id="len" | "sorted"), args=parts):
            return all(map(is_fixed, parts))
        case ast.Call(func=ast.Attribute(value=value, attr="join"), args=parts):
            return is_fixed(value) and all(map(is_fixed, parts))
    return isinstance(node, ast.Call) and ast.unparse(node.func) == "re.escape"


@cache
def trees() -> Mapping[str, ast.Module]:
    files = (file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py")))
    return {str(file.relative_to(ROOT)): ast.parse(file.read_text()) for file in files}


@cache
def nodes() -> Sequence[tuple[str, ast.AST]]:
    return [(file, node) for file, tree in trees().items() for node in ast.walk(tree)]


def pattern_of(node: ast.AST) -> ast.expr | None:
    """Return the pattern in a call of `re`, or of msgspec's `Meta`, None if it is no such call."""
    if not isinstance(node, ast.Call):
        return None
    match node.func:
        case ast.Attribute(value=ast.Name(id="re"), attr=name) if name in MATCHERS | {"compile"}:
            return node.args[0]
        case ast.Name(id="Meta") | ast.Attribute(attr="Meta"):
            keywords = {keyword.arg: keyword.value for keyword in node.keywords}
            return keywords.get("pattern")
    return None


def test_every_pattern_is_our_own() -> None:
    calls = ((file, pattern) for file, node in nodes() if (pattern := pattern_of(node)))
    strange = [f"{file}: {ast.unparse(each)}" for file, each in calls if not is_fixed(each)]
    unnamed = [each for each in strange if not each.startswith(tuple(NAMED))]
    assert unnamed == [], "write a literal, or say in NAMED why no stranger writes the pattern"
    unused = [name for name in NAMED if not any(each.startswith(name) for each in strange)]
    assert unused == []


def test_the_matcher_is_only_reached_by_calls_that_are_walked() -> None:
    """A function of `re` under another name would hide its pattern."""
    called = {id(node.func) for _, node in nodes() if isinstance(node, ast.Call)}
    passed_on = [
        f"{file}: {ast.unparse(node)}"
        for file, node in nodes()
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "re"
        and node.attr not in OTHERS
        and not (node.attr in MATCHERS and id(node) in called)
    ]
    assert passed_on == []
    imports = [
        f"{file}: {ast.unparse(node)}"
        for file, node in nodes()
        if isinstance(node, ast.Import | ast.ImportFrom)
        if {getattr(node, "module", None), *(each.name for each in node.names)} & REFUSED_MODULES
        or getattr(node, "module", None) == "re"
        or any(each.name == "re" and each.asname for each in node.names)
    ]
    assert imports == []


FORMATS: Mapping[str, str] = {
    "adapters/stores/listing.py: statement": "a constant of ours",
    "adapters/stores/search_sql.py: sql.has_piece": "a constant of ours",
    "entrypoints/http/pages/openapi_page.py: words": "a constant of ours",
    "entrypoints/process/log_format.py: ": "formats a record of the log",
    "entrypoints/commands/": "`msgspec.json.format`",
    "entrypoints/http/doors/messages/input.py: msgspec.json": "`msgspec.json.format`",
}
"""Receivers of `format` that are no literals: a stranger's format could read any attribute."""


def test_no_stranger_writes_a_format_or_a_glob() -> None:
    strange = [
        f"{file}: {ast.unparse(node.func.value)}"
        for file, node in nodes()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr in ("format", "format_map") and not is_fixed(node.func.value)
    ]
    strange += [
        f"{file}: {ast.unparse(node)}"
        for file, node in nodes()
        if isinstance(node, ast.BinOp)
        if isinstance(node.op, ast.Mod) and isinstance(node.right, ast.Tuple | ast.Dict)
        if not is_fixed(node.left)
    ]
    assert [each for each in strange if not each.startswith(tuple(FORMATS))] == []
    globs = [
        f"{file}: {ast.unparse(node)}"
        for file, node in nodes()
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if node.func.attr in ("glob", "rglob") and not is_fixed(node.args[0])
    ]
    assert globs == ["entrypoints/process/sockets.py: folder.glob(f'{number}-*.relay')"]


# --- time -----------------------------------------------------------------------------------------


def own_patterns() -> Iterator[OwnPattern]:
    """Yield the patterns of constants, with the methods by which they are asked anywhere."""
    asked: dict[str, set[str]] = {}
    for _, node in nodes():
        if isinstance(node, ast.Attribute) and node.attr in MATCHERS:
            owner = node.value
            name = owner.id if isinstance(owner, ast.Name) else getattr(owner, "attr", "")
            asked.setdefault(name, set()).add(node.attr)
    for file, tree in trees().items():
        names = {
            id(part): ast.unparse(target)
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None
            for target in (node.targets[:1] if isinstance(node, ast.Assign) else [node.target])
            for part in ast.walk(node.value)
        }
        direct = {
            id(node.value): node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and node.attr in MATCHERS
        }
        for node in ast.walk(tree):
            pattern = pattern_of(node)
            if pattern is None or not is_fixed(pattern):
                continue
            assert isinstance(node, ast.Call)
            name = names.get(id(node), "")
            method = getattr(node.func, "attr", "search")
            methods = {method} if method in MATCHERS else asked.get(name, set())
            methods = {direct[id(node)]} if id(node) in direct else methods
            yield OwnPattern(file, name, node, pattern, frozenset(methods or {"match"}))


def compiled(own: OwnPattern) -> re.Pattern[Any] | None:
    """Return the pattern as its module has it, None if it has parts that a function fills in."""
    module = own.file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    names = vars(importlib.import_module(f"antiphon.{module}"))
    flags = [keyword.value for keyword in own.call.keywords if keyword.arg == "flags"]
    if ast.unparse(own.call.func) == "re.compile":
        flags += own.call.args[1:]
    try:
        values = [eval(ast.unparse(part), names) for part in (own.pattern, *flags)]
    except NameError:
        return None
    return re.compile(*values)


def characters_in(parsed: Any) -> Iterator[str]:
    """Yield a character for each class and literal in what Python's parser says of a pattern."""
    match parsed:
        case (op, int(code)) if str(op) in ("LITERAL", "NOT_LITERAL"):
            yield chr(code)
        case (op, (int(first), int(_))) if str(op) == "RANGE":
            yield chr(first)
        case (op, category) if str(op) == "CATEGORY":
            yield {"E": " ", "T": "0", "D": "a"}[str(category)[-1]]
        case str() | int() | None:
            pass
        case _ if hasattr(parsed, "__iter__"):
            for part in parsed:
                yield from characters_in(part)


def nasty_texts(pattern: str, length: int) -> Iterator[str]:
    """Yield beginnings of a match that go on with the same few characters, and do not end well."""
    parsed = importlib.import_module("re._parser").parse(pattern)
    match = ""
    with suppress(OutOfSteps):
        match = next(small_matches(pattern, (1,), StepBudget()), "")[:40]
    found = list(dict.fromkeys([*characters_in(parsed), " ", "a", "0", "\n"]))[:16]
    pairs = map("".join, itertools.permutations(found[:5], 2))
    cuts = sorted({*range(min(len(match), 6)), len(match) // 2, len(match)})
    for pump in (*found, *pairs, match or "x"):
        for cut in cuts:
            yield match[:cut] + (pump * length)[:length] + "\0"
            yield match[:cut] + (pump * length)[:length]


def duration(pattern: re.Pattern[Any], method: str, text: Any) -> float:
    ask: Callable[..., Any] = getattr(pattern, method)
    started = time.process_time()
    answer = ask(type(text)(), text) if method in ("sub", "subn") else ask(text)
    if method == "finditer":
        list(answer)
    return time.process_time() - started


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_pattern_takes_a_time_that_grows_with_the_text() -> None:
    slow = []
    for own in own_patterns():
        pattern = compiled(own)
        if pattern is None:
            continue
        is_text = isinstance(pattern.pattern, str)
        source = pattern.pattern if is_text else pattern.pattern.decode("latin-1")
        length = BOUNDED.get(f"{own.file}: {own.name}", CHARS)
        for method, text in itertools.product(own.methods, nasty_texts(source, length)):
            asked = text if is_text else text.encode("latin-1", "replace")
            if duration(pattern, method, asked) < MAX_S:
                continue
            if min(duration(pattern, method, asked) for _ in range(3)) > MAX_S:
                slow.append(f"{own.file}: {own.name}.{method} {text[:40]!r}")
                break
    assert slow == []
