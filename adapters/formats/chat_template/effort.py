"""The effort of reasoning as variables of a template: neither names nor values are common.

A template gets the effort under every name; it reads one and ignores the others. Some refuse what
they do not know: then the nearest value that this one accepts stands for the effort, a higher one
before a lower one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, get_args

from antiphon.adapters.formats.chat_template.template import ChatTemplate
from antiphon.adapters.formats.chat_template.template_capabilities import with_content_parts
from antiphon.domain.errors import RequestError
from antiphon.domain.requests.request import Effort

EFFORTS: tuple[str, ...] = get_args(Effort)
"""From none to the greatest."""

NONE = "none"
NAMES_OF_NONE = (NONE, "no_think")
"""How templates call it, under the name `reasoning_effort`."""

OTHER_VARIABLES: Mapping[str, Mapping[str, Any]] = {
    "thinking_effort": {  # Kimi K3, which knows three
        "minimal": "low",
        "low": "low",
        "medium": "high",
        "high": "high",
        "xhigh": "max",
        "max": "max",
    },
    "thinking_mode": {  # MiniMax M3, which thinks as it likes by itself
        NONE: "disabled",
        "high": "enabled",
        "xhigh": "enabled",
        "max": "enabled",
    },
    "thinking_budget": {  # Seed-OSS, in tokens; it has no limit by itself
        NONE: 0,
        "minimal": 512,
        "low": 1024,
        "medium": 4096,
    },
}
"""Variable → effort → value. An effort that is missing leaves the template its own default."""

QUESTION = {"role": "user", "content": "?"}


def effort_options(effort: str) -> Iterator[dict[str, Any]]:
    """Yield the variables for an effort: what it says, then what may stand for it.

    >>> [each["reasoning_effort"] for each in effort_options("medium")]
    ['medium', 'high', 'low', 'xhigh', 'minimal', 'max', 'none', 'no_think']
    """
    thinks = effort != NONE
    variables: dict[str, Any] = {"enable_thinking": thinks, "thinking": thinks}
    for variable, values in OTHER_VARIABLES.items():
        if effort in values:
            variables[variable] = values[effort]
    for value in _nearest(effort):
        yield {"reasoning_effort": value, **variables}


def _nearest(effort: str) -> list[str]:
    """Return the names of an effort, then of others by their distance."""
    if effort not in EFFORTS:
        return [effort]
    place = EFFORTS.index(effort)
    by_distance = sorted(
        EFFORTS, key=lambda each: (abs(EFFORTS.index(each) - place), EFFORTS.index(each) < place)
    )
    names = [NAMES_OF_NONE if each == NONE else (each,) for each in by_distance]
    return [name for group in names for name in group]


class EffortOptions:
    """The variables by which one template is told the effort."""

    def __init__(self, template: ChatTemplate) -> None:
        self._template = template
        self._options: dict[str, dict[str, Any]] = {}

    def find(self, effort: str | None) -> dict[str, Any]:
        """Return the variables for an effort; the first if the template refuses all of them."""
        if effort is None:
            return {}
        if effort not in self._options:
            attempts = list(effort_options(effort))
            accepted = filter(self._accepts, attempts)
            self._options[effort] = next(accepted, attempts[0])
        return self._options[effort]

    def _accepts(self, options: Mapping[str, Any]) -> bool:
        for message in (QUESTION, with_content_parts(QUESTION)):
            try:
                self._template.render([message], [], options)
            except RequestError:
                continue
            return True
        return False
