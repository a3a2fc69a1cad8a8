"""Search for what was said in responses: words, and where they are in texts."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from itertools import product

from msgspec import Struct

from antiphon.domain import items as i
from antiphon.domain.content import InputText, OutputText
from antiphon.domain.errors import RequestError

MAX_WORDS = 16

BEFORE, EXCERPT_CHARS = 40, 160
"""An excerpt begins so many characters before the first word that it has."""

_PLAIN = re.compile(r"[a-z0-9_.,:;!?*%#$@~^|(){}\[\]-]+")
"""Characters that every encoder of JSON writes as they are. Some escape `<`, `/` or `'`."""
_FOREIGN = re.compile(r"[^\x00-\x7f]+")
FOREIGN_CHARS = 2
"""A piece of as many has at most nine spellings, in each of two encodings."""

_FRAME = (
    *(
        f'"type":"{each.__struct_config__.tag}"'
        for each in (i.Message, InputText, OutputText, i.FunctionCall, i.FunctionCallOutput)
    ),
    *('"role":"user"', '"role":"assistant"', '"status":"completed"', '"phase":"final_answer"'),
    *('"type":', '"role":', '"content":', '"text":', '"annotations":', '"logprobs":'),
    *('"id":', '"status":', '"phase":', '"call_id":', '"name":', '"arguments":', '"output":'),
)
"""What the JSON of most items has besides texts. No text has it, as `"` is escaped in texts."""

MAX_FRAME = 4
"""More would take longer to remove than to read the responses."""


class WordPiece(Struct, frozen=True):
    """A part of a word, as it is in the JSON of a text that has the word.

    The JSON has one of the `spellings`, after its ASCII letters became lower case and all texts of
    `frame` were removed from it. These have a spelling and are in many items: otherwise, a search
    for "user" would have to read every response.
    """

    spellings: Sequence[str]
    frame: Sequence[str] = ()


class TextSearch(Struct, frozen=True):
    """Words that must all be in the texts of a response: anywhere, whatever their case.

    `words` are in lower case. Nothing in them has another meaning than itself. A store may miss
    the six letters that are a second capital of another, such as the sign for Kelvin.
    """

    words: tuple[str, ...]

    @property
    def pieces(self) -> Sequence[WordPiece]:
        r"""Return a piece of each word that has one, by which a store excludes most responses.

        >>> [piece.spellings for piece in TextSearch(("it's", "你好", '"')).pieces]
        [['it'], ['你好', '\\u4f60\\u597d']]
        >>> TextSearch(("user",)).pieces
        [WordPiece(spellings=['user'], frame=['"role":"user"'])]
        """
        spellings = filter(None, map(_spellings_of, self.words))
        return [WordPiece(each, _frame_of(each)) for each in spellings]

    def excerpt(self, texts: Sequence[str]) -> str | None:
        """Return what is around words in one of the texts; None if the texts lack a word.

        >>> TextSearch(("model", "is")).excerpt(["Which?", "The  MODEL\\nis small."])
        'The MODEL is small.'
        """
        places = [[text.lower().find(word) for word in self.words] for text in texts]
        if not all(any(found[place] >= 0 for found in places) for place in range(len(self.words))):
            return None
        best = max(range(len(texts)), key=lambda index: sum(at >= 0 for at in places[index]))
        return _cut(texts[best], min(at for at in places[best] if at >= 0))


def search_of(text: str | None) -> TextSearch | None:
    """Return the search for the words of a text, if it has any. Raises: RequestError.

    >>> search_of(" Two words ")
    TextSearch(words=('two', 'words'))
    """
    words = tuple(dict.fromkeys((text or "").lower().split()))
    if len(words) > MAX_WORDS:
        raise RequestError(
            f"A search has at most {MAX_WORDS} words; this one has {len(words)}.",
            param="search",
            code="invalid_value",
        )
    return TextSearch(words) if words else None


def _spellings_of(word: str) -> list[str]:
    plain = max(_PLAIN.findall(word), key=len, default="")
    foreign = max(_FOREIGN.findall(word), key=len, default="")[:FOREIGN_CHARS]
    if not foreign or len(plain) > FOREIGN_CHARS:
        return [plain] if plain else []
    spellings = ["".join(each) for each in product(*map(_cases_of, foreign))]
    return [*spellings, *dict.fromkeys(json.dumps(each)[1:-1] for each in spellings)]


def _frame_of(spellings: Sequence[str]) -> list[str]:
    frame = [each for each in _FRAME if any(spelling in each for spelling in spellings)]
    return frame if len(frame) <= MAX_FRAME else []


def _cases_of(char: str) -> list[str]:
    cases = dict.fromkeys((char, char.upper(), char.title()))
    return [each for each in cases if len(each) == 1]


def _cut(text: str, at: int) -> str:
    start = max(0, at - BEFORE)
    piece = " ".join(text[start : start + EXCERPT_CHARS].split())
    end = "…" if start + EXCERPT_CHARS < len(text) else ""
    return f"{'…' if start else ''}{piece}{end}"
