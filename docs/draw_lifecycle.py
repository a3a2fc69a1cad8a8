"""Draw docs/explanation/lifecycle.md from the tables of domain/lifecycle.py: `make docs`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from antiphon.domain.lifecycle import CREATED, ERROR, OPENS, OVER, RUNNING, START, TRANSITIONS
from antiphon.domain.vocabulary.steps import State

PAGE = Path(__file__).parent / "explanation" / "lifecycle.md"
RESPONSE_STATES = (START, CREATED, RUNNING, ERROR, OVER)
INTRO = """# The lifecycle of a response

Drawn by `make docs` from the tables in `domain/lifecycle.py`, to which each kind in `domain/kinds/`
adds its own; a test checks that it is up to date.

Each diagram is a state machine: a box is a state of the stream, and an arrow is an event that leads
to the next state. An event without an arrow cannot happen.
"""


def page() -> str:
    """Return the whole page."""
    parts = [INTRO, "## The response\n", _diagram(_response_edges())]
    for first in dict.fromkeys(OPENS.values()):
        kinds = [kind for kind, state in OPENS.items() if state == first]
        names = ", ".join(f"`{kind.__struct_config__.tag}`" for kind in kinds)
        parts += [f"## {names}\n", _diagram(_item_edges(first))]
    return "\n".join(parts)


def _response_edges() -> Iterator[tuple[State, str, State]]:
    for state in RESPONSE_STATES:
        for event, after in TRANSITIONS[state].items():
            yield state, str(event.__struct_config__.tag), after
    yield RUNNING, "response.output_item.added … done", RUNNING


def _item_edges(first: State) -> Iterator[tuple[State, str, State]]:
    yield RUNNING, "response.output_item.added", first
    seen, todo = {RUNNING}, [first]
    while todo:
        state = todo.pop()
        if state in seen:
            continue
        seen.add(state)
        for event, after in TRANSITIONS[state].items():
            yield state, str(event.__struct_config__.tag), after
            todo.append(after)


def _diagram(edges: Iterable[tuple[State, str, State]]) -> str:
    # A colon ends a label in mermaid, and event names have none.
    lines = [f"    {before} --> {after}: {event}" for before, event, after in edges]
    return "\n".join(["```mermaid", "stateDiagram-v2", *lines, "```", ""])


if __name__ == "__main__":
    PAGE.write_text(page())
