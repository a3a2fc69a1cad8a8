"""Which definitions are valid grammars, which of those are enforced, and what parsing may cost."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from antiphon.domain.errors import InvalidGrammar
from antiphon.domain.grammars import characters, read
from antiphon.domain.grammars import nodes as n


def rule(definition: str, name: str = "start", *, syntax: str = "lark") -> n.Node:
    grammar = read(syntax, definition)
    assert grammar is not None
    return grammar.rules[name]


def ranges(*pairs: str) -> n.Characters:
    return n.Characters(tuple((ord(pair[0]), ord(pair[-1])) for pair in pairs))


A, B = n.Text("a"), n.Text("b")


@pytest.mark.parametrize(
    ("body", "node"),
    [
        ('"a" "b"', n.Text("ab")),
        ('"a" | "b"', n.AnyOf((A, B))),
        ('("a" | "b")?', n.Repeat(n.AnyOf((A, B)), 0, 1)),
        ('["a"]', n.Repeat(A, 0, 1)),
        ('"a"*', n.Repeat(A)),
        ('"a"+', n.Repeat(A, 1)),
        ('"a"~3', n.Repeat(A, 3, 3)),
        ('"a" ~ 2..4', n.Repeat(A, 2, 4)),
        ('"a"{2,}', n.Repeat(A, 2)),
        ('"a"{,4}', n.Repeat(A, 0, 4)),
        ('"a".."f"', ranges("af")),
        ('"a"i', ranges("A", "a")),
        (r'"\"\\\n\x41\u00e9\U0001f600\d"', n.Text('"\\\nAé😀\\d')),
        (r"/\/\x2f/", n.Text("//")),
        ("/[ab]/i", ranges("AB", "ab")),
        ('"a" -> name // a comment', A),
        ('"a"\n  | "b" # another', n.AnyOf((A, B))),
        ('(\n"a"\n)', A),
    ],
)
def test_a_rule_is_parsed(body: str, node: n.Node) -> None:
    assert rule(f"start: {body}") == node


def test_an_option_may_be_empty() -> None:
    assert rule('start:\n  | "a"') == n.AnyOf((n.EMPTY, A))


def test_priorities_and_modifiers_of_rules_mean_nothing() -> None:
    assert rule('?start: A\n!A.2: "a"', "A") == A


def test_ignored_text_may_stand_before_terminals_and_at_the_end() -> None:
    grammar = read("lark", 'start: "a" B\nB: "b" "c"\n%ignore " "')
    assert grammar is not None
    blanks = n.Rule("-ignored")
    assert grammar.rules[grammar.start] == n.Chain((n.Rule("start"), blanks))
    assert grammar.rules["start"] == n.Chain((blanks, A, blanks, n.Rule("B")))
    assert grammar.rules["B"] == n.Text("bc")
    assert grammar.rules["-ignored"] == n.Repeat(n.Text(" "))


def test_terminals_are_imported_under_their_own_name_or_an_alias() -> None:
    text = "start: LF D LETTER\n%import common.DIGIT -> D\n%import common (LETTER, LF)"
    assert rule(text, "LF") == n.Text("\n")
    assert rule(text, "D") == ranges("09")
    assert rule(text, "LETTER") == ranges("AZ", "az")


def test_options_that_match_no_text_are_left_out() -> None:
    assert rule('start: "a" | x "b"\nx: x "c"') == A
    assert rule('start: "a" x*\nx: x') == A


@pytest.mark.parametrize(
    ("pattern", "node"),
    [
        (r"^ab$", n.Text("ab")),
        (r"\Aa\z", A),
        (r"(?m)^a$", A),
        (r"a|b", n.AnyOf((A, B))),
        (r"(?:a)(?P<x>b)(?<y>a)", n.Text("aba")),
        (r"a{2}", n.Repeat(A, 2, 2)),
        (r"a{2,}?", n.Repeat(A, 2)),
        (r"a{x}", n.Text("a{x}")),
        (r"(?i)a(?-i:b)", n.Chain((ranges("A", "a"), B))),
        (r"[]a-c-]", ranges("-", "]", "ac")),
        (r"[^\x00-`b-\U0010ffff]", A),
        (r"\x{61}\u{62}", n.Text("ab")),
        (r"\.\-\ \"", n.Text('.- "')),
    ],
)
def test_an_expression_is_parsed(pattern: str, node: n.Node) -> None:
    assert rule(pattern, syntax="regex") == node


def test_a_dot_is_any_character_except_a_line_feed() -> None:
    assert rule(".", syntax="regex") == characters.complement(characters.one("\n"))
    assert rule("(?s).", syntax="regex") == characters.ALL


@pytest.mark.parametrize(
    ("syntax", "definition", "place"),
    [
        ("lark", "", "line 1, column 1"),
        ("lark", 'begin: "a"', "line 1, column 11"),
        ("lark", "start: X", "line 1, column 8"),
        ("lark", 'start: "a"\nstart: "b"', "line 2, column 1"),
        ("lark", 'start: ("a"\n', "line 2, column 1"),
        ("lark", 'start: "a")', "line 1, column 11"),
        ("lark", 'start: "a\n', "line 1, column 8"),
        ("lark", "start: /a(/", "line 1, column 10"),
        ("lark", "start: /a/q", "line 1, column 9"),
        ("lark", "start: * x", "line 1, column 8"),
        ("lark", 'start: "ab".."c"', "line 1, column 8"),
        ("lark", 'start: "a"~3..2', "line 1, column 11"),
        ("lark", 'start: "a"~', "line 1, column 12"),
        ("lark", r'start: "\Uffffffff"', "line 1, column 9"),
        ("lark", 'start: X\nX: y\ny: "a"', "line 2, column 4"),
        ("lark", "start: start", "line 1, column 1"),
        ("lark", "start: Y\n%import common.Y", "line 2, column 16"),
        ("lark", "no grammar at all", "line 1, column 4"),
        ("lark", "start: " + "(" * 40, "line 1, column 38"),
        ("regex", "(", "line 1, column 1"),
        ("regex", "a)", "line 1, column 2"),
        ("regex", "a[b", "line 1, column 2"),
        ("regex", "*a", "line 1, column 1"),
        ("regex", "a{3,2}", "line 1, column 2"),
        ("regex", "a{1000000000}", "line 1, column 2"),
        ("regex", "[b-a]", "line 1, column 5"),
        ("regex", r"[\d-z]", "line 1, column 6"),
        ("regex", "a\\", "line 1, column 3"),
        ("regex", r"\y", "line 1, column 2"),
        ("regex", r"\x4", "line 1, column 3"),
        ("regex", r"[\ud800]", "line 1, column 4"),
        ("regex", "(?y)", "line 1, column 1"),
        ("regex", "(" * 40, "line 1, column 32"),
        ("regex", r"[^\s\S]", "line 1, column 1"),
        ("regex", "a" * 40_000, "line 1, column 32769"),
    ],
)
def test_the_error_of_an_invalid_grammar_has_its_place(
    syntax: str, definition: str, place: str
) -> None:
    with pytest.raises(InvalidGrammar) as caught:
        read(syntax, definition)
    assert caught.value.place(definition) == place


@pytest.mark.parametrize(
    ("syntax", "definition"),
    [
        ("lark", 'start: %json {"type": "null"}'),
        ("lark", "start: <|channel|>"),
        ("lark", 'start: "a"\n%declare X'),
        ("lark", 'start: pair{"a"}\npair{x}: x x'),
        ("lark", 'start[capture]: "a"'),
        ("lark", "start: STRING\n%import python.STRING"),
        ("lark", r'start: "\/"'),
        ("lark", "start: /a(?=b)/ B\nB: /b/"),
        ("regex", r"(?!a)b"),
        ("regex", r"(a)\1"),
        ("regex", r"\bword\b"),
        ("regex", r"\p{Greek}"),
        ("regex", r"[a-z&&[^b]]"),
        ("regex", "a$b"),
        ("regex", "(^a)"),
        ("regex", "a**"),
        ("regex", "(?x)a b"),
        ("regex", "((a{999}){999}){999}"),
        ("lark", 'start: "' + "a" * 25_000 + '"'),
    ],
)
def test_a_grammar_that_only_some_parsers_understand_is_valid_but_not_enforced(
    syntax: str, definition: str
) -> None:
    assert read(syntax, definition) is None


def test_rules_may_come_in_any_order() -> None:
    upward = "".join(f"r{i + 1}: r{i}\n" for i in range(500))
    assert rule(f'{upward}start: r500\nr0: "a"', "r0") == A
    downward = "".join(f"r{i}: r{i + 1}\n" for i in range(500))
    assert rule(f'start: r0\n{downward}r500: "a"', "r500") == A


HOSTILE = {
    "groups": ("regex", "(" * 16_000 + ")" * 16_000),
    "groups of both kinds": (
        "lark", "start: " + "(" * 29 + "/" + "(" * 29 + "a" + ")" * 29 + "/" + ")" * 29
    ),
    "a bracket's digits": ("lark", 'start: "a"{' + "1" * 32_000),
    "classes of words": ("regex", r"[^\w]" * 5_000),
    "classes in any case": ("regex", "(?i)" + r"[\x00-\u{10ffff}]" * 1_500),
    "classes that all differ": ("regex", "".join(rf"[\w{chr(i)}]" for i in range(0x4E00, 0x5E00))),
    "options": ("regex", "|" * 32_000),
    "rules": ("lark", 'start: "x"\n' + "".join(f"r{i}: r{i + 1}\n" for i in range(2_500))),
    "doublings": (
        "lark", "start: r0\n" + "".join(f"r{i}: r{i + 1}~9\n" for i in range(90)) + 'r90: "x"'
    ),
}  # fmt: skip


@pytest.mark.parametrize(("syntax", "definition"), HOSTILE.values(), ids=HOSTILE)
def test_no_definition_takes_long_to_parse(syntax: str, definition: str) -> None:
    started = time.process_time()
    try:
        read(syntax, definition)
    except InvalidGrammar as error:
        assert error.at <= len(definition)
    assert time.process_time() - started < 2


FRAGMENTS = st.sampled_from(
    ["start: ", "\n", '"a"', "/[^b]+/", "(", ")", "[", "]", "|", "*", "~2", "{1,2}", "x", "X: ",
     "%ignore ", "%import common.", "WS", "-> a", "..", "\\", "^", "?", ":", " ", "é", "(?i)"]
)  # fmt: skip


@settings(max_examples=500)
@given(st.sampled_from(["lark", "regex"]), st.lists(FRAGMENTS, max_size=20).map("".join))
def test_any_definition_is_parsed_or_refused(syntax: str, definition: str) -> None:
    try:
        grammar = read(syntax, definition)
    except InvalidGrammar as error:
        assert 0 <= error.at <= len(definition)
    else:
        assert grammar is None or grammar.start in grammar.rules


def test_letters_of_both_cases_count_against_the_limit() -> None:
    started = time.process_time()
    assert read("regex", "(?i)" + r"[\u0000-\u03e0]" * 1800) is None
    assert read("regex", "(?i)" + "[a-z]" * 1000) is not None
    assert time.process_time() - started < 0.5
