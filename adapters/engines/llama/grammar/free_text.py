"""Text in which some patterns do not occur: each pattern ends it, or is not allowed at all.

GBNF has no such thing, but every state of the search for patterns (Aho and Corasick) can be a rule:
https://doi.org/10.1145/360825.360855.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from antiphon.adapters.engines.llama.grammar.rules import NOTHING, Rules, any_of, none_of, quote


def free_text(
    rules: Rules, patterns: Mapping[str, str | None], *, may_end: bool, name: str = ""
) -> str:
    """Return the name of a rule for any text before the first pattern, and what follows it.

    `patterns` says by pattern which expression follows it, or None if it must not occur. `may_end`:
    the text may also end without a pattern. `name` is that of the rule if it was reserved.
    """
    name = name or rules.reserve("text")
    states = {pattern[:end] for pattern in patterns for end in range(len(pattern))} | {""}
    names = {state: name if not state else rules.reserve("text") for state in sorted(states)}
    alphabet = sorted({char for pattern in patterns for char in pattern})
    for state, rule in names.items():
        rules.define(rule, _body_of(state, names, alphabet, patterns, may_end=may_end))
    return name


def _body_of(
    state: str,
    names: Mapping[str, str],
    alphabet: list[str],
    patterns: Mapping[str, str | None],
    *,
    may_end: bool,
) -> str:
    options: list[str] = []
    handled: list[str] = []
    by_target: dict[str, list[str]] = defaultdict(list)
    for char in alphabet:
        seen = state + char
        met = next((each for each in patterns if seen.endswith(each)), None)
        if met is not None:
            handled.append(char)
            follows = patterns[met]
            if follows is not None:
                options.append(f"{quote(char)} {follows}" if follows else quote(char))
            continue
        target = _longest_state(seen, names)
        if target:
            handled.append(char)
            by_target[target].append(char)
    options += [
        f"{any_of([quote(char) for char in chars])} {names[target]}"
        for target, chars in by_target.items()
    ]
    options.append(f"{none_of(handled)} {names['']}")
    if may_end:
        options.append(NOTHING)
    return " | ".join(options)


def _longest_state(text: str, names: Mapping[str, str]) -> str:
    return next((text[start:] for start in range(len(text)) if text[start:] in names), "")
