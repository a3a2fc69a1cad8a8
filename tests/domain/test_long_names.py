"""Names of megabytes, which only attackers send, cost no more than usual ones."""

from __future__ import annotations

from time import process_time

from antiphon.domain.kinds.mcp import MAX_PART_CHARS, model_name


def test_the_name_of_a_tool_ends_after_what_any_tool_has() -> None:
    started_s = process_time()
    assert model_name("a/" * 5_000_000, "read page" * 1_000_000).startswith("a_a_a_")
    assert len(model_name("a" * 10_000, "b" * 10_000)) <= 2 * MAX_PART_CHARS + len("__")
    assert process_time() - started_s < 0.25  # 0.6 s if all of it was looked at
    assert model_name("my docs", "read.page") == "my_docs__read_page"
