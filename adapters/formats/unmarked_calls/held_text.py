"""Text that is held back, with its log probabilities, and given out in any lengths."""

from __future__ import annotations

from collections import deque

from msgspec.structs import replace

from antiphon.adapters.formats.chat_template.parsing.logprob_alignment import cut_logprob
from antiphon.domain.content import Logprob
from antiphon.domain.deltas import TextDelta


class HeldText:
    """The deltas of a text; `length` is the number of its characters."""

    def __init__(self) -> None:
        self._deltas: deque[TextDelta] = deque()
        self._start = 0  # how much of the first delta was taken, which copies no long rest
        self.length = 0

    def add(self, delta: TextDelta) -> None:
        self._deltas.append(delta)
        self.length += len(delta.text)

    def take(self, size: int) -> list[TextDelta]:
        """Take so many characters out."""
        taken: list[TextDelta] = []
        self.length -= size
        while size > 0:
            delta, start = self._deltas[0], self._start
            left = len(delta.text) - start
            if left > size and delta.logprobs:
                delta, self._deltas[0] = split(delta, size)
            elif left > size:
                self._start += size
                delta = replace(delta, text=delta.text[start : start + size])
            else:
                self._deltas.popleft()
                self._start = 0
                if start:
                    delta = replace(delta, text=delta.text[start:])
            size -= len(delta.text)
            if delta.text:
                taken.append(delta)
        return taken


def split(delta: TextDelta, size: int) -> tuple[TextDelta, TextDelta]:
    """Return the first `size` characters, and the rest.

    A token in both is cut, so that the bytes of the log probabilities still spell the text. If they
    did not before, all of them stay with the first part.
    """
    first, rest = delta.text[:size], delta.text[size:]
    spelled = bytes([byte for logprob in delta.logprobs for byte in logprob.bytes])
    if spelled != delta.text.encode("utf-8", "replace"):
        return replace(delta, text=first), replace(delta, text=rest, logprobs=())
    left = len(first.encode("utf-8", "replace"))
    first_logprobs: list[Logprob] = []
    last_logprobs: list[Logprob] = []
    for logprob in delta.logprobs:
        if len(logprob.bytes) <= left:
            first_logprobs.append(logprob)
        elif left <= 0:
            last_logprobs.append(logprob)
        else:
            first_logprobs.append(cut_logprob(logprob, logprob.bytes[:left]))
            last_logprobs.append(cut_logprob(logprob, logprob.bytes[left:]))
        left -= len(logprob.bytes)
    return (
        replace(delta, text=first, logprobs=tuple(first_logprobs)),
        replace(delta, text=rest, logprobs=tuple(last_logprobs)),
    )
