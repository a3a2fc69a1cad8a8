"""The turns that the model wrote, with their exact tokens, so that later prompts can repeat them.

A conversation comes back as items. Items do not say which of them the model wrote in one turn, and
the same words can be spelled with other tokens, the same call with another header. If a rendered
turn differs from the generated one by a single token, the engine recomputes everything after it.
So a format remembers each turn: a digest of the conversation before it, what the model wrote, and
its tokens. A prompt repeats these tokens, and the results of the turn's tools follow: it continues
the last prompt and its output exactly. A turn that was evicted, or that another replica generated,
is rendered in the one canonical way.

The cache recognizes a turn by the entries that its items are rendered as. So it knows no item
types, and need not care how a call's arguments change when they become an item.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b
from typing import Generic, Literal, TypeVar

import msgspec
from msgspec import Struct

from antiphon.adapters.formats.token_cache import TOKEN_BYTES, share_tokens
from antiphon.application.support.lru_cache import LruCache
from antiphon.domain import items as i

MAX_CACHED_BYTES = 16 * 1024 * 1024
"""Two million tokens."""

DIGEST_SIZE = 16

DIGEST_BYTES = 120
"""What a digest of an entry takes, with its tuple and its flag."""

TURN_BYTES = 300
"""What a turn takes besides its digests and tokens."""

MAX_TURNS_PER_PREFIX = 4
"""How many answers to the same conversation are kept; a client may continue with any of them."""

MAX_WHOLE_CHARS = 256

E = TypeVar("E")
Author = Literal["model", "reasoning", "tool", "other"]
"""Who wrote an entry. The model's reasoning is separate: later prompts leave it out."""


class CachedTurn(Struct, Generic[E], frozen=True):
    """A turn of the model: its entries and, if it can be repeated as it was written, its tokens.

    `has_reasoning` says whether the tokens include reasoning. The results of its tools follow it.
    """

    entries: Sequence[E]
    token_ids: Sequence[int] | None
    has_reasoning: bool


class Fingerprints(Struct, frozen=True):
    """The digests of a conversation: who wrote each entry, and its own digest.

    `prefixes` has a digest of the conversation before each entry, and one of the whole.
    """

    authors: Sequence[Author]
    digests: Sequence[bytes]
    prefixes: Sequence[bytes]

    @property
    def of_all(self) -> bytes:
        """The digest of the whole conversation."""
        return self.prefixes[-1]

    @property
    def last_input(self) -> int:
        """The position of the last input to the model, after which its reasoning counts."""
        backwards = reversed(range(len(self.authors)))
        return next((n for n in backwards if self.authors[n] == "other"), -1)


class _Turn(Struct, frozen=True):
    """`digests` are those of its entries; the flag says whether an entry is reasoning."""

    digests: Sequence[tuple[bytes, bool]]
    token_ids: Sequence[int] | None
    has_reasoning: bool

    @property
    def size(self) -> int:
        """The bytes that the turn takes in memory, approximately."""
        tokens = TOKEN_BYTES * len(self.token_ids or ())
        return TURN_BYTES + DIGEST_BYTES * len(self.digests) + tokens

    @property
    def hides_reasoning(self) -> bool:
        return self.has_reasoning and not any(is_reasoning for _, is_reasoning in self.digests)


class _Match(Struct, frozen=True):
    """A turn found in a conversation; it ends before `end`, with results of tools in between."""

    turn: _Turn
    end: int
    is_whole: bool


