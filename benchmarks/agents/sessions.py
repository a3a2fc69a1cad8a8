"""An agent's session: many turns, each with a tool's result of some size, from a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

TURNS = 43
TOKENS = 142_000
"""The median session of a published study of agents: its turns, and the tokens of its last prompt.
"""

TOOL = "run"
RESULTS = (200, 20_000)
"""The fewest and the most tokens of a tool's result."""

MEASURED = 5
"""The turns at the beginning and at the end that are compared."""

WORDS = (
    *("def", "return", "self", "value", "error", "test", "file", "line", "import", "class", "if"),
    *(
        "else:",
        "for",
        "in",
        "not",
        "None",
        "True",
        "await",
        "assert",
        "expected",
        "found",
        "server",
    ),
    *("request", "response", "items", "turn", "prompt", "token", "cache", "README.md", "main.py"),
    *("0", "1", "17", "404", "=", "==", "->", "(", ")", "[", "]", "{", "}", ":", ",", "#", '"x"'),
)


class Session(Struct, frozen=True, kw_only=True):
    """What the agent sends: its instructions, its tools, the task, and each tool's result."""

    instructions: str
    tools: Sequence[Mapping[str, Any]]
    task: str
    results: Sequence[str]


def make_session(
    seed: int, *, texts: str = "", turns: int = TURNS, tokens: int = TOKENS
) -> Session:
    """Return a session whose last prompt has about so many tokens. Those of a seed have results of
    the same sizes, and other words for other `texts`, which no cache then has.

    The sizes of results are spread evenly on a logarithmic scale, as most are short. Those that the
    last turns get are as large as those of the first ones: what differs is the history.
    """
    low, high = RESULTS
    sizes_chance, chance = random.Random(seed), random.Random(f"{seed} {texts}")
    sizes = [low * (high / low) ** sizes_chance.random() for _ in range(turns)]
    sizes[-MEASURED - 1 : -1] = sizes[:MEASURED]
    scale = tokens * 0.82 / sum(sizes)  # what else a turn has takes the rest
    return Session(
        instructions=_text(chance, tokens // 40),
        tools=[_tool(TOOL), *(_tool(f"{TOOL}_{number}") for number in range(11))],
        task=f"Task {seed} {texts}: " + _text(chance, 60),
        results=[_text(chance, int(min(high, size * scale))) for size in sizes],
    )


def _tool(name: str) -> Mapping[str, Any]:
    return {
        "type": "function",
        "name": name,
        "description": "Run a command in the folder of the task, and return what it prints.",
        "parameters": {
            "type": "object",
            "properties": {
                "command": {"type": "string", "description": "The command and its arguments."},
                "seconds": {"type": "integer", "minimum": 1, "maximum": 600},
            },
            "required": ["command"],
            "additionalProperties": False,
        },
    }


def call_arguments(turn: int) -> str:
    return json.dumps({"command": f"sed -n {turn},{turn + 40}p src/module_{turn}.py"})


def _text(chance: random.Random, tokens: int) -> str:
    words = chance.choices(WORDS, k=max(1, tokens * 4 // 5))
    for at in range(9, len(words), 10):
        words[at] += "\n   "
    return " ".join(words)
