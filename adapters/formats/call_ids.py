"""Write the ids of calls as a family's templates want them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

from antiphon.adapters.formats.transcript import CallEntry

MAX_WRITTEN_CHARS = 64
"""Servers refuse longer ids (`call_id` of OpenAI's API), which clients may send."""


class CallIds:
    """The ids of one conversation's calls, each the same on the call and on its result.

    Some templates refuse ids of any other `length`. Others want a `form`, in which `{name}` stands
    for the tool's name and `{index}` for the number of the call in the conversation, from 0.
    """

    def __init__(self, length: int | None = None, form: str | None = None) -> None:
        self._length = length
        self._form = form
        self._count = 0
        self._written: dict[str, str] = {}

    def add(self, calls: Iterable[CallEntry]) -> list[str]:
        """Return the ids of the conversation's next calls."""
        return [self._add(call) for call in calls]

    def find(self, call_id: str) -> str:
        """Return how the id of a call, or of its result, is written."""
        return self._written.get(call_id) or self._fit(call_id)

    def _add(self, call: CallEntry) -> str:
        if self._form is None:
            return self._fit(call.call_id)
        written = self._form.replace("{index}", str(self._count)).replace("{name}", call.name)
        self._written[call.call_id] = written
        self._count += 1
        return written

    def _fit(self, call_id: str) -> str:
        size = self._length
        if size is None and len(call_id) <= MAX_WRITTEN_CHARS:
            return call_id
        if len(call_id) == size and call_id.isalnum():
            return call_id
        return hashlib.sha256(call_id.encode()).hexdigest()[:size]
