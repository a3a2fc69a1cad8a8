"""What a process writes, in lines: however it comes in pieces, and however long a line is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from antiphon.adapters.tool_servers.line_splitter import KEPT_BYTES, LineSplitter, TruncatedLine

MOST = 2 * KEPT_BYTES

texts = st.lists(st.binary(max_size=3 * MOST).map(lambda line: line.replace(b"\n", b"")))


@given(texts, st.integers(1, 3 * MOST))
def test_lines_are_the_same_in_any_pieces(lines: list[bytes], size: int) -> None:
    written = b"".join(line + b"\n" for line in lines)
    reader = LineSplitter(max_bytes=MOST)
    pieces = (written[at : at + size] for at in range(0, len(written), size))
    found = [line for piece in pieces for line in reader.feed(piece)]
    assert len(found) == len(lines)
    for line, read in zip(lines, found, strict=True):
        if len(line) > MOST:
            assert read == TruncatedLine(line[:KEPT_BYTES], line[-KEPT_BYTES:])
        else:
            assert read == line


def test_a_line_without_end_takes_no_memory() -> None:
    reader = LineSplitter(max_bytes=MOST)
    for _ in range(1000):
        assert list(reader.feed(b"x" * 1000)) == []
        assert len(reader._begun) <= MOST + 1000
