"""Whether what a page shows is what came; `…` in a page stands for anything."""

from __future__ import annotations

import re
from typing import Any

ANYTHING = "…"


def is_shown(shown: str, printed: str) -> bool:
    """Return whether `printed` has this text, however its lines are broken.

    >>> is_shown("a …\\nc", "log: a b c d"), is_shown("b a", "a b")
    (True, False)
    """
    return re.search(_pattern(" ".join(shown.split())), " ".join(printed.split())) is not None


def is_within(shown: Any, answer: Any) -> bool:
    """Return whether `shown` fits the answer, or a value anywhere in it.

    >>> is_within({"type": "message"}, {"output": [{"id": "msg_1", "type": "message"}]})
    True
    """
    inner = answer.values() if isinstance(answer, dict) else answer
    inner = inner if isinstance(answer, dict | list) else ()
    return fits(shown, answer) or any(is_within(shown, value) for value in inner)


def fits(shown: Any, value: Any) -> bool:
    """Return whether a value has all that is shown; an object may have more fields.

    >>> fits({"id": "resp_…", "output": [{"text": "…"}]}, {"id": "resp_1", "output": [{"text": 1}]})
    True
    """
    match shown:
        case dict():
            return isinstance(value, dict) and all(
                key in value and fits(each, value[key]) for key, each in shown.items()
            )
        case list():
            return (
                isinstance(value, list)
                and len(shown) == len(value)
                and all(map(fits, shown, value))
            )
        case str() if shown == ANYTHING:
            return True
        case str():
            return isinstance(value, str) and re.fullmatch(_pattern(shown), value) is not None
        case _:
            return bool(shown == value) and type(shown) is type(value)


def _pattern(shown: str) -> str:
    return "(?s:.*?)".join(map(re.escape, shown.split(ANYTHING)))
