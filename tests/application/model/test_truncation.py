"""The fewest oldest items are dropped, and few prompts are rendered to find out how many."""

from __future__ import annotations

from collections.abc import Sequence
from math import log2
from time import process_time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from antiphon.application.model.truncation import longest_that_fits
from antiphon.application.ports import Turn
from antiphon.domain import items as i

MESSAGES = 3000


class Renderer:
    """Renders a turn as the number of its tokens: as many as each message says.

    It counts up to `most` tokens: a model's context, of which the answer gets a part.
    """

    def __init__(self, limit: int, most: int | None = None) -> None:
        self.limit = limit
        self.most = limit if most is None else most
        self.renderings = 0

    async def __call__(self, turn: Turn) -> int | None:
        self.renderings += 1
        tokens = tokens_of(turn)
        return tokens if tokens <= self.most else None


def tokens_of(turn: Turn) -> int:
    return sum(int(str(item.content).split()[0]) for item in turn.items)  # type: ignore[union-attr]


def turn_of(tokens: Sequence[int], texts: Sequence[str]) -> Turn:
    contents = [f"{count} {text}" for count, text in zip(tokens, texts, strict=True)]
    return Turn(model="m", items=[i.Message(role="user", content=each) for each in contents])


async def kept_by(renderer: Renderer, turn: Turn) -> int | None:
    """Return how many items are left, None if even the newest one is too long."""
    shorter, tokens = await longest_that_fits(
        turn, renderer, limit=renderer.limit, tokens_of=lambda tokens: tokens
    )
    if tokens is None or tokens > renderer.limit:
        assert shorter is turn
        return None
    assert tokens_of(shorter) == tokens
    assert list(shorter.items) == list(turn.items)[-len(shorter.items) :]
    return len(shorter.items)


@given(
    messages=st.lists(st.tuples(st.integers(0, 50), st.text("ab ", max_size=99)), max_size=60),
    limit=st.integers(0, 1500),
    counted_share=st.sampled_from([1.0, 1.3, 9.9]),
)
async def test_as_many_items_as_fit_are_kept(
    messages: list[tuple[int, str]], limit: int, counted_share: float
) -> None:
    tokens, texts = [each[0] for each in messages], [each[1] for each in messages]
    renderer = Renderer(limit, int(limit * counted_share))
    sizes = range(min(1, len(tokens)), len(tokens) + 1)  # the newest item is never dropped
    fitting = [n for n in sizes if sum(tokens[len(tokens) - n :]) <= limit]
    assert await kept_by(renderer, turn_of(tokens, texts)) == max(fitting, default=None)
    # 2 log2 + 2 without the whole turn, which is rendered first.
    assert renderer.renderings <= 2 * log2(len(tokens) + 1) + 3


@pytest.mark.parametrize("counted_share", [1.0, 4 / 3])
@pytest.mark.parametrize("share", [0.05, 0.3, 0.8, 0.999])
@pytest.mark.parametrize(
    ("words", "most"),
    [
        ("word ", 5),
        ("wort", 7),  # the text misleads at first
        ("", 9),  # tokens do not follow the text at all: 13 with bisection alone
    ],
)
async def test_few_prompts_are_rendered(
    words: str, most: int, share: float, counted_share: float
) -> None:
    lengths = [1 + n * n % 97 for n in range(MESSAGES)]
    limit = int(share * sum(lengths))
    renderer = Renderer(limit, int(limit * counted_share))
    await kept_by(renderer, turn_of(lengths, [words * length for length in lengths]))
    assert renderer.renderings <= most


async def test_what_fits_is_rendered_once() -> None:
    renderer = Renderer(limit=4)
    assert await kept_by(renderer, turn_of([1, 1, 1], ["", "", ""])) == 3
    assert renderer.renderings == 1


async def test_the_search_does_not_look_at_characters() -> None:
    """A walk over the characters of one long text would hold the interpreter's lock meanwhile."""
    contents = [chr(233) * 50_000_000, "hi", "hi"]
    turn = Turn(model="m", items=[i.Message(role="user", content=each) for each in contents])

    async def render(_: Turn) -> int:
        return 1

    started = process_time()
    assert await longest_that_fits(turn, render, limit=1, tokens_of=lambda tokens: tokens)
    assert process_time() - started < 0.02  # 100 ms if each item is encoded
