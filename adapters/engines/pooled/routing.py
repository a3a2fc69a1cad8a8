"""The rule by which a run gets its server: the longest known prefix, unless that is overloaded."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from antiphon.adapters.engines.pooled.prefixes import PrefixIndex

BALANCE_RUNS = 8
BALANCE_RATIO = 1.5
"""A server is overloaded with both `BALANCE_RUNS` runs and `BALANCE_RATIO` times as many runs more
than the least loaded one. Its cached prefix is then worth less than a free place."""


class Candidate(Protocol):
    """A server that a run may get."""

    running: int
    prefixes: PrefixIndex


Choose = Callable[[Sequence[Candidate], Sequence[int]], int]
"""Returns the position of the candidate to use for a prompt with these block hashes."""


def choose_by_prefix(candidates: Sequence[Candidate], hashes: Sequence[int]) -> int:
    """Return the candidate with the longest known prefix of those that are not overloaded.

    Of equal ones, the one with the fewest runs; of these, the one that has seen the least, so that
    conversations are spread over the memory of all servers.
    """
    limit = most_runs(min(each.running for each in candidates))
    return min(
        (number for number, each in enumerate(candidates) if each.running <= limit),
        key=lambda number: _rank(candidates[number], hashes),
    )


def most_runs(least: int) -> float:
    """Return how many runs a server may have if the least loaded one has `least`.

    >>> [most_runs(least) for least in (0, 4, 16, 40)]
    [8, 12, 24, 60.0]
    """
    return max(least + BALANCE_RUNS, least * BALANCE_RATIO)


def _rank(candidate: Candidate, hashes: Sequence[int]) -> tuple[int, int, int]:
    return (-candidate.prefixes.match(hashes), candidate.running, len(candidate.prefixes))
