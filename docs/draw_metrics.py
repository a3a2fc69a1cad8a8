"""Write docs/reference/metrics.md from the table of instruments: `make docs`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from antiphon.application.ports import Instrument
from antiphon.application.telemetry.instruments import INSTRUMENTS

PAGE = Path(__file__).parent / "reference" / "metrics.md"
INTRO = """# Metrics

Drawn from the table in `application/telemetry/instruments.py` by `make docs`; a test checks that it
is up to date. [Look into a server](../guides/observability.md#metrics) says how to switch metrics
on, and how to read them.
"""
KINDS = {
    "counter": ("Counters", "They only grow, until the server ends."),
    "histogram": (
        "Histograms",
        "Each has the series `…_bucket`, `…_sum` and `…_count`.",
    ),
    "gauge": ("Gauges", "Read when Prometheus asks for them."),
}
END = """
The metrics of the process (`process_…`) and, where vLLM runs in it, those of vLLM (`vllm:…`) come
along under their own names.
"""


def page() -> str:
    parts = [INTRO]
    for kind, (title, text) in KINDS.items():
        chosen = [each for each in INSTRUMENTS if each.kind == kind]
        parts += [f"\n## {title}\n\n{text}\n\n", *_table(chosen)]
    return "".join([*parts, END])


def _table(instruments: Sequence[Instrument]) -> Iterator[str]:
    has_buckets = instruments[0].kind == "histogram"
    yield f"| Metric | Labels |{' Buckets |' if has_buckets else ''} What it tells |\n"
    yield f"|---|---|{'---|' if has_buckets else ''}---|\n"
    for each in instruments:
        labels = ", ".join(f"`{label.replace('.', '_')}`" for label in each.labels)
        buckets = f" {_shown(each.buckets)} |" if has_buckets else ""
        yield f"| `{each.exposed_name}` | {labels} |{buckets} {each.help} |\n"


def _shown(buckets: Sequence[float]) -> str:
    return f"{len(buckets)} from {buckets[0]:g} to {buckets[-1]:g}"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
