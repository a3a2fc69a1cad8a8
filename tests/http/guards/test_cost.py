"""What guards cost where there are none: calls of functions, since a count is always the same."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from benchmarks.request_path import CallCounter, count_requests, file_of

from antiphon.entrypoints.process.event_loop import new_event_loop

SHORT, LONG = 10, 400
GUARD = "tests.http.guards.odd_guards:WordGuard"


def count(folder: Path, **settings: Any) -> dict[int, CallCounter]:
    """Return what requests call, by the number of words that the model writes."""
    requests = {
        str(words): {"input": f'@@script [{{"say":"word ","repeat":{words}}}]', "stream": True}
        for words in (SHORT, LONG)
    }
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        counted = runner.run(count_requests(folder, settings, requests))
    return {int(words): counter for words, counter in counted.items()}


def of_guards(counter: CallCounter) -> Counter[str]:
    """Return how often each function of the guards' modules was called."""
    calls: Counter[str] = Counter()
    for code, times in counter.ours().items():
        if "guard" in file_of(code) or "held_deltas" in file_of(code):
            calls[f"{Path(file_of(code)).name}:{code.co_qualname}"] += times
    return calls


@pytest.mark.one_process
def test_without_guards_none_of_their_code_is_called(tmp_path: Path) -> None:
    for counter in count(tmp_path).values():
        assert counter.ours().total() > 500
        assert not of_guards(counter)


@pytest.mark.one_process
def test_with_a_guard_they_are_counted(tmp_path: Path) -> None:
    """Else the other test would prove nothing."""
    counted = count(tmp_path, guard=[f"words={GUARD}"])
    short, long = (of_guards(counted[words]).total() for words in (SHORT, LONG))
    assert short > 100
    assert long > 10 * short
