"""Read the lines of an input file, a few of them in memory at a time."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing

from antiphon.domain.errors import BodyTooLarge

BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class InputLine:
    """A line with its number, from 1 on. Reading the text of one that is too long raises."""

    __slots__ = ("_text", "number")

    def __init__(self, number: int, text: bytes | None) -> None:
        self.number = number
        self._text = text

    @property
    def text(self) -> bytes:
        """Raises: BodyTooLarge."""
        if self._text is None:
            raise BodyTooLarge("The line is longer than a request may be.", code="line_too_long")
        return self._text


async def read_lines(blocks: AsyncGenerator[bytes], *, max_bytes: int) -> AsyncGenerator[InputLine]:
    """Yield the lines that are not blank. Those of more than `max_bytes` have no text.

    Raises: what reading the blocks raises.
    """
    number, pending, is_too_long = 1, bytearray(), False
    async with aclosing(blocks):
        async for block in blocks:
            first, *others = block.split(b"\n")
            for part, starts_line in ((first, False), *((each, True) for each in others)):
                if starts_line:
                    if (line := _line(number, pending, is_too_long)) is not None:
                        yield line
                    number, pending, is_too_long = number + 1, bytearray(), False
                is_too_long = is_too_long or len(pending) + len(part) > max_bytes
                if is_too_long:
                    pending.clear()
                else:
                    pending += part
    if (line := _line(number, pending, is_too_long)) is not None:
        yield line


def _line(number: int, text: bytearray, is_too_long: bool) -> InputLine | None:
    if is_too_long:
        return InputLine(number, None)
    if number == 1:
        text = text.removeprefix(BYTE_ORDER_MARK)
    return InputLine(number, bytes(text)) if text.strip() else None
