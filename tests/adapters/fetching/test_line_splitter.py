"""Splitting output into lines, in chunks of any size and with lines of any length."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from antiphon.adapters.tool_servers.line_splitter import END_BYTES, LineSplitter, TruncatedLine

MAX_BYTES = 2 * END_BYTES

lines_of_bytes = st.lists(
    st.binary(max_size=3 * MAX_BYTES).map(lambda line: line.replace(b"\n", b""))
)


@given(lines_of_bytes, st.integers(1, 3 * MAX_BYTES))
def test_lines_do_not_depend_on_the_chunks(lines: list[bytes], size: int) -> None:
    content = b"".join(line + b"\n" for line in lines)
    splitter = LineSplitter(max_bytes=MAX_BYTES)
    chunks = (content[start : start + size] for start in range(0, len(content), size))
    results = [result for chunk in chunks for result in splitter.feed(chunk)]
    assert len(results) == len(lines)
    for line, result in zip(lines, results, strict=True):
        if len(line) > MAX_BYTES:
            assert result == TruncatedLine(line[:END_BYTES], line[-END_BYTES:])
        else:
            assert result == line


def test_an_endless_line_takes_little_memory() -> None:
    splitter = LineSplitter(max_bytes=MAX_BYTES)
    for _ in range(1000):
        assert list(splitter.feed(b"x" * 1000)) == []
        assert len(splitter._buffer) <= MAX_BYTES + 1000
