"""How the model itself wrote its latest turns, token by token, and where each began and ended.

A conversation comes back as items. They do not say which of them the model wrote in one turn, and
the same words can be written as other tokens, the same call with another header. Rendered anew, one
different token makes the engine compute all that follows it again. So a format remembers each turn:
at which place of the conversation it was written, what it said there, and its tokens. A prompt
repeats them, whole, and what the tools gave back follows: it continues the last prompt and its
output exactly. What was forgotten, or written on another replica, is rendered in the one canonical
way.

A turn is known by what it became: by the entries that its items are rendered as. So no kind of item
needs a word here, whatever its arguments look like once they are an item.
"""

from __future__ import annotations

from array import array
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Generic, Literal, TypeVar

import msgspec
from msgspec import Struct

from antiphon.adapters.formats.lru_cache import LruCache
from antiphon.domain import items as i

MAX_CACHED_TOKENS = 1_000_000
TURNS_OF_A_PLACE = 4
"""Answers to the same conversation that are told apart: who asks again may go on with either."""

E = TypeVar("E")
Author = Literal["model", "thought", "tool", "other"]
"""Whose an entry is; what the model thought is apart, since later prompts leave it out."""


class CachedTurn(Struct, Generic[E], frozen=True):
    """A turn of the model: its entries and, if it can be repeated as it was written, its tokens.

    `has_reasoning`: the tokens hold reasoning. What its tools gave back comes after it.
    """

    entries: Sequence[E]
    token_ids: Sequence[int] | None
    has_reasoning: bool


class _Turn(Struct, frozen=True):
    """`said` are digests of its entries, with whether each is a thought."""

    said: Sequence[tuple[bytes, bool]]
    token_ids: array[int] | None
    has_reasoning: bool

    @property
    def size(self) -> int:
        return len(self.said) + len(self.token_ids or ())

    @property
    def hides_thoughts(self) -> bool:
        return self.has_reasoning and not any(is_thought for _, is_thought in self.said)


class _Found(Struct, frozen=True):
    """A turn met in a conversation: it and what came back meanwhile end before `end`."""

    turn: _Turn
    end: int
    is_whole: bool


class TurnCache(Generic[E]):
    """The newest turns, up to `limit` tokens of them.

    `author` says whose an entry is, `key` what is compared of it. Kept apart by cache salt: how one
    tenant's model wrote a text says nothing to another.
    """

    def __init__(
        self,
        author: Callable[[E], Author],
        *,
        key: Callable[[E], object] = lambda entry: entry,
        limit: int = MAX_CACHED_TOKENS,
    ) -> None:
        self._author = author
        self._key = key
        self._turns: LruCache[Sequence[_Turn]] = LruCache(limit)

    def places(self, salt: str | None, entries: Sequence[E]) -> list[bytes]:
        """Return a digest of what stands before each entry, and of all. Thoughts count for nothing:
        a place stays the same when they are left out.
        """
        digest = blake2b((salt or "").encode("utf-8", "surrogatepass"), digest_size=16)
        digest.update(b"\0")
        places = [digest.digest()]
        for entry in entries:
            if self._author(entry) != "thought":
                digest.update(_written(self._key(entry)))
            places.append(digest.digest())
        return places

    def remember(
        self,
        place: bytes,
        wrote: Sequence[E],
        token_ids: Sequence[int] | None,
        *,
        has_reasoning: bool = False,
    ) -> None:
        """Remember a turn that was written at `place`: as `token_ids`, its end included.

        Without them only that it was one turn is known.
        """
        said = tuple(
            (self._digest(entry), author == "thought")
            for entry in wrote
            if (author := self._author(entry)) in ("model", "thought")
        )
        if all(is_thought for _, is_thought in said):
            return  # nothing to know it by
        turn = _Turn(said, None if token_ids is None else array("Q", token_ids), has_reasoning)
        known = self._turns.find(place) or ()
        kept = (turn, *(each for each in known if each.said != said))[:TURNS_OF_A_PLACE]
        self._turns.remember(place, kept, sum(each.size for each in kept))

    def turns(self, entries: Sequence[E], places: Sequence[bytes]) -> Iterator[E | CachedTurn[E]]:
        """Yield the entries, those of each turn that is remembered together, before the results of
        its calls. Tokens with reasoning that the entries do not have are not repeated.
        """
        asked = self._asked(entries)
        position = 0
        while position < len(entries):
            found = self._found(places[position], entries, position)
            if found is None:
                yield entries[position]
                position += 1
                continue
            between = [(each, self._author(each)) for each in entries[position : found.end]]
            repeats = found.is_whole and (not found.turn.hides_thoughts or position > asked)
            yield CachedTurn(
                [each for each, author in between if author != "tool"],
                found.turn.token_ids if repeats else None,
                found.turn.has_reasoning,
            )
            yield from (each for each, author in between if author == "tool")
            position = found.end

    def _asked(self, entries: Sequence[E]) -> int:
        """Return where somebody last said something to the model: what it thought before is old."""
        backwards = reversed(range(len(entries)))
        return next((n for n in backwards if self._author(entries[n]) == "other"), -1)

    def _found(self, place: bytes, entries: Sequence[E], start: int) -> _Found | None:
        if self._author(entries[start]) not in ("model", "thought"):
            return None
        turns = self._turns.find(place) or ()
        matches = (self._match(turn, entries, start) for turn in turns)
        found = [each for each in matches if each is not None]
        return max(found, key=lambda each: (each.is_whole, each.end), default=None)

    def _match(self, turn: _Turn, entries: Sequence[E], start: int) -> _Found | None:
        # Calls may have changed places: one that waited for approval comes after the others.
        missing = Counter(digest for digest, is_thought in turn.said if not is_thought)
        thoughts = deque(digest for digest, is_thought in turn.said if is_thought)
        end = start
        for position in range(start, len(entries)):
            author = self._author(entries[position])
            if author == "tool":
                continue
            digest = self._digest(entries[position])
            if author == "model" and missing[digest]:
                missing[digest] -= 1
            elif author == "thought" and thoughts and thoughts[0] == digest:
                thoughts.popleft()
            else:
                break
            end = position + 1
        return None if missing.total() else _Found(turn, end, is_whole=not thoughts)

    def _digest(self, entry: E) -> bytes:
        return blake2b(_written(self._key(entry)), digest_size=16).digest()


def _written(value: object) -> bytes:
    try:
        return _encode(value)
    except UnicodeEncodeError:  # half a character, which JSON can spell
        return repr(value).encode("utf-8", "backslashreplace")


def approvals_as_calls(items: Sequence[i.Item]) -> list[i.Item]:
    """Return what the model wrote with its requests for approval as the calls that they become."""
    return [
        i.McpCall(server_label=item.server_label, name=item.name, arguments=item.arguments)
        if isinstance(item, i.McpApprovalRequest)
        else item
        for item in items
    ]


_encode = msgspec.msgpack.Encoder().encode
