"""ANTIPHON_TEST_EVERY=3 tries each third case of the attacks that take long, for a short check.

By default, all cases are tried.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path

import pytest

EVERY = int(os.environ.get("ANTIPHON_TEST_EVERY", "1"))
FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    seen: Counter[str] = Counter()
    left = []
    for item in items:
        test = item.nodeid.partition("[")[0]
        if FOLDER in item.path.parents and item.get_closest_marker("faults"):
            if seen[test] % EVERY:
                left.append(item)
            seen[test] += 1
    if left:
        config.hook.pytest_deselected(items=left)
        items[:] = [item for item in items if item not in set(left)]
