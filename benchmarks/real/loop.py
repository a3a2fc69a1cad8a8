"""A loop of many turns with tools: how much of each prompt the engine has computed before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from benchmarks.real.asking import Answer, Question, ask
from benchmarks.real.servers import Target

TURNS = 20
MAX_TOKENS = 80
TOOLS: Sequence[Mapping[str, Any]] = [
    {
        "name": "get_stock",
        "description": "Return how many pieces of an article are in stock.",
        "parameters": {
            "type": "object",
            "properties": {"article": {"type": "string", "description": "The article's name."}},
            "required": ["article"],
            "additionalProperties": False,
        },
    }
]
ARTICLES = ("pens", "lamps", "chairs", "desks", "clips", "folders", "mugs", "cables", "keys")


def run_loop(target: Target) -> Sequence[Answer]:
    """Ask for one article after another; each turn shows the server all that came before."""
    items: list[Mapping[str, Any]] = [
        {"role": "system", "content": "You look after a store. Use get_stock for each question."}
    ]
    answers = []
    for turn in range(TURNS):
        if not _shows_output(items):
            article = ARTICLES[turn % len(ARTICLES)]
            items.append({"role": "user", "content": f"How many {article} do we have?"})
        answer = ask(target, Question(items=items, tools=TOOLS, max_tokens=MAX_TOKENS))
        answers.append(answer)
        if answer.error:
            break
        items += answer.items
        items += [
            {"type": "function_call_output", "call_id": item["call_id"], "output": str(7 * turn)}
            for item in answer.items
            if item.get("type") == "function_call"
        ]
    return answers


def cached_share(answers: Sequence[Answer]) -> float:
    """Return how much of what could be cached was: each prompt begins with the last one and its
    answer."""
    pairs = list(pairwise(answers))
    could = sum(last.prompt_tokens + last.tokens for last, _ in pairs)
    return sum(answer.cached_tokens for _, answer in pairs) / max(1, could)


def _shows_output(items: Sequence[Mapping[str, Any]]) -> bool:
    return items[-1].get("type") == "function_call_output"