class TurnCache(Generic[E]):
    """The most recent turns, up to `max_bytes` of memory.

    `author_of` says who wrote an entry; `key` is the part of an entry that is compared. Tenants
    (cache salts) share no turns: how one tenant's model wrote a text reveals nothing to another.
    """

    def __init__(
        self,
        author_of: Callable[[E], Author],
        *,
        key: Callable[[E], object] = lambda entry: entry,
        max_bytes: int = MAX_CACHED_BYTES,
    ) -> None:
        self._author_of = author_of
        self._key = key
        self._turns: LruCache[Sequence[_Turn]] = LruCache(max_bytes)

    def fingerprint(self, salt: str | None, entries: Sequence[E]) -> Fingerprints:
        """Return what is compared of a conversation.

        Reasoning is not part of `prefixes`, so they stay the same when reasoning is left out.
        """
        authors = list(map(self._author_of, entries))
        digests = list(map(self._digest, entries))
        prefix = blake2b((salt or "").encode("utf-8", "surrogatepass"), digest_size=DIGEST_SIZE)
        prefix.update(b"\0")
        prefixes = [prefix.digest()]
        for author, digest in zip(authors, digests, strict=True):
            if author != "reasoning":
                prefix.update(digest)
            prefixes.append(prefix.digest())
        return Fingerprints(authors, digests, prefixes)

    def remember(
        self,
        prefix_digest: bytes,
        entries: Sequence[E],
        token_ids: Sequence[int] | None,
        *,
        has_reasoning: bool = False,
    ) -> None:
        """Remember the turn that followed a prefix, with its tokens, the stop token included.

        Without tokens, the cache only knows that the entries belong to one turn.
        """
        digests: list[tuple[bytes, bool]] = []
        is_recognizable = False
        for entry in entries:
            author = self._author_of(entry)
            if author in ("model", "reasoning"):
                digests.append((self._digest(entry), author == "reasoning"))
                is_recognizable |= author == "model"
        if not is_recognizable:
            return
        turn = _Turn(digests, None if token_ids is None else share_tokens(token_ids), has_reasoning)
        turns, size = [turn], turn.size
        for other in self._turns.get(prefix_digest) or ():
            if other.digests != digests and len(turns) < MAX_TURNS_PER_PREFIX:
                turns.append(other)
                size += other.size
        self._turns.put(prefix_digest, turns, size)

    def group_turns(
        self, entries: Sequence[E], fingerprints: Fingerprints
    ) -> Iterator[E | CachedTurn[E]]:
        """Yield the entries in order, those of a remembered turn as one, before its calls' results.

        Tokens with reasoning that the entries lack are not repeated once a new input follows.
        """
        authors, last_input = fingerprints.authors, fingerprints.last_input
        position = 0
        while position < len(entries):
            match = self._find(fingerprints, position)
            if match is None:
                yield entries[position]
                position += 1
                continue
            positions = range(position, match.end)
            repeats = match.is_whole and (not match.turn.hides_reasoning or position > last_input)
            yield CachedTurn(
                [entries[n] for n in positions if authors[n] != "tool"],
                match.turn.token_ids if repeats else None,
                match.turn.has_reasoning,
            )
            yield from (entries[n] for n in positions if authors[n] == "tool")
            position = match.end

    def _find(self, fingerprints: Fingerprints, start: int) -> _Match | None:
        if fingerprints.authors[start] not in ("model", "reasoning"):
            return None
        turns = self._turns.get(fingerprints.prefixes[start]) or ()
        candidates = (_match(turn, fingerprints, start) for turn in turns)
        matches = [match for match in candidates if match is not None]
        return max(matches, key=lambda match: (match.is_whole, match.end), default=None)

    def _digest(self, entry: E) -> bytes:
        return blake2b(_encode(self._key(entry)), digest_size=DIGEST_SIZE).digest()


def _match(turn: _Turn, fingerprints: Fingerprints, start: int) -> _Match | None:
    authors, digests = fingerprints.authors, fingerprints.digests
    if len(turn.digests) == 1:  # most turns are a text or a call
        is_same = digests[start] == turn.digests[0][0]
        return _Match(turn, start + 1, is_whole=True) if is_same else None
    # Calls may have changed their order: one that waited for approval comes after the others.
    missing = Counter(digest for digest, is_reasoning in turn.digests if not is_reasoning)
    reasoning = deque(digest for digest, is_reasoning in turn.digests if is_reasoning)
    end = start
    for position in range(start, len(authors)):
        author, digest = authors[position], digests[position]
        if author == "tool":
            continue
        if author == "model" and missing[digest]:
            missing[digest] -= 1
        elif author == "reasoning" and reasoning and reasoning[0] == digest:
            reasoning.popleft()
        else:
            break
        end = position + 1
    return None if missing.total() else _Match(turn, end, is_whole=not reasoning)


def _encode(value: object) -> bytes:
    try:
        return _encode_msgpack(value)
    except UnicodeEncodeError:  # a lone surrogate, which JSON can spell
        return repr(value).encode("utf-8", "backslashreplace")


def brief(text: str) -> str | tuple[int, int]:
    """Return what is compared of a text: all of it, or the length and the hash of a long one.

    A conversation comes back with each turn, and Python computes the hash of a text only once. Its
    64 bits depend on a secret of the process, so nobody can search for two texts with one hash.
    """
    return text if len(text) <= MAX_WHOLE_CHARS else (len(text), hash(text))


def approvals_as_calls(items: Sequence[i.Item]) -> list[i.Item]:
    """Return the items of a turn with approval requests as the calls that they will become."""
    return [
        i.McpCall(server_label=item.server_label, name=item.name, arguments=item.arguments)
        if isinstance(item, i.McpApprovalRequest)
        else item
        for item in items
    ]


_encode_msgpack = msgspec.msgpack.Encoder().encode
