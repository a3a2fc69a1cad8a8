"""Which server of a pool gets a run."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from tests.adapters.engines.pool_fixtures import TestPool, pool, request_of
from tests.upstreams.token_server import TellingEngine

from antiphon.adapters.engines.pooled.prefixes import (
    BLOCK_TOKENS,
    BYTES_PER_BLOCK,
    PrefixIndex,
    block_hashes,
)
from antiphon.adapters.engines.pooled.routing import (
    BALANCE_RUNS,
    Candidate,
    Choose,
    choose_by_prefix,
)
from antiphon.testing.engine import steps_of, tokens_of

CONVERSATIONS = 200
TURNS = 3
AT_ONCE = 24


class Server(Candidate):
    def __init__(self, running: int = 0, *seen: Sequence[int]) -> None:
        self.running = running
        self.prefixes = PrefixIndex(1_000_000)
        for token_ids in seen:
            self.prefixes.add(block_hashes(token_ids, None))


LONG, SHORT, OTHER = range(100), range(40), range(500, 600)

TABLE: dict[str, tuple[list[Server], int]] = {
    "the longest known prefix": ([Server(0, SHORT), Server(0, LONG), Server()], 1),
    "even with some more runs": ([Server(), Server(8, LONG)], 1),
    "but not if it is overloaded": ([Server(), Server(9, LONG)], 0),
    "in proportion to the others' load": ([Server(40), Server(60, LONG)], 1),
    "and no more than that": ([Server(40), Server(61, LONG)], 0),
    "then the next best prefix": ([Server(), Server(9, LONG), Server(2, SHORT)], 2),
    "without a prefix, the least runs": ([Server(3), Server(1), Server(2, OTHER)], 1),
    "of equals, the one that has seen least": ([Server(0, OTHER), Server()], 1),
}


@pytest.mark.parametrize("rule", TABLE)
def test_a_run_goes_to(rule: str) -> None:
    servers, chosen = TABLE[rule]
    assert choose_by_prefix(servers, block_hashes(LONG, None)) == chosen


def test_a_prefix_is_one_for_the_same_salt_alone() -> None:
    index = PrefixIndex(1_000_000)
    index.add(block_hashes(LONG, "a"))
    assert index.match(block_hashes(LONG, "a")) == 100 // BLOCK_TOKENS
    assert index.match(block_hashes(LONG, "b")) == index.match(block_hashes(LONG, None)) == 0


def test_what_is_in_the_middle_of_another_prompt_is_no_prefix() -> None:
    index = PrefixIndex(1_000_000)
    index.add(block_hashes([*range(16), *range(100, 132)], None))
    assert index.match(block_hashes([*range(1, 17), *range(100, 132)], None)) == 0
    assert index.match(block_hashes([*range(16), *range(200, 232)], None)) == 1


def test_an_index_has_a_limit_and_keeps_the_beginnings_that_are_used() -> None:
    index = PrefixIndex(10 * BYTES_PER_BLOCK)
    shared = list(range(16))
    for number in range(50):
        index.add(block_hashes([*shared, *range(1000 * number, 1000 * number + 32)], None))
    assert len(index) == 10
    assert index.match(block_hashes(shared, None)) == 1


class Conversation:
    """One conversation. Its salt is its own: nothing is cached that its server did not see."""

    def __init__(self, running: TestPool, number: int) -> None:
        self._running = running
        self._number = number
        self._prompt: list[int] = []

    async def take_turn(self, turn: int) -> int:
        """Return how many tokens of the prompt were cached."""
        script = [{"say": f"Answer {turn} of {self._number} " + "and so on " * 8}]
        message = ("user", f"@@script {json.dumps(script)}")
        self._prompt += self._running.markup.render([message])
        request = request_of(self._prompt, salt=f"conversation {self._number}")
        steps = await steps_of(self._running.engine, request)
        self._prompt += tokens_of(steps)
        return steps[-1].cached_tokens


async def play_all(running: TestPool) -> list[int]:
    """Play conversations, many at a time; return the cached tokens of their follow-ups.

    The order is another one in each turn, so that chance alone brings none back to its server.
    """
    order = random.Random(7)
    conversations = [Conversation(running, number) for number in range(CONVERSATIONS)]
    places = asyncio.Semaphore(AT_ONCE)

    async def play(conversation: Conversation, turn: int) -> int:
        async with places:
            return await conversation.take_turn(turn)

    cached: list[int] = []
    for turn in range(TURNS):
        order.shuffle(conversations)
        results = await asyncio.gather(*(play(each, turn) for each in conversations))
        cached += results if turn else []
    return cached


async def play_conversations(**options: Any) -> tuple[float, list[int]]:
    """Return the share of follow-ups with cached tokens, and how many runs each server had."""
    async with pool(wires=["generate"] * 3, **options) as running:
        cached = await play_all(running)
        hits = sum(tokens > 0 for tokens in cached)
        return hits / len(cached), [len(server.requests) for server in running.servers]


async def test_follow_ups_go_to_the_server_that_has_the_prefix() -> None:
    hit_rate, runs = await play_conversations()
    assert hit_rate >= 0.95
    assert max(runs) <= 1.3 * min(runs)


async def test_random_routing_for_comparison_finds_less_than_two_thirds() -> None:
    chance = random.Random(1)

    def choose_by_chance(candidates: Sequence[Candidate], _: Sequence[int]) -> int:
        return chance.randrange(len(candidates))

    choose: Choose = choose_by_chance
    hit_rate, _ = await play_conversations(make=partial(TellingEngine, choose=choose))
    assert 0.2 < hit_rate < 2 / 3


async def test_a_prefix_that_all_share_does_not_pile_up_on_one_server() -> None:
    async with pool(wires=["generate"] * 3) as running:
        most = [0, 0, 0]

        def count(number: int) -> None:
            most[number] = max(most[number], running.servers[number].engine.running)

        async def note(number: int, _: int) -> None:
            count(number)

        for number, server in enumerate(running.servers):
            server.before_token = partial(note, number)
        await asyncio.gather(
            *(steps_of(running.engine, running.request(max_tokens=8)) for _ in range(90))
        )
        assert sum(len(server.requests) for server in running.servers) == 90
        assert max(most) <= 1.5 * 30 + BALANCE_RUNS
        assert min(len(server.requests) for server in running.servers) >= 15
