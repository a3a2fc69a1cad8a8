"""The order in which tenants take turns when runs are leased."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping


def take_turns(
    runs: Iterable[tuple[int, str]], limit: int, *, held: Mapping[str, int], per_tenant: int | None
) -> list[int]:
    """Return the numbers of the runs to lease, lowest first; `runs` are (number, tenant).

    In each round, each tenant gets its oldest run. A tenant that holds runs already joins as many
    rounds later, and gets none after round `per_tenant`.

    >>> take_turns([(1, "a"), (2, "a"), (3, "b")], 2, held={}, per_tenant=None)
    [1, 3]
    >>> take_turns([(1, "a"), (2, "a"), (3, "b")], 2, held={"b": 2}, per_tenant=2)
    [1, 2]
    """
    rounds = dict(held)
    turns = []
    for number, tenant in sorted(runs):
        rounds[tenant] = rounds.get(tenant, 0) + 1
        if per_tenant is None or rounds[tenant] <= per_tenant:
            turns.append((rounds[tenant], number))
    return sorted(number for _, number in heapq.nsmallest(limit, turns))
