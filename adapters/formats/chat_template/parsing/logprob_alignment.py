"""Align logprobs with visible text: find the tokens that spell what the client sees.

Tokens and text are aligned by bytes: a token may end inside a character, and markup may start
inside a token. Visible text is returned in whole tokens. If only a part of a token is visible, its
logprob is cut to that part, so that the bytes of all logprobs spell the text. This module is only
used if the client requests logprobs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from msgspec.structs import replace

from antiphon.domain.content import Logprob
from antiphon.domain.deltas import Delta, TextDelta


class LogprobAlignment:
    """Visible text waiting for its tokens; `start` is the offset from which tokens are known."""

    def __init__(self, start: int) -> None:
        self._pending_texts: list[str] = []
        self._char_offset = start
        self._byte_offset = 0
        self._spans: deque[tuple[int, int, Logprob]] = deque()
        self._end_offset = 0
        self._visible = b""
        self._visible_offset = 0

    def feed(self, text: str, logprobs: Sequence[Logprob] | None) -> None:
        self._pending_texts.append(text)
        if logprobs is None:  # a step without logprobs: no known token spells its text
            self._end_offset += len(text.encode("utf-8", "replace"))
        for logprob in logprobs or ():
            if not logprob.bytes:
                continue  # an end of turn spells nothing, so it belongs to no text
            end = self._end_offset + len(logprob.bytes)
            self._spans.append((self._end_offset, end, logprob))
            self._end_offset = end

    def add_visible(self, text: str, offset: int) -> list[Delta]:
        """Add visible text that starts at `offset`; return the text before it if there is a gap."""
        start = self._to_byte_offset(offset)
        before = self.flush() if start != self._visible_offset + len(self._visible) else []
        if not self._visible:
            self._visible_offset = start
        self._visible += text.encode("utf-8", "replace")
        return before

    def flush(self) -> list[Delta]:
        """Return all visible text; what follows it is not visible."""
        return self._take_bytes(len(self._visible))

    def take_whole_tokens(self) -> list[Delta]:
        """Return the visible text that consists of whole tokens."""
        if not self._visible:
            return []
        start, visible = self._visible_offset, self._visible
        ends = (end - start for _, end, _ in self._spans if start < end <= start + len(visible))
        # A token may end inside a character; text cannot.
        return self._take_bytes(
            max((e for e in ends if not _is_continuation_byte(visible[e : e + 1])), default=0)
        )

    def _take_bytes(self, size: int) -> list[Delta]:
        if not size:
            return []
        visible, self._visible = self._visible[:size], self._visible[size:]
        start, end = self._visible_offset, self._visible_offset + size
        self._visible_offset = end
        logprobs: list[Logprob] = []
        while self._spans and self._spans[0][0] < end:
            first, last, logprob = self._spans[0]
            if last > start:
                part = logprob.bytes[max(start - first, 0) : end - first]
                logprobs.append(logprob if part == logprob.bytes else cut_logprob(logprob, part))
            if last > end:
                break
            self._spans.popleft()
        return [TextDelta(visible.decode(), tuple(logprobs))]

    def _to_byte_offset(self, offset: int) -> int:
        text = "".join(self._pending_texts)
        size = max(0, offset - self._char_offset)
        self._byte_offset += len(text[:size].encode("utf-8", "replace"))
        self._char_offset = offset
        self._pending_texts = [text[size:]]
        return self._byte_offset


def _is_continuation_byte(byte: bytes) -> bool:
    return byte != b"" and byte[0] & 0xC0 == 0x80


def cut_logprob(logprob: Logprob, part: tuple[int, ...]) -> Logprob:
    """Return a logprob with only these bytes of its token."""
    return replace(logprob, token=bytes(part).decode("utf-8", "replace"), bytes=part)
