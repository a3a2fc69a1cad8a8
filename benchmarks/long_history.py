"""Measure reading a long history: 2,000 items of 5 MB, as an agent sends them every turn.

    python -m benchmarks.long_history

It covers all steps from the bytes of the body to validated items, and to the items for the store.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from antiphon.domain.history import conversation as c
from antiphon.domain.requests.decoding import decode_request
from antiphon.entrypoints.http.wire.bodies import BodyLimits, check_complexity

ITEMS = 2_000
BYTES = 5_000_000
ROUNDS = 15
TEXT = 'A line of “code” or of prose, with a "quote" in it: {[(x)]}.\n'


def history(items: int, size: int) -> list[dict[str, Any]]:
    """Return turns of an agent: a question, a thought, a call, its output and an answer."""
    each = size // items
    text = (TEXT * (1 + each // len(TEXT)))[: each * 4 // 5]
    found: list[dict[str, Any]] = []
    for turn in range(-(-items // 5)):
        call_id = f"call_{turn}"
        said = {"type": "output_text", "text": text, "annotations": [], "logprobs": []}
        thought = {"type": "reasoning_text", "text": text}
        found += [
            {"role": "user", "content": text},
            {"type": "reasoning", "id": f"rs_{turn}", "summary": [], "content": [thought]},
            {
                "type": "function_call",
                "id": f"fc_{turn}",
                "status": "completed",
                "call_id": call_id,
                "name": "run",
                "arguments": json.dumps({"text": text}, ensure_ascii=False),
            },
            {"type": "function_call_output", "call_id": call_id, "output": text},
            {
                "type": "message",
                "id": f"msg_{turn}",
                "role": "assistant",
                "status": "completed",
                "content": [said],
            },
        ]
    return found[:items]


def body_of(items: Sequence[Mapping[str, Any]]) -> bytes:
    return json.dumps({"model": "m", "input": items}, ensure_ascii=False).encode()


def take_in(body: bytes) -> dict[str, float]:
    """Do all of it, and return the milliseconds of CPU of each step."""
    spent: dict[str, float] = {}

    def timed(name: str, work: Callable[[], Any]) -> Any:
        began = time.thread_time()
        result = work()
        spent[name] = (time.thread_time() - began) * 1e3
        return result

    timed("shape", lambda: check_complexity(body, BodyLimits()))
    request = timed("request", lambda: decode_request(body).request)
    entries = timed("items", lambda: c.entries(request.input))
    items = [entry.item for entry in entries]

    def check() -> None:
        c.check_ids([], items)
        c.check_call_output_pairs(items)
        c.items_for_model(items)

    timed("rules", check)
    timed(
        "resources", lambda: [c.to_resource(each, lambda prefix: f"{prefix}_1") for each in entries]
    )
    return spent | {"all": sum(spent.values())}


def main() -> None:
    body = body_of(history(ITEMS, BYTES))
    rounds = [take_in(body) for _ in range(ROUNDS)]
    print(f"{ITEMS} items, {len(body) / 1e6:.1f} MB, CPU, median and least of {ROUNDS} rounds:")
    for name in rounds[0]:
        values = [each[name] for each in rounds]
        print(f"{name:<10} {statistics.median(values):>6.1f} ms {min(values):>6.1f} ms")


if __name__ == "__main__":
    main()
