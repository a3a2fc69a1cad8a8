"""Hold back the deltas of a model until guards have passed them, in their order.

    WrittenText   the text of a response that has been let go, as far as guards look back
    HeldDeltas    the deltas of one turn; those of one text are a segment
    HeldSegment   a message's text, a thought, a call, or a citation

A text waits until guards have passed it together with at least `window` characters after it, or
with the end of the turn. A call waits until it is whole. Deltas are never split: what is let go is
what would have been shown without a guard, byte for byte.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from msgspec.structs import asdict, replace

from antiphon.domain import deltas as d

LOOK_BACK_CHARS = 16_384
"""How much of what has been let go a guard is shown before the new text."""

JOINT_CHARS = 256
"""Two texts that follow each other are also asked about as one if they meet within so many
characters before the new text: no word is longer."""

_Text = d.TextDelta | d.RefusalDelta | d.ReasoningDelta | d.SummaryDelta | d.ArgumentsDelta
_PLACES = frozenset({"index", "start_index", "end_index", "file_id", "container_id"})
"""The fields of a citation that are no text."""


class PassedText:
    """The part of a text that has been let go; only its end is kept."""

    def __init__(self) -> None:
        self.text = ""

    def add(self, text: str) -> None:
        self.text = (self.text + text)[-LOOK_BACK_CHARS:]


class WrittenText:
    """The texts of a response that have been let go, in their order."""

    def __init__(self) -> None:
        self._pieces: list[PassedText] = []

    def open(self) -> PassedText:
        """Begin another text."""
        while len(self._pieces) > 1 and self._length_without_first() >= LOOK_BACK_CHARS:
            del self._pieces[0]
        piece = PassedText()
        self._pieces.append(piece)
        return piece

    def texts_but(self, piece: PassedText | None) -> list[str]:
        """Return the other texts, without those that are empty."""
        return [each.text for each in self._pieces if each is not piece and each.text]

    def _length_without_first(self) -> int:
        return sum(len(each.text) for each in self._pieces[1:])


class HeldSegment:
    """Deltas that belong together: adjacent ones of one kind of text, a call, or one without text.

    `kind` tells which deltas continue it; it is None if guards are not asked about it.
    """

    def __init__(self, kind: object, delta: d.Delta) -> None:
        self.kind = kind
        self.deltas = deque([delta])
        self.call = delta if isinstance(delta, d.CallStart) and kind is not None else None
        """The start of a call that is asked about; None for all else."""
        self.is_open = self.call is not None
        """Whether more of a call may come."""
        self.is_asked = kind is None
        """Whether guards have passed all that is held of it."""
        self.asked = 0
        """The number of held characters that guards have passed."""
        self.piece: PassedText | None = None
        """The part that has been let go of a text which others follow or continue."""

    @property
    def text(self) -> str:
        """The text that is held: of a call, its arguments."""
        return "".join(map(_text_of, self.deltas))

    @property
    def is_citation(self) -> bool:
        return self.kind is d.AnnotationDelta

    @property
    def is_text(self) -> bool:
        """Whether it is a part of what the model has written as text."""
        return self.kind is not None and self.call is None and not self.is_citation

    def note_passed(self) -> None:
        self.is_asked = True
        self.asked = len(self.text)


class HeldDeltas:
    """The deltas of one turn that wait. With a `window` of None, only calls do."""

    def __init__(self, written: WrittenText, window: int | None) -> None:
        self._written = written
        self._window = window
        self._segments: deque[HeldSegment] = deque()
        self._unasked = 0
        self._has_changed = False

    @property
    def is_due(self) -> bool:
        """Whether guards must be asked now."""
        return self._unasked >= max(1, self._window or 0)

    def add(self, delta: d.Delta) -> None:
        last = self._segments[-1] if self._segments else None
        if last is not None and last.is_open:
            if isinstance(delta, d.ArgumentsDelta):
                last.deltas.append(delta)
                return
            self.close()
        if isinstance(delta, d.TextDelta) and delta.logprobs and self._window is not None:
            delta = _without_alternatives(delta)
        kind = _kind_of(delta, texts=self._window is not None)
        if last is not None and last.is_text and last.kind == kind:
            last.deltas.append(delta)
            last.is_asked = False
        else:
            self._segments.append(HeldSegment(kind, delta))
        if kind is not None and not isinstance(delta, d.CallStart):
            self._unasked += len(_text_of(delta))

    def close(self) -> None:
        """Note that a call is whole: something else follows, or the turn has ended."""
        if self._segments and self._segments[-1].is_open:
            self._segments[-1].is_open = False
            self._unasked += max(1, len(self._segments[-1].text))

    def unasked(self) -> list[HeldSegment]:
        """Return the segments that guards have to be asked about, in their order."""
        return [each for each in self._segments if not each.is_asked and not each.is_open]

    def contexts_of(self, segment: HeldSegment) -> Sequence[str]:
        """Return what comes before the text of a segment, in each way that a reader may see it.

        Texts are on lines of their own. Near the place where two of them meet, they are also one
        text without a break: some clients join them.
        """
        if not segment.is_text:
            return [""]
        own = "" if segment.piece is None else segment.piece.text
        before = self._written.texts_but(segment.piece)
        for each in self._segments:
            if each is segment:
                break
            if each.is_text and each.piece is not None:
                before[-1:] = ["".join([*before[-1:], each.text])]
            elif each.is_text:
                before.append(each.text)
        apart = "\n".join([*before, own])[-LOOK_BACK_CHARS:]
        if not before or len(own) >= JOINT_CHARS:
            return [apart]
        return [apart, "".join([*before, own])[-LOOK_BACK_CHARS:]]

    def replace_text(self, segment: HeldSegment, text: str) -> None:
        """Let this be what is held of the text, without the logprobs of the other one.

        A citation is left out then, and so are those that follow: their places would be wrong.
        """
        self._has_changed |= segment.is_text
        first = segment.deltas[0]
        if segment.call is not None:
            segment.deltas = deque([segment.call, d.ArgumentsDelta(text)])
            return
        segment.deltas.clear()
        if isinstance(first, _Text):
            whole = replace(first, logprobs=()) if isinstance(first, d.TextDelta) else first
            # In two, so that what is before the window need not wait for it.
            end = max(0, len(text) - (self._window or 0))
            parts = (text[:end], text[end:])
            segment.deltas += [replace(whole, text=part) for part in parts if part]

    def refuse_call(self, segment: HeldSegment, reason: str) -> None:
        """Let this call be one that does not run, without the arguments that it had."""
        assert segment.call is not None
        segment.call = replace(segment.call, refusal=reason)
        segment.deltas = deque([segment.call, d.ArgumentsDelta("{}")])

    def note_passed(self) -> None:
        """Note that guards have passed all segments but an open one."""
        for segment in self._segments:
            if not segment.is_open:
                segment.note_passed()
            if segment.is_citation and self._has_changed:
                segment.deltas.clear()
        self._unasked = 0

    def release(self, *, everything: bool = False) -> list[d.Delta]:
        """Return the deltas that may be let go, and hold them no longer."""
        window = 0 if everything or self._window is None else self._window
        end = sum(segment.asked for segment in self._segments) - window
        released: list[d.Delta] = []
        position = 0
        while self._segments:
            segment = self._segments[0]
            if segment.is_open:
                break
            if segment.call is not None:
                position += len(segment.text)
                if not segment.is_asked or (window and position > end):
                    break
                released += segment.deltas
            else:
                while segment.deltas:
                    length = 0 if segment.kind is None else len(_text_of(segment.deltas[0]))
                    position += length
                    if position and position > end:
                        return released
                    released.append(self._let_go(segment, length))
                if segment.is_text and len(self._segments) == 1:
                    break  # more of it may come
            self._segments.popleft()
        return released

    def _let_go(self, segment: HeldSegment, length: int) -> d.Delta:
        delta = segment.deltas.popleft()
        segment.asked -= length
        if segment.is_text:
            segment.piece = segment.piece or self._written.open()
            segment.piece.add(_text_of(delta))
        return delta


def _kind_of(delta: d.Delta, *, texts: bool) -> object:
    """Return what the deltas of a segment have in common; None if guards need not be asked."""
    if isinstance(delta, d.CallStart):
        return d.CallStart
    if not texts:
        return None
    if isinstance(delta, d.TextDelta):
        return (d.TextDelta, delta.phase)
    return type(delta) if isinstance(delta, _Text | d.AnnotationDelta) else None


def _text_of(delta: d.Delta) -> str:
    if isinstance(delta, _Text):
        return delta.text
    if isinstance(delta, d.AnnotationDelta):
        fields = asdict(delta.annotation).items()
        return "\n".join(str(value) for name, value in fields if name not in _PLACES and value)
    return ""


def _without_alternatives(delta: d.TextDelta) -> d.TextDelta:
    """Leave out the tokens that the model might have written: guards are not asked about them."""
    if not any(logprob.top_logprobs for logprob in delta.logprobs):
        return delta
    logprobs = tuple([replace(logprob, top_logprobs=()) for logprob in delta.logprobs])
    return replace(delta, logprobs=logprobs)
