"""Logprobs for visible text: which tokens spell what the client sees.

Tokens and text meet in bytes: a token may end inside a character, and markup may begin inside a
token. Visible text is given out by whole tokens; a token of which only a part is visible is cut to
that part, so that the bytes of all logprobs spell the text. Only used where logprobs are asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from msgspec.structs import replace

from antiphon.domain.content import Logprob
from antiphon.domain.deltas import Delta, TextDelta


class LogprobAlignment:
    """Visible text on its way out; `start` is the place in the text from which tokens are known."""

    def __init__(self, start: int) -> None:
        self._unread: list[str] = []
        self._char = start
        self._byte = 0
        self._tokens: deque[tuple[int, int, Logprob]] = deque()
        self._end = 0
        self._shown = b""
        self._shown_at = 0

    def feed(self, text: str, logprobs: Sequence[Logprob] | None) -> None:
        self._unread.append(text)
        if logprobs is None:  # a step without: its text is spelled by no token that we know
            self._end += len(text.encode("utf-8", "replace"))
        for logprob in logprobs or ():
            if not logprob.bytes:
                continue  # an end of turn: it spells nothing, so it belongs to no text
            end = self._end + len(logprob.bytes)
            self._tokens.append((self._end, end, logprob))
            self._end = end

    def show(self, text: str, at: int) -> list[Delta]:
        """Take visible text from place `at`; return what stood before it and is now settled."""
        start = self._byte_of(at)
        settled = self.flush() if start != self._shown_at + len(self._shown) else []
        if not self._shown:
            self._shown_at = start
        self._shown += text.encode("utf-8", "replace")
        return settled

    def flush(self) -> list[Delta]:
        """Return all visible text: what follows is not."""
        return self._take(len(self._shown))

    def ready(self) -> list[Delta]:
        """Return the visible text that consists of whole tokens."""
        if not self._shown:
            return []
        at, shown = self._shown_at, self._shown
        ends = (end - at for _, end, _ in self._tokens if at < end <= at + len(shown))
        # A token may end inside a character; text cannot.
        return self._take(
            max((e for e in ends if not _inside_character(shown[e : e + 1])), default=0)
        )

    def _take(self, size: int) -> list[Delta]:
        if not size:
            return []
        shown, self._shown = self._shown[:size], self._shown[size:]
        start, end = self._shown_at, self._shown_at + size
        self._shown_at = end
        logprobs: list[Logprob] = []
        while self._tokens and self._tokens[0][0] < end:
            first, last, logprob = self._tokens[0]
            if last > start:
                part = logprob.bytes[max(start - first, 0) : end - first]
                logprobs.append(logprob if part == logprob.bytes else _cut(logprob, part))
            if last > end:
                break
            self._tokens.popleft()
        return [TextDelta(shown.decode(), tuple(logprobs))]

    def _byte_of(self, at: int) -> int:
        unread = "".join(self._unread)
        size = max(0, at - self._char)
        self._byte += len(unread[:size].encode("utf-8", "replace"))
        self._char = at
        self._unread = [unread[size:]]
        return self._byte


def _inside_character(byte: bytes) -> bool:
    return byte != b"" and byte[0] & 0xC0 == 0x80


def _cut(logprob: Logprob, part: tuple[int, ...]) -> Logprob:
    return replace(logprob, token=bytes(part).decode("utf-8", "replace"), bytes=part)
